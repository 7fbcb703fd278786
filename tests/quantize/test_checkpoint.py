"""Whole checkpoints: what is written is what the reference says, whoever wrote it and how."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from mxc.compiler.pieces import piece
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.errors import CheckpointError, FormatError
from mxc.formats.formats import FORMATS
from mxc.formats.reference import dequantize, quantize
from tests.quantize.conftest import Write

DOWN = "model.layers.1.mlp.down_proj.weight"
QUERY = "model.layers.0.self_attn.q_proj.weight"
KEPT = ("model.embed_tokens", "lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate")


#: safetensors' own loader for numpy knows no 8-bit floats.
DTYPES = {"F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "I8": np.int8, "U8": np.uint8} | {
    "BF16": ml_dtypes.bfloat16,
    "F16": np.float16,
    "F32": np.float32,
}


def load(folder: Path) -> dict[str, NDArray[Any]]:
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in safetensors.deserialize(file.read_bytes()):
            array = np.frombuffer(tensor["data"], DTYPES[tensor["dtype"]])
            found[name] = array.reshape(tensor["shape"])
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "nvfp4"])
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32, np.float16])
def test_every_format_is_the_reference(
    checkpoint: Write, tmp_path: Path, format: str, dtype: type[Any]
) -> None:
    source = checkpoint(dtype)
    result = quantize_checkpoint(source, tmp_path / "out", format, recipe="even")
    plain, found = load(source), load(tmp_path / "out")
    for name in (DOWN, QUERY):
        wanted = quantize(plain[name], format, recipe="even", negative_zero=False)
        np.testing.assert_array_equal(found[name].view(np.uint8), wanted.elements)
        np.testing.assert_array_equal(found[f"{name}_scale"], wanted.scales)
        exact = plain[name].astype(np.float64)
        noise = np.square(dequantize(wanted) - exact).sum()
        sqnr = 10 * np.log10(np.square(exact).sum() / noise)
        assert result.losses[name].sqnr == pytest.approx(sqnr, abs=0.006)
    whole = result.total
    assert whole.elements == 2 * (96 * 64 + 64 * 160)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert sorted(config["quantization_config"]["exclude"]) == sorted(KEPT)


def test_what_is_kept_is_untouched(checkpoint: Write, tmp_path: Path) -> None:
    source = checkpoint()
    quantize_checkpoint(source, tmp_path / "out", "mxfp4")
    plain, found = load(source), load(tmp_path / "out")
    assert {n for n in plain if n not in found} == set()
    for name in [f"{module}.weight" for module in KEPT] + [
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.input_layernorm.weight",
    ]:
        np.testing.assert_array_equal(found[name].view(np.uint16), plain[name].view(np.uint16))
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    for name, file in index["weight_map"].items():
        with safe_open(tmp_path / "out" / file, "numpy") as opened:
            assert opened.get_tensor(name).nbytes > 0
            how = json.loads(opened.metadata()["mxc.quantize"])
    assert how == {"format": "mxfp4", "recipe": "even", "ties": "even"}


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6e2m3", "nvfp4"])
def test_neither_threads_nor_pieces_change_a_byte(
    checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    source = checkpoint()
    one = quantize_checkpoint(source, tmp_path / "one", format, workers=Workers(threads=1))
    monkeypatch.setattr(piece, "CHUNK", 1000)
    monkeypatch.setattr(piece, "PIECE", 3000)
    many = quantize_checkpoint(source, tmp_path / "many", format, workers=Workers(threads=3))
    assert files(tmp_path / "one") == files(tmp_path / "many")
    assert one.total.sqnr == many.total.sqnr
    assert one.total.saturated == many.total.saturated


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32])
def test_ties_are_a_choice(checkpoint: Write, tmp_path: Path, dtype: type[Any]) -> None:
    halves = (np.tile([0.25, 0.75, 2.5, 5, -0.25, -0.75, -2.5, 6], (1, 8))).astype(np.float32)
    source = checkpoint(extra={DOWN: halves.astype(dtype)})
    for ties, wanted in (
        ("even", [0, 2, 4, 6, 0, 10, 12, 7]),
        ("zero", [0, 1, 4, 6, 0, 9, 12, 7]),
        ("away", [1, 2, 5, 7, 9, 10, 13, 7]),
    ):
        result = quantize_checkpoint(source, tmp_path / ties, "mxfp4", ties=ties)
        assert result.losses[DOWN].saturated == 0  # 6 is the largest, not beyond it
        packed = load(tmp_path / ties)[DOWN][0, :4]
        codes = np.stack([packed & 15, packed >> 4], 1).reshape(-1)
        assert codes.tolist() == wanted, ties


def test_patterns_choose(checkpoint: Write, tmp_path: Path) -> None:
    source = checkpoint()
    result = quantize_checkpoint(
        source,
        tmp_path / "out",
        "mxfp4",
        include=["*_proj.weight", r"re:lm_head\."],
        exclude=["model.layers.0.*"],
    )
    assert set(result.losses) == {
        "lm_head.weight",
        DOWN,
        "model.layers.1.self_attn.q_proj.weight",
    }
    reasons = {item.source.name: item.kept for item in result.items if item.parts is None}
    assert reasons[QUERY] == "excluded"
    assert reasons["model.embed_tokens.weight"] == "not included"


def test_a_single_file_becomes_a_folder(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    save_file({"a.weight": x}, tmp_path / "a.safetensors")
    quantize_checkpoint(tmp_path / "a.safetensors", tmp_path / "out", "mxint8", recipe="rceil")
    found = load_file(tmp_path / "out" / "model.safetensors")
    wanted = quantize(x, "mxint8", recipe="rceil")
    np.testing.assert_array_equal(found["a.weight"].view(np.uint8), wanted.elements)


def test_progress_ends_at_the_total(checkpoint: Write, tmp_path: Path) -> None:
    seen = []
    result = quantize_checkpoint(
        checkpoint(), tmp_path / "out", "mxfp4", progress=lambda *step: seen.append(step)
    )
    done = [step[0] for step in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1] == result.bytes_read


def odd(value: float) -> NDArray[Any]:
    x = np.ones((3, 64), ml_dtypes.bfloat16)
    x[2, 37] = value
    return x


@pytest.mark.parametrize(
    ("extra", "options", "error", "message"),
    [
        ({DOWN: odd(np.nan)}, {}, CheckpointError, r"down_proj.weight: row 2, column 37 is nan"),
        ({DOWN: odd(-np.inf)}, {}, CheckpointError, r"row 2, column 37 is -inf.*--exclude"),
        ({}, {"include": ["*.q_prj.*"]}, CheckpointError, r"no tensor is named by .*q_prj"),
        ({}, {"include": ["*.bias"]}, CheckpointError, r"q_proj.bias \[96\] cannot be .*no matrix"),
        ({}, {"exclude": ["*"]}, CheckpointError, "no tensor would be quantized"),
        ({}, {"exclude": ["re:("]}, FormatError, "no regular expression"),
        ({}, {"recipe": "nearest"}, FormatError, "unknown scale recipe"),
        ({}, {"ties": "up"}, FormatError, "unknown ties"),
        (
            {},
            {"dialect": "onnx"},
            FormatError,
            "mxc writes quark, compressed-tensors, gpt-oss, gguf",
        ),
        ({}, {"format": "mxfp6e3m2", "dialect": "gpt-oss"}, FormatError, "choose --dialect quark"),
        ({}, {"format": "nvfp4", "recipe": "even"}, FormatError, "leave the recipe out"),
        ({}, {"dialect": "gpt-oss"}, CheckpointError, "choose another --dialect"),
        (
            {f"{DOWN}_scale": np.ones((2, 2), np.float32)},
            {},
            CheckpointError,
            "is there already",
        ),
        (
            {"a.weight": np.ones((2, 33), np.float32)},
            {"include": ["a.weight"]},
            CheckpointError,
            "33 is no multiple of 32; leave it out",
        ),
    ],
)
def test_refusals_leave_nothing_behind(
    checkpoint: Write,
    tmp_path: Path,
    extra: dict[str, Any],
    options: dict[str, Any],
    error: type[Any],
    message: str,
) -> None:
    source = checkpoint(extra=extra)
    format = options.pop("format", "mxfp4")
    with pytest.raises(error, match=message):
        quantize_checkpoint(source, tmp_path / "out", format, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_row_of_a_refusal_is_that_of_the_tensor(
    checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones((40, 64), ml_dtypes.bfloat16)
    x[33, 5] = np.nan
    monkeypatch.setattr(piece, "CHUNK", 1000)
    with pytest.raises(CheckpointError, match=r"row 33, column 5 is nan"):
        quantize_checkpoint(checkpoint(extra={DOWN: x}), tmp_path / "out", "mxfp4")


def test_an_output_that_exists_is_not_replaced(checkpoint: Write, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="exists"):
        quantize_checkpoint(checkpoint(), tmp_path / "out", "mxfp4")
    assert not list((tmp_path / "out").iterdir())


def test_what_is_quantized_is_not_quantized_again(checkpoint: Write, tmp_path: Path) -> None:
    quantize_checkpoint(checkpoint(), tmp_path / "out", "mxfp4")
    with pytest.raises(CheckpointError, match=r"is quantized already .*'quark'"):
        quantize_checkpoint(tmp_path / "out", tmp_path / "again", "mxfp4")
