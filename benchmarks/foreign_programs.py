"""A hundred programs as others write them, compiled for a CPU and for gfx950, run and compared.

    python benchmarks/foreign_programs.py [--output docs/foreign-programs.md] [--filter REGEX]

The programs are described in fuzz/foreign.py. Each runs on the patterns of fuzz/operands.py, on
this machine and on the simulator, and is compared with fuzz/reference.py. The table says which
instructions the kernel has, or why there is none. The exit status is 1 where a number is wrong, the
compiler fails, or a reason is missing.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fuzz.check import Outcome, check
from fuzz.foreign import Foreign, foreign

TARGETS = ("cpu", "gfx950")
#: Columns of a page.
_COLUMNS = 120
#: Programs that are compiled together.
TOGETHER = 10

HEAD = """# Programs of others

Forms of scaled contractions as IREE's and LLVM's tests have them, as exports of JAX and torch \
spell them, and as people
may write them: what becomes of each.
`python benchmarks/foreign_programs.py` writes this page; the programs are described in \
`benchmarks/fuzz/foreign.py`,
and made from these descriptions.

Each program runs with random operands, with sums that are exact in any order, with the scales \
0, 1 and 254, with blocks
of zeros and with NaN scales.
The CPU is {cpu}; the code for gfx950 runs on the simulator.
Results are compared with numpy: bit for bit where sums are exact, else within a bound that \
follows from the roundings
of the program.

- **kernel**: in a kernel of ours, with these instructions, and the numbers are right.
- **fallback**: the numbers are right, no kernel of ours computes it, and the report says why.
- **refused**: the compiler refuses the program, and says why.

"""


def cell(outcome: Outcome, notes: list[str]) -> str:
    """What the table says; reasons are notes below it."""
    if outcome.kind == "kernel":
        return f"`{outcome.why}`"
    why = _reason(outcome.why)
    if why not in notes:
        notes.append(why)
    return f"{outcome.kind} [{notes.index(why) + 1}]"


def _reason(text: str) -> str:
    """A reason without what differs from program to program."""
    text = re.sub(
        r'^loc\(.*?\): |/\S*program\.mlir:\d+:\d+: | at loc\("[^"]*"(:\d+:\d+)?\)', "", text
    )
    return " ".join(text.split())[:300]


def table(every: Sequence[Foreign], found: dict[str, list[Outcome]]) -> str:
    """The page below its head."""
    notes: list[str] = []
    lines = ["| | form of | program | cpu | gfx950 |", "|---|---|---|---|---|"]
    for number, each in enumerate(every):
        cells = " | ".join(cell(found[target][number], notes) for target in TARGETS)
        lines.append(f"| {number + 1} | {each.origin} | {each.name} | {cells} |")
    totals = ["| | kernel | fallback | refused | findings |", "|---|---|---|---|---|"]
    for target in TARGETS:
        count = Counter("findings" if o.is_finding else o.kind for o in found[target])
        row = " | ".join(str(count[k]) for k in ("kernel", "fallback", "refused", "findings"))
        totals.append(f"| {target} | {row} |")
    below = [
        textwrap.fill(
            f"{number}. {note}", _COLUMNS, subsequent_indent=" " * 3, break_on_hyphens=False
        )
        for number, note in enumerate(notes, 1)
    ]
    return "\n".join([*totals, "", *lines, "", *below]) + "\n"


def outcomes(every: Sequence[Foreign], target: str) -> list[Outcome]:
    """What becomes of each on a target."""
    found: list[Outcome] = []
    for start in range(0, len(every), TOGETHER):
        part = every[start : start + TOGETHER]
        numbers = list(range(start, start + len(part)))
        found += check([each.program for each in part], numbers, target)
        for each, outcome in zip(part, found[start:], strict=True):
            print(f"{target}: {each.origin}: {each.name}: {outcome.kind} {outcome.why[:200]}",
                  flush=True)  # fmt: skip
    return found


def cpu_name() -> str:
    """The name of this machine's processor."""
    text = Path("/proc/cpuinfo").read_text()
    return text.partition("model name")[2].partition("\n")[0].strip("\t :") or "unnamed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="the page to write")
    parser.add_argument("--filter", default="", help="a regular expression over origins and names")
    chosen = parser.parse_args()
    every = [e for e in foreign() if re.search(chosen.filter, f"{e.origin}: {e.name}")]
    found = {target: outcomes(every, target) for target in TARGETS}
    page = HEAD.format(cpu=cpu_name()) + table(every, found)
    if chosen.output is None:
        print(page)
    else:
        chosen.output.write_text(page)
    return int(any(outcome.is_finding for each in found.values() for outcome in each))


if __name__ == "__main__":
    sys.exit(main())
