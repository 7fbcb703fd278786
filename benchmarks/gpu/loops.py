"""Estimate the hot loop of a kernel from its assembly, by the issue model and by llvm-mca.

    mxc compile product.mlir --target gfx950 --emit asm --output asm
    python benchmarks/gpu/loops.py asm/*.s [--target gfx950] [--mca llvm-mca-22] [--json]

The model runs with LDS at 128 and at 256 bytes per clock, and with memory latencies of 500 to 3000
clocks; the first column has the report's figure. llvm-mca is used where it is installed (see
mca.py): "cold" is over the first 20 iterations, "steady" over the next 20. The last lines are the
places where a wave waits for a twentieth of the iteration or more, other than for matrix cores.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mca

from mxc.artifact.code_objects.metadata import resources
from mxc.compiler.report.assembly import KernelCode, bodies_of, parse
from mxc.compiler.report.issue_model import estimate, waits
from mxc.compiler.report.issue_steps import IssueStep, read_steps
from mxc.compiler.report.loops import LoopInstruction, hot_loop
from mxc.simulator.assembly.metadata import metadata_of
from mxc.targets.amd import gpu
from mxc.targets.compute_unit import ComputeUnit
from mxc.targets.gpu import Gpu

#: (LDS bytes per clock, memory latency in clocks) that the model runs with. First: the report's.
SETTINGS = ((128, 1000), (128, 500), (128, 2000), (128, 3000), (256, 1000), (256, 2000))


def measure(text: str, target: Gpu, command: str | None) -> list[dict[str, Any]]:
    """Return a row for each kernel with a loop in one file of assembly. command: of llvm-mca."""
    unit = target.unit
    bodies = bodies_of(text)
    rows = []
    for kernel in parse(text, unit, resources(metadata_of(text, "assembly"))):
        loop = hot_loop(bodies.get(kernel.name, ""))
        if not loop.is_loop or unit.rates is None or kernel.occupancy is None:
            continue
        steps = read_steps(loop.lines, unit.rates)
        found = [
            estimate(
                steps,
                unit,
                workgroup_size=kernel.workgroup_size or unit.wave,
                workgroups=kernel.occupancy.workgroups,
                rates=replace(unit.rates, lds_bytes_per_clock=lds, memory_latency=latency),
            )
            for lds, latency in SETTINGS
        ]
        told = mca.share(command, loop.lines, target.name) if command else None
        rows.append(
            {
                "kernel": kernel.name,
                "census": loop.census,
                "vgpr": kernel.vgpr,
                "agpr": kernel.agpr,
                "lds_bytes": kernel.lds_bytes,
                "workgroup_size": kernel.workgroup_size,
                "waves": kernel.occupancy.waves_per_simd,
                "shares": [round(each.matrix_share, 3) for each in found],
                "bound_by": found[0].bound_by,
                "bytes_in_flight": found[0].bytes_in_flight,
                "waits": _waits(loop.lines, steps, kernel, unit, found[0].clocks / 20),
                "mca": None if told is None else [round(told.cold, 3), round(told.steady, 3)],
            }
        )
    return rows


def _waits(
    lines: Sequence[LoopInstruction],
    steps: Sequence[IssueStep],
    kernel: KernelCode,
    unit: ComputeUnit,
    least: float,
) -> list[dict[str, Any]]:
    """Return the instructions after which a wave waits `least` clocks or more, the longest wait
    first; not matrix instructions."""
    assert kernel.occupancy is not None
    size = kernel.workgroup_size or unit.wave
    clocks = waits(steps, unit, workgroup_size=size, workgroups=kernel.occupancy.workgroups)
    places = [at for at, step in enumerate(steps) if step.pipe != "matrix" and clocks[at] >= least]
    return [
        {
            "number": at,
            "instruction": f"{lines[at].mnemonic} {lines[at].operands}".strip(),
            "clocks": round(clocks[at]),
        }
        for at in sorted(places, key=lambda at: -clocks[at])
    ]


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Print four lines for each kernel, and its longest waits."""
    headings = " ".join(f"{lds}/{latency}".rjust(9) for lds, latency in SETTINGS)
    for row in rows:
        census = ", ".join(f"{count} {kind}" for kind, count in row["census"].items())
        shares = " ".join(f"{share:9.2f}" for share in row["shares"])
        told = row["mca"]
        print(
            f"{row['kernel']}: {row['vgpr']} VGPR ({row['agpr']} AGPR), {row['lds_bytes']} B of "
            f"LDS, {row['workgroup_size']} work-items, {row['waves']} waves a SIMD"
        )
        print(f"  {census}")
        print(f"  LDS B/clk / latency {headings}   llvm-mca     cold   steady")
        print(
            f"  matrix cores busy   {shares}            "
            + (f"{told[0]:9.3f}{told[1]:9.3f}" if told else "  not asked")
            + f"   bound by {row['bound_by']}, {row['bytes_in_flight']} B in flight"
        )
        for each in row["waits"]:
            print(f"  {each['clocks']} clocks after {each['instruction']} (#{each['number']})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="assembly: .s of mxc, .rocmasm of IREE")
    parser.add_argument("--target", default="gfx950", choices=["gfx950", "gfx942"])
    parser.add_argument("--mca", help="the command of llvm-mca, 20 or later")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = gpu(arguments.target)
    assert found is not None
    command = mca.find(arguments.mca)
    texts = [file.read_text() for file in arguments.files]
    rows = [row for text in texts for row in measure(text, found, command)]
    if arguments.json:
        print(json.dumps(rows))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
