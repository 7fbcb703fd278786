"""Registers of a lane of a streaming kernel, estimated: which of its schedules do not spill."""

from __future__ import annotations

from mxc.passes.kernels.gpu.floats import loaded_ahead
from mxc.passes.kernels.gpu.fragments import BLOCK, K_STEPS
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.gpu import Gpu

#: Registers that a kernel may be estimated to take: with more LLVM 24 was seen to spill; the same
#: of one whose sides are decoded by conversions, and of one with two waves on a SIMD.
_REGISTERS, _CONVERTING, _OF_TWO_WAVES = 400, 440, 240
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
#: More where conversions decode: for addresses; beside floats of 16 bits for integers, or elements
#: under E4M3 scales; of two packed sides for each tile of rows.
_ADDRESSES, _INTEGERS, _BY_FLOATS, _PACKED_ROWS = 40, 80, 80, 55


def fits(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Whether a lane has the registers that a kernel is estimated to take."""
    unit, sums = device.matrix, problem.sums(schedule)
    most = _REGISTERS
    if problem.is_dense:
        most = _DENSE[unit.lanes]
    elif sums:
        limits = _SUMS if unit.converts else _SUMS_BY_INTEGERS
        most = limits[sums if schedule.waves[2] == 1 else 1]
    elif problem.parts and not unit.converts:
        most = _DECODING[unit.registers]
    elif problem.parts:
        alone = schedule.threads <= device.unit.simds * device.unit.wave
        most = _CONVERTING if alone else _OF_TWO_WAVES
    return registers(problem, schedule) <= most


def leaves_room(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Whether a SIMD has registers for two waves of a kernel."""
    if not problem.decodes or device.matrix.family != "mfma" or problem.sums(schedule):
        return True
    more = 0 if device.matrix.converts else problem.integers[1] * _INTEGERS
    return registers(problem, schedule) + more <= _OF_TWO_WAVES


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
        found = totals + left + n * (2 * rhs + 2 + _DECODED)
        return found if problem.sums(schedule) else found + _of_decoding(problem, m)
    # A block of the result, too, is computed beside what is there.
    kept = BLOCK if problem.in_blocks else 0
    return totals + 2 * m * (lhs + 1) + 2 * n * (rhs + 1) + kept


def _of_decoding(problem: Problem, tiles: int) -> int:
    """Registers beside those of operands where conversions decode, for so many tiles of rows."""
    if not problem.is_float:
        return _ADDRESSES + tiles * _PACKED_ROWS
    if problem.parts > 1:
        return _ADDRESSES
    return _ADDRESSES + problem.integers[1] * _INTEGERS + problem.by_floats[1] * _BY_FLOATS


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
