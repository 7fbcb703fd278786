"""Schedules by measurement, with a compiler and a clock that are given in."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mxc.artifact.manifest import REPORT
from mxc.compiler import tuning
from mxc.compiler.report import Matmul, Report
from mxc.compiler.tuning import GAIN, tune
from mxc.errors import PassError
from mxc.passes.kernels.given_schedules import GivenSchedules

#: The schedules of each product, the first one first.
CHOICES = {"layers.0.up": ["a", "b", "c"], "layers.1.up": ["a", "b", "c"], "head": ["d"]}
SIZES = {"layers.0.up": 64, "layers.1.up": 64, "head": 96}


def compiled(file: Path, folder: Path) -> Any:
    """An artifact whose report says which schedules the file has chosen."""
    ((number,),) = [entry.values() for entry in json.loads(file.read_text())]
    matmuls = [
        Matmul(
            name=name, function="step", batch=1, m=-1, n=SIZES[name], k=64, lhs="bf16", rhs="mxfp4",
            out="f32", kernel="k", lowering="vdpbf16ps", kernels=1, bytes_moved=1, bytes_minimum=1,
            fallback=None, schedule=choices[number if number < len(choices) else 0],
        )
        for name, choices in CHOICES.items()
    ]  # fmt: skip
    report = Report(target="cpu", matmuls=tuple(matmuls), kernels=(), functions=(), findings=())
    folder.mkdir()
    (folder / REPORT).write_text(json.dumps(report.to_dict()))
    target = SimpleNamespace(chip="znver5")
    return SimpleNamespace(path=folder, manifest=SimpleNamespace(target=target))


def measured(times: dict[str, list[float]]) -> Any:
    """A clock: of each artifact the times of the products in two calls, and of something else."""

    def measure(artifact: Path) -> list[dict[str, float]]:
        report = json.loads((artifact / REPORT).read_text())
        (name,) = {each["schedule"] for each in report["matmuls"]} - {"d"}
        return [{"layers.*.up": each, "head": 1.0, "norm": 7.0} for each in times[name]]

    return measure


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ({"a": [4.0, 1.0], "b": [3.0, 1.0], "c": [3.5, 1.0]}, "b"),
        # What is lost in one call counts as much as what is gained in the other.
        ({"a": [4.0, 1.0], "b": [3.0, 1.5], "c": [3.8, 0.9]}, "c"),
        # Less than the least gain is chance.
        ({"a": [4.0, 1.0], "b": [4.0 * GAIN, 1.0], "c": [5.0, 1.0]}, "a"),
    ],
)
def test_the_fastest_schedule_of_each_product_is_kept(
    times: dict[str, list[float]], wanted: str, tmp_path: Path
) -> None:
    (entry,) = tune(compiled, measured(times), tmp_path)
    assert entry == {
        "batch": 1, "m": None, "n": 64, "k": 64, "lhs": "bf16", "rhs": "mxfp4",
        "schedule": wanted, "device": "znver5",
    }  # fmt: skip
    # The artifacts that were measured are gone, and the entry is one that a compilation reads.
    assert {each.name for each in tmp_path.iterdir()} == {"schedule.json"}
    (tmp_path / "found.json").write_text(json.dumps([entry]))
    with pytest.raises(PassError, match="no contraction has batch 1, m None, n 64"):
        GivenSchedules(str(tmp_path / "found.json")).require_taken()


def test_each_schedule_is_compiled_once(tmp_path: Path) -> None:
    asked: list[str] = []

    def compile(file: Path, folder: Path) -> Any:
        asked.append(file.read_text())
        return compiled(file, folder)

    tune(compile, measured({name: [1.0, 1.0] for name in "abc"}), tmp_path)
    # The fourth has nothing that the first has not: it is not measured, and there is no fifth.
    assert asked == [f'[{{"schedule": {number}}}]' for number in range(4)]


def test_a_program_without_a_choice_has_no_schedules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "_products", lambda report: ({}, {}))
    assert tune(compiled, measured({}), tmp_path) == []
