"""Experts as libraries store them: every way comes to the same weights of the same program.

The vectors are what AMD Quark and NVIDIA's Model Optimizer wrote, beside the numbers that those
make of them, as transformers' modules have them (tests/compiler/checkpoints/vectors).
"""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from mxc.compiler.models.model import open_model
from mxc.errors import CheckpointError
from mxc.formats.reference import dequantize, quantize
from tests.models.packed_numbers import Numbers, numbers

VECTORS = Path(__file__).parents[1] / "compiler" / "checkpoints" / "vectors"


def folder_of(folder: Path, config: dict[str, object], tensors: dict[str, torch.Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(contiguous, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def assert_same(found: Numbers, wanted: Numbers) -> None:
    assert found.keys() == wanted.keys()
    assert [key for key in wanted if not np.array_equal(found[key], wanted[key])] == []


@pytest.mark.parametrize(
    ("vector", "format"),
    [
        ("quark-gpt-oss", "mxfp4"),
        ("quark-mixtral", "mxfp4"),
        ("quark-qwen3-moe", "mxfp4"),
        ("modelopt-gpt-oss", "nvfp4"),
    ],
)
def test_what_libraries_wrote(vector: str, format: str, tmp_path: Path) -> None:
    config = json.loads((VECTORS / vector / "config.json").read_text())
    del config["quantization_config"]
    values = load_file(VECTORS / vector / "values.safetensors")
    plain = open_model(folder_of(tmp_path / "plain", config, values))
    model = open_model(VECTORS / vector)
    packed = {bound.key: bound.format for bound in model.bound}
    experts = {packed[key] for key in packed if key.endswith(("gate_up_proj", "down_proj"))}
    assert experts == {format}
    assert_same(numbers(model), numbers(plain))


@pytest.mark.parametrize("name", ["gpt_oss", "mixtral", "qwen3_moe"])
def test_stacked_and_apart(name: str, tmp_path: Path) -> None:
    """The names of the module, those of published checkpoints, and each expert on its own."""
    vector = {"gpt_oss": "quark-gpt-oss"}.get(name, f"quark-{name.replace('_', '-')}")
    config = transformers.AutoConfig.from_pretrained(VECTORS / vector)
    del config.quantization_config
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "published")
    raw = json.loads((tmp_path / "published" / "config.json").read_text())
    stacked = model.state_dict()
    apart: dict[str, torch.Tensor] = {}
    for key, value in stacked.items():
        layer, mark, projection = key.partition(".experts.")
        if not mark:
            apart[key] = value
            continue
        module, kind = projection.removesuffix("_bias"), "weight"
        if module != projection:
            kind = "bias"
        elif name == "gpt_oss":
            value = value.mT
        for expert, each in enumerate(value):
            stem = f"{layer}.experts.{expert}"
            if module == "down_proj":
                apart[f"{stem}.down_proj.{kind}"] = each
                continue
            # gpt-oss has gate and up in turn, the others one below the other.
            halves = (each[::2], each[1::2]) if name == "gpt_oss" else each.chunk(2)
            for half, rows in zip(("gate_proj", "up_proj"), halves, strict=True):
                apart[f"{stem}.{half}.{kind}"] = rows
    wanted = numbers(open_model(tmp_path / "published"))
    for way, tensors in (("stacked", stacked), ("apart", apart)):
        assert_same(numbers(open_model(folder_of(tmp_path / way, raw, tensors))), wanted)


def test_quantized_while_packed(tmp_path: Path) -> None:
    """Plain experts of gpt-oss become blocks along their inputs, gate above up."""
    vector = VECTORS / "quark-gpt-oss"
    config = json.loads((vector / "config.json").read_text())
    del config["quantization_config"]
    folder = folder_of(tmp_path / "plain", config, load_file(vector / "values.safetensors"))
    found = numbers(open_model(folder, quantize_dense="mxfp8", recipe="even"))
    plain = numbers(open_model(folder))
    for part in ("gate_up_proj", "down_proj"):
        key = f"model.layers.0.mlp.experts.{part}"
        wanted = dequantize(quantize(plain[key], "mxfp8e4m3", recipe="even"))
        assert np.array_equal(found[key], wanted.reshape(plain[key].shape))


def test_blocks_along_the_outputs(tmp_path: Path) -> None:
    """What quantizes the module's [experts, in, out] along its last axis serves no product."""
    config = json.loads((VECTORS / "modelopt-gpt-oss" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "modelopt", "quant_algo": "MXFP4"}
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = {
        name: torch.zeros(2, 32, 32, dtype=torch.uint8),
        f"{name}_weight_scale": torch.zeros(2, 32, 2, dtype=torch.uint8),
    }
    with pytest.raises(CheckpointError, match=r"down_proj.*lie along the outputs.*linear layer"):
        open_model(folder_of(tmp_path / "turned", config, tensors))


def test_blocks_without_their_config(tmp_path: Path) -> None:
    config = json.loads((VECTORS / "quark-gpt-oss" / "config.json").read_text())
    del config["quantization_config"]
    name = "model.layers.0.mlp.experts.down_proj"
    tensors = {
        f"{name}_blocks": torch.zeros(2, 64, 1, 16, dtype=torch.uint8),
        f"{name}_scales": torch.zeros(2, 64, 1, dtype=torch.uint8),
    }
    with pytest.raises(CheckpointError, match=r"down_proj_blocks.*has no quantization_config"):
        open_model(folder_of(tmp_path / "model", config, tensors))


def test_the_same_tensor_under_two_names(tmp_path: Path) -> None:
    vector = VECTORS / "quark-mixtral"
    config = json.loads((vector / "config.json").read_text())
    del config["quantization_config"]
    tensors = load_file(vector / "values.safetensors")
    tensors["model.layers.0.block_sparse_moe.gate.weight"] = tensors[
        "model.layers.0.mlp.gate.weight"
    ].clone()
    with pytest.raises(CheckpointError, match=r"gate.weight a second time, under another name"):
        open_model(folder_of(tmp_path / "twice", config, tensors))
