"""Random programs with scaled contractions, compiled, run and compared with numpy.

    python benchmarks/fuzz_programs.py [--count 10000] [--seed 0] [--first 0] [--target cpu]
    python benchmarks/fuzz_programs.py --program finding.json

Each program is put together from pieces (fuzz/description.py). A wrong number, a trace, a crash, a
hang, a refusal that is not ours, and a contraction without a kernel of ours and without a reason in
the report are findings: each is made smaller and written, with its MLIR, to the folder --output.
The exit status is 1 where there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path

from fuzz.check import Outcome, check
from fuzz.description import Program, read
from fuzz.generate import FAMILY, programs
from fuzz.mlir import function
from fuzz.operands import constants
from fuzz.shrink import smallest

#: Findings of a kind that are made smaller and written.
MOST = 20


def write(folder: Path, number: int, program: Program, outcome: Outcome) -> Path:
    """The finding as a description and as a program."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / f"{outcome.kind}-{number}"
    place.with_suffix(".json").write_text(program.json() + "\n")
    lines = "".join(f"// {line}\n" for line in outcome.why.splitlines())
    text = function(program, "main", constants(program, number)).text
    place.with_suffix(".mlir").write_text(lines + text)
    return place


def summary(outcome: Outcome) -> str:
    """A reason without the places and types that differ from program to program."""
    text = re.sub(r"loc\(\S*\):? ?", "", outcome.why)
    text = re.sub(r"tensor<\S*?([a-zA-Z]\w*)>", r"tensor<..\1>", text)
    return f"{outcome.kind}: {text[:140]}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="programs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after these")
    parser.add_argument("--target", default="cpu", help="a CPU target that this machine may run")
    parser.add_argument("--output", type=Path, default=Path("fuzz-findings"))
    parser.add_argument("--keep", action="store_true", help="do not make findings smaller")
    parser.add_argument("--program", type=Path, help="a finding's .json, to be run again")
    return parser.parse_args()


def main() -> int:
    chosen = parse()
    if chosen.program is not None:
        (outcome,) = check([read(chosen.program.read_text())], [chosen.first], chosen.target)
        print(f"{outcome.kind}: {outcome.why}")
        return int(outcome.is_finding)
    start = time.perf_counter()
    found: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    known: Counter[str] = Counter()
    end = chosen.first + chosen.count
    for first in range(chosen.first, end, FAMILY):
        if time.perf_counter() - start > chosen.seconds:
            break
        numbers = list(range(first, min(first + FAMILY, end)))
        family = programs(chosen.seed, first, len(numbers))
        for number, program, outcome in zip(
            numbers, family, check(family, numbers, chosen.target), strict=True
        ):
            found[outcome.kind] += 1
            if not outcome.is_finding:
                reasons[summary(outcome)] += 1
                continue
            known[outcome.kind] += 1
            if known[outcome.kind] > MOST:
                continue
            if not chosen.keep:
                program, outcome = smallest(program, outcome, number, chosen.target)
            place = write(chosen.output, number, program, outcome)
            print(f"program {number}: {outcome.kind}: {outcome.why[:300]}; see {place}.json",
                  flush=True)  # fmt: skip
    done = sum(found.values())
    for kind, count in found.most_common():
        print(f"{kind:10} {count:>7,}")
    for why, count in reasons.most_common(30):
        print(f"  {count:>7,}  {why}")
    seconds = time.perf_counter() - start
    print(f"{done:,} programs in {seconds:.0f} s")
    return int(any(Outcome(kind).is_finding for kind in found))


if __name__ == "__main__":
    sys.exit(main())
