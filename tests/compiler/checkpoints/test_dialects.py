"""What is written by hand: DeepSeek, the original gpt-oss, and contradictions."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.dialects.gpt_oss_original import recognises
from mxc.compiler.checkpoints.files.tensors import Checkpoint
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.inspect.compare import compare
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS

RNG = np.random.default_rng(5)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a folder: tensors, and config.json with a quantization_config; returns the folder."""

    def written(
        tensors: dict[str, torch.Tensor], declared: dict[str, Any] | None = None, /, **config: Any
    ) -> Path:
        save_file(tensors, tmp_path / "model.safetensors")
        if declared is not None:
            config["quantization_config"] = declared
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return written


def fp8(rows: int, columns: int) -> torch.Tensor:
    codes = RNG.integers(0, 256, (rows, columns), np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


def tiled(weight: torch.Tensor, scales: torch.Tensor, size: int = 128) -> NDArray[Any]:
    """The values of a weight in tiles, in float64: products of 8 and 24 bits are exact there."""
    wide = np.kron(scales.double().numpy(), np.ones((size, size)))
    return weight.float().numpy() * wide[: weight.shape[0], : weight.shape[1]]


# ---- DeepSeek ----

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


def test_deepseek_v3(write: Callable[..., Path]) -> None:
    """Sizes that are no multiples of the tile, as its kv_a_proj has."""
    weight, scales = fp8(200, 300), torch.rand(2, 3)
    layer = "model.layers.0.self_attn.kv_a_proj_with_mqa"
    folder = write(
        {
            f"{layer}.weight": weight,
            f"{layer}.weight_scale_inv": scales,
            "model.norm.weight": torch.ones(4).bfloat16(),
        },
        FP8,
    )
    source = open_checkpoint(folder)
    found = source.tensor(f"{layer}.weight")
    assert (source.dialect, found.format, found.block) == ("deepseek", "f8_e4m3", (128, 128))
    expected = tiled(weight, scales).astype(np.float32)
    assert np.array_equal(found.values(), expected)
    assert np.array_equal(found.values(120, 20), expected[120:140])
    pieces = list(found.pieces(chunk=1000))
    assert [p.start for p in pieces] == [0, 128]
    assert np.array_equal(np.concatenate([found.decode(p) for p in pieces]), expected)
    assert set(source.tensors) == {f"{layer}.weight", "model.norm.weight"}


@pytest.fixture
def deepseek_v4(write: Callable[..., Path]) -> tuple[dict[str, torch.Tensor], Callable[[], Path]]:
    packed = torch.from_numpy(RNG.integers(-128, 128, (64, 48), np.int8))
    scales = torch.from_numpy(RNG.integers(110, 130, (64, 3), np.uint8))
    dense = torch.from_numpy(RNG.integers(110, 130, (2, 2), np.uint8))
    tensors = {
        "layers.0.ffn.experts.0.w1.weight": packed,
        "layers.0.ffn.experts.0.w1.scale": scales.view(torch.float8_e8m0fnu),
        "layers.0.attn.wo_b.weight": fp8(192, 256),
        "layers.0.attn.wo_b.scale": dense.view(torch.float8_e8m0fnu),
    }
    return tensors, lambda: write(tensors, {**FP8, "scale_fmt": "ue8m0"}, expert_dtype="fp4")


def test_deepseek_v4(deepseek_v4: tuple[dict[str, torch.Tensor], Callable[[], Path]]) -> None:
    tensors, folder = deepseek_v4
    source = open_checkpoint(folder())
    expert = source.tensor("layers.0.ffn.experts.0.w1.weight")
    assert (expert.format, expert.shape) == ("mxfp4", (64, 96))
    raw = tensors["layers.0.ffn.experts.0.w1.weight"].numpy().view(np.uint8)
    codes = np.stack((raw & 15, raw >> 4), axis=-1).reshape(64, 96)
    scale = tensors["layers.0.ffn.experts.0.w1.scale"].float().numpy()
    values = codes.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(expert.values(), values * np.repeat(scale, 32, axis=1))
    # Tiles with scales that are powers of two are blocks of 32 with no value changed.
    dense = source.tensor("layers.0.attn.wo_b.weight")
    assert (dense.format, dense.block) == ("mxfp8e4m3", (1, 32))
    found = tensors["layers.0.attn.wo_b.weight"], tensors["layers.0.attn.wo_b.scale"].float()
    assert np.array_equal(dense.values(), tiled(*found).astype(np.float32))


@pytest.mark.parametrize("dtype", [None, "fp8"])
def test_fp4_that_the_config_denies(
    write: Callable[..., Path],
    deepseek_v4: tuple[dict[str, torch.Tensor], Callable[[], Path]],
    dtype: str | None,
) -> None:
    tensors, _ = deepseek_v4
    config = {} if dtype is None else {"expert_dtype": dtype}
    with pytest.raises(CheckpointError, match=r"experts\.0\.w1\.weight is I8 \[64, 48\], two fp4"):
        open_checkpoint(write(tensors, FP8, **config))


# ---- gpt-oss ----


@pytest.fixture
def original(tmp_path: Path) -> tuple[Path, Path]:
    """A checkpoint of gpt-oss under OpenAI's names, and the same under those of transformers."""
    theirs = tmp_path / "hf"
    write_gpt_oss(theirs, GptOssOptions(num_hidden_layers=1), tokenizer=False, shards=1)
    tensors = load_file(theirs / "model.safetensors")
    layer, block = "model.layers.0.", "block.0."
    attention = [f"{layer}self_attn.{n}_proj" for n in "qkv"]
    renamed = {
        "embedding.weight": tensors["model.embed_tokens.weight"],
        "norm.scale": tensors["model.norm.weight"],
        "unembedding.weight": tensors["lm_head.weight"],
        f"{block}attn.norm.scale": tensors[f"{layer}input_layernorm.weight"],
        f"{block}attn.sinks": tensors[f"{layer}self_attn.sinks"],
        f"{block}mlp.norm.scale": tensors[f"{layer}post_attention_layernorm.weight"],
    }
    for kind in ("weight", "bias"):
        renamed[f"{block}attn.qkv.{kind}"] = torch.cat([tensors[f"{n}.{kind}"] for n in attention])
        renamed[f"{block}attn.out.{kind}"] = tensors[f"{layer}self_attn.o_proj.{kind}"]
        renamed[f"{block}mlp.gate.{kind}"] = tensors[f"{layer}mlp.router.{kind}"]
    for ours, name in (("mlp1", "gate_up_proj"), ("mlp2", "down_proj")):
        stem = f"{layer}mlp.experts.{name}"
        renamed[f"{block}mlp.{ours}_weight.blocks"] = tensors[f"{stem}_blocks"]
        renamed[f"{block}mlp.{ours}_weight.scales"] = tensors[f"{stem}_scales"]
        renamed[f"{block}mlp.{ours}_bias"] = tensors[f"{stem}_bias"]
    raw = json.loads((theirs / "config.json").read_text())
    config = {
        key: raw[key]
        for key in ("num_hidden_layers", "vocab_size", "hidden_size", "intermediate_size",
                    "head_dim", "num_attention_heads", "num_key_value_heads", "sliding_window",
                    "experts_per_token", "rope_theta", "swiglu_limit", "initial_context_length")
    } | {"num_experts": raw["num_local_experts"], "rope_scaling_factor": 32.0,
         "rope_ntk_alpha": 1.0, "rope_ntk_beta": 32.0}  # fmt: skip
    folder = tmp_path / "original"
    folder.mkdir()
    save_file(renamed, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return theirs, folder


def test_the_original_gpt_oss(original: tuple[Path, Path]) -> None:
    theirs, folder = (open_checkpoint(p) for p in original)
    assert folder.dialect == "gpt-oss-original"
    found = compare(theirs, folder)
    assert (found["result"], found["only_in_first"]) == ("same bytes", [])
    from mxc.compiler.models.configs.gpt_oss import parse

    first, second = (parse(dict(s.config), "config.json") for s in (theirs, folder))
    for field in ("rope_scaling", "num_experts_per_tok", "rms_norm_eps", "layer_types"):
        assert getattr(first, field) == getattr(second, field)


def test_rows_that_the_config_denies(original: tuple[Path, Path]) -> None:
    _, folder = original
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | {"num_attention_heads": 3}))
    with pytest.raises(CheckpointError, match=r"attn\.qkv\..* asks for rows 96 \+ 64 \+ 64"):
        open_checkpoint(folder)


