"""Every way a checkpoint can be bad: refused, with the place and the cure in the message."""

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mxc.compiler.checkpoints.files.safetensors import read_checkpoint, read_file
from mxc.compiler.checkpoints.files.tensors import read_bytes
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.model import open_model
from mxc.errors import CheckpointError

Edit = Callable[..., Any]
Parts = tuple[str, ...]
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
BLOCKS, SCALES = (f"model.layers.0.mlp.experts.gate_up_proj_{n}" for n in ("blocks", "scales"))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("good")
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1), tokenizer=False)
    return folder


@pytest.fixture
def folder(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "bad")
    return tmp_path / "bad"


def refused(folder: Path, *parts: str) -> None:
    """open_model refuses, and the message holds `parts` in this order."""
    pattern = "(?s)" + ".*".join(re.escape(part) for part in parts)
    with pytest.raises(CheckpointError, match=pattern):
        open_model(folder)


def edit_json(path: Path, **changes: Any) -> None:
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in raw.items() if v is not ...}))


def edit_header(path: Path, edit: Callable[..., bytes | None], tail: bytes = b"") -> None:
    """Rewrite the header of a shard; `edit` changes it in place or returns the new text."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    text = edit(header) or json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :] + tail)


def edit_tensors(folder: Path, edit: Edit) -> None:
    """Change the tensors of the whole checkpoint and write them as one file without an index."""
    tensors = load_file(folder / FIRST) | load_file(folder / SECOND)
    edit(tensors)
    for name in (FIRST, SECOND, INDEX):
        (folder / name).unlink()
    save_file(tensors, folder / "model.safetensors")


# ---- folder, shards, index ----


def test_good_is_good(folder: Path) -> None:
    open_model(folder)
    edit_header(folder / FIRST, lambda header: None)
    edit_tensors(folder, lambda tensors: None)
    open_model(folder)


def test_not_a_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere: wanted a checkpoint folder", "nothing there; check")


def test_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()
    refused(folder, "bad: wanted a checkpoint folder", "a folder without config.json; fetch it")
    (folder / "manifest.json").touch()
    refused(folder, "bad: wanted a checkpoint folder", "found a compiled artifact; give")


def test_no_weights(folder: Path) -> None:
    (folder / INDEX).unlink()
    refused(folder, "no weights; wanted model.safetensors", "converted")


def test_missing_shard(folder: Path) -> None:
    (folder / SECOND).unlink()
    refused(folder, "1 of the 2 shards", SECOND, "fetch")


@pytest.mark.parametrize("cut", [1, 4096])
def test_truncated_shard(folder: Path, cut: int) -> None:
    data = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(data[:-cut])
    refused(
        folder, SECOND, f"truncated: the header promises {len(data)}", str(len(data) - cut), "fetch"
    )


@pytest.mark.parametrize("size", [0, 5, 200])
def test_shard_cut_in_its_header(folder: Path, size: int) -> None:
    (folder / FIRST).write_bytes((folder / FIRST).read_bytes()[:size])
    refused(folder, FIRST, "header", f"file of {size} bytes", "truncated or not safetensors")


def test_trailing_bytes(folder: Path) -> None:
    edit_header(folder / FIRST, lambda header: None, tail=b"\0" * 3)
    refused(folder, FIRST, "longer than its header says")


def test_index_names_a_tensor_that_is_nowhere(folder: Path) -> None:
    names = json.loads((folder / INDEX).read_text())["weight_map"]
    edit_json(folder / INDEX, weight_map={**names, "ghost": SECOND})
    refused(folder, INDEX, "says tensor ghost is in " + SECOND, "does not hold it", "fetch")


def test_index_names_the_wrong_shard(folder: Path) -> None:
    names = json.loads((folder / INDEX).read_text())["weight_map"]
    tensor = next(n for n, f in names.items() if f == FIRST)
    edit_json(folder / INDEX, weight_map={**names, tensor: SECOND})
    refused(folder, FIRST, f"holds tensor {tensor}", f"says it is in {SECOND}", "fetch")


def test_index_does_not_name_a_tensor(folder: Path) -> None:
    names = json.loads((folder / INDEX).read_text())["weight_map"]
    names.pop(BLOCKS)
    edit_json(folder / INDEX, weight_map=names)
    refused(folder, f"holds tensor {BLOCKS}", "does not name it", "fetch")


def test_stray_shard(folder: Path) -> None:
    shutil.copy(folder / FIRST, folder / "model-00003-of-00003.safetensors")
    refused(folder, "model-00003-of-00003.safetensors not named by", "remove the stray file")


def test_index_leads_out_of_the_folder(folder: Path) -> None:
    names = json.loads((folder / INDEX).read_text())["weight_map"]
    edit_json(folder / INDEX, weight_map={**names, BLOCKS: "../" + FIRST})
    refused(folder, INDEX, "lies outside of")


def test_single_file_and_index(folder: Path) -> None:
    shutil.copy(folder / FIRST, folder / "model.safetensors")
    refused(folder, "holds both", "Remove the other")


@pytest.mark.parametrize("name", ["config.json", INDEX])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "wanted a JSON object, found list"),
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ("\xff", "not JSON"),
    ],
)
def test_bad_json(folder: Path, name: str, text: str, why: str) -> None:
    (folder / name).write_bytes(text.encode("latin-1"))
    refused(folder, name, why)


@pytest.mark.parametrize("weight_map", [..., [], {"a": 1}])
def test_bad_weight_map(folder: Path, weight_map: Any) -> None:
    edit_json(folder / INDEX, weight_map=weight_map)
    refused(folder, INDEX, "wanted `weight_map`")


# ---- headers ----


def test_huge_header_length(folder: Path) -> None:
    data = (folder / FIRST).read_bytes()
    for length in (1 << 62, len(data) - 7):
        (folder / FIRST).write_bytes(struct.pack("<Q", length) + data[8:])
        refused(folder, FIRST, f"found header length {length}", "truncated or not safetensors")


def test_header_longer_than_the_format_allows(folder: Path) -> None:
    (folder / FIRST).write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(folder / FIRST, 200_000_000)  # sparse
    refused(folder, FIRST, "at most 100000000 bytes, found header length 100000001")


def test_header_that_is_not_json(folder: Path) -> None:
    edit_header(folder / FIRST, lambda header: b"{" * 100)
    refused(folder, FIRST, "(header)", "not JSON")


def test_header_with_a_tensor_twice(folder: Path) -> None:
    entry = b'"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    edit_header(folder / FIRST, lambda header: b"{" + entry + b"," + entry + b"}")
    refused(folder, FIRST, "'a' is there twice")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"dtype": "F4"}, "dtype 'F4' is not supported; supported: BOOL, U8"),
        ({"dtype": "U16"}, "takes"),
        ({"shape": [-1]}, "sizes"),
        ({"shape": [1.5]}, "sizes"),
        ({"shape": None}, "header entry needs"),
        ({"data_offsets": [0]}, "header entry needs"),
        ({"data_offsets": [10, 0]}, "takes"),
    ],
)
def test_bad_header_entry(folder: Path, entry: dict[str, Any], why: str) -> None:
    file = json.loads((folder / INDEX).read_text())["weight_map"][SCALES]
    edit_header(folder / file, lambda header: header[SCALES].update(entry))
    refused(folder, file, SCALES, why)


def small(path: Path, offsets: list[tuple[int, int]], size: int) -> None:
    header = {
        f"t{i}": {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]}
        for i, (begin, end) in enumerate(offsets)
    }
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size))


@pytest.mark.parametrize(
    ("offsets", "why"),
    [
        ([(0, 8), (4, 12)], "t1 overlaps tensor t0"),
        ([(0, 12), (4, 8)], "t1 overlaps tensor t0"),
        ([(0, 4), (8, 12)], "t1 leaves a hole of 4 bytes after tensor t0"),
        ([(4, 8), (8, 12)], "4 bytes before the first tensor t0"),
    ],
)
def test_overlaps_and_holes(tmp_path: Path, offsets: list[tuple[int, int]], why: str) -> None:
    small(tmp_path / "a.safetensors", offsets, 12)
    with pytest.raises(CheckpointError, match=f"a.safetensors.*{why}"):
        read_file(tmp_path / "a.safetensors")


# ---- tensors against config ----


def reshape(name: str, change: Callable[..., Any]) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({name: change(tensors[name])})


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (
            reshape(BLOCKS, lambda t: t[:, :, :1]),
            (SCALES, "U8 [4, 128, 2]", BLOCKS, "[4, 128, 1, 16] wants U8 [4, 128, 1]"),
        ),
        (
            reshape(SCALES, lambda t: t[:, :100]),
            (SCALES, "U8 [4, 100, 2]", BLOCKS, "[4, 128, 2, 16] wants U8 [4, 128, 2]"),
        ),
        (reshape(BLOCKS, lambda t: t.view(np.int8)), (BLOCKS, "is I8", "wants U8")),
        (reshape(SCALES, lambda t: t.astype(np.float32)), (SCALES, "is F32", "wants U8")),
        (
            lambda t: t.update({BLOCKS: t[BLOCKS][:, :64], SCALES: t[SCALES][:, :64]}),
            ("experts.gate_up_proj is", "128 = 2 * intermediate_size", "it is mxfp4 [4, 64, 64]"),
        ),
        (
            reshape("model.norm.weight", lambda t: t.astype(np.float64)),
            ("model.norm.weight is f64: wanted one of bf16, f16, f32 for model.norm.weight",),
        ),
        (lambda t: t.pop(SCALES), (f"{BLOCKS} are blocks without their scales", SCALES, "fetch")),
        (lambda t: t.pop("lm_head.weight"), ("lm_head.weight is missing", "vocab_size")),
        (
            lambda t: t.update({"model.layers.7.x": np.zeros(1)}),
            ("model.safetensors: unknown tensor model.layers.7.x", "a gpt_oss of 1 layers"),
        ),
    ],
)
def test_tensors_that_config_does_not_ask_for(folder: Path, edit: Edit, parts: Parts) -> None:
    edit_tensors(folder, edit)
    refused(folder, *parts)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"hidden_size": 96},
            ("embed_tokens.weight", "96 = hidden_size", "BF16 [512, 64]", "fetch"),
        ),
        ({"vocab_size": 500}, ("embed_tokens.weight", "500 = vocab_size", "BF16 [512, 64]")),
        ({"num_local_experts": 8}, ("router.weight", "8 = num_local_experts", "[4, 64]")),
        ({"head_dim": 64}, ("q_proj.weight", "256 = num_attention_heads * head_dim", "[128, 64]")),
        ({"num_hidden_layers": 2, "layer_types": ...}, ("layers.1", "is missing")),
        ({"attention_bias": False}, ("unknown tensor model.layers.0.self_attn.k_proj.bias",)),
    ],
)
def test_config_that_contradicts_the_tensors(folder: Path, changes: Any, parts: Parts) -> None:
    edit_json(folder / "config.json", **changes)
    refused(folder, *parts)


# ---- config ----

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "original_max_position_embeddings": 4096,
    "truncate": False,
}


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            ("architecture LlamaForCausalLM, model_type 'gpt_oss'", "GptOssForCausalLM (gpt_oss)"),
        ),
        ({"architectures": ...}, ("architecture None", "supported")),
        ({"model_type": "llama"}, ("model_type 'llama'", "GptOssForCausalLM (gpt_oss)")),
        ({"hidden_act": "gelu"}, ("hidden_act 'gelu'", "supported: silu")),
        (
            {"rope_scaling": {**YARN, "rope_type": "llama3"}},
            ("rope type 'llama3'", "supported: yarn"),
        ),
        ({"rope_scaling": ...}, ("wanted rope_scaling or rope_parameters",)),
        ({"rope_parameters": YARN}, ("rope_scaling", "rope_parameters", "disagree")),
        ({"rope_scaling": {**YARN, "factor": ...}}, ("factor",)),
        (
            {"rope_scaling": {**YARN, "partial_rotary_factor": 0.5}},
            ("partial_rotary_factor", "0.5"),
        ),
        ({"rope_theta": ...}, ("rope_theta is missing",)),
        ({"hidden_size": ...}, ("hidden_size is missing", "fetch")),
        ({"hidden_size": "64"}, ("positive integer for hidden_size, found '64'",)),
        ({"hidden_size": True}, ("positive integer for hidden_size, found True",)),
        ({"num_key_value_heads": 3}, ("multiple of num_key_value_heads = 3", "found 4")),
        ({"head_dim": 31}, ("even number", "head_dim", "found 31")),
        (
            {"num_experts_per_tok": 5, "experts_per_token": 5},
            ("at most num_local_experts = 4", "found 5"),
        ),
        ({"num_experts_per_tok": 1}, ("1 of num_experts_per_tok for experts_per_token, found 2",)),
        ({"layer_types": ["full_attention"] * 3}, ("list of num_hidden_layers = 1",)),
        (
            {"layer_types": ["linear_attention"]},
            ("only sliding_attention and full_attention", "linear_attention"),
        ),
        ({"sliding_window": None}, ("sliding_window is missing",)),
        ({"rms_norm_eps": float("nan")}, ("positive number for rms_norm_eps",)),
        ({"rms_norm_eps": float("inf")}, ("positive number for rms_norm_eps",)),
        ({"attention_bias": 1}, ("true or false for attention_bias, found 1",)),
        ({"eos_token_id": [1, "x"]}, ("eos_token_id", "'x'")),
        ({"pad_token_id": 1.5}, ("token number or null for pad_token_id",)),
    ],
)
def test_bad_config(folder: Path, changes: dict[str, Any], parts: Parts) -> None:
    if isinstance(changes.get("rope_scaling"), dict):
        scaling = {k: v for k, v in changes["rope_scaling"].items() if v is not ...}
        changes = {**changes, "rope_scaling": scaling}
    edit_json(folder / "config.json", **changes)
    refused(folder, "config.json", *parts)


def test_quantization_that_no_dialect_has(folder: Path) -> None:
    edit_json(folder / "config.json", quantization_config={"quant_method": "gptq"})
    refused(folder, "quantization method 'gptq' is not supported; supported:", "gpt-oss", "quark")


def test_bad_generation_config(folder: Path) -> None:
    edit_json(folder / "generation_config.json", eos_token_id="stop")
    refused(folder, "generation_config.json", "eos_token_id", "'stop'")
    edit_json(folder / "generation_config.json", eos_token_id=[1, 999999])
    refused(folder, "eos_token_id 999999", "outside of the vocabulary", "Fetch")


def test_experts_per_token_alone_is_enough(folder: Path) -> None:
    edit_json(folder / "config.json", num_experts_per_tok=...)
    assert open_model(folder).decoder.layers[0].mlp.choices == 2


def test_file_cut_after_it_was_opened(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    record = checkpoint.tensors[BLOCKS]
    with record.file.open("r+b") as file:
        file.truncate(record.offset + 10)
    with pytest.raises(CheckpointError, match=f"{BLOCKS}.*ends after 10; .*fetch"):
        read_bytes(record, 0, record.bytes)
