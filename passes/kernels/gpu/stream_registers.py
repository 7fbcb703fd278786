"""Registers of a lane of a streaming kernel.

They decide how many k-steps ahead its sides are loaded. Their estimated number decides which
schedules are taken not to spill.
"""

from __future__ import annotations

from mxc.passes.kernels.gpu.floats import loaded_ahead
from mxc.passes.kernels.gpu.fragments import BLOCK, K_STEPS
from mxc.passes.kernels.gpu.problem import NARROW, Problem
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.gpu import Gpu

#: The most registers that a kernel may be estimated to take, by those that a lane may have. Of 1024
#: no more than half may be used, or a wave would be alone on its SIMD. `_OF_TWO_WAVES`: the same
#: for a kernel with two waves on a SIMD.
_REGISTERS, _OF_TWO_WAVES = {256: 180, 512: 440, 1024: 440}, 250
#: The same for a dense product, by the lanes of a wave.
_DENSE = {64: 345, 32: 130}
#: Registers for each tile of a scaled side: scales of a step; a decoded block in bf16.
_SCALES, _DECODED = 2, 16
#: If elements are decoded, and loaded operands would take more registers than this, rhs is loaded
#: only one k-step ahead.
_LOADED = 240
#: Further registers: for addresses; if floats are split into several bf16; if a side has integers
#: or E4M3 scales.
_ADDRESSES, _PARTS, _INTEGERS = 18, 50, 30


def k_steps_ahead(
    schedule: GpuSchedule,
    bits: tuple[int, int],
    *,
    decodes: bool,
    is_float: bool,
    in_blocks: bool,
) -> tuple[int, int]:
    """Return how many k-steps before they are multiplied lhs, and rhs, are loaded.

    Both are one less than the k-steps of a step, or one: a k-step that is loaded then takes the
    registers of the one that has just been multiplied, and a loop over steps has no copies. Where
    lanes have few registers, float activations are loaded ahead only if they are one tile of at
    most 16 bits; otherwise their number is 0.

    `bits`: bits of an element of lhs and of rhs. `decodes`: both sides are floats in registers.
    `is_float`: lhs are floats in memory. `in_blocks`: the result becomes blocks in the kernel.
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
        # With a result in blocks, a wave has tiles for all columns of a block, of both halves.
        right = 1
    return left, right


def fits(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Return whether a lane has the registers that the kernel is estimated to take."""
    unit = device.matrix
    most = _DENSE[unit.lanes] if problem.is_dense else _REGISTERS[unit.registers]
    if not problem.is_dense and schedule.threads > device.unit.simds * device.unit.wave:
        most = min(most, _OF_TWO_WAVES)
    return registers(problem, schedule) <= most


def leaves_room(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Return whether a SIMD has registers for two waves of the kernel.

    It is taken to have them for dense products, and on GPUs with WMMA.
    """
    if problem.is_dense or device.matrix.family != "mfma":
        return True
    return registers(problem, schedule) <= _OF_TWO_WAVES


def registers(problem: Problem, schedule: GpuSchedule) -> int:
    """Estimate the registers of a lane of a streaming kernel.

    They are for totals, for the k-steps of operands that are loaded, and for decoded elements.
    """
    (m, n), totals = schedule.tiles, schedule.instruction.totals
    if problem.is_dense:
        # A step may be as small as one block. Waves with several chunks have two sets of sums: that
        # of a chunk, and that of all chunks before it.
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
    integers = any(problem.integers) or any(problem.e4m3_scales)
    found += _ADDRESSES + _INTEGERS * integers + _PARTS * (problem.parts > 1)
    # A block of the result is computed in further registers.
    found += BLOCK if problem.in_blocks else 0
    return found + (0 if problem.is_float else m * beside)


def _of_block(bits: int, schedule: GpuSchedule) -> int:
    """Return the registers for a lane's part of a block of 32 elements of all tiles.

    `bits`: the bits of an element, added up over the tiles.
    """
    return BLOCK * bits // schedule.instruction.groups // 32


def _of_sums(problem: Problem, schedule: GpuSchedule) -> int:
    """Return the registers for sums that f32 scales multiply, and for these scales.

    The scales are those of two steps, or of one if they are too many to be loaded a step ahead.
    """
    if not any(problem.shared):
        return 0
    m, n = schedule.tiles
    found = schedule.instruction.totals * m * n
    for rows, scales in problem.scales_of_step(schedule):
        found += rows * scales.count * (1 if scales.late else 2)
    return found
