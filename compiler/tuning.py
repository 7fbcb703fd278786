"""`mxc compile --tune`: choose schedules by measurement.

A contraction on a CPU has a few schedules, and the compiler uses the first
(passes/kernels/cpu/schedule.py, on AMX tiles kernels/amx.py). Tuning compiles the program with the
first schedule of every contraction, then with the second, and so on. Each artifact is run on this
machine, and the time of each operation is measured. The fastest schedule of each contraction is
kept. All schedules give the same bits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from mxc.artifact.kernel_names import in_all_layers
from mxc.artifact.manifest import REPORT
from mxc.compiler.artifact import Artifact
from mxc.compiler.report import Matmul, Report, Reports
from mxc.passes.kernels.cpu.schedule import MOST
from mxc.passes.kernels.given_schedules import KEYS

#: A schedule is faster if it takes at most this share of the time of the first; above is noise.
GAIN = 0.97

#: Compile with the schedule file (first path) into the folder (second path).
Compile: TypeAlias = Callable[[Path, Path], Artifact]
#: Return, for each of several calls of an artifact, the seconds of every operation by its name with
#: "*" for the number of its layer.
Measure: TypeAlias = Callable[[Path], Sequence[Mapping[str, float]]]


@dataclass(frozen=True)
class _Variant:
    """One measured artifact: `schedules` and `names` of operations by product, `calls` as measured.

    The key of a product is the tuple of its values for `KEYS`.
    """

    schedules: dict[tuple[Any, ...], str]
    names: dict[tuple[Any, ...], set[str]]
    calls: Sequence[Mapping[str, float]]

    def times(self, key: tuple[Any, ...]) -> list[float]:
        """Return the time of a product in each call."""
        return [sum(call.get(name, 0.0) for name in self.names[key]) for call in self.calls]


def tune(compile: Compile, measure: Measure, folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a schedule file (passes/kernels/given_schedules.py): the fastest
    schedule of every product that has a choice. `folder` holds the artifacts while they are
    measured.
    """
    found: list[_Variant] = []
    device = ""
    for number in range(MOST):
        file = folder / "schedule.json"
        file.write_text(json.dumps([{"schedule": number}]))
        artifact = compile(file, folder / f"{number}.mxc")
        schedules, names = _products(_report(artifact))
        new = schedules and (not found or schedules != found[0].schedules)
        if new:
            device = artifact.manifest.target.chip
            found.append(_Variant(schedules, names, measure(artifact.path)))
        shutil.rmtree(artifact.path)
        if not new:
            break
    keys = found[0].schedules if found else {}
    return [
        {
            **dict(zip(KEYS, key, strict=True)),
            "schedule": _fastest(found, key),
            "device": device,
        }
        for key in keys
        if len({each.schedules[key] for each in found}) > 1
    ]


def _fastest(found: Sequence[_Variant], key: tuple[Any, ...]) -> str:
    """Return the schedule of a product with the smallest mean share of the first one's time."""
    first, *others = found
    usual = first.times(key)

    def part(variant: _Variant) -> float:
        pairs = zip(variant.times(key), usual, strict=True)
        parts = [own / other for own, other in pairs if other]
        return sum(parts) / len(parts) if parts else 1.0

    own = [each for each in others if each.schedules[key] != first.schedules[key]]
    best = min(own, key=part, default=first)
    return (best if part(best) < GAIN else first).schedules[key]


def _report(artifact: Artifact) -> Report:
    text = (artifact.path / REPORT).read_text()
    (found,) = Reports.from_dict(json.loads(text), REPORT).levels.values()
    return found


def _products(
    report: Report,
) -> tuple[dict[tuple[Any, ...], str], dict[tuple[Any, ...], set[str]]]:
    """Return the schedule of each product that has one, and the names of its operations."""
    schedules: dict[tuple[Any, ...], str] = {}
    names: dict[tuple[Any, ...], set[str]] = {}
    for matmul in report.matmuls:
        if matmul.schedule is not None:
            key = _key(matmul)
            schedules.setdefault(key, matmul.schedule)
            names.setdefault(key, set()).add(in_all_layers(matmul.name))
    return schedules, names


def _key(matmul: Matmul) -> tuple[Any, ...]:
    """Return the values of `KEYS` for a product; None for a size that is known at the call only."""
    values = [getattr(matmul, name) for name in KEYS]
    return tuple(None if value == -1 else value for value in values)
