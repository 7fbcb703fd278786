"""mxc compile --tune and mxc tune: what they refuse, and what they compile with."""

import json as json_text
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import mxc
from mxc.artifact.manifest import REPORT, SCHEDULES, read_manifest
from mxc.compiler import levels
from mxc.compiler.checkpoints.synthetic.gpt_oss import GptOssOptions, write_gpt_oss
from mxc.compiler.cli import app
from mxc.compiler.cli.tune import measured_schedules
from mxc.compiler.report import Report
from mxc.compiler.steps import Compiled, CompileRequest
from mxc.errors import RequestError

FOUND = [{"m": 1, "schedule": "a", "device": "znver5"}]


@pytest.mark.parametrize(
    "words", ["--schedule s.json", "--emit asm", "--weights none", "--target cpu --target gfx950"]
)
def test_what_cannot_be_tuned_is_refused(words: str, tmp_path: Path) -> None:
    line = ["compile", str(tmp_path), "-o", str(tmp_path / "o"), "--tune", *words.split()]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 1
    assert "--tune measures an artifact for one target with its weights" in result.output


@pytest.mark.parametrize("found", [[], FOUND])
def test_the_artifact_is_compiled_with_the_schedules_that_were_found(
    found: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def compile(*_: Any, schedule: Path | None, **options: Any) -> SimpleNamespace:
        given.append(None if schedule is None else json_text.loads(schedule.read_text()))
        assert options["output"] == tmp_path / "o"
        options["output"].mkdir()
        if schedule is not None:
            shutil.copy(schedule, options["output"] / SCHEDULES)
        return SimpleNamespace(path=options["output"])

    monkeypatch.setattr("mxc.compiler.compilation.compile", compile)
    monkeypatch.setattr("mxc.compiler.tuning.tune", lambda *_: found)
    monkeypatch.setattr("mxc.compiler.cli.compile.show_artifact", lambda *_, **options: None)
    line = ["compile", str(tmp_path), "-o", str(tmp_path / "o"), "--tune"]
    result = CliRunner().invoke(app, line, catch_exceptions=False)
    assert result.exit_code == 0
    assert ("--tune had nothing to choose" in result.stderr) is (not found)
    assert given == [found or None]
    assert [*tmp_path.iterdir()] == [tmp_path / "o"]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune") / "tiny"
    write_gpt_oss(folder, GptOssOptions(num_hidden_layers=1, max_position_embeddings=64))
    return folder


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[CompileRequest]:
    """What a stand-in for the compiler was asked; nothing is measured, `FOUND` is found."""
    requests: list[CompileRequest] = []

    def compile_program(request: CompileRequest, on_step: Any) -> Compiled:
        requests.append(request)
        request.module.write_bytes(b"module")
        report = Report(target="cpu", matmuls=(), kernels=(), functions=())
        return Compiled(functions={}, report=report.to_dict(), chip="znver4", features=("avx2",))

    def tune(compile: Any, measure: Any, folder: Path) -> list[dict[str, Any]]:
        (folder / "schedule.json").write_text('[{"schedule": 0}]')
        shutil.rmtree(compile(folder / "schedule.json", folder / "0.mxc").path)
        return FOUND

    monkeypatch.setattr(levels, "compile_program", compile_program)
    monkeypatch.setattr("mxc.compiler.tuning.tune", tune)
    return requests


@pytest.fixture
def artifact(asked: list[CompileRequest], source: Path, tmp_path: Path) -> Path:
    path = mxc.compile(
        source, "cpu", tmp_path / "o", max_sequence_length=32, kv_cache="fp8", activations="f32",
        quantize_dense="mxint8",
    ).path  # fmt: skip
    asked.clear()
    return path


def tuned(artifact: Path, *words: Any) -> Any:
    return CliRunner().invoke(app, ["tune", str(artifact), *map(str, words)])


def test_an_artifact_is_compiled_again_as_it_was(
    artifact: Path, source: Path, asked: list[CompileRequest]
) -> None:
    before = read_manifest(artifact)
    result = tuned(artifact, "--source", source, "--json")
    assert result.exit_code == 0, result.output
    assert json_text.loads(result.stdout) == json_text.loads((artifact / REPORT).read_text())
    after = read_manifest(artifact)
    assert (after.options, after.model, after.weights, after.target) == (
        before.options, before.model, before.weights, before.target
    )  # fmt: skip
    assert json_text.loads((artifact / SCHEDULES).read_text()) == FOUND
    assert [Path(each.schedules).name for each in asked] == ["schedule.json", SCHEDULES]
    assert [*artifact.parent.iterdir()] == [artifact]
    # Its own schedules are no file of the checkpoint.
    assert tuned(artifact, "--source", source).exit_code == 0


def test_a_prompt_is_no_longer_than_the_model_takes(
    artifact: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts: list[int] = []

    def profiles(path: Path, prompt: int, *_: Any) -> tuple[()]:
        prompts.append(prompt)
        return ()

    def tune(compile: Any, measure: Any, folder: Path) -> list[dict[str, Any]]:
        measure(artifact)
        return []

    monkeypatch.setattr("mxc.compiler.cli.bench.measured_profiles", profiles)
    monkeypatch.setattr("mxc.compiler.tuning.tune", tune)
    assert tuned(artifact, "--source", source).exit_code == 0
    # A token follows it.
    assert prompts == [31]


def test_a_program_is_not_measured(tmp_path: Path) -> None:
    made: Any = SimpleNamespace(path=tmp_path, manifest=SimpleNamespace(model=None))
    measured = measured_schedules(lambda **_: made, tmp_path / "o")
    with pytest.raises(RequestError, match="this is no language model; leave --tune out"), measured:
        pass


def test_an_artifact_without_a_choice_stays(
    artifact: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mxc.compiler.tuning.tune", lambda *_: [])
    before = read_manifest(artifact)
    result = tuned(artifact, "--source", source)
    assert result.exit_code == 0
    assert "had nothing to choose" in result.stderr
    assert read_manifest(artifact) == before


def test_the_checkpoint_comes_from_the_hub_where_the_artifact_did(
    artifact: Path, source: Path, rewrite: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = read_manifest(artifact).options | {"repository": "org/tiny", "revision": "abc"}
    rewrite(artifact, options=options)
    places: list[Any] = []

    def located(*place: Any) -> Path:
        places.append(place)
        return source

    monkeypatch.setattr("mxc.compiler.checkpoints.hub.located", located)
    assert tuned(artifact).exit_code == 0
    assert places == [("org/tiny", "abc")]


def test_another_checkpoint_is_refused(artifact: Path, source: Path, tmp_path: Path) -> None:
    """By a digest, by a size, by a missing file; and the artifact stays."""
    before = read_manifest(artifact)
    copy = Path(shutil.copytree(source, tmp_path / "copy"))
    shard = copy / "model-00002-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    for change in (lambda: shard.write_bytes(data), lambda: shard.write_bytes(data + b"0")):
        change()
        result = tuned(artifact, "--source", copy)
        assert result.exit_code == 1
        assert f"{shard}: is not the file of which {artifact} was compiled" in result.stderr
        assert result.stderr.count("\n") == 1
    shard.unlink()
    assert f"{shard}: is missing" in tuned(artifact, "--source", copy).stderr
    assert "nowhere: does not exist" in tuned(artifact, "--source", "nowhere").stderr
    assert read_manifest(artifact) == before


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "does not say where its checkpoint is; give the checkpoint with --source"),
        ({"weights_present": False}, "for one target, with its weights; this one is none"),
        ({"model": None}, "an artifact of a language model"),
        ({"device": "hip"}, "is for cpu; schedules of CPUs are measured"),
        ({"options": {"target": 3}}, "options.target: wants a string, found 3"),
        ({"options": {}}, "options.target: missing; compile it again, with --tune"),
        ({"chip": "znver5"}, "is for znver5, and cpu is znver4 here; compile it again"),
    ],
)
def test_what_tune_refuses(
    fields: dict[str, Any], said: str, artifact: Path, source: Path, rewrite: Callable[..., None]
) -> None:
    target = read_manifest(artifact).target
    own = {name: fields[name] for name in fields if name in ("device", "chip")}
    rest = {name: value for name, value in fields.items() if name not in own}
    rewrite(artifact, target=replace(target, **own), **rest)
    before = read_manifest(artifact)
    result = tuned(artifact, *(["--source", source] if fields else []))
    assert result.exit_code == 1
    assert said in result.stderr
    assert read_manifest(artifact) == before
