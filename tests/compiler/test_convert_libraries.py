"""Conversions to torchao and modelopt: what their own loaders make of it, and the way back."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.prototype.safetensors.safetensors_support import (
    flatten_tensor_state_dict,
    unflatten_tensor_state_dict,
)

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.dialects.torchao import ELEMENTS
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.convert.writing import CONVERTED
from mxc.compiler.inspect.compare import compare
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.errors import CheckpointError

VECTORS = Path(__file__).parent / "checkpoints" / "vectors"
NAME = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plain")
    torch.manual_seed(0)
    tensors = {NAME: torch.randn(48, 128).bfloat16(), "model.norm.weight": torch.ones(8).bfloat16()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3", "dtype": "bfloat16"}))
    return folder


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    """What torchao makes of the file; flattened again it is the file."""
    tensors = load_file(folder / "model.safetensors")
    with safe_open(folder / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    found, left = unflatten_tensor_state_dict(tensors, metadata)
    assert left == {}
    again, said = flatten_tensor_state_dict(found)
    assert again.keys() == tensors.keys()
    assert [name for name in tensors if raw(again[name]) != raw(tensors[name])] == []
    assert {name: json.loads(text) for name, text in said.items()} == {
        name: json.loads(text)
        for name, text in metadata.items()
        if name not in ("format", CONVERTED)
    }
    return found


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6e2m3", "mxfp8e4m3", "nvfp4"])
def test_torchao_reads_what_is_written(format: str, plain: Path, tmp_path: Path) -> None:
    """And it is what torchao itself makes of the weights."""
    recipe = None if format == "nvfp4" else "floor"
    quantize_checkpoint(plain, tmp_path / "out", format, recipe=recipe, dialect="torchao")
    found = loaded(tmp_path / "out")[NAME]
    weight = load_file(plain / "model.safetensors")[NAME]
    if format == "nvfp4":
        factor = per_tensor_amax_to_scale(weight.abs().max())
        wanted = NVFP4Tensor.to_nvfp4(weight, per_tensor_scale=factor)
    else:
        element = next(name for name, known in ELEMENTS.items() if known == format)
        wanted = MXTensor.to_mx(weight, getattr(torch, element, element), 32)
    assert type(found) is type(wanted)
    assert raw(found.qdata) == raw(wanted.qdata)
    assert raw(found.scale) == raw(wanted.scale)
    values = open_checkpoint(tmp_path / "out").tensor(NAME).values()
    assert np.array_equal(values, wanted.dequantize(torch.float32).numpy())


@pytest.mark.parametrize(
    ("vector", "back"),
    [("modelopt-nvfp4", "modelopt"), ("modelopt-mxfp8", "quark"), ("quark-gpt-oss", "quark")],
)
def test_torchao_there_and_back(vector: str, back: str, tmp_path: Path) -> None:
    convert(VECTORS / vector, "torchao", tmp_path / "there")
    loaded(tmp_path / "there")
    convert(tmp_path / "there", back, tmp_path / "back")
    first, last = (
        load_file(f / "model.safetensors") for f in (VECTORS / vector, tmp_path / "back")
    )
    assert {name for name in first if "input_scale" not in name} == last.keys()
    assert [name for name in last if raw(first[name]) != raw(last[name])] == []


def test_modelopt_has_what_it_had(tmp_path: Path) -> None:
    source, out = VECTORS / "modelopt-nvfp4", tmp_path / "out"
    convert(source, "modelopt", out)
    first, last = (load_file(folder / "model.safetensors") for folder in (source, out))
    assert first.keys() == last.keys()
    for name, tensor in first.items():
        assert (tensor.dtype, tensor.shape) == (last[name].dtype, last[name].shape)
        assert raw(tensor) == raw(last[name])
    for folder in (source, out):
        said = json.loads((folder / "hf_quant_config.json").read_text())["quantization"]
        assert (said["quant_algo"], said["group_size"]) == ("NVFP4", 16)
    assert compare(open_checkpoint(source), open_checkpoint(out))["result"] == "same bytes"


def test_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"which modelopt .* holds nvfp4"):
        convert(VECTORS / "modelopt-mxfp8", "modelopt", tmp_path / "a")
    with pytest.raises(CheckpointError, match=r"up_proj.weight is f8_e4m3 .* which torchao "):
        convert(VECTORS / "quark-current", "torchao", tmp_path / "b")
    assert list(tmp_path.iterdir()) == []


def test_modelopt_quantized(plain: Path, tmp_path: Path) -> None:
    """The arithmetic of a tensor scale that multiplies, as torchao has it."""
    for dialect in ("modelopt", "torchao"):
        quantize_checkpoint(plain, tmp_path / dialect, "nvfp4", dialect=dialect)
    found, wanted = (open_checkpoint(tmp_path / name) for name in ("modelopt", "torchao"))
    assert (found.dialect, wanted.dialect) == ("modelopt", "torchao")
    assert compare(found, wanted)["result"] == "same bytes"
    said = json.loads((tmp_path / "modelopt" / "hf_quant_config.json").read_text())
    assert said["quantization"]["quant_algo"] == "W4A16_NVFP4"
