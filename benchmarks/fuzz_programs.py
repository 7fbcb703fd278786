"""Fuzz mxc's passes with random programs with scaled contractions, compared with numpy.

    python benchmarks/fuzz_programs.py [--count 10000] [--seed 0] [--first 0] [--target cpu]
    python benchmarks/fuzz_programs.py --program finding.json

Each program is composed of pieces (fuzz/description.py). mxc's stages run on all programs, and each
normalized program is interpreted in numpy (fuzz/stages.py). One of every --whole programs, and each
that calls a kernel of a new form, is compiled by IREE and run too (fuzz/check.py). Findings are
wrong numbers, tracebacks, crashes, hangs, errors that are not mxc's, and contractions that have
neither a kernel of mxc nor a reason why not. Each finding is shrunk and written, with its MLIR, to
the folder --output. The exit status is 1 if there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzz.check import Check, Outcome, check
from fuzz.description import Program, read
from fuzz.generate import FAMILY, programs
from fuzz.mlir import function
from fuzz.operands import constants
from fuzz.shrink import smallest
from fuzz.stages import Checked, check_stages

#: Most findings of one kind that are shrunk and written.
MOST = 20
#: Waiting programs are compiled together as soon as there are this many.
TOGETHER = 40
#: Families of programs (fuzz/generate.py) between two lines of progress.
STEP = 10


def write(folder: Path, number: int, program: Program, outcome: Outcome) -> Path:
    """Write a finding as a description (.json) and as MLIR; return the path without suffix."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{outcome.kind}-{number}"
    place.with_suffix(".json").write_text(program.json() + "\n")
    lines = "".join(f"// {line}\n" for line in outcome.why.splitlines())
    text = function(program, "main", constants(program, number)).text
    place.with_suffix(".mlir").write_text(lines + text)
    return place


def summary(outcome: Outcome) -> str:
    """Return the kind and reason of an outcome, without locations and sizes of tensors."""
    text = re.sub(r"loc\(\S*\):? ?", "", outcome.why)
    text = re.sub(r"tensor<\S*?([a-zA-Z]\w*)>", r"tensor<..\1>", text)
    return f"{outcome.kind}: {text[:140]}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--whole", type=int, default=50, metavar="N",
                        help="compile and run one of N; 1 for all, 0 for none")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--target", default="cpu", help="a CPU target that this machine may run")
    parser.add_argument("--output", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--keep", action="store_true", help="do not make findings smaller")
    parser.add_argument("--program", type=Path, help="a finding's .json, to be run again")
    return parser.parse_args()


class Run:
    """Checks programs, counts their outcomes, and records the forms of kernels that they call.

    `whole`: one of this many programs is compiled and run, and also the first with each form of
    kernel; 0: none. `smaller`: whether findings are shrunk.
    """

    def __init__(self, *, seed: int, target: str, whole: int, smaller: bool, output: Path) -> None:
        self._seed, self._target, self._whole = seed, target, whole
        self._smaller, self._output = smaller, output
        self._kernels: set[str] = set()
        self._waiting: list[tuple[int, Program]] = []
        self.found: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.compiled = 0

    def check(self, numbers: Sequence[int]) -> None:
        """Run mxc's stages on the programs with these numbers.

        Programs to be compiled as a whole wait until there are TOGETHER of them.
        """
        several = programs(self._seed, numbers[0], len(numbers))
        checked = check_stages(several, numbers, self._target)
        for number, program, each in zip(numbers, several, checked, strict=True):
            if self._is_whole(number, each):
                self._waiting.append((number, program))
            else:
                self._record(number, program, each.outcome, only_stages)
        if len(self._waiting) >= TOGETHER:
            self.finish()

    def finish(self) -> None:
        """Compile and run the waiting programs."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        numbers, several = zip(*waiting, strict=True)
        for number, program, outcome in zip(
            numbers, several, check(several, numbers, self._target), strict=True
        ):
            self._record(number, program, outcome, check)
        self.compiled += len(waiting)

    def _is_whole(self, number: int, checked: Checked) -> bool:
        if checked.outcome.is_finding or not self._whole:
            return False
        new = not checked.kernels <= self._kernels
        self._kernels |= checked.kernels
        return new or (number - self._seed) % self._whole == 0

    def _record(self, number: int, program: Program, outcome: Outcome, again: Check) -> None:
        self.found[outcome.kind] += 1
        if not outcome.is_finding:
            self.reasons[summary(outcome)] += 1
            return
        if self.found[outcome.kind] > MOST:
            return
        if self._smaller:
            program, outcome = smallest(program, outcome, number, self._target, again)
        place = write(self._output, number, program, outcome)
        print(f"program {number}: {outcome.kind}: {outcome.why[:300]}; see {place}.json",
              flush=True)  # fmt: skip

    @property
    def line(self) -> str:
        """The number of programs with each kind of outcome, as text."""
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.found.most_common())
        return f"{self.found.total():,} programs, {self.compiled:,} compiled: {kinds}"


def only_stages(several: Sequence[Program], seeds: Sequence[int], target: str) -> list[Outcome]:
    """Run mxc's stages alone: the `Check` of programs that are not compiled as a whole."""
    return [each.outcome for each in check_stages(several, seeds, target)]


def main() -> int:
    chosen = parse()
    if chosen.program is not None:
        program = read(chosen.program.read_text())
        (outcome,) = only_stages([program], [chosen.first], chosen.target)
        if not outcome.is_finding:
            (outcome,) = check([program], [chosen.first], chosen.target)
        print(f"{outcome.kind}: {outcome.why}")
        return int(outcome.is_finding)
    start = time.perf_counter()
    state = Run(seed=chosen.seed, target=chosen.target, whole=chosen.whole,
                smaller=not chosen.keep, output=chosen.output)  # fmt: skip
    end = chosen.first + chosen.count
    for first in range(chosen.first, end, FAMILY):
        seconds = time.perf_counter() - start
        if seconds > chosen.seconds:
            break
        state.check(range(first, min(first + FAMILY, end)))
        if (first - chosen.first) // FAMILY % STEP == STEP - 1:
            print(f"{state.line}; {time.perf_counter() - start:.0f} s", flush=True)
    state.finish()
    for why, count in state.reasons.most_common(30):
        print(f"  {count:>7,}  {why}")
    print(f"{state.line}; {time.perf_counter() - start:.0f} s")
    return int(any(Outcome(kind).is_finding for kind in state.found))


if __name__ == "__main__":
    sys.exit(main())
