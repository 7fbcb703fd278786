"""Compile and run a hundred programs in the forms of other projects, for a CPU and for gfx950.

    python benchmarks/foreign_programs.py [--output docs/foreign-programs.md] [--filter REGEX]

The programs are described in fuzz/foreign.py. Each runs on the patterns of fuzz/operands.py, on
this machine and on the simulator, and is compared with fuzz/reference.py. The page lists the
instructions of each program's kernel, or the reason why it has none. The exit status is 1 if a
number is wrong, the compiler fails, or a reason is missing.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fuzz.check import Outcome, check
from fuzz.foreign import Foreign, foreign

TARGETS = ("cpu", "gfx950")
#: Line width of a page, in characters.
_COLUMNS = 120
#: Programs that are compiled together.
TOGETHER = 10

HEAD = """# A hundred programs

This page is for people who bring a program of their own: it shows which forms of a scaled \
contraction mxc recognizes.
The forms are those of IREE's and LLVM's tests, of exports from JAX and torch, and some that \
people may write by hand.
`python benchmarks/foreign_programs.py --output docs/foreign-programs.md` writes the page.
`benchmarks/fuzz/foreign.py` describes the programs.

Each program runs with random operands, with sums that are exact in any order, with the scales 0, \
1 and 254, with blocks
of zeros and with NaN scales.
The CPU is {cpu}; the code for gfx950 runs on the simulator.
Results are compared with numpy: bit for bit where sums are exact, else within a bound that \
follows from the roundings
of the program.

- **kernel**: a kernel of mxc computes it with these instructions, and the numbers are right.
- **fallback**: IREE's code computes it, the numbers are right, and the report says why.
- **refused**: the compiler refuses the program, and says why.

"""


def cell(outcome: Outcome) -> str:
    """Return the instructions of the kernel, or why there is none."""
    if outcome.kind == "kernel":
        return f"`{outcome.why}`"
    return f"{outcome.kind}, {outcome.why.removeprefix('no kernel of mxc computes it: ')}"


def body(every: Sequence[Foreign], found: dict[str, list[Outcome]]) -> str:
    """Return the page below its head: the number of each outcome, then the programs, grouped by
    their outcomes on all targets."""
    lines = ["| | kernel | fallback | refused | findings |", "|---|---|---|---|---|"]
    for target in TARGETS:
        count = Counter("findings" if o.is_finding else o.kind for o in found[target])
        row = " | ".join(str(count[k]) for k in ("kernel", "fallback", "refused", "findings"))
        lines.append(f"| {target} | {row} |")
    groups: dict[tuple[Outcome, ...], dict[str, list[str]]] = {}
    for each, of_each in zip(every, zip(*found.values(), strict=True), strict=True):
        groups.setdefault(of_each, {}).setdefault(each.origin, []).append(each.name)
    lines += ["", "## By instructions", ""]
    for of_each, origins in groups.items():
        kernels = zip(TARGETS, map(cell, of_each), strict=True)
        lines.append(_fill("- " + "; ".join(f"{target}: {text}" for target, text in kernels)))
        lines += [_fill(f"    - {origin}: {'; '.join(names)}") for origin, names in origins.items()]
    return "\n".join(lines) + "\n"


def _fill(text: str) -> str:
    indent = " " * (2 + text.index("-"))
    return textwrap.fill(text, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False)


def _reason(text: str) -> str:
    """Return a reason without locations, which differ from program to program; 300 characters."""
    text = re.sub(
        r'^loc\(.*?\): |/\S*program\.mlir:\d+:\d+: | at loc\("[^"]*"(:\d+:\d+)?\)', "", text
    )
    return " ".join(text.split())[:300]


def outcomes(every: Sequence[Foreign], target: str) -> list[Outcome]:
    """Compile and run the programs for a target. Print and return the outcome of each."""
    found: list[Outcome] = []
    for start in range(0, len(every), TOGETHER):
        part = every[start : start + TOGETHER]
        numbers = list(range(start, start + len(part)))
        checked = check([each.program for each in part], numbers, target)
        found += [replace(each, why=_reason(each.why)) for each in checked]
        for each, outcome in zip(part, found[start:], strict=True):
            print(f"{target}: {each.origin}: {each.name}: {outcome.kind} {outcome.why[:200]}",
                  flush=True)  # fmt: skip
    return found


def cpu_name() -> str:
    """Return the name of this machine's processor."""
    text = Path("/proc/cpuinfo").read_text()
    return text.partition("model name")[2].partition("\n")[0].strip("\t :") or "unnamed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="the page to write")
    parser.add_argument("--filter", default="", help="a regular expression over origins and names")
    chosen = parser.parse_args()
    every = [e for e in foreign() if re.search(chosen.filter, f"{e.origin}: {e.name}")]
    found = {target: outcomes(every, target) for target in TARGETS}
    page = HEAD.format(cpu=cpu_name()) + body(every, found)
    if chosen.output is None:
        print(page)
    else:
        chosen.output.write_text(page)
    return int(any(outcome.is_finding for each in found.values() for outcome in each))


if __name__ == "__main__":
    sys.exit(main())
