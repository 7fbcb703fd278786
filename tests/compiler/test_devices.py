"""Models for several devices: what is packed, where the program has it, what is refused."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from transformers import Gemma4TextConfig, PretrainedConfig, Qwen3NextConfig

import mxc
from mxc.artifact.manifest import REPORT
from mxc.compiler.checkpoints.synthetic.decoder import write_decoder
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.models.model import BoundModel, open_model
from mxc.compiler.pieces import piece
from mxc.errors import CheckpointError
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import quantize
from tests.packed_file import packed_file

OPTIONS = GptOssOptions(hidden_size=96, intermediate_size=192, vocab_size=330)
EXPERTS, ATTENTION = "model.layers.1.mlp.experts", "model.layers.1.self_attn"
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 138,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_gpt_oss(folder, OPTIONS, shards=2)
    return folder


def archive(model: BoundModel, file: Path) -> dict[str, NDArray[np.uint8]]:
    data, packed = file, packed_file(model.pack_items({}), file)
    raw = np.fromfile(data, np.uint8)
    return {key: raw[start : start + size] for key, (start, size) in packed.entries.items()}


def half(array: NDArray[Any], axis: int, device: int) -> NDArray[Any]:
    return np.split(array, 2, axis)[device]


@pytest.mark.parametrize("chunk", [1000, piece.CHUNK])
def test_what_is_packed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    """Against the tensors of the checkpoint, cut by numpy."""
    monkeypatch.setattr(piece, "CHUNK", chunk)
    source = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    found = archive(open_model(folder, max_sequence_length=37, devices=2), tmp_path / "w.irpa")

    def check(device: int, key: str, wanted: NDArray[Any]) -> None:
        assert found[f"device.{device}.{key}"].tobytes() == wanted.tobytes()

    for device in range(2):
        for part in ("blocks", "scales"):
            both = source[f"{EXPERTS}.gate_up_proj_{part}"]
            # Gate and up alternate in the checkpoint.
            rows = [half(both[:, first::2], 1, device) for first in range(2)]
            check(device, f"{EXPERTS}.gate_up_proj_{part}", np.concatenate(rows, 1))
            down = source[f"{EXPERTS}.down_proj_{part}"]
            check(device, f"{EXPERTS}.down_proj_{part}", half(down, 2, device))
        bias = source[f"{EXPERTS}.gate_up_proj_bias"]
        rows = [half(bias[:, first::2], 1, device) for first in range(2)]
        check(device, f"{EXPERTS}.gate_up_proj_bias", np.concatenate(rows, 1))
        for kind in ("weight", "bias"):
            rows = [half(source[f"{ATTENTION}.{part}_proj.{kind}"], 0, device) for part in "qkv"]
            check(device, f"{ATTENTION}.qkv_proj.{kind}", np.concatenate(rows))
        check(device, key := f"{ATTENTION}.sinks", half(source[key], 0, device))
        check(device, key := f"{ATTENTION}.o_proj.weight", half(source[key], 1, device))
        check(device, key := "model.embed_tokens.weight", half(source[key], 0, device))
        check(device, key := "lm_head.weight", half(source[key], 0, device))
        for key in ("model.norm.weight", "model.layers.1.mlp.router.weight"):
            check(device, key, source[key])
    # What is added to a sum is on the first device.
    for key in (f"{ATTENTION}.o_proj.bias", f"{EXPERTS}.down_proj_bias"):
        check(0, key, source[key])
        assert f"device.1.{key}" not in found


def test_experts_are_divided_by_number_where_blocks_would_be_cut(tmp_path: Path) -> None:
    """With their biases, and the logits of one device."""
    options = GptOssOptions(hidden_size=64, intermediate_size=96, vocab_size=330)
    write_gpt_oss(tmp_path / "source", options)
    shards = (tmp_path / "source").glob("*.safetensors")
    source = {k: v for file in shards for k, v in load_file(file).items()}
    tokens, logits = [3, 1, 4, 1, 5, 9, 2, 6], []
    for devices in (1, 2):
        artifact = mxc.compile(
            tmp_path / "source",
            "cpu",
            tmp_path / f"{devices}.mxc",
            activations="f32",
            max_sequence_length=64,
            devices=devices,
            listing=False,
        )
        logits.append(mxc.load(artifact.path).sequence().feed(tokens))
    (note,) = (each for each in artifact.manifest.notes if "by number" in each)
    assert "in blocks of 32, and each device would have 48 of its 96 columns" in note
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=2e-5 * float(np.std(logits[0])))
    found = archive(
        open_model(tmp_path / "source", max_sequence_length=64, devices=2), tmp_path / "w.irpa"
    )
    for device in range(2):
        for part in ("down_proj_blocks", "down_proj_scales", "down_proj_bias"):
            wanted = half(source[f"{EXPERTS}.{part}"], 0, device)
            assert found[f"device.{device}.{EXPERTS}.{part}"].tobytes() == wanted.tobytes()


def test_what_is_quantized(folder: Path, tmp_path: Path) -> None:
    """The blocks of the whole weight, cut between two of them."""
    model = open_model(folder, max_sequence_length=37, devices=2, quantize_dense="mxfp8")
    found = archive(model, tmp_path / "w.irpa")
    source = {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}
    for key, axis in ((f"{ATTENTION}.o_proj.weight", 1), ("lm_head.weight", 0)):
        q = quantize(source[key].astype(np.float32), "mxfp8e4m3", recipe=ScaleRecipe.RCEIL)
        blocks = q.elements.reshape(*q.scales.shape, 32)
        for device in range(2):
            own = {"blocks": half(blocks, axis, device), "scales": half(q.scales, axis, device)}
            for part, wanted in own.items():
                assert found[f"device.{device}.{key}_{part}"].tobytes() == wanted.tobytes()


def test_what_the_manifest_says(folder: Path) -> None:
    model = open_model(folder, max_sequence_length=64, devices=2)
    one = open_model(folder, max_sequence_length=64)
    record, whole = model.record(), one.record()
    assert record.devices == 2
    assert [page.shape[2] for page in record.pages] == [1, 1]
    assert [page.shape[2] for page in whole.pages] == [2, 2]
    assert record.bytes_per_token == whole.bytes_per_token
    assert record.vocab_size == whole.vocab_size == OPTIONS.vocab_size
    weights = model.weights({})
    assert weights[f"device.1.{EXPERTS}.down_proj"].shape == (4, 96, 96)
    assert weights[f"device.1.{EXPERTS}.gate_up_proj"].shape == (4, 192, 96)


def test_everything_is_on_its_device(folder: Path, tmp_path: Path) -> None:
    """For a GPU, where memory of one is not that of the other."""
    artifact = mxc.compile(
        folder,
        "gfx950",
        tmp_path / "model.mxc",
        max_sequence_length=64,
        devices=2,
        weights="none",
        dump_ir=tmp_path / "ir",
    )
    _require_places(tmp_path / "ir")
    report = json.loads((artifact.path / REPORT).read_text())
    assert report["findings"] == []
    (sent,) = report["transfers"]
    # The embedding, and two sums a layer, both ways; tokens, positions, and slots of two kinds.
    sums = 2 * (1 + 2 * OPTIONS.num_hidden_layers)
    assert sent["bytes_per_row"] == 4 * (sums * OPTIONS.hidden_size + 4)
    # The number of the row: each device gives its own logits to the caller.
    assert sent["bytes_per_logits"] == 4
    assert sent["bytes_per_run"] == 4 * (3 + 2)


def whole(kind: type[PretrainedConfig], name: str, **fields: Any) -> dict[str, Any]:
    """A config of transformers, which is not laid over that of the Llama."""
    own: dict[str, Any] = kind(**fields).to_dict()
    return own | {"architectures": [name]}


#: A Qwen3-Next of one layer of each kind, and of a size that two devices divide.
NEXT = {
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "hidden_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 138,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}


@pytest.mark.parametrize(
    ("config", "row", "run"),
    [
        # Two sums and the embedding, and two sums of squares, both ways; tokens, positions, slots.
        (LLAMA | {"model_type": "olmo2"}, 2 * (3 * 64 + 2) + 3, 3 + 1),
        # Two sums a layer and the embedding; the place of the states.
        (whole(Qwen3NextConfig, "Qwen3NextForCausalLM", **NEXT), 2 * 5 * 64 + 3, 3 + 1 + 1),
    ],
)
def test_blocks_with_sums_and_states_of_their_own_on_a_gpu(
    tmp_path: Path, config: dict[str, Any], row: int, run: int
) -> None:
    write_decoder(tmp_path / "source", config, headers_only=True)
    artifact = mxc.compile(
        tmp_path / "source",
        "gfx950",
        tmp_path / "model.mxc",
        max_sequence_length=64,
        devices=2,
        weights="none",
        dump_ir=tmp_path / "ir",
        listing=False,
    )
    _require_places(tmp_path / "ir")
    (found,) = json.loads((artifact.path / REPORT).read_text())["transfers"]
    assert found["bytes_per_row"] == 4 * row
    assert found["bytes_per_run"] == 4 * run


def _require_places(ir: Path) -> None:
    """Each device runs what it has parameters of."""
    (text,) = (file.read_text() for file in ir.glob("*-iree-stream.mlir"))
    runs = re.findall(r"stream.cmd.execute on\(#hal.device.affinity<@device(\d)>\)(.*)", text)
    assert {device for device, _ in runs} == {"0", "1"}
    for device, given in runs:
        assert set(re.findall(r"%device\.(\d)\.", given)) <= {device}
    loads = re.findall(r"stream.cmd.parameter.load on\(#hal.device.affinity<@device(\d)>\)", text)
    assert {*loads} == {"0", "1"}


LAYERS = ["linear_attention"] * 3 + ["full_attention"]
HYBRID = {
    "num_hidden_layers": 4,
    "layer_types": LAYERS,
    "linear_num_key_heads": 3,
    "linear_num_value_heads": 6,
}


@pytest.mark.parametrize(
    ("config", "options", "said"),
    [
        ({}, {"devices": 0}, "--devices 0: wanted at least 1"),
        ({}, {"devices": 3}, "num_attention_heads is 4, which does not divide among 3"),
        ({}, {"devices": 4}, "num_key_value_heads is 2, which does not divide among 4"),
        ({"intermediate_size": 97}, {}, "intermediate_size is 97, which does not divide"),
        ({"vocab_size": 139}, {}, "vocab_size is 139, which does not divide among 2 devices"),
        ({}, {"quantize_dense": "mxfp8"}, "down_proj.weight is mxfp8e4m3, in blocks of 32, .*48"),
        ({}, {"observe_inputs": True}, "inputs of linear layers are collected on one device"),
        (
            whole(Qwen3NextConfig, "Qwen3NextForCausalLM", **HYBRID),
            {},
            "linear_num_key_heads is 3, ",
        ),
        (
            whole(Gemma4TextConfig, "Gemma4ForCausalLM", num_key_value_heads=1),
            {},
            "num_key_value_heads is 1, ",
        ),
    ],
)
def test_what_is_refused(
    tmp_path: Path, config: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    config = config if "architectures" in config else LLAMA | config
    write_decoder(tmp_path / "model", config, headers_only=True)
    with pytest.raises(CheckpointError, match=said) as error:
        open_model(tmp_path / "model", **{"devices": 2, **options})
    assert "\n" not in str(error.value)


def test_a_program_is_for_one(tmp_path: Path) -> None:
    (tmp_path / "f.mlir").write_text("util.func public @f() { util.return }")
    with pytest.raises(CheckpointError, match="--devices has no meaning for a program"):
        mxc.compile(tmp_path / "f.mlir", "cpu", tmp_path / "f.mxc", devices=2)
