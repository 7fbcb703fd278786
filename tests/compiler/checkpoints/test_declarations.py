"""What configs say in the wild: other spellings, larger groups, caches, whole lists of layers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.layers.quantization import (
    ActivationFormat,
    CheckpointQuantization,
    Rule,
    Scheme,
    Syntax,
    excluding,
)
from mxc.errors import CheckpointError

RNG = np.random.default_rng(3)
LAYER = "model.layers.0.mlp.down_proj"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder: tensors, and config.json with a quantization_config; returns the folder."""

    def written(tensors: dict[str, torch.Tensor], declared: dict[str, Any]) -> Path:
        save_file(tensors, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": declared}))
        return tmp_path

    return written


def codes(rows: int, columns: int) -> tuple[torch.Tensor, NDArray[Any]]:
    """Random packed e2m1, and their numbers."""
    raw = RNG.integers(0, 256, (rows, columns // 2), np.uint8)
    nibbles = np.stack((raw & 15, raw >> 4), axis=-1).reshape(rows, columns)
    return torch.from_numpy(raw), nibbles.view(ml_dtypes.float4_e2m1fn).astype(np.float32)


def e4m3(*shape: int) -> torch.Tensor:
    raw = RNG.integers(0x20, 0x50, shape, np.uint8)
    return torch.from_numpy(raw).view(torch.float8_e4m3fn)


# ---- modelopt ----


@pytest.mark.parametrize("group", [16, 32])
@pytest.mark.parametrize("algorithm", ["W4A8_NVFP4_FP8", "w4a8_nvfp4_fp8"])
def test_nvfp4_in_groups(write: Callable[..., Path], algorithm: str, group: int) -> None:
    elements, numbers = codes(4, 64)
    scales = e4m3(4, 64 // group)
    factor = torch.tensor(0.25)
    tensors = {
        f"{LAYER}.weight": elements,
        f"{LAYER}.weight_scale": scales,
        f"{LAYER}.weight_scale_2": factor,
    }
    declared = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": group}
    tensor = open_checkpoint(write(tensors, declared)).tensor(f"{LAYER}.weight")
    wide = np.repeat(scales.float().numpy(), group, axis=1)
    assert (tensor.format, tensor.block) == ("nvfp4", (1, 16))
    assert np.array_equal(tensor.values(), numbers * wide * np.float32(0.25))
    with pytest.raises(CheckpointError, match="wants group_size 32 or 16, found 64"):
        open_checkpoint(write(tensors, {**declared, "group_size": 64}))


def test_fp8_in_tiles(write: Callable[..., Path]) -> None:
    weight, scales = e4m3(256, 384), torch.rand(2, 1, 3, 1)
    declared = {"quant_method": "modelopt", "quant_algo": "fp8_pb_wo"}
    tensors = {f"{LAYER}.weight": weight, f"{LAYER}.weight_scale": scales}
    tensor = open_checkpoint(write(tensors, declared)).tensor(f"{LAYER}.weight")
    wide = np.kron(scales.reshape(2, 3).numpy(), np.ones((128, 128), np.float32))
    assert np.array_equal(tensor.values(), weight.float().numpy() * wide)


@pytest.mark.parametrize(
    ("said", "format"),
    [
        ({"kv_cache_quant_algo": "FP8"}, "f8_e4m3"),
        ({"kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}}, "f8_e4m3"),
        ({"kv_cache_scheme": "NVFP4"}, "nvfp4"),
        ({}, None),
    ],
)
def test_cache_of_modelopt(
    write: Callable[..., Path], said: dict[str, Any], format: str | None
) -> None:
    declared = {"quant_method": "modelopt", "quant_algo": "NVFP4", **said}
    found = open_checkpoint(write({"a.weight": torch.zeros(4)}, declared)).quantization.cache
    assert found == (None if format is None else ActivationFormat(format=format, dynamic=False))


# ---- compressed-tensors ----


def compressed(**more: Any) -> dict[str, Any]:
    weights = {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"}
    group = {"targets": ["Linear"], "weights": weights}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"transform_config": {"config_groups": {"u": {"apply": [{"location": "input"}]}}}},
         "transform_config.u: transforms of activations .*'input'.* are not supported"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "'sparse-24-bitmask' is not suppor"),
    ],
)  # fmt: skip
def test_what_is_more_than_quantization(
    write: Callable[..., Path], more: dict[str, Any], message: str
) -> None:
    tensors = {"a.weight": torch.zeros(4)}
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(write(tensors, compressed(**more)))
    merged = {"config_groups": {"v": {"apply": [{"location": "weight_output"}]}}}
    open_checkpoint(write(tensors, compressed(transform_config=merged, sparsity_config={})))


def test_shapes_of_integers_that_lie(write: Callable[..., Path]) -> None:
    declared = compressed(format="pack-quantized")
    declared["config_groups"]["group_0"]["weights"] |= {"type": "int"}
    tensors = {
        f"{LAYER}.weight_packed": torch.zeros(4, 8, dtype=torch.int32),
        f"{LAYER}.weight_scale": torch.ones(4, 2),
        f"{LAYER}.weight_shape": torch.tensor([4, 64]),
    }
    tensor = open_checkpoint(write(tensors, declared)).tensor(f"{LAYER}.weight")
    assert np.array_equal(tensor.values(), np.full((4, 64), -8, np.float32))
    tensors[f"{LAYER}.weight_shape"] = torch.tensor([4, 96])
    with pytest.raises(CheckpointError, match=r"int4 \[4, 96\] in .* wants I32 \[4, 12\]"):
        open_checkpoint(write(tensors, declared))
    tensors[f"{LAYER}.weight_shape"] = torch.tensor([8, 64])
    with pytest.raises(CheckpointError, match=r"weight_shape says \[8, 64\], .* is I32 \[4, 8\]"):
        open_checkpoint(write(tensors, declared))


# ---- auto-round ----


def auto_round(**more: Any) -> dict[str, Any]:
    return {
        "autoround_version": "0.16.1",
        "bits": 4,
        "block_name_to_quantize": "model.layers",
        "data_type": "mx_fp_rceil",
        "act_bits": 4,
        "act_data_type": "mx_fp_rceil",
        "act_dynamic": True,
        "group_size": 32,
        "packing_format": "auto_round:llm_compressor",
        "quant_method": "auto-round",
        "sym": True,
        **more,
    }


def test_auto_round(write: Callable[..., Path]) -> None:
    elements, numbers = codes(4, 64)
    scales = torch.from_numpy(RNG.integers(110, 130, (4, 2), np.uint8))
    other, plain = "model.layers.1.mlp.down_proj", torch.ones(4, 64).bfloat16()
    tensors = {
        f"{LAYER}.weight_packed": elements,
        f"{LAYER}.weight_scale": scales,
        f"{other}.weight": plain,
        "model.layers.0.mlp.other_proj.weight": plain.clone(),
        # Outside of the blocks nothing is quantized.
        "lm_head.weight": plain.clone(),
    }
    extra = {other: {"bits": 16}, r".*other_proj.*": {"bits": 16}}
    source = open_checkpoint(write(tensors, auto_round(extra_config=extra)))
    tensor = source.tensor(f"{LAYER}.weight")
    wide = np.repeat(2.0 ** (scales.numpy() - 127.0), 32, axis=1)
    assert (source.dialect, tensor.format, tensor.recipe) == ("auto-round", "mxfp4", "rceil")
    assert np.array_equal(tensor.values(), (numbers * wide).astype(np.float32))
    assert source.quantization.activations(LAYER) == ActivationFormat(
        format="mxfp4", recipe="rceil"
    )
    assert source.quantization.scheme("lm_head") is None


@pytest.mark.parametrize("tiles", [False, True])
def test_auto_round_in_fp8(write: Callable[..., Path], tiles: bool) -> None:
    weight, scales = e4m3(128, 256), torch.rand(1, 2) if tiles else torch.rand(128)
    name = "weight_scale_inv" if tiles else "weight_scale"
    tensors = {f"{LAYER}.weight": weight, f"{LAYER}.{name}": scales.bfloat16()}
    declared = auto_round(
        bits=8, data_type="fp8_e4m3", group_size=[128, 128] if tiles else -1, act_bits=16
    )
    tensor = open_checkpoint(write(tensors, declared)).tensor(f"{LAYER}.weight")
    each = scales.bfloat16().float().numpy()
    wide = np.repeat(np.repeat(each, 128, 0), 128, 1) if tiles else each[:, None]
    assert np.array_equal(tensor.values(), weight.float().numpy() * wide)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"data_type": "int", "packing_format": "auto_round:auto_gptq"},
         "data_type 'int' of 4 bits .*auto_gptq'.* is not supported"),
        ({"group_size": 16}, "wanted group_size 32 for mxfp4, found 16"),
        ({"rotation_config": {"block_size": 32}}, "rotated activations are not supported"),
    ],
)  # fmt: skip
def test_auto_round_that_is_refused(
    write: Callable[..., Path], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(write({"a.weight": torch.zeros(4)}, auto_round(**more)))


# ---- lists of layers ----

ONE, OTHER = Scheme(format="mxfp4"), Scheme(format="nvfp4")


def test_holders() -> None:
    """modelopt names a layer, or what holds it, with the prefix of a wrapper or without."""
    rules = (
        Rule(pattern="model.language_model.layers.0.mlp.experts", syntax=Syntax.HOLDER, scheme=ONE),
        Rule(pattern="model.layers.0.mlp.gate_proj", syntax=Syntax.HOLDER, scheme=OTHER),
    )
    declared = CheckpointQuantization(rules=rules)
    assert declared.scheme("model.layers.0.mlp.experts.3.up_proj") is ONE
    assert declared.scheme("model.layers.0.mlp.experts") is ONE
    assert declared.scheme("model.language_model.layers.0.mlp.gate_proj") is OTHER
    assert declared.scheme("model.layers.0.mlp.expert") is None
    assert declared.scheme("model.layers.10.mlp.experts.3.up_proj") is None


@pytest.mark.parametrize("first", ["re:.*gate_proj", "model.layers.0.mlp.gate_proj"])
def test_the_first_that_names_a_layer(first: str) -> None:
    """Whether it is looked up or matched."""
    patterns = [first, "re:.*mlp.*", "model.layers.0.mlp.gate_proj", "re:.*gate_proj"]
    schemes = [ONE, OTHER, OTHER, OTHER]
    rules = tuple(
        Rule(pattern=pattern, syntax=Syntax.REGEX, scheme=scheme)
        for pattern, scheme in zip(patterns, schemes, strict=True)
    )
    assert CheckpointQuantization(rules=rules).scheme("model.layers.0.mlp.gate_proj") is ONE
    assert CheckpointQuantization(rules=rules).scheme("model.layers.0.mlp.up_proj") is OTHER


@pytest.mark.parametrize("syntax", Syntax)
def test_regular_expressions_in_every_list(syntax: Syntax) -> None:
    declared = CheckpointQuantization(
        default=ONE, rules=excluding([r"re:.*layers\.\d+\.mlp"], syntax)
    )
    assert declared.scheme("model.layers.12.mlp.gate") is None
    assert declared.scheme("model.layers.x.mlp.gate") is ONE
