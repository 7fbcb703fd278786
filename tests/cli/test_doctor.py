"""`mxc doctor`: what it finds here, and what it says of an environment that is wrong."""

import importlib.metadata
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mxc.compiler.cli import app, doctor
from mxc.runtime.machine import physical_cores
from mxc.targets import tile_permission


def findings(*arguments: str, code: int = 0) -> dict[str, dict[str, str]]:
    result = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    assert result.exit_code == code, result.output
    return {each["subject"]: each for each in json.loads(result.output)}


def test_this_machine_runs_mxc() -> None:
    found = findings()
    assert found["iree-base-compiler"] == {
        "subject": "iree-base-compiler",
        "found": importlib.metadata.version("iree-base-compiler"),
        "state": "ok",
        "advice": "",
    }
    assert found["cores"]["found"].startswith(f"{physical_cores()} used")
    assert found["extra test"]["state"] == "ok"
    assert {"Python", "CPU", "kernels", "temporary files", "AMD GPU"} <= set(found)


def test_the_table_fits_100_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(doctor, "_is_installed", lambda name: False)
    result = CliRunner().invoke(app, ["doctor"])
    assert result.exit_code == 0
    assert max(map(len, result.output.splitlines())) <= 100
    # Brackets are no markup.
    assert "'mxc[hub]'" in "".join(result.output.split())


def test_another_iree_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda n: "3.12.0" if n.startswith("iree") else version(n)
    )
    found = findings(code=1)
    wrong = found["iree-base-runtime"]
    assert (wrong["found"], wrong["state"]) == ("3.12.0", "wrong")
    assert wrong["advice"].startswith("pip install iree-base-runtime==")


def test_a_check_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "gone"))
    found = findings(code=1)
    assert found["folders"]["state"] == "wrong"
    assert "No such file" in found["folders"]["found"]


def test_refused_tiles_are_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxc.runtime.machine.cpu_flags", lambda: frozenset({"amx_tile"}))
    monkeypatch.setattr(tile_permission, "refusal", lambda: "Linux refuses them (no)")
    (tiles,) = doctor._tiles()
    assert tiles == doctor.DoctorFinding(
        "AMX tiles", "Linux refuses them (no)", "note", "AVX-512 runs instead"
    )


def test_a_refused_scheduling_policy_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    (found,) = doctor._scheduling()
    assert found.state == "ok"
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    (found,) = doctor._scheduling()
    assert (found.state, found.advice) == ("note", "some tokens take 4 ms longer")
