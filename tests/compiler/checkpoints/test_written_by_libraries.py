"""Checkpoints that the libraries of the dialects wrote: read to the values that they read again."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme
from compressed_tensors.quantization.lifecycle.forward import dequantize
from numpy.typing import NDArray
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torchao.prototype.mx_formats.mx_tensor import MXTensor
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import (
    Float8WeightOnlyConfig,
    Int8WeightOnlyConfig,
    PerTensor,
    quantize_,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Convention
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.checkpoints.synthetic.gpt_oss import write_gpt_oss
from mxc.errors import CheckpointError

VECTORS = Path(__file__).parent / "vectors"
X = torch.randn(48, 192, generator=torch.Generator().manual_seed(1)) * torch.exp2(
    torch.arange(48.0)[:, None] - 20
)
X[5, :64] = 0


def same(tensor: CanonicalTensor, expected: NDArray[Any]) -> None:
    """Bit for bit, NaN and the sign of zero included; and the same when read in pieces."""
    expected = np.ascontiguousarray(expected, np.float32).reshape(-1, expected.shape[-1])
    pieces = [tensor.decode(piece) for piece in tensor.pieces(chunk=500)]
    for values in (tensor.values(), np.concatenate(pieces)):
        assert values.shape == expected.shape
        assert np.array_equal(values.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        (
            "quark-current",
            {
                "self_attn.q_proj": ("mxfp4", "even"),
                "self_attn.k_proj": ("mxfp6e2m3", "floor"),
                "self_attn.v_proj": ("mxfp6e3m2", "ceil"),
                "self_attn.o_proj": ("mxfp4", "ceil"),
                "mlp.up_proj": ("f8_e4m3", "unstated"),
            },
        ),
        *(
            (
                name,
                {
                    "self_attn.q_proj": ("mxfp4", "even"),
                    "self_attn.k_proj": ("mxfp6e2m3", "even"),
                    "self_attn.v_proj": ("mxfp6e3m2", "even"),
                },
            )
            for name in ("quark-mx", "quark-legacy")
        ),
        *(
            (f"modelopt-{name}", dict.fromkeys(("self_attn.q_proj", "mlp.gate_proj"), found))
            for name, found in (
                ("nvfp4", ("nvfp4", "unstated")),
                ("mxfp4", ("mxfp4", "rceil")),
                ("mxfp8", ("mxfp8e4m3", "rceil")),
                ("fp8", ("f8_e4m3", "unstated")),
            )
        ),
    ],
)
def test_quark_and_modelopt(name: str, formats: dict[str, Any]) -> None:
    source = open_checkpoint(VECTORS / name)
    expected = load_file(VECTORS / name / "values.safetensors")
    assert source.dialect == name.split("-")[0]
    assert len(expected) == len(formats)
    for layer, found in formats.items():
        tensor = source.tensor(f"model.layers.0.{layer}.weight")
        assert (tensor.format, tensor.recipe) == found
        values = expected[tensor.name]
        if name == "modelopt-nvfp4":
            # Its table of values has +0 for the code of -0.
            assert np.array_equal(values == 0, tensor.values() == 0)
            values = np.where(values == 0, tensor.values(), values)
        same(tensor, values)
    plain = {t.name for t in source.tensors.values() if t.format == "bf16"}
    assert {"lm_head.weight", "model.norm.weight"} <= plain
    assert not {k for k in source.tensors if "scale" in k}


def test_declared_activations() -> None:
    def of(name: str, module: str) -> ActivationFormat | None:
        return open_checkpoint(VECTORS / name).quantization.activations(module)

    layer = "model.layers.0.self_attn.q_proj"
    assert of("modelopt-mxfp8", layer) == ActivationFormat(format="mxfp8e4m3", recipe="rceil")
    assert of("modelopt-nvfp4", layer) == ActivationFormat(format="nvfp4", dynamic=False)
    assert of("modelopt-nvfp4", "lm_head") is None
    # The global config of the vector quantizes activations, the config of the layer does not.
    assert of("quark-current", layer) is None
    assert of("quark-current", "model.layers.0.mlp.other_proj") == ActivationFormat(
        format="mxfp4", recipe="even"
    )


FORMATS_OF_CT = {
    "MXFP4": ("mxfp4-pack-quantized", "mxfp4"),
    "MXFP6A16": ("mxfp6-pack-quantized", "mxfp6e2m3"),
    "MXFP8": ("mxfp8-quantized", "mxfp8e4m3"),
    "NVFP4": ("nvfp4-pack-quantized", "nvfp4"),
    "FP8": ("float-quantized", "f8_e4m3"),
    "FP8_BLOCK": ("float-quantized", "f8_e4m3"),
    "W4A16": ("pack-quantized", "int4"),
    "W8A16": ("pack-quantized", "i8"),
}


def compressed(
    preset: str, module: str = "model.layers.0.mlp.down_proj"
) -> tuple[dict[str, torch.Tensor], torch.Tensor, dict[str, Any], str]:
    """The tensors that compressed-tensors writes of X, its own values of them, and the config."""
    scheme: QuantizationScheme = preset_name_to_scheme(preset, ["Linear"])
    format, _ = FORMATS_OF_CT[preset]
    group = scheme.weights.group_size
    x = X[:, :128] if preset in ("FP8_BLOCK", "W4A16", "W8A16") else X
    state = {"weight": x.clone()}
    blocks = x.reshape(len(x), -1, group or x.shape[1])
    amax = blocks.abs().amax(-1).clamp(min=2.0**-100)
    if preset == "NVFP4":
        state["weight_global_scale"] = torch.tensor([448 * 6 / x.abs().max()])
        state["weight_scale"] = (
            (amax / 6 * state["weight_global_scale"]).to(torch.float8_e4m3fn).float()
        )
    elif preset == "FP8":
        state["weight_scale"] = (x.abs().max() / 448).reshape(1)
    elif preset == "FP8_BLOCK":
        state["weight_scale"] = (x.abs().max() / 448).reshape(1, 1)
    elif format == "pack-quantized":
        state["weight_scale"] = amax / {4: 7, 8: 127}[scheme.weights.num_bits]
    else:
        largest = {4: 6, 6: 7.5, 8: 448}[scheme.weights.num_bits]
        state["weight_scale"] = torch.exp2(torch.ceil(torch.log2(amax / largest)))
    compressor = BaseCompressor.get_value_from_registry(format)
    stored = compressor.compress(state, scheme)
    values = compressor.decompress(stored, scheme)["weight"].float()
    if preset == "NVFP4":
        # Decompression ends in bfloat16, whatever the weight was; the same without this rounding.
        packed = stored["weight_packed"]
        values = dequantize(
            unpack_fp4_from_uint8(packed, len(packed), packed.shape[1] * 2).float(),
            stored["weight_scale"].float(),
            args=scheme.weights,
            global_scale=stored["weight_global_scale"],
            dtype=torch.float32,
        )
    tensors = {f"{module}.{k}": v.contiguous() for k, v in stored.items()}
    return tensors, values, json.loads(scheme.model_dump_json()), format


@pytest.mark.parametrize("where", ["top", "group"])
@pytest.mark.parametrize("preset", FORMATS_OF_CT)
def test_compressed_tensors(tmp_path: Path, preset: str, where: str) -> None:
    tensors, values, group, format = compressed(preset)
    tensors["model.layers.1.mlp.down_proj.weight"] = X.to(torch.bfloat16)
    tensors["lm_head.weight"] = X.to(torch.bfloat16)
    save_file(tensors, tmp_path / "model.safetensors")
    group["format"] = format if where == "group" else None
    config = {
        "quant_method": "compressed-tensors",
        "format": format if where == "top" else "mixed-precision",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head", r"re:.*layers\.1\..*"],
    }
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    source = open_checkpoint(tmp_path)
    tensor = source.tensor("model.layers.0.mlp.down_proj.weight")
    assert (source.dialect, tensor.format) == ("compressed-tensors", FORMATS_OF_CT[preset][1])
    if preset == "NVFP4":
        assert tensor.tensor_scale.convention is Convention.DIVIDE
    same(tensor, values)
    same(source.tensor("lm_head.weight"), X.to(torch.bfloat16).float())
    assert set(source.tensors) == {
        "lm_head.weight",
        "model.layers.0.mlp.down_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
    }


MX_ELEMENTS = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp6e2m3": "fp6_e2m3",
    "mxfp6e3m2": "fp6_e3m2",
    "mxfp8e4m3": torch.float8_e4m3fn,
    "mxfp8e5m2": torch.float8_e5m2,
}


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("format", [*MX_ELEMENTS, "nvfp4"])
def test_torchao(tmp_path: Path, format: str, swizzled: bool) -> None:
    x = torch.cat([X, X, X, X])  # 192 rows: a tile of scales and a half
    if format == "nvfp4":
        factor = per_tensor_amax_to_scale(x.abs().max())
        weight = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=factor, is_swizzled_scales=swizzled)
    else:
        weight = MXTensor.to_mx(x, MX_ELEMENTS[format], is_swizzled_scales=swizzled)
    bias = torch.zeros(3)
    tensors, metadata = flatten_tensor_state_dict({"model.a.weight": weight, "model.a.bias": bias})
    save_file(tensors, tmp_path / "model.safetensors", metadata)
    source = open_checkpoint(tmp_path / "model.safetensors")
    tensor = source.tensor("model.a.weight")
    assert (source.dialect, tensor.format, tensor.shape) == ("torchao", format, (192, 192))
    same(tensor, weight.dequantize(torch.float32).numpy())
    assert set(source.tensors) == {"model.a.weight", "model.a.bias"}


@pytest.mark.parametrize(
    ("config", "block"),
    [
        (Int8WeightOnlyConfig(version=2), (1, 192)),
        (Int8WeightOnlyConfig(version=2, granularity=PerTensor()), None),
        (Float8WeightOnlyConfig(version=2), (1, 192)),
    ],
)
def test_torchao_under_float_scales(
    tmp_path: Path,
    config: Float8WeightOnlyConfig | Int8WeightOnlyConfig,
    block: tuple[int, int] | None,
) -> None:
    layer = torch.nn.Linear(192, 48, bias=False)
    layer.weight.data = X.clone()
    quantize_(layer, config)
    tensors, metadata = flatten_tensor_state_dict({"model.a.weight": layer.weight})
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata)
    tensor = open_checkpoint(path).tensor("model.a.weight")
    assert (tensor.format[0], tensor.block) == ("i" if "Int8" in str(config) else "f", block)
    same(tensor, layer.weight.dequantize().float().numpy())
    for part, message in (
        ("zero_point", "weights with zero points are not read"),
        ("act_pre_scale", "which .* has as a part, is not supported"),
    ):
        save_file(tensors | {f"model.a._weight_{part}": torch.ones(48, 1)}, path, metadata)
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


def test_gpt_oss_in_transformers(tmp_path: Path) -> None:
    write_gpt_oss(tmp_path, tokenizer=False)
    source = open_checkpoint(tmp_path)
    tensor = source.tensor("model.layers.1.mlp.experts.gate_up_proj")
    blocks, scales = (
        torch.from_numpy(part.read().reshape(part.shape).copy())
        for part in (tensor.elements, tensor.scales)
    )
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    same(tensor, theirs.transpose(1, 2).numpy())
    assert (source.dialect, tensor.format, tensor.recipe) == ("gpt-oss", "mxfp4", "unstated")


def write_gguf(
    path: Path, architecture: str = "qwen3", **tensors: tuple[NDArray[Any], Any]
) -> None:
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_uint32(f"{architecture}.attention.head_count", 4)
    writer.add_uint32(f"{architecture}.attention.head_count_kv", 2)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b\udc80".encode(errors="surrogateescape")])
    for name, (data, kind) in tensors.items():
        writer.add_tensor(name.replace("__", "."), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


GGML = gguf.GGMLQuantizationType


@pytest.mark.parametrize("kind", [GGML.MXFP4, GGML.Q8_0, GGML.BF16, GGML.F16, GGML.F32])
def test_gguf(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "a.gguf"
    x = (X * 2.0**-12).numpy()  # what f16 holds
    raw = gguf.quants.quantize(x, kind)
    write_gguf(path, blk__0__attn_q__weight=(raw, kind))
    tensor = open_checkpoint(path).tensor("model.layers.0.self_attn.q_proj.weight")
    assert tensor.format == kind.name.lower()
    same(tensor, gguf.quants.dequantize(raw, kind))


def test_gguf_nvfp4(tmp_path: Path) -> None:
    """Quantized by nobody: gguf only reads it. Every scale that it has, and every pair of codes."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (64, 8, 36), np.uint8)
    raw[:, :, :4] = np.arange(64 * 8 * 4).reshape(64, 8, 4) % 0x7F
    raw = raw.reshape(64, -1)
    path = tmp_path / "a.gguf"
    write_gguf(
        path,
        blk__0__ffn_up__weight=(raw, GGML.NVFP4),
        blk__0__ffn_up__scale=(np.array([0.37], np.float32), GGML.F32),
    )
    source = open_checkpoint(path)
    tensor = source.tensor("model.layers.0.mlp.up_proj.weight")
    assert list(source.tensors) == [tensor.name]
    theirs = gguf.quants.dequantize(raw, GGML.NVFP4)
    assert np.array_equal(tensor.tensor_scale.read(), np.array([0.37], np.float32))
    bare = dataclasses.replace(tensor, tensor_scale=None)
    assert np.array_equal(bare.values(), theirs)
    assert np.allclose(tensor.values(), theirs * np.float32(0.37), rtol=1e-6, atol=0)