def test_parts_that_lack_the_other(original: tuple[Path, Path]) -> None:
    theirs, _ = original
    tensors = load_file(theirs / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj"
    assert not recognises(open_checkpoint_container(theirs))
    for part, missing in (("_scales", "without their scales"), ("_blocks", "without their blocks")):
        left = {k: v for k, v in tensors.items() if k != name + part}
        save_file(left, theirs / "model.safetensors")
        with pytest.raises(CheckpointError, match=missing):
            open_checkpoint(theirs)


def open_checkpoint_container(folder: Path) -> Checkpoint:
    from mxc.compiler.checkpoints.files.safetensors import read_checkpoint

    return read_checkpoint(folder)


# ---- contradictions ----

QUARK = {
    "quant_method": "quark",
    "global_quant_config": {
        "weight": {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1,
                   "scale_format": "e8m0", "scale_calculation_mode": "even"},
    },
    "exclude": ["lm_head"],
}  # fmt: skip
UP, HEAD = "model.layers.0.mlp.up_proj", "lm_head"


def quark(changes: Any = (), **left: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors of a quantized up_proj and a plain lm_head, after changes; and the config."""
    tensors = {
        f"{UP}.weight": torch.zeros(8, 32, dtype=torch.uint8),
        f"{UP}.weight_scale": torch.zeros(8, 2, dtype=torch.uint8),
        f"{HEAD}.weight": torch.zeros(8, 64).bfloat16(),
    }
    for name, value in dict(changes).items():
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    return tensors, {**QUARK, **left}


U8 = torch.uint8


@pytest.mark.parametrize(
    ("changes", "config", "message"),
    [
        ({f"{UP}.weight": torch.zeros(8, 64).bfloat16(), f"{UP}.weight_scale": None}, {},
         r"says that .*up_proj is mxfp4; in .*up_proj.weight is BF16 \[8, 64\] without scales"),
        ({f"{HEAD}.weight_scale": torch.zeros(8, 2, dtype=U8)}, {},
         r"lm_head.weight_scale says that lm_head is quantized, the config of quark excludes it"),
        ({f"{UP}.weight_scale": torch.zeros(8, 4, dtype=U8)}, {},
         r"up_proj.weight_scale is U8 \[8, 4\]; .* wants U8 or F8_E8M0 \[8, 2\]"),
        ({f"{UP}.weight_scale": torch.zeros(8, 2)}, {}, r"weight_scale is F32 \[8, 2\]"),
        ({f"{UP}.weight": torch.zeros(8, 64)}, {}, r"up_proj.weight is F32 .* wants U8 or I8"),
        ({f"{UP}.weight": torch.zeros(8, 33, dtype=U8)}, {}, "wants rows of whole blocks"),
        ({f"{UP}.weight": torch.zeros(32, dtype=U8)}, {}, "wants rows and columns"),
        ({f"{UP}.weight_zero_point": torch.zeros(1)}, {}, "zero points are not read"),
        ({f"{UP}.weight": None}, {}, r"up_proj has weight_scale, wanted weight too"),
        ({}, {"exclude": "lm_head"}, "wanted list for exclude, found 'lm_head'"),
        ({}, {"global_quant_config": {"weight": {"dtype": "int4"}}}, "dtype 'int4' .*is not supp"),
        ({}, {"global_quant_config": {"weight": [{}]}}, r"wanted one specification, found \[\{"),
        ({}, {"quant_method": "awq"}, "method 'awq' is not supported; supported: gpt-oss"),
    ],
)  # fmt: skip
def test_contradictions(
    write: Callable[..., Path], changes: dict[str, Any], config: dict[str, Any], message: str
) -> None:
    tensors, declared = quark()
    assert open_checkpoint(write(tensors, declared)).tensor(f"{UP}.weight").format == "mxfp4"
    tensors, declared = quark(changes, **config)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(write(tensors, declared))


def test_a_router_need_not_be_excluded(write: Callable[..., Path]) -> None:
    tensors, declared = quark({"model.layers.0.mlp.gate.weight": torch.zeros(4, 64).bfloat16()})
    source = open_checkpoint(write(tensors, declared))
    assert source.tensor("model.layers.0.mlp.gate.weight").format == "bf16"


def test_layers_that_only_kimi_k3_has_plain(write: Callable[..., Path]) -> None:
    """Its config neither lists nor excludes them."""
    name = "language_model.model.layers.0.mlp_res_proj.weight"
    tensors, declared = quark({name: torch.zeros(1, 64).bfloat16()})
    source = open_checkpoint(write(tensors, declared, model_type="kimi_k3"))
    assert source.tensor(name).format == "bf16"
    for other in ("llama", ["kimi_k3"]):
        with pytest.raises(CheckpointError, match=r"mlp_res_proj is mxfp4; .* without scales"):
            open_checkpoint(write(tensors, declared, model_type=other))


def test_two_configs_that_disagree(write: Callable[..., Path]) -> None:
    folder = write(
        {"lm_head.weight": torch.zeros(8, 64)},
        {"quant_method": "modelopt", "quant_algo": "MXFP8", "ignore": ["lm_head"]},
    )
    said = {"quantization": {"quant_algo": "MXFP8", "exclude_modules": ["lm_head"]}}
    (folder / "hf_quant_config.json").write_text(json.dumps(said))
    assert open_checkpoint(folder).dialect == "modelopt"
    said["quantization"]["exclude_modules"] = []
    (folder / "hf_quant_config.json").write_text(json.dumps(said))
    with pytest.raises(CheckpointError, match=r"mxfp8e4m3 except nothing, .* except lm_head"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"weights": {"num_bits": 3, "type": "int", "group_size": 32, "strategy": "group"}},
         "num_bits 3, type 'int', .* is not supported"),
        ({"weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group",
                      "symmetric": False}}, "symmetric False is not supported"),
        ({"format": "nvfp4-pack-quantized"}, "contradicts the arguments .* are mxfp4"),
        ({"format": "marlin-24"}, "format 'marlin-24' is not supported"),
    ],
)  # fmt: skip
def test_groups_that_are_not_read(
    write: Callable[..., Path], group: dict[str, Any], message: str
) -> None:
    weights = {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"}
    declared = {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, **group}},
    }
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(write({"a.weight": torch.zeros(4)}, declared))


def test_metadata_of_torchao_that_lies(tmp_path: Path) -> None:
    text = json.dumps({"_type": "MXTensor", "_data": {"elem_dtype": "fp6_e2m3", "block_size": 32}})
    metadata = {"tensor_names": '["a.weight"]', "a.weight": text}
    data = torch.full((4, 32), 64, dtype=U8)
    scale = torch.zeros(4, 1, dtype=U8).view(torch.float8_e8m0fnu)
    path = tmp_path / "a.safetensors"
    save_file({"a._weight_qdata": data, "a._weight_scale": scale}, path, metadata)
    with pytest.raises(CheckpointError, match="0x40 where six bits were wanted"):
        open_checkpoint(path).tensor("a.weight").values()
    save_file({"a._weight_qdata": data}, path, metadata)
    with pytest.raises(CheckpointError, match=r"wanted tensor a\._weight_scale, which no file"):
        open_checkpoint(path)
    metadata["a.weight"] = json.dumps({"_type": "Int4Tensor", "_data": {}})
    save_file({"a._weight_qdata": data, "a._weight_scale": scale}, path, metadata)
    with pytest.raises(CheckpointError, match="Int4Tensor is not supported; supported: MXTensor"):
        open_checkpoint(path)


def test_numbers_of_too_many_digits(tmp_path: Path) -> None:
    text = b'{"a":{"dtype":"F32","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}'
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    with pytest.raises(CheckpointError, match="not JSON"):
        open_checkpoint(tmp_path / "a.safetensors")


def test_formats_of_the_readers_are_known() -> None:
    from mxc.compiler.checkpoints.dialects import compressed_tensors, modelopt, quark, torchao

    for table in (quark._MX, torchao.ELEMENTS):
        assert set(table.values()) <= set(FORMATS)
    packed = {format for formats in compressed_tensors.PACKED.values() for format in formats}
    assert packed <= {*FORMATS, "f8_e4m3", "int4", "i8"}
    assert {f for f, _, _ in modelopt._ALGORITHMS.values()} <= {*FORMATS, "f8_e4m3"}
