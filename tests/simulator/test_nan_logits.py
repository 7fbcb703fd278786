"""NaN scales of weights give NaN logits, on the simulator as on the CPU."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss

#: A scale of E8M0 that is NaN.
NAN = 255


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a gpt-oss of one layer in which all scales of experts are NaN."""
    folder = tmp_path_factory.mktemp("nan") / "checkpoint"
    options = GptOssOptions(num_hidden_layers=1, layer_types=("sliding_attention",), vocab_size=512)
    write_gpt_oss(folder, options, shards=1, tokenizer=False)
    file = folder / "model.safetensors"
    tensors = dict(load_file(file))
    scales = [n for n in tensors if n.endswith("_scales")]
    assert len(scales) == 2
    for name in scales:
        tensors[name][:] = NAN
    save_file(tensors, file, metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("target", ["gfx950", "cpu"])
def test_logits_are_nan(target: str, checkpoint: Path) -> None:
    artifact = checkpoint.parent / f"{target}.mxc"
    mxc.compile(
        checkpoint,
        target=target,
        output=artifact,
        max_sequence_length=32,
        activations="bf16",
        allow_nan_scales=True,
        listing=False,
    )
    device = None if target == "cpu" else "simulator"
    sequence = mxc.load(artifact, device=device).sequence()
    logits = np.concatenate([sequence.feed([5, 17, 200, 3, 77, 402]), sequence.feed([9])])
    assert np.isnan(logits).all()
