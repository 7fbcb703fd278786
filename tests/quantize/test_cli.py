"""`mxc quantize`: what it prints, the picture that it draws, and its refusals."""

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner, Result

from mxc.compiler.cli import app
from mxc.compiler.quantize.loss import Loss
from mxc.compiler.quantize.plot import draw, series
from tests.quantize.conftest import Write

DOWN = "model.layers.1.mlp.down_proj.weight"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["quantize", *map(str, words)])


def test_table(checkpoint: Write, tmp_path: Path) -> None:
    result = run(checkpoint(), "-o", tmp_path / "out", "--format", "mxfp4", "--recipe", "rceil")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    (row,) = [line.split() for line in lines if DOWN in line]
    assert row[1] == "10,240"
    assert 17 < float(row[2]) < 20
    assert row[3] == "0.000%"
    (whole,) = [line.split() for line in lines if line.strip().startswith("all 4")]
    assert whole[2] == "32,768"
    assert "as they were: 6 kept by default, 2 no matrix" in result.stdout
    assert "mxfp4, recipe rceil, ties even, dialect quark, 78.1 KiB in" in result.stdout
    assert lines[-1].startswith(f"wrote {tmp_path / 'out'} (")


def test_json(checkpoint: Write, tmp_path: Path) -> None:
    source = checkpoint()
    result = run(
        source, "-o", tmp_path / "out", "--format", "mxfp8e4m3", "--json",
        "--include", "*.down_proj.*", "--exclude", "model.layers.0.*", "--ties", "away",
        "--dialect", "compressed-tensors",
    )  # fmt: skip
    found = json.loads(result.stdout)
    assert {key: found[key] for key in ("format", "recipe", "ties", "dialect")} == {
        "format": "mxfp8e4m3",
        "recipe": "rceil",
        "ties": "away",
        "dialect": "compressed-tensors",
    }
    assert [tensor["name"] for tensor in found["tensors"]] == [DOWN]
    assert found["tensors"][0]["sqnr"] == found["sqnr"] > 29
    assert len(found["kept"]) == 11
    assert found["bytes_read"] == sum(
        path.stat().st_size for path in source.glob("*.safetensors")
    ) - headers(source)


def headers(folder: Path) -> int:
    return sum(
        8 + struct.unpack("<Q", path.read_bytes()[:8])[0] for path in folder.glob("*.safetensors")
    )


def test_the_worst_are_shown_unless_all_are_asked_for(checkpoint: Write, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    extra = {
        f"model.layers.{n}.mlp.up_proj.weight": rng.standard_normal((2, 32)).astype(np.float32)
        for n in range(30)
    }
    source = checkpoint(extra=extra)
    short = run(source, "-o", tmp_path / "a", "--format", "mxfp4")
    assert short.stdout.count("up_proj.weight") <= 20
    assert "the 20 worst of 34; --full shows all" in short.stdout
    full = run(source, "-o", tmp_path / "b", "--format", "mxfp4", "--full")
    assert full.stdout.count("up_proj.weight") == 30


def decoded(data: bytes) -> NDArray[Any]:
    """A PNG of 8-bit colours without filters -> uint8 [height, width, 3]; checksums checked."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + size
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 2, 0, 0, 0]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, 3)


def test_picture(checkpoint: Write, tmp_path: Path) -> None:
    picture = tmp_path / "error.png"
    words = ("--format", "mxfp4", "--plot", picture)
    result = run(checkpoint(), "-o", tmp_path / "out", *words)
    assert result.exit_code == 0, result.output
    image = decoded(picture.read_bytes())
    colours = {tuple(c) for c in np.unique(image.reshape(-1, 3), axis=0)}
    assert {(0, 114, 178), (213, 94, 0)} <= colours  # one for each kind of weight


def test_points_are_where_their_numbers_are() -> None:
    def loss(db: float) -> Loss:
        return Loss(elements=1, signal=10 ** (db / 10), noise=1.0)

    losses = {
        "model.layers.0.mlp.down_proj.weight": loss(18.0),
        "model.layers.10.mlp.down_proj.weight": loss(22.0),
        "model.layers.3.mlp.down_proj.weight": Loss(elements=1, signal=1.0),
        "lm_head.weight": loss(20.0),
    }
    assert series(losses) == {
        "mlp.down_proj": [(0, 18.0), (10, 22.0)],
        "lm_head": [(0, 20.0)],
    }
    image = draw(losses, "a title")
    down, across = np.nonzero((image == (0, 114, 178)).all(-1) & (np.arange(900) < 705))
    assert (across.min(), across.max()) == (56 - 2, 700 + 2)
    # 18 dB is at the bottom of the scale, 22 dB at its top.
    assert (down.max(), down.min()) == (420 - 40 + 2, 34 - 2)
    assert draw({}, "nothing").shape == image.shape


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--format", "mxfp5"], "unknown format 'mxfp5'; mxc knows mxfp4"),
        (
            ["--format", "mxfp4", "--recipe", "best"],
            "unknown scale recipe 'best'; mxc quantizes by floor, even, rceil, ceil, search, gptq",
        ),
        (["--format", "nvfp4", "--recipe", "even"], "found recipe 'even'; leave the recipe out"),
        (["--format", "mxfp4", "--plot", "x.jpg"], "x.jpg: a PNG is drawn; give the --plot a name"),
        (
            ["--format", "mxfp4", "--include", "*embed*"],
            "tensor model.embed_tokens.weight [50, 64] is a table of embeddings",
        ),
        (["--format", "mxfp4", "--include", "nothing*"], "no tensor is named by"),
        (["--format", "mxfp4", "--plot", "no/such/folder.png"], "choose another --plot"),
        (["--format", "mxfp4", "--plot", "."], ".: is a folder; give the --plot a name"),
        (["--format", "mxfp4", "--include", "re:("], "'re:(' is no regular expression"),
    ],
)
def test_refusals_are_one_line(
    checkpoint: Write, tmp_path: Path, words: list[str], message: str
) -> None:
    result = run(checkpoint(), "-o", tmp_path / "out", *words)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("pattern", ["re:(.+)+!", "re:((.+))+!", "re:(.|.)*!"])
def test_a_pattern_that_backtracks_for_ever(
    checkpoint: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    monkeypatch.setattr("mxc.compiler.quantize.patterns.SECONDS", 1.0)
    result = run(checkpoint(), "-o", tmp_path / "out", "--format", "mxfp4", "--include", pattern)
    assert result.exit_code == 1
    assert f"error: the patterns {pattern} take more than 1 s" in result.output
    assert len(result.output.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_table_may_be_excluded_from_what_is_included(checkpoint: Write, tmp_path: Path) -> None:
    words = ["--include", "model.*tokens*", "--include", "*.q_proj.weight", "--exclude", "*embed*"]
    result = run(checkpoint(), "-o", tmp_path / "out", "--format", "mxfp4", *words)
    assert result.exit_code == 0, result.output


def test_rotation_is_of_a_folder(checkpoint: Write, tmp_path: Path) -> None:
    file = checkpoint() / "model-00001-of-00002.safetensors"
    result = run(file, "-o", tmp_path / "out", "--format", "mxfp4", "--rotate")
    assert result.exit_code == 1
    assert result.output == (
        f"error: {file}: --rotate: wanted a checkpoint folder, found one file of weights; give the "
        "folder with its config.json\n"
    )


def test_no_source(tmp_path: Path) -> None:
    result = run(tmp_path / "none", "-o", tmp_path / "out", "--format", "mxfp4")
    assert result.exit_code == 1
    assert "found nothing there" in result.output
