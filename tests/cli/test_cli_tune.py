"""mxc compile --tune: what it refuses, and what it compiles with."""

import json as json_text
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from mxc.artifact.manifest import SCHEDULES
from mxc.compiler.cli import app


@pytest.mark.parametrize(
    "words", ["--schedule s.json", "--emit asm", "--weights none", "--target cpu --target gfx950"]
)
def test_what_cannot_be_tuned_is_refused(words: str, tmp_path: Path) -> None:
    line = ["compile", str(tmp_path), "-o", str(tmp_path / "o"), "--tune", *words.split()]
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 1
    assert "--tune measures an artifact for one target with its weights" in result.output


@pytest.mark.parametrize("found", [[], [{"m": 1, "schedule": "a", "device": "znver5"}]])
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
