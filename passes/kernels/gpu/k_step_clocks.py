"""Clocks of a k-step of a product: the busiest of matrix cores, vector units, LDS and the path to
memory, and what a workgroup waits for that has a unit to itself (cost.py). A k-step is one
instruction along K."""

from __future__ import annotations

from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS
from mxc.passes.kernels.gpu.problem import NARROW, WIDEST, Problem
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES, PIECES
from mxc.passes.kernels.gpu.ring.float_mainloop import BRIEF
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.gpu import Gpu

#: Vector instructions that decode a block of so many bits an element, where no conversion does.
_DECODE = {4: 100, 6: 180, 8: 150}
#: The same where conversions read FNUZ numbers.
_EXTEND = {4: 100, 6: 160, 8: 130}
#: The same where conversions read elements and scales; of integers there, and of elements that are
#: multiplied by E4M3 scales as floats.
_CONVERT = {4: 20, 6: 5, 8: 20}
_INTEGERS, _BY_FLOATS = 90, 60
#: More of these where no conversion decodes.
_MORE_BY_FLOATS = 30
#: The same where they are decoded without scales, which multiply sums.
_PLAIN_INTEGERS = {4: 54, 8: 56}
#: Instructions beside these for a stage of which each block is decoded once: loads, stores, scales.
_BESIDE = 30
#: Instructions that a matrix instruction takes the place of: itself, and vector instructions that
#: cannot be issued behind it.
_PRODUCT = 3
#: Instructions beside decoding for a block of each packed tile: reads, scales.
_OF_BLOCK = 7
#: What waves get of LDS, and of the path to memory, when they all want it.
_SHARED = 0.9
#: Vector instructions that split 32 floats into so many bf16.
_SPLIT = {1: 0, 2: 160, 3: 240}
#: How much longer than its busiest pipe a ring takes whose sums f32 scales multiply: matrix cores,
#: path to memory, and instructions with fp8 on both sides; LDS, and instructions beside floats;
#: these of one tile of columns; these where they decode integers. By the issue model, most within a
#: fifth.
_SLOWER, _SLOWER_LDS, _SLOWER_WAITS, _SLOWER_INTEGERS = 1.15, 1.35, 1.6, 1.25
#: Instructions of these for the sums of a tile, and for the scales of its columns.
_SCALED = 16
#: How many of these where a stage has several runs: LLVM packs most, two sums each.
_PACKED_SUMS = 0.6
#: Vector instructions of a stream for the sums of a tile and their scales, and bytes of a scale.
_OF_SUMS, _SCALE = 10, 4
#: What a workgroup waits for in a k-step where no other one works meanwhile: a part of a latency of
#: memory, of a stream of scaled sides, and of one that decodes; clocks of a ring of floats, and of
#: one that reads them two parts ahead, and of one whose sides are decoded once. By the issue model.
_STREAM_OF_SCALED, _STREAM_DECODES = 0.08, 0.05
_RING_OF_FLOATS, _READ_AHEAD, _DECODED_ONCE = 100, 70, 280
#: The part of a k-step of a ring of floats in which loads of a stage are issued: with two stages,
#: and with more.
_ISSUED_OF_TWO, _ISSUED = 0.4, 0.7
#: How much longer such a workgroup takes where floats are split, beside that, and where f32 scales
#: multiply sums, too; how much longer any takes where they are split once for all waves.
_SPLIT_ALONE, _SPLIT_SUMMED, _SPLIT_ONCE = 1.1, 1.25, 1.15


def k_step_clocks(
    problem: Problem, schedule: GpuSchedule, device: Gpu, *, alone: bool = False
) -> float:
    """Clocks that a unit needs for a k-step of one workgroup. `alone`: it has no other one."""
    if schedule.transport == "decoded":
        clocks = _decoded_k_step(problem, schedule, device)
    elif any(problem.shared) and schedule.transport == "ring":
        clocks = _summed_k_step(problem, schedule, device)
    else:
        clocks = _direct_k_step(problem, schedule, device)
    return _alone(problem, schedule, device, clocks) if alone else clocks


def _alone(problem: Problem, schedule: GpuSchedule, device: Gpu, clocks: float) -> float:
    """Clocks of a k-step of a workgroup that has a unit to itself, which needs so many of them."""
    latency = device.rates.memory_latency
    if problem.is_dense or device.matrix.family != "mfma":
        return clocks
    if problem.parts > 1:
        clocks *= _SPLIT_SUMMED if any(problem.shared) else _SPLIT_ALONE
    if schedule.transport == "decoded":
        return clocks + _DECODED_ONCE
    if schedule.transport == "stream":
        return clocks + latency * (_STREAM_DECODES if problem.parts else _STREAM_OF_SCALED)
    if any(problem.shared) or not problem.parts:
        return clocks
    (m, n), issued = schedule.tiles, _ISSUED_OF_TWO if schedule.stages == 2 else _ISSUED
    ahead = m * n <= BRIEF and problem.parts == 1 and problem.bits[0] <= NARROW
    waits = _READ_AHEAD if ahead else _RING_OF_FLOATS
    return max(clocks + waits, latency / (schedule.k_steps * (schedule.stages - 1 - issued)))


