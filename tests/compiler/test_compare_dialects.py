"""A checkpoint beside its own conversions: the same parameters, other names and stacking."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.inspect.compare import compare
from mxc.errors import CheckpointError

VECTORS = Path(__file__).parent / "checkpoints" / "vectors"


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt-oss")
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1), tokenizer=False)
    return folder


@pytest.mark.parametrize("to", ["quark", "compressed-tensors", "torchao", "gguf"])
def test_experts_are_compared_whatever_holds_them(gpt_oss: Path, tmp_path: Path, to: str) -> None:
    """In one tensor, a layer each, gate and up together or apart: the same values."""
    there = tmp_path / f"there{'.gguf' if to == 'gguf' else ''}"
    convert(gpt_oss, to, there)
    sources = open_checkpoint(gpt_oss), open_checkpoint(there)
    for pair in (sources, (sources[1], sources[0])):
        found = compare(*pair)
        assert found["result"] in ("same bytes", "same values"), found
        assert not found["only_in_first"] + found["only_in_second"]
    # A name of either, and of what it is taken apart to.
    experts = "model.layers.0.mlp.experts"
    for name in (f"{experts}.gate_up_proj", f"{experts}.down_proj_bias"):
        assert compare(*sources, name)["result"] in ("same bytes", "same values")
    one = compare(*sources, f"{experts}.1.up_proj.weight")
    assert [row["result"] for row in one["tensors"]] == ["same bytes"]
    with pytest.raises(CheckpointError, match=r"no tensor model\.layers\.7\.x among"):
        compare(*sources, "model.layers.7.x")


def test_an_expert_that_differs_is_found(gpt_oss: Path, tmp_path: Path) -> None:
    """Rows of gate and up are interleaved: row 6 of both is row 3 of gate."""
    convert(gpt_oss, "compressed-tensors", tmp_path / "there")
    file = tmp_path / "there" / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.experts.1.gate_proj"
    tensors[f"{name}.weight_packed"][3, 0] ^= 5
    save_file(tensors, file)
    found = compare(open_checkpoint(gpt_oss), open_checkpoint(tmp_path / "there"))
    (row,) = [row for row in found["tensors"] if row["result"] == "different"]
    assert (row["name"], row["elements"], row["first"][0]["row"]) == (f"{name}.weight", 1, 3)


def test_names_of_mixtral_are_one_parameter(tmp_path: Path) -> None:
    convert(VECTORS / "quark-mixtral", "gguf", tmp_path / "there.gguf")
    found = compare(
        open_checkpoint(VECTORS / "quark-mixtral"), open_checkpoint(tmp_path / "there.gguf")
    )
    assert found["result"] in ("same bytes", "same values"), found
