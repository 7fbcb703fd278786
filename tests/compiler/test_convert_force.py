"""What `mxc convert --force` replaces: what mxc wrote there, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.compiler.convert.checkpoint import convert
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.errors import RequestError


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gpt-oss")
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1), tokenizer=False)
    return folder


def content(place: Path) -> dict[str, bytes | None]:
    """Everything below a folder, by name."""
    return {
        str(path.relative_to(place)): path.read_bytes() if path.is_file() else None
        for path in sorted(place.rglob("*"))
    }


def folder_of_others(place: Path, source: Path) -> None:
    (place / "thesis").mkdir(parents=True)
    (place / "thesis" / "text").write_bytes(b"years of work")


def empty_folder(place: Path, source: Path) -> None:
    place.mkdir()


def checkpoint_of_others(place: Path, source: Path) -> None:
    place.mkdir()
    for path in source.iterdir():
        (place / path.name).write_bytes(path.read_bytes())


def checkpoint_and_weights_of_others(place: Path, source: Path) -> None:
    convert(source, "gpt-oss", place)
    save_file({"weight": torch.ones(4)}, place / "more.safetensors")


def damaged(place: Path, source: Path) -> None:
    convert(source, "gpt-oss", place)
    (place / "model.safetensors").write_bytes(b"short")


def file_of_others(place: Path, source: Path) -> None:
    place.write_bytes(b"years of work")


def file_of_mxc(place: Path, source: Path) -> None:
    convert(source, "gguf", place)


def folder_of_mxc(place: Path, source: Path) -> None:
    convert(source, "gpt-oss", place)


def link(place: Path, source: Path) -> None:
    convert(source, "gpt-oss", place.with_name("linked"))
    place.symlink_to("linked")


def link_to_nothing(place: Path, source: Path) -> None:
    place.symlink_to("nothing")


@pytest.mark.parametrize(
    ("make", "to"),
    [
        (folder_of_others, "gpt-oss"),
        (folder_of_others, "gguf"),
        (empty_folder, "gpt-oss"),
        (checkpoint_of_others, "gpt-oss"),
        (checkpoint_and_weights_of_others, "gpt-oss"),
        (damaged, "gpt-oss"),
        (file_of_others, "gpt-oss"),
        (file_of_others, "gguf"),
        (file_of_mxc, "gpt-oss"),
        (folder_of_mxc, "gguf"),
        (link, "gpt-oss"),
        (link_to_nothing, "gpt-oss"),
    ],
)
@pytest.mark.parametrize("forced", [["--force"], []])
def test_others_are_not_replaced(
    make: Callable[[Path, Path], None], to: str, forced: list[str], gpt_oss: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    make(out, gpt_oss)
    before = content(tmp_path)
    words = ["convert", str(gpt_oss), "--to", to, "--output", str(out), *forced]
    done = CliRunner().invoke(app, words)
    kind = ".gguf file" if to == "gguf" else "checkpoint folder"
    assert done.exit_code == 1
    assert done.stderr == (
        f"error: {out}: exists and is no {kind} of mxc, so it is not replaced; choose another "
        "--output, or remove it yourself\n"
    )
    assert content(tmp_path) == before


def test_checkpoints_of_mxc_are_replaced(gpt_oss: Path, tmp_path: Path) -> None:
    for to in ("gpt-oss", "gguf"):
        out = tmp_path / to
        convert(gpt_oss, to, out)
        wanted = content(tmp_path)
        with pytest.raises(RequestError, match=rf"{to}: exists; .*--force"):
            convert(gpt_oss, to, out)
        convert(gpt_oss, to, out, force=True)
        assert content(tmp_path) == wanted


def test_a_quantized_checkpoint_is_one_of_mxc(tmp_path: Path) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    source.mkdir()
    name = "model.layers.0.mlp.down_proj.weight"
    save_file({name: torch.randn(48, 128).bfloat16()}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    quantize_checkpoint(source, out, "mxfp4")
    quantize_checkpoint(source, tmp_path / "other", "mxfp4", dialect="compressed-tensors")
    convert(tmp_path / "other", "quark", out, force=True)
    said = json.loads((out / "config.json").read_text())["quantization_config"]
    assert said["quant_method"] == "quark"


def test_an_interrupted_conversion_replaces_nothing(gpt_oss: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int, name: str) -> None:
        raise KeyboardInterrupt

    for to in ("gpt-oss", "gguf"):
        convert(gpt_oss, to, tmp_path / to)
        before = content(tmp_path)
        with pytest.raises(KeyboardInterrupt):
            convert(gpt_oss, to, tmp_path / to, force=True, progress=stop)
        assert content(tmp_path) == before


def test_what_comes_meanwhile_is_not_replaced(gpt_oss: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def other(done: int, total: int, name: str) -> None:
        out.mkdir(exist_ok=True)
        (out / "kept").touch()

    with pytest.raises(RequestError, match="is not replaced"):
        convert(gpt_oss, "gpt-oss", out, force=True, progress=other)
    assert content(tmp_path) == {"out": None, "out/kept": b""}