def _direct_k_step(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """The same of a stream, or of a ring whose sums no f32 scales multiply."""
    unit, rates = device.unit, device.rates
    m, n = schedule.tiles
    waves = schedule.threads // unit.wave
    instruction = schedule.instruction
    if problem.parts:
        first, second = _decoding(problem, device)
        products = m * n * problem.parts * BLOCK // instruction.fragment
        packed = 0 if problem.is_dense else n + (0 if problem.is_float else m)
        issued = _PRODUCT * products + m * first + n * second + packed * _OF_BLOCK
        issued += m * n * problem.sums(schedule) * _OF_SUMS
        clocks = m * n * instruction.decoded_clocks * problem.parts
        clocks = max(clocks, issued * rates.issue)
    else:
        clocks = m * n * (instruction.byte_clocks if 8 in problem.bits else instruction.clocks)
    matrix = clocks * -(-waves // unit.simds)
    fragments: float = waves * problem.side_bytes(schedule, m, n)
    if schedule.transport == "stream":
        scales = sum(rows * each.count for rows, each in problem.scales_of_step(schedule))
        fragments += scales * _SCALE * schedule.threads / K_STEPS
        return max(matrix, fragments / rates.memory_bytes_per_clock)
    down, right, _ = schedule.waves
    loaded = problem.side_bytes(schedule, m * down, n * right)
    # A side that waves do not share goes to registers, the other one through LDS; rings that decode
    # have both there.
    own = (m if right > 1 or problem.decodes else 0, n if down > 1 or problem.decodes else 0)
    staged = waves * problem.side_bytes(schedule, *own)
    staged += problem.side_bytes(schedule, own[0] * down, own[1] * right)
    lds, path = staged / rates.lds_bytes_per_clock, loaded / rates.memory_bytes_per_clock
    if problem.decodes:
        return max(matrix, lds, path)
    shared = max(lds, path) / _SHARED
    if problem.is_dense:
        # What is read in a block is multiplied in the next one.
        shared = max(lds + instruction.groups * rates.lds_latency, path)
    # What is asked for comes some stages later.
    late = rates.memory_latency / (problem.stage_k_steps(schedule) * max(1, schedule.stages - 2))
    return max(matrix, shared, late)


def _decoding(problem: Problem, device: Gpu) -> tuple[int, int]:
    """Vector instructions that decode, or split, a block of lhs and one of rhs."""
    converts, extends = device.matrix.converts, device.matrix.extends_fnuz
    known = _CONVERT if converts else _EXTEND if extends else _DECODE
    of_integers = _PLAIN_INTEGERS if any(problem.shared) else dict.fromkeys((4, 8), _INTEGERS)

    def of_block(side: int) -> int:
        bits = problem.bits[side]
        if bits > WIDEST:
            return 0
        if converts and problem.integers[side]:
            return of_integers[bits]
        if not problem.by_floats[side]:
            return known[bits]
        return _BY_FLOATS if converts else known[bits] + _MORE_BY_FLOATS

    return (_SPLIT[problem.parts] if problem.is_float else of_block(0)), of_block(1)


def _summed_k_step(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """The same where f32 scales multiply the sums of a ring. LDS has the rows alone."""
    rates, instruction = device.rates, schedule.instruction
    (m, n), waves = schedule.tiles, schedule.waves[1]
    second = _decoding(problem, device)[1] if problem.parts else 0
    # Each sum, and the scales of its column and of its row where these are not the same for a tile.
    scales = 0 if problem.one_scale else n + (m * n if problem.shared[0] else 0)
    runs = problem.runs(schedule)
    sums = m * n * (_PACKED_SUMS if runs > 1 else 1)
    scaled = (sums + scales) * _SCALED * runs / schedule.k_steps
    products = m * n * max(1, problem.parts * BLOCK // instruction.fragment)
    issued = products + n * second + scaled + _BESIDE
    decoded = instruction.decoded_clocks * problem.parts
    loaded = problem.side_bytes(schedule, m, n * waves)
    lds = (1 + waves) * problem.side_bytes(schedule, m, 0)
    waits = _SLOWER_WAITS if n == 1 else _SLOWER_LDS
    if any(problem.integers):
        waits = _SLOWER_INTEGERS
    return max(
        m * n * (decoded or instruction.byte_clocks) * _SLOWER,
        issued * rates.issue * (waits if problem.parts else _SLOWER),
        lds / rates.lds_bytes_per_clock * _SLOWER_LDS,
        loaded / rates.memory_bytes_per_clock * _SLOWER,
        # What is asked for comes some stages later.
        rates.memory_latency / (schedule.k_steps * max(1, schedule.stages - 1)),
    )


def _decoded_k_step(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """The same where a workgroup decodes a block of each row once, a lane one of each side."""
    rates, instruction = device.rates, schedule.instruction
    m, n = schedule.tiles
    products = m * n * problem.parts * BLOCK // instruction.fragment
    # Lanes that are more than the rows of a side decode parts of its blocks.
    decoded = sum(
        count / max(1, min(PIECES, schedule.threads // rows))
        for count, rows in zip(
            _decoding(problem, device), (schedule.rows, schedule.columns), strict=True
        )
    )
    reads = BLOCK // FRAGMENT * (m * problem.parts + n)
    issued = products + reads + instruction.groups * (decoded + _BESIDE)
    matrix = m * n * instruction.decoded_clocks * problem.parts
    down, right, _ = schedule.waves
    path = problem.side_bytes(schedule, m * down, n * right) / rates.memory_bytes_per_clock
    # Each wave reads the floats of its tiles; those of a workgroup are written once.
    rows = schedule.rows * problem.parts + schedule.columns
    rows += down * right * instruction.rows * (m * problem.parts + n)
    lds = rows * BLOCK_BYTES * instruction.groups / rates.lds_bytes_per_clock
    # What is asked for comes four blocks later.
    late = rates.memory_latency * instruction.groups / K_STEPS
    clocks = max(matrix, issued * rates.issue, lds / _SHARED, path / _SHARED, late)
    return clocks * (_SPLIT_ONCE if problem.parts > 1 else 1)
