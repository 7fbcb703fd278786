"""Quantize a bf16 checkpoint to mxfp4, compile it for this CPU, and generate tokens.

The checkpoint is random and small; replace it by your own folder.
"""

import tempfile
from pathlib import Path

import mxc
from mxc.compiler.checkpoints.synthetic.decoder import write_decoder

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
}

with tempfile.TemporaryDirectory() as folder:
    place = Path(folder)
    write_decoder(place / "bf16", CONFIG)
    result = mxc.quantize_checkpoint(place / "bf16", place / "mxfp4", "mxfp4")
    print(f"{result.bytes_read} bytes became {result.bytes_written}; {result.total.sqnr:.1f} dB")
    artifact = mxc.compile(place / "mxfp4", "cpu", place / "model.mxc", max_sequence_length=64)
    model = mxc.load(artifact.path)
    sequence = model.sequence()
    logits = sequence.feed([1, 2, 3])
    tokens = []
    for _ in range(8):
        tokens.append(int(logits[-1].argmax()))
        logits = sequence.feed(tokens[-1:])
    print(tokens)
    assert result.bytes_written < 0.5 * result.bytes_read
    assert len(tokens) == 8
