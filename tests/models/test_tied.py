"""A plain head that is the embedding: one weight, looked up and multiplied, on CPUs and gfx950."""

import json
from pathlib import Path

import numpy as np
import pytest
import transformers

import mxc
from mxc.artifact.manifest import REPORT, WEIGHTS
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.checkpoints.synthetic.decoder import write_decoder

#: Share of the root mean square of all logits, as in test_logits.py.
TOLERANCE = 2e-5
EMBEDDING, VOCABULARY, HIDDEN = "model.embed_tokens.weight", 139, 96


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_one_weight(dtype: str, tmp_path: Path) -> None:
    """Rows that fill no panel. On gfx950 f32 weights have no kernel of ours."""
    config = transformers.LlamaConfig(
        hidden_size=HIDDEN,
        intermediate_size=160,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=1,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    ).to_dict() | {"architectures": ["LlamaForCausalLM"]}
    write_decoder(tmp_path / "checkpoint", config, dtype=dtype)
    found = []
    for target, device in (("cpu", None), ("gfx950", "simulator")):
        artifact = mxc.compile(
            tmp_path / "checkpoint",
            target,
            tmp_path / f"{target}.mxc",
            activations="f32",
            max_sequence_length=4,
        )
        matmuls = json.loads((artifact.path / REPORT).read_text())["matmuls"]
        kernels = {row["name"]: row["kernel"] for row in matmuls}
        assert kernels["lm_head"].startswith("mxc_") or (target, dtype) == ("gfx950", "F32")
        weights = {n: w for n, w in artifact.manifest.weights.items() if w.source == EMBEDDING}
        assert [*weights] == [EMBEDDING]
        assert weights[EMBEDDING].layout == ("panel16x4" if target == "cpu" else "identity")
        held = read_archive(artifact.path / WEIGHTS)[EMBEDDING].bytes
        rows = -(-VOCABULARY // 16) * 16 if target == "cpu" else VOCABULARY
        assert held == rows * HIDDEN * {"BF16": 2, "F32": 4}[dtype]
        sequence = mxc.load(artifact.path, device=device).sequence()
        found.append(np.concatenate([sequence.feed([138, 0, 17]), sequence.feed([5])]))
    on_cpu, on_gpu = found
    assert np.abs(on_gpu - on_cpu).max() <= TOLERANCE * np.sqrt(np.mean(on_cpu**2))
