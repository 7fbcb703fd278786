"""Estimated times of the layers of models, from a file that matrix.py --output has written.

    python benchmarks/gpu/matrix_times.py ROWS.jsonl [--target gfx950] [--pair f4xf4]
                                          [--model REGEX]

One line per layer, one column per number of rows of a call. A cell has the estimated microseconds
of a call of the kernel, and in percent the part of it that the lower bound takes
(compiler/report/kernel_time.py). `+` marks a time that is at most 1 / 0.85 of the lower bound and
the latency of memory together: a kernel has to wait for its first loads, whatever it does then.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from matrix import every_case, read
from matrix_case import Case
from matrix_rows import Row

from mxc.compiler.report.kernel_time import Time
from mxc.targets.amd import GPUS
from mxc.targets.gpu import Gpu
from mxc.targets.target import target

#: The share of the lower bound that is wanted.
WANTED = 0.85


def is_near(time: Time, gpu: Gpu) -> bool:
    """Whether nothing but the first loads keeps a kernel from the wanted share of its bound."""
    return time.bound_seconds + gpu.memory_latency >= WANTED * time.seconds


def cell(time: Time | None, gpu: Gpu) -> str:
    """Format a time for the table."""
    if time is None:
        return "-"
    mark = "+" if is_near(time, gpu) else " "
    return f"{time.seconds * 1e6:.1f} {100 * time.share:3.0f} %{mark}"


def table(pairs: Sequence[tuple[Case, Row]], gpu: Gpu) -> list[str]:
    """Return the lines of the table of one pair of formats. pairs: cases of models, their rows."""
    rows = sorted({case.m for case, _ in pairs})
    layers: dict[str, dict[int, Time | None]] = {}
    for case, row in pairs:
        name = case.name.removeprefix("model ").split(f" M{case.m} ")[0]
        layers.setdefault(name, {})[case.m] = row.time
    lines = [f"{'layer':<30}" + "".join(f"{f'M = {m}':>16}" for m in rows)]
    for name, times in layers.items():
        cells = (cell(times.get(m), gpu) for m in rows)
        lines.append(f"{name:<30}" + "".join(f"{text:>16}" for text in cells))
    near = [is_near(row.time, gpu) for _, row in pairs if row.time is not None]
    lines.append(f"{sum(near)} of {len(near)} near the bound")
    return lines


def main() -> int:
    """Print the table of each pair of formats."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="a file of matrix.py --output")
    parser.add_argument("--target", default="gfx950", choices=[each.name for each in GPUS])
    parser.add_argument("--pair", default="", help="one pair of formats, such as f4xf4")
    parser.add_argument("--model", default="", help="a regular expression over names of layers")
    arguments = parser.parse_args()
    gpu = target(arguments.target).gpu
    assert gpu is not None
    known = {case.name: case for case in every_case() if case.group == "model"}
    found = [
        (known[row.name], row)
        for row in read(arguments.rows)
        if row.target == arguments.target and row.name in known
        if re.search(arguments.model, row.name)
    ]
    for pair in dict.fromkeys(f"{case.lhs}x{case.rhs}" for case, _ in found):
        if arguments.pair in ("", pair):
            print(f"\n{pair}, {gpu.name}: microseconds, share of the lower bound")
            own = [(case, row) for case, row in found if f"{case.lhs}x{case.rhs}" == pair]
            print("\n".join(table(own, gpu)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
