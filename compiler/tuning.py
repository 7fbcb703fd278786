"""Schedules by measurement: `mxc compile --tune`.

A product on vector registers has a few schedules, of which the compiler takes the first
(passes/kernels/cpu/schedule.py). Here the program is compiled with the first of every product, then
with the second of every product, and so on; each artifact is measured on this machine by operation,
and of every product the schedule is kept that was fastest. All of them give the same bits.
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

#: Largest share of the time of the first schedule that is a gain: anything above is chance.
GAIN = 0.97

#: Compiles with a file of schedules to a folder.
Compile: TypeAlias = Callable[[Path, Path], Artifact]
#: The time of every operation of an artifact in each of some calls, by its name in all layers.
Measure: TypeAlias = Callable[[Path], Sequence[Mapping[str, float]]]


@dataclass(frozen=True)
class _Variant:
    """`schedules` and `names` of operations by product, a tuple of what `KEYS` say of it."""

    schedules: dict[tuple[Any, ...], str]
    names: dict[tuple[Any, ...], set[str]]
    calls: Sequence[Mapping[str, float]]

    def times(self, key: tuple[Any, ...]) -> list[float]:
        """The time of a product in each call."""
        return [sum(call.get(name, 0.0) for name in self.names[key]) for call in self.calls]


def tune(compile: Compile, measure: Measure, folder: Path) -> list[dict[str, Any]]:
    """The entries of a file of schedules (passes/kernels/given_schedules.py): the fastest of every
    product that has a choice. Artifacts are in `folder` while they are measured."""
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
    """The schedule of a product whose calls take the least part of the time of the first one."""
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
    """The schedule of each product that was given one, and the names of its operations."""
    schedules: dict[tuple[Any, ...], str] = {}
    names: dict[tuple[Any, ...], set[str]] = {}
    for matmul in report.matmuls:
        if matmul.schedule is not None:
            key = _key(matmul)
            schedules.setdefault(key, matmul.schedule)
            names.setdefault(key, set()).add(in_all_layers(matmul.name))
    return schedules, names


def _key(matmul: Matmul) -> tuple[Any, ...]:
    """What `KEYS` say of it: a size that comes with the call is null."""
    values = [getattr(matmul, name) for name in KEYS]
    return tuple(None if value == -1 else value for value in values)
