"""The hot loop of a kernel in the report: its instructions, and for GPUs the issue model's
estimate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from mxc.compiler.report.issue_model import ITERATIONS, Estimate, estimate
from mxc.compiler.report.issue_steps import IssueStep, lane_bytes, read_steps
from mxc.compiler.report.loops import hot_loop
from mxc.targets.compute_unit import ComputeUnit, Occupancy

#: Limits on the simulated steps, of kernels with matrix instructions (0.1 s) and of others. Fewer
#: workgroups are simulated to stay below them.
_MOST_STEPS, _MOST_OTHERS = 120_000, 12_000
_LOADS = ("global_load", "load_to_lds")


@dataclass(frozen=True, kw_only=True)
class HotLoop:
    """The hot loop of a kernel, or the whole of a kernel without a loop (`is_loop` False).

    - census: number of instructions by kind (`loops.KINDS`, or `cpu_loops.CPU_KINDS`).
    - load_bytes: mean number of bytes that a lane gets from one global load; None without loads.

    The other fields are estimates of the issue model. They are None on a CPU, if the unit has no
    rates, or if there is neither a loop nor a matrix instruction.

    - clocks: of one iteration of all waves on a compute unit; without a loop, of the whole kernel
      when workgroups follow one another.
    - shares: the shares of these clocks in which the matrix cores, vector units, LDS and the memory
      path are busy.
    - bound_by: the busiest pipe, or "latency".
    - bytes_in_flight: mean bytes of a compute unit's outstanding loads and stores.
    """

    is_loop: bool
    instructions: int
    census: Mapping[str, int]
    load_bytes: float | None = None
    clocks: float | None = None
    shares: Mapping[str, float] | None = None
    bound_by: str | None = None
    bytes_in_flight: int | None = None

    @property
    def matrix_share(self) -> float | None:
        """Share of the time in which the matrix cores are busy; None if they are not used."""
        used = self.shares is not None and "matrix" in self.census
        return self.shares["matrix"] if used and self.shares is not None else None


def describe(body: str, unit: ComputeUnit, held: Occupancy, workgroup_size: int) -> HotLoop:
    """Describe the hot loop of the kernel with the text `body` and the occupancy `held`."""
    loop = hot_loop(body)
    loads = [lane_bytes(line.mnemonic) for line in loop.lines if line.kind in _LOADS]
    wide = round(sum(loads) / len(loads), 1) if loads else None
    found = HotLoop(
        is_loop=loop.is_loop,
        instructions=len(loop.lines),
        census=dict(loop.census),
        load_bytes=wide,
    )
    if unit.rates is None or not (loop.is_loop or "matrix" in found.census):
        return found
    steps = tuple(read_steps(loop.lines, unit.rates))
    waves = -(-workgroup_size // unit.wave)
    most = _MOST_STEPS if "matrix" in found.census else _MOST_OTHERS
    groups = max(1, min(held.workgroups, most // (len(steps) * waves * ITERATIONS)))
    model = _estimate(steps, unit, workgroup_size, groups, not loop.is_loop)
    return HotLoop(
        is_loop=loop.is_loop,
        instructions=found.instructions,
        census=found.census,
        load_bytes=wide,
        clocks=round(model.clocks, 1),
        shares={pipe: round(share, 3) for pipe, share in model.shares.items()},
        bound_by=model.bound_by,
        bytes_in_flight=model.bytes_in_flight,
    )


@lru_cache(maxsize=256)
def _estimate(
    steps: tuple[IssueStep, ...], unit: ComputeUnit, workgroup_size: int, groups: int, restart: bool
) -> Estimate:
    """Run the issue model, once for equal kernels of many layers."""
    return estimate(steps, unit, workgroup_size=workgroup_size, workgroups=groups, restart=restart)
