"""Choose the schedule of a product: the cheapest candidate by the cost model (cost.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from mxc.passes.kernels.gpu.candidates import candidates
from mxc.passes.kernels.gpu.cost import cost, padding, requests
from mxc.passes.kernels.gpu.fragments import SMALLEST_TILE
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.schedule import GpuSchedule, Schedules, Transport
from mxc.passes.kernels.gpu.stream_registers import fits, registers
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

#: All transports: the ways in which operands reach registers (GpuSchedule).
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
#: Numbers of rows for which schedules are chosen if the number comes with each call. By the cost
#: model these three schedules cost up to twice as much as the best one for the actual number; one
#: schedule for all numbers costs up to five times as much for the fewest or the most rows.
_ROWS = (16, 256, 2048)
#: Number of groups for which the schedule for the fewest pairs of each expert is chosen: mostly,
#: such a call decodes a few tokens.
_GROUPS = 8
#: How many times as fast a schedule with splits has to be, since it writes partial sums to memory.
_GAIN = 1.05


def choose(
    problem: Problem,
    *,
    device: Gpu = GFX950,
    transports: tuple[Transport, ...] = TRANSPORTS,
) -> GpuSchedule:
    """Return the cheapest schedule. Of schedules that cost the same, a stream comes before others,
    then the one whose loads are the fewest requests, then the one with the least padding, then the
    first candidate.

    Streams that are estimated to spill are left out; if nothing else is left, the one with the
    fewest registers is returned. `transports`: those that may be used. Raises ValueError if there
    is no candidate.
    """

    def rank(schedule: GpuSchedule) -> tuple[float, bool, float, float]:
        clocks = cost(problem, schedule, device) * (_GAIN if schedule.splits > 1 else 1)
        streams = schedule.transport == "stream"
        # Not part of the cost: how long a request takes is not known (docs/gpu-quality.md).
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
    """Return schedules for any number of rows; `problem.rows` is not used.

    A schedule is chosen for each of a few numbers of rows. It is used up to the number of rows from
    which on the next one is cheaper, and at least for the number for which it was chosen.
    `chosen_experts`: whether rows are those of groups that choose an expert each; then the numbers
    are those of `Gpu.group_rows`.
    """
    typical = [replace(problem, rows=rows) for rows in _ROWS]
    # Without splits: some of these numbers of rows have more tiles than there are counters.
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
                for count in range(last, own.rows, SMALLEST_TILE)
                if count + SMALLEST_TILE >= own.rows
                or _is_cheaper(problem, count + SMALLEST_TILE, found, chosen[-1], device)
            )
            bounds.append(before + 1)
        if found not in chosen[-1:]:
            chosen.append(found)
        last = own.rows
    return Schedules(chosen, bounds)


def _groups(pairs: int, rows: int, experts: int) -> int:
    """Return the number of groups of `rows` rows in a call with `pairs` pairs of each expert: half
    of the last group of an expert is taken to be empty. _GROUPS if `pairs` is 0."""
    return experts * -(-(pairs + rows // 2) // rows) if pairs else _GROUPS


def _is_cheaper(
    problem: Problem, rows: int, schedule: GpuSchedule, other: GpuSchedule, device: Gpu
) -> bool:
    """Whether `schedule` is cheaper than `other` for this number of rows."""
    own = replace(problem, rows=rows)
    return cost(own, schedule, device) < cost(own, other, device)
