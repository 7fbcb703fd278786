"""Which schedule a product gets: the cheapest of those that its kernel can follow (cost.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from mxc.dialects.expert_groups import FEW_ROWS, MANY_ROWS
from mxc.passes.kernels.gpu.candidates import candidates
from mxc.passes.kernels.gpu.cost import cost, padding, requests
from mxc.passes.kernels.gpu.floats import loaded_ahead
from mxc.passes.kernels.gpu.fragments import BLOCK, K_STEPS
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.schedule import GpuSchedule, Schedules, Transport
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

#: Each way of operands to registers.
TRANSPORTS: tuple[Transport, ...] = get_args(Transport)
#: Registers that a streaming kernel may be estimated to take: with more LLVM 24 was seen to spill.
_REGISTERS = 400
#: The same where sides are decoded by integers, by the registers that a lane may have. With more
#: than half of 1024 a wave would be alone on its SIMD.
_DECODING = {256: 180, 512: 345, 1024: 345}
#: The same of a dense product, by the lanes of a wave.
_DENSE = {64: 345, 32: 130}
#: The same where f32 scales multiply sums, by the sums of a k-step, which LLVM computes side by
#: side if a wave has all of K: 516, 424 and 306 were seen to spill. The same where integers decode.
_SUMS, _SUMS_BY_INTEGERS = {1: 490, 2: 400, 4: 300}, {1: 345, 2: 345, 4: 250}
#: Registers of a block in bf16.
_DECODED = 16
#: More where a float is more than one of them, for each.
_PART = 72
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
    found = [s for s in known if s.transport != "stream" or _fits(problem, s, device)]
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
    expert each, as `rows_of_groups` has them.
    """
    typical = [replace(problem, rows=rows) for rows in _ROWS]
    # Any number of rows has more tiles than there are counters.
    typical[-1] = replace(typical[-1], splits=())
    if chosen_experts:
        # Calls with many rows in a group have one group for each expert, and up to one for every
        # 64 pairs more.
        groups = ((FEW_ROWS, _GROUPS), (MANY_ROWS, 2 * problem.experts))
        typical = [replace(problem, rows=rows, groups=count) for rows, count in groups]
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


def _is_cheaper(
    problem: Problem, rows: int, schedule: GpuSchedule, other: GpuSchedule, device: Gpu
) -> bool:
    own = replace(problem, rows=rows)
    return cost(own, schedule, device) < cost(own, other, device)


def _fits(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Whether a lane of a streaming kernel has registers for what it is estimated to take."""
    unit, sums = device.matrix, problem.sums(schedule)
    most = _DECODING[unit.registers] if problem.parts and not unit.converts else _REGISTERS
    if problem.is_dense:
        most = _DENSE[unit.lanes]
    if sums:
        limits = _SUMS if unit.converts else _SUMS_BY_INTEGERS
        most = limits[sums if schedule.waves[2] == 1 else 1]
    return registers(problem, schedule) <= most


def registers(problem: Problem, schedule: GpuSchedule) -> int:
    """Estimated registers of a lane of a streaming kernel: totals, two steps of operands, and what
    elements are decoded to. Of floats there is less than a step at a time."""
    m, n = schedule.tiles
    if problem.is_dense:
        # A step may be one block, and the sum of a chunk goes to another.
        chunks = 1 if schedule.waves[2] > 1 else 2
        bits = m * problem.bits[0] + n * problem.bits[1]
        return schedule.instruction.totals * m * n * chunks + 2 * _of_block(bits, schedule)
    totals = schedule.instruction.totals * m * n + _of_sums(problem, schedule)
    lhs, rhs = (K_STEPS * bits for bits in problem.bits)
    if problem.parts and not schedule.instruction.unit.converts:
        left = m * (lhs + 2)
        if problem.is_float:
            # Those of a k-step, and of the next one.
            ahead = loaded_ahead(schedule.instruction.unit)
            left = (1 + ahead) * m * lhs // K_STEPS
        right = n * (2 * rhs + 2 + _DECODED)
        return totals + left + right + _DECODED + (problem.parts - 1) * _PART
    if problem.parts:
        left = m * lhs // 2
        if problem.sums(schedule):
            # A step of lhs is loaded as a whole, and what is decoded also while another is.
            left = m * (lhs if problem.is_float else 2 * lhs + 2 + _DECODED)
        return totals + left + n * (2 * rhs + 2 + _DECODED)
    # A block of the result, too, is computed beside what is there.
    kept = BLOCK if problem.in_blocks else 0
    return totals + 2 * m * (lhs + 1) + 2 * n * (rhs + 1) + kept


def _of_block(bits: int, schedule: GpuSchedule) -> int:
    """Registers of a block of 32 elements, of so many bits for all rows of a lane."""
    return BLOCK * bits // schedule.instruction.groups // 32


def _of_sums(problem: Problem, schedule: GpuSchedule) -> int:
    """Registers of sums that f32 scales multiply: the sums, and those scales of two steps, or of
    one where they are late."""
    if not any(problem.shared):
        return 0
    m, n = schedule.tiles
    found = schedule.instruction.totals * m * n
    for rows, scales in problem.scales_of_step(schedule):
        found += rows * scales.count * (1 if scales.late else 2)
    return found
