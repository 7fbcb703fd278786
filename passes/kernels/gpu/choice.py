"""Which schedule a product gets: the cheapest of those that its kernel can follow (cost.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from mxc.passes.kernels.gpu.candidates import candidates
from mxc.passes.kernels.gpu.cost import cost, padding, requests
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.schedule import GpuSchedule, Schedules, Transport
from mxc.passes.kernels.gpu.stream_registers import fits, registers
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

#: Each way of operands to registers.
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
#: Rows that schedules are chosen for where their number comes with each call. By the model these
#: three cost up to twice as much as the best one for any number of rows; one schedule for all costs
#: up to five times as much at one end.
_ROWS = (16, 256, 2048)
#: Groups with few rows that schedules are chosen for: mostly, a call decodes a few tokens.
_GROUPS = 8
#: Rows of a tile: between its multiples nothing changes.
_TILE = 16
#: How many times as fast a schedule has to be that leaves parts of sums in memory.
_GAIN = 1.05


def choose(
    problem: Problem,
    *,
    device: Gpu = GFX950,
    transports: tuple[Transport, ...] = TRANSPORTS,
) -> GpuSchedule:
    """The cheapest schedule; of equals a stream, the one whose loads are the fewest requests, that
    with the least padding, the first.

    Raises ValueError where there is none.
    """

    def rank(schedule: GpuSchedule) -> tuple[float, bool, float, float]:
        clocks = cost(problem, schedule, device) * (_GAIN if schedule.splits > 1 else 1)
        streams = schedule.transport == "stream"
        # How long a request takes is not known (docs/gpu-quality.md).
        counts = problem.panels and (problem.is_float if streams else not problem.parts)
        asked = requests(problem, schedule, device) if counts and not problem.is_dense else 0
        return round(clocks), not streams, asked, padding(problem, schedule)

    known = [s for s in candidates(problem, device) if s.transport in transports]
    found = [s for s in known if s.transport != "stream" or fits(problem, s, device)]
    if not found:
        found = [min(known, key=lambda schedule: registers(problem, schedule))]
    return min(found, key=rank)


def choose_by_rows(
    problem: Problem,
    *,
    chosen_experts: bool = False,
    device: Gpu = GFX950,
    transports: tuple[Transport, ...] = TRANSPORTS,
) -> Schedules:
    """Schedules for any number of rows, whatever those of the problem.

    Those for a few numbers of rows; each goes up to the number for which the next one is cheaper,
    but not less far than to its own. `chosen_experts`: the rows are those of groups that choose an
    expert each, as `rows_of_groups` has them for the device.
    """
    typical = [replace(problem, rows=rows) for rows in _ROWS]
    # Any number of rows has more tiles than there are counters.
    typical[-1] = replace(typical[-1], splits=())
    if chosen_experts:
        typical = [
            replace(problem, rows=rows, groups=_groups(pairs, rows, problem.experts))
            for pairs, rows in device.group_rows
        ]
    chosen: list[GpuSchedule] = []
    bounds: list[int] = []
    last = 0
    for own in typical:
        found = choose(own, device=device, transports=transports)
        if chosen and found != chosen[-1]:
            before = next(
                count
                for count in range(last, own.rows, _TILE)
                if count + _TILE >= own.rows
                or _is_cheaper(problem, count + _TILE, found, chosen[-1], device)
            )
            bounds.append(before + 1)
        if found not in chosen[-1:]:
            chosen.append(found)
        last = own.rows
    return Schedules(chosen, bounds)


def _groups(pairs: int, rows: int, experts: int) -> int:
    """Groups of so many rows in calls that have at least so many pairs of each expert: half of the
    last group of an expert is empty."""
    return experts * -(-(pairs + rows // 2) // rows) if pairs else _GROUPS


def _is_cheaper(
    problem: Problem, rows: int, schedule: GpuSchedule, other: GpuSchedule, device: Gpu
) -> bool:
    own = replace(problem, rows=rows)
    return cost(own, schedule, device) < cost(own, other, device)
