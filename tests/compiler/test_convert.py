"""Conversions: every value kept, the way back to the same bytes, and what is refused by name."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import preset_name_to_scheme
from safetensors.torch import load_file, save_file

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.layers.quantization import ActivationFormat
from mxc.compiler.checkpoints.source import CheckpointSource
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.inspect.compare import compare
from mxc.errors import CheckpointError, RequestError
from mxc.formats.formats import block_format

VECTORS = Path(__file__).parent / "checkpoints" / "vectors"
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt-oss")
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1), tokenizer=False)
    return folder


def matrix(format: str, rows: int, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random elements and scales of a weight, as safetensors has them."""
    f = block_format(format)
    elements = RNG.integers(0, 256, (rows, f.packed_bytes(depth)), np.uint8)
    if f.element.bits == 8:
        elements &= 0x77  # no NaN
    scales = RNG.integers(100, 126, (rows, f.blocks(depth)), np.uint8)
    kind = {"mxfp8e4m3": torch.float8_e4m3fn}.get(format, torch.uint8)
    scale_kind = torch.float8_e4m3fn if format == "nvfp4" else torch.uint8
    return torch.from_numpy(elements).view(kind), torch.from_numpy(scales).view(scale_kind)


def group(format: str) -> dict[str, Any]:
    preset = {"mxfp4": "MXFP4A16", "mxfp8e4m3": "MXFP8A16", "nvfp4": "NVFP4A16"}[format]
    return json.loads(preset_name_to_scheme(preset, ["Linear"]).model_dump_json())


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """Write a checkpoint of compressed-tensors: layers of one format, under an architecture."""

    def write(format: str, model_type: str, names: Sequence[str], **config: Any) -> Path:
        tensors = {
            "model.embed_tokens.weight": torch.randn(16, 64).bfloat16(),
            "model.norm.weight": torch.randn(64).bfloat16(),
            "model.layers.0.input_layernorm.weight": torch.randn(64).bfloat16(),
        }
        for name in names:
            elements, scales = matrix(format, 32, 128)
            packed = "weight" if format == "mxfp8e4m3" else "weight_packed"
            tensors |= {f"{name}.{packed}": elements, f"{name}.weight_scale": scales}
            if format == "nvfp4":
                tensors[f"{name}.weight_global_scale"] = torch.tensor([2.0**-7])
        folder = tmp_path / "source"
        folder.mkdir()
        save_file(tensors, folder / "model.safetensors")
        declared = {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": group(format)},
            "ignore": [],
        }
        raw = {
            "model_type": model_type,
            "hidden_size": 64,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 16,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            **config,
        }
        (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": declared}))
        return folder

    return write


def round_trip(source: Path, through: str, back: str, tmp_path: Path) -> list[CheckpointSource]:
    """Convert there and back; the sources of all three."""
    there = tmp_path / f"there-{through}{'.gguf' if through == 'gguf' else ''}"
    convert(source, through, there)
    convert(there, back, tmp_path / "back")
    found = [open_checkpoint(p) for p in (source, there, tmp_path / "back")]
    assert compare(found[0], found[2])["result"] == "same bytes"
    middle = compare(found[0], found[1])
    assert middle["result"] in ("same bytes", "same values"), middle
    configs = [
        {k: v for k, v in source.config.items() if k != "quantization_config"}
        for source in (found[0], found[2])
    ]
    assert configs[0] == configs[1]
    return found


def test_gpt_oss_to_gguf_and_back(gpt_oss: Path, tmp_path: Path) -> None:
    source, there, back = round_trip(gpt_oss, "gguf", "gpt-oss", tmp_path)
    assert (there.dialect, back.dialect) == ("gguf", "gpt-oss")
    # Every tensor of every file, not only as canonical ones.
    stored: list[dict[str, torch.Tensor]] = [{}, {}]
    for folder, tensors in zip((gpt_oss, tmp_path / "back"), stored, strict=True):
        for file in folder.glob("*.safetensors"):
            tensors |= load_file(file)
    assert stored[0].keys() == stored[1].keys()
    for name, tensor in stored[0].items():
        assert tensor.dtype == stored[1][name].dtype
        assert torch.equal(tensor, stored[1][name])
    # The library reads what we wrote, and dequantizes it to what transformers would.
    reader = gguf.GGUFReader(tmp_path / "there-gguf.gguf")
    tensors = {t.name: t for t in reader.tensors}
    gate = tensors["blk.0.ffn_gate_exps.weight"]
    assert gate.tensor_type == gguf.GGMLQuantizationType.MXFP4
    ours = source.tensor("model.layers.0.mlp.experts.gate_up_proj")
    expected = ours.values().reshape(ours.shape)[:, 0::2]
    assert np.array_equal(gguf.quants.dequantize(gate.data, gate.tensor_type), expected)
    bias = tensors["blk.0.ffn_up_exps.bias"]
    assert bias.tensor_type == gguf.GGMLQuantizationType.F32
    theirs = source.tensor("model.layers.0.mlp.experts.gate_up_proj_bias").values()[:, 1::2]
    assert np.array_equal(bias.data, theirs)
    architecture = reader.get_field("general.architecture").contents()
    assert architecture == "gpt-oss"
    assert reader.get_field("gpt-oss.rope.freq_base").contents() == 150000.0


@pytest.mark.parametrize("through", ["quark", "gguf"])
def test_llama(model: Callable[..., Path], tmp_path: Path, through: str) -> None:
    """Rows of queries and keys change their order for GGUF, and come back."""
    names = [f"model.layers.0.self_attn.{n}_proj" for n in "qkvo"]
    folder = model("mxfp4", "llama", names)
    source, there, _ = round_trip(folder, through, "compressed-tensors", tmp_path)
    if through == "gguf":
        x = source.tensor(f"{names[0]}.weight").values()
        theirs = x.reshape(4, 2, 4, 128).swapaxes(1, 2).reshape(x.shape)
        tensors = {t.name: t for t in gguf.GGUFReader(there.path).tensors}
        found = tensors["blk.0.attn_q.weight"]
        assert np.array_equal(gguf.quants.dequantize(found.data, found.tensor_type), theirs)
        norm = tensors["blk.0.attn_norm.weight"]
        assert norm.tensor_type == gguf.GGMLQuantizationType.F32


def test_experts(model: Callable[..., Path], tmp_path: Path) -> None:
    names = [
        f"model.layers.0.mlp.experts.{e}.{n}_proj" for e in range(3) for n in ("gate", "up", "down")
    ]
    experts = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    folder = model("mxfp4", "qwen3_moe", names, **experts)
    source, there, _ = round_trip(folder, "gguf", "compressed-tensors", tmp_path)
    tensors = {t.name: t for t in gguf.GGUFReader(there.path).tensors}
    found = tensors["blk.0.ffn_down_exps.weight"]
    assert found.shape.tolist() == [128, 32, 3]
    expected = [source.tensor(f"{names[3 * e + 2]}.weight").values() for e in range(3)]
    assert np.array_equal(gguf.quants.dequantize(found.data, found.tensor_type), np.stack(expected))


@pytest.mark.parametrize("through", ["quark", "compressed-tensors", "gguf"])
def test_experts_of_gpt_oss(gpt_oss: Path, tmp_path: Path, through: str) -> None:
    """In one tensor, a linear layer for each, gate and up apart: the same bytes come back."""
    there, back = tmp_path / f"there{'.gguf' if through == 'gguf' else ''}", tmp_path / "back"
    convert(gpt_oss, through, there)
    convert(there, "gpt-oss", back)
    found = compare(open_checkpoint(gpt_oss), open_checkpoint(back))
    assert found["result"] == "same bytes"
    name = {"quark": "1.gate_up_proj.weight", "compressed-tensors": "1.up_proj.weight"}.get(through)
    if name is None:
        return
    whole = open_checkpoint(gpt_oss).tensor("model.layers.0.mlp.experts.gate_up_proj")
    wanted = whole.values().reshape(whole.shape)[1]
    one = open_checkpoint(there).tensor(f"model.layers.0.mlp.experts.{name}")
    assert np.array_equal(one.values(), wanted if through == "quark" else wanted[1::2])


@pytest.mark.parametrize("through", ["compressed-tensors", "gguf"])
def test_what_quark_wrote_of_gpt_oss(tmp_path: Path, through: str) -> None:
    source, there = VECTORS / "quark-gpt-oss", tmp_path / f"there-{through}.gguf"
    convert(source, through, there)
    convert(there, "quark", tmp_path / "back")
    stored = [load_file(f / "model.safetensors") for f in (source, tmp_path / "back")]
    assert stored[0].keys() == stored[1].keys()
    assert all(torch.equal(stored[0][name], stored[1][name]) for name in stored[0])


def test_what_quark_wrote_of_mixtral(tmp_path: Path) -> None:
    """GGUF has all experts of a projection in one; back they have their published names."""
    there = tmp_path / "there.gguf"
    convert(VECTORS / "quark-mixtral", "gguf", there)
    convert(there, "quark", tmp_path / "back")
    first, last = open_checkpoint(VECTORS / "quark-mixtral"), open_checkpoint(tmp_path / "back")
    pairs = {"mlp.experts.1.up_proj": "block_sparse_moe.experts.1.w3"}
    for theirs, ours in (pairs | {"mlp.gate": "block_sparse_moe.gate"}).items():
        assert np.array_equal(
            first.tensor(f"model.layers.0.{theirs}.weight").values(),
            last.tensor(f"model.layers.0.{ours}.weight").values(),
        )
    assert len(first.tensors) == len(last.tensors)


def test_plain_experts_are_written_as_the_module_has_them(tmp_path: Path) -> None:
    """[experts, in, out], from a file that has them so and from one that has them turned."""
    source, there = tmp_path / "source", tmp_path / "there.gguf"
    source.mkdir()
    config = json.loads((VECTORS / "quark-gpt-oss" / "config.json").read_text())
    del config["quantization_config"]
    (source / "config.json").write_text(json.dumps(config))
    stored = load_file(VECTORS / "quark-gpt-oss" / "values.safetensors")
    save_file(stored, source / "model.safetensors")
    convert(source, "gguf", there)
    for number, place in enumerate((source, there)):
        for dialect in ("quark", "gpt-oss"):
            convert(place, dialect, tmp_path / f"{dialect}-{number}")
            found = load_file(tmp_path / f"{dialect}-{number}" / "model.safetensors")
            assert found.keys() == stored.keys()
            assert all(torch.equal(found[name], stored[name]) for name in stored)


def test_nvfp4_with_an_exact_reciprocal(model: Callable[..., Path], tmp_path: Path) -> None:
    names = ["model.layers.0.mlp.down_proj"]
    round_trip(model("nvfp4", "qwen3", names), "gguf", "compressed-tensors", tmp_path)


@pytest.mark.parametrize("format", ["mxfp4", "mxfp8e4m3", "nvfp4"])
def test_compressed_tensors_reads_what_is_written(
    model: Callable[..., Path], tmp_path: Path, format: str
) -> None:
    name = "model.layers.0.mlp.down_proj"
    folder = model(format, "qwen3", [name])
    convert(folder, "compressed-tensors", tmp_path / "again")
    tensors = load_file(tmp_path / "again" / "model.safetensors")
    raw = json.loads((tmp_path / "again" / "config.json").read_text())["quantization_config"]
    preset = {"mxfp4": "MXFP4A16", "mxfp8e4m3": "MXFP8A16", "nvfp4": "NVFP4A16"}[format]
    state = {k.removeprefix(f"{name}."): v for k, v in tensors.items() if k.startswith(name)}
    compressor = BaseCompressor.get_value_from_registry(raw["format"])
    found = compressor.decompress(state, preset_name_to_scheme(preset, ["Linear"]))["weight"]
    expected = open_checkpoint(folder).tensor(f"{name}.weight").values()
    assert np.array_equal(found.float().numpy(), torch.from_numpy(expected).to(found.dtype).float())


def test_several_formats_and_recipes(tmp_path: Path) -> None:
    """Quark's config names each layer that differs from the most."""
    import shutil

    folder = tmp_path / "vectors"
    shutil.copytree(VECTORS / "quark-mx", folder)
    source, _, back = round_trip(folder, "quark", "quark", tmp_path)
    for name, tensor in source.tensors.items():
        assert (back.tensor(name).format, back.tensor(name).recipe) == (
            tensor.format,
            tensor.recipe,
        )
    assert {t.format for t in back.tensors.values()} == {
        "bf16", "mxfp4", "mxfp6e2m3", "mxfp6e3m2",
    }  # fmt: skip


def test_what_modelopt_declares(tmp_path: Path) -> None:
    assert convert(VECTORS / "modelopt-mxfp8", "quark", tmp_path / "out").notes == ()
    first, second = (open_checkpoint(p) for p in (VECTORS / "modelopt-mxfp8", tmp_path / "out"))
    layer = "model.layers.0.mlp.gate_proj"
    for source in (first, second):
        assert source.tensor(f"{layer}.weight").recipe == "rceil"
        assert source.quantization.activations(layer) == ActivationFormat(
            format="mxfp8e4m3", recipe="rceil"
        )
    found = convert(VECTORS / "modelopt-mxfp8", "compressed-tensors", tmp_path / "ct")
    assert found.notes == ("the output has no word for the recipe of the scales: rceil",)
    assert open_checkpoint(tmp_path / "ct").quantization.activations(layer) == ActivationFormat(
        format="mxfp8e4m3"
    )
    found = convert(VECTORS / "modelopt-mxfp4", "quark", tmp_path / "mxfp4")
    assert found.notes == (
        "quark does not say what the source says of activations: f8_e4m3, recipe unstated",
    )


@pytest.mark.parametrize(
    ("source", "to", "message"),
    [
        ("modelopt-nvfp4", "compressed-tensors", r"divides the scales; .* by up to \d\.\de-08 of"),
        ("modelopt-nvfp4", "gguf", "rows of a multiple of 64"),
        ("modelopt-nvfp4", "quark", "it holds mxfp4, "),
        ("modelopt-mxfp8", "gguf", "MXFP4, NVFP4, Q8_0 and plain"),
        ("modelopt-mxfp4", "gpt-oss", "only weights of all experts"),
        ("quark-mx", "compressed-tensors", "it holds mxfp4, mxfp6e2m3, mxfp8e4m3, nvfp4"),
    ],
)
def test_refused_by_name(tmp_path: Path, source: str, to: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=rf"model\.layers\.0\..*which .* {message}"):
        convert(VECTORS / source, to, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_nan_scale_is_no_number_of_ggml(gpt_oss: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "nan"
    shutil.copytree(gpt_oss, folder)
    for file in folder.glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            if name.endswith("gate_up_proj_scales"):
                tensors[name][1, 2, 0] = 255
        save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"gate_up_proj is mxfp4 .*a scale is NaN"):
        convert(folder, "gguf", tmp_path / "a.gguf")
    assert [p.name for p in tmp_path.iterdir()] == ["nan"]


def test_gguf_of_others_has_no_config(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "qwen3")
    writer.add_tensor("output.weight", np.ones((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match=r"a\.gguf: \w+ is missing"):
        convert(tmp_path / "a.gguf", "quark", tmp_path / "out")


def test_what_convert_refuses(gpt_oss: Path, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="unknown dialect 'onnx'; mxc writes gpt-oss, quark"):
        convert(gpt_oss, "onnx", tmp_path / "bad")
    with pytest.raises(RequestError, match="holds the source"):
        convert(gpt_oss, "gpt-oss", gpt_oss, force=True)


def test_shards(gpt_oss: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxc.compiler.convert.writing._SHARD", 40000)
    convert(gpt_oss, "gpt-oss", tmp_path / "out")
    files = sorted(p.name for p in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    assert compare(open_checkpoint(gpt_oss), open_checkpoint(tmp_path / "out"))["result"] == (
        "same bytes"
    )
