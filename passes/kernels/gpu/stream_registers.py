"""Registers of a lane of a streaming kernel: how far ahead its sides are loaded, and, estimated,
which of its schedules do not spill."""

from __future__ import annotations

from mxc.passes.kernels.gpu.floats import loaded_ahead
from mxc.passes.kernels.gpu.fragments import BLOCK, K_STEPS
from mxc.passes.kernels.gpu.problem import NARROW, Problem
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.gpu import Gpu

#: Registers that a kernel may be estimated to take, by those that a lane may have. Of 1024 no more
#: than half: a wave would be alone on its SIMD. The same of one with two waves on a SIMD.
_REGISTERS, _OF_TWO_WAVES = {256: 180, 512: 440, 1024: 440}, 250
#: The same of a dense product, by the lanes of a wave.
_DENSE = {64: 345, 32: 130}
#: Registers of a tile in a k-step: the scales of a step, and a block in bf16 that is decoded.
_SCALES, _DECODED = 2, 16
#: Registers of operands that are loaded: of more, rhs comes one k-step before it is multiplied.
_LOADED = 240
#: More for addresses; where floats are split; where one of both sides is integers, or under E4M3
#: scales.
_ADDRESSES, _PARTS, _INTEGERS = 18, 50, 30


def k_steps_ahead(
    schedule: GpuSchedule,
    bits: tuple[int, int],
    *,
    decodes: bool,
    is_float: bool,
    in_blocks: bool,
) -> tuple[int, int]:
    """K-steps for which lhs, and rhs, is loaded before they are multiplied.

    `bits`: of an element of each. They are one less than a step has, or one: then a k-step that is
    loaded has the registers of the one before it, and a loop over steps copies none.
    """
    (rows, columns), instruction = schedule.tiles, schedule.instruction
    many = loaded_ahead(instruction.unit)
    left = right = max(1, (K_STEPS if decodes else instruction.k_steps) - 1)
    if is_float:
        few = rows * bits[0] <= NARROW
        left = (right if few else 1) if many else int(few)
    elif decodes and not many and rows > 1:
        left = 1
    loaded = (left + 1) * rows * bits[0] + (right + 1) * columns * bits[1]
    if decodes and (loaded > _LOADED or (in_blocks and not many)):
        # In blocks, a wave has all columns of a block of both halves.
        right = 1
    return left, right


def fits(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Whether a lane has the registers that a kernel is estimated to take."""
    unit = device.matrix
    most = _DENSE[unit.lanes] if problem.is_dense else _REGISTERS[unit.registers]
    if not problem.is_dense and schedule.threads > device.unit.simds * device.unit.wave:
        most = min(most, _OF_TWO_WAVES)
    return registers(problem, schedule) <= most


def leaves_room(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Whether a SIMD has registers for two waves of a kernel."""
    if problem.is_dense or device.matrix.family != "mfma":
        return True
    return registers(problem, schedule) <= _OF_TWO_WAVES


def registers(problem: Problem, schedule: GpuSchedule) -> int:
    """Estimated registers of a lane of a streaming kernel: totals, the k-steps of operands that are
    loaded, and what elements are decoded to."""
    (m, n), totals = schedule.tiles, schedule.instruction.totals
    if problem.is_dense:
        # A step may be one block, and the sum of a chunk goes to another.
        chunks = 1 if schedule.waves[2] > 1 else 2
        bits = m * problem.bits[0] + n * problem.bits[1]
        return totals * m * n * chunks + 2 * _of_block(bits, schedule)
    ahead = k_steps_ahead(
        schedule,
        problem.bits,
        decodes=problem.parts > 0,
        is_float=problem.is_float,
        in_blocks=problem.in_blocks,
    )
    of_step = K_STEPS if problem.parts else schedule.instruction.k_steps
    left, right = (
        (each + 1) * K_STEPS * bits // of_step
        for each, bits in zip(ahead, problem.bits, strict=True)
    )
    beside = _SCALES + (_DECODED if problem.parts else 0)
    found = totals * m * n + m * left + n * (right + beside) + _of_sums(problem, schedule)
    integers = any(problem.integers) or any(problem.by_floats)
    found += _ADDRESSES + _INTEGERS * integers + _PARTS * (problem.parts > 1)
    # A block of the result, too, is computed beside what is there.
    found += BLOCK if problem.in_blocks else 0
    return found + (0 if problem.is_float else m * beside)


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
