"""Compare mxc's gfx950 kernels with the reference, on the simulator under its sanitizer.

    python benchmarks/gpu/agreement.py [--filter REGEX] [--jobs 2] [--list]

Cases (agreement_cases.py) are compiled like any program, a dozen per module, and each kernel runs
on every pattern of operands (agreement_operands.py). The script prints a line for each case and
pattern that disagrees or has a finding of the sanitizer, and at the end how many agree. The exit
status is 1 where one does not. A run takes some minutes.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from agreement_cases import Case, cases
from agreement_operands import PATTERNS, Pattern, Wanted, operands, patterns
from agreement_programs import program
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

import mxc
from mxc.runtime.simulated import SimulatedModel, load
from mxc.simulator.watch.sanitizer import Sanitizer

#: Cases that are compiled together, as one module.
_TOGETHER = 12


@dataclass(frozen=True)
class Found:
    """The outcome of a case on a pattern of operands.

    wrong: what disagrees; "" if nothing does. compared: number of results. left_open: how many of
    these may also be infinite or NaN (not `Wanted.settled`).
    """

    case: Case
    pattern: Pattern
    wrong: str
    compared: int = 0
    left_open: int = 0


class Programs:
    """Cases that were compiled together, to be run under the sanitizer."""

    def __init__(self, chosen: Sequence[Case], folder: Path) -> None:
        """Compile the cases `chosen` in `folder`. Raises what mxc.compile raises."""
        (folder / "program.mlir").write_text(program(chosen))
        mxc.compile(folder / "program.mlir", target="gfx950", output=folder / "program.mxc")
        self._seen: list[tuple[str, Sanitizer]] = []
        self._model: SimulatedModel = load(folder / "program.mxc", observe=self._observe)

    def _observe(self, kernel: Any) -> Sanitizer:
        self._seen.append((kernel.name, Sanitizer()))
        return self._seen[-1][1]

    def run(self, case: Case, pattern: Pattern) -> Found:
        """Run a case on a pattern, and compare its results with the reference."""
        arguments, wanted = operands(case, pattern)
        self._seen.clear()
        given = self._model.call(case.function, *arguments)
        results = list(given) if isinstance(given, list | tuple) else [given]
        names = [name for name, _ in self._seen]
        if len(names) != 1 or "mxc_" not in names[0]:
            return Found(case, pattern, f"it is no kernel of ours: {', '.join(names)}")
        findings = [str(each) for _, sanitizer in self._seen for each in sanitizer.findings]
        if findings:
            return Found(case, pattern, f"{len(findings)} findings: {findings[0]}")
        return compared(case, pattern, results, wanted)


def compared(
    case: Case, pattern: Pattern, results: Sequence[npt.NDArray[Any]], wanted: Wanted
) -> Found:
    """Compare the results of a case with those that are wanted, within their error."""
    if case.epilogue == "quantize":
        pairs = zip(results, wanted.results, strict=True)
        off = sum(int((r.view(np.uint8).reshape(w.shape) != w).sum()) for r, w in pairs)
        count = sum(each.size for each in wanted.results)
        return Found(case, pattern, f"{off} bytes of {count} differ" if off else "", count)
    (found,), (result,) = results, wanted.results
    same = _same(found, result, wanted.error) | _same(found, wanted.exact, wanted.error)
    wrong = ~same & (wanted.settled | np.isfinite(found))
    left_open = int((~wanted.settled).sum())
    told = ""
    if wrong.any():
        at = tuple(int(axis[0]) for axis in np.nonzero(wrong))
        told = f"{int(wrong.sum())} of {wrong.size} differ, at {list(at)}: "
        told += f"{found[at]!r}, wanted {result[at]!r}"
    return Found(case, pattern, told, found.size, left_open)


def _same(
    found: npt.NDArray[Any], wanted: npt.NDArray[Any], error: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    with np.errstate(invalid="ignore"):
        near = np.abs(found.astype(np.float64) - wanted) <= error
    nan = np.isnan(found) & np.isnan(wanted)
    same: npt.NDArray[np.bool_] = (near & np.isfinite(wanted)) | nan | (found == wanted)
    return same


def check(chosen: Sequence[Case]) -> list[Found]:
    """Compile cases together, and run each on its patterns."""
    with tempfile.TemporaryDirectory(prefix="mxc-agreement-") as folder:
        programs = Programs(chosen, Path(folder))
        return [programs.run(case, pattern) for case in chosen for pattern in patterns(case)]


def run(chosen: Sequence[Case], jobs: int, bar: Progress) -> Iterator[list[Found]]:
    """Check cases in `jobs` processes. Yield the outcomes of each module of cases, in order."""
    task = bar.add_task("", total=len(chosen))
    parts = [chosen[at : at + _TOGETHER] for at in range(0, len(chosen), _TOGETHER)]
    with ProcessPoolExecutor(jobs) as pool:
        for part, found in zip(parts, pool.map(check, parts), strict=True):
            bar.advance(task, len(part))
            yield found


def show(every: Sequence[Found]) -> None:
    """Print how many agree, by schedule, type of the elements in registers, and pattern."""
    ways = sorted({(each.case.schedule, each.case.register or "as they are") for each in every})
    print(f"\n{'schedule, in registers':<32}" + "".join(f"{name:>14}" for name in PATTERNS))
    for schedule, register in ways:
        own = [f for f in every if (f.case.schedule, f.case.register or "as they are")
               == (schedule, register)]  # fmt: skip
        total = Counter(f.pattern for f in own)
        right = Counter(f.pattern for f in own if not f.wrong)
        cells = (f"{right[p]} of {total[p]}" if total[p] else "" for p in PATTERNS)
        print(f"{schedule + ', ' + register:<32}" + "".join(f"{cell:>14}" for cell in cells))
    agree = sum(not each.wrong for each in every)
    count, left_open = (sum(each.compared for each in every), sum(f.left_open for f in every))
    print(f"\n{agree} of {len(every)} agree; {count} results, of which {left_open} are left open")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--filter", default="", help="a regular expression over names of cases")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    chosen = [case for case in cases() if re.search(arguments.filter, case.name)]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if not chosen:
        raise SystemExit(f"--filter {arguments.filter!r}: no case has such a name; see --list")
    every: list[Found] = []
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        for part in run(chosen, arguments.jobs, bar):
            every += part
            for each in part:
                if each.wrong:
                    print(f"{each.case.name}, {each.pattern}: {each.wrong}", flush=True)
    show(every)
    return int(any(each.wrong for each in every))


if __name__ == "__main__":
    sys.exit(main())
