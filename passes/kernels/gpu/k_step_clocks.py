"""Clocks of a k-step of a product, for the cost model (cost.py): those of the busiest of matrix
cores, vector units, LDS and the path to memory, and the waits of a workgroup that is alone on its
compute unit. A k-step is one scaled matrix instruction along K."""

from __future__ import annotations

from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS
from mxc.passes.kernels.gpu.problem import NARROW, WIDEST, Problem
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES, PIECES
from mxc.passes.kernels.gpu.ring.float_mainloop import BRIEF
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.gpu import Gpu

#: Vector instructions that decode a block of 32, by the bits of an element, on GPUs without
#: conversion instructions.
_DECODE = {4: 100, 6: 180, 8: 150}
#: The same on GPUs whose conversions read FNUZ elements (`MatrixUnit.extends_fnuz`).
_EXTEND = {4: 100, 6: 160, 8: 130}
#: The same on GPUs whose conversions read elements and E8M0 scales (`MatrixUnit.converts`). Below,
#: for such GPUs: a block of integers, and a block under E4M3 scales, which are multiplied as f32.
_CONVERT = {4: 20, 6: 5, 8: 20}
_INTEGERS, _BY_FLOATS = 90, 60
#: Instructions that E4M3 scales add to a block on other GPUs.
_MORE_BY_FLOATS = 30
#: The counterpart of _INTEGERS, by bits, for integers under f32 scales: decoding leaves out the
#: scales, which multiply partial sums.
_PLAIN_INTEGERS = {4: 54, 8: 56}
#: Other instructions (loads, stores, scales) for a stage of a ring that decodes once, and for a
#: k-step of a ring under f32 scales.
_BESIDE = 30
#: Issue slots of a matrix instruction: its own, and those after it in which the SIMD can issue no
#: vector instruction.
_PRODUCT = 3
#: Other instructions (reads, scales) for a block of each tile of a side that is decoded.
_OF_BLOCK = 7
#: Share of the bandwidth of LDS, or of the path to memory, that waves reach if all of them use it.
_SHARED = 0.9
#: Vector instructions that split 32 floats, by the number of bf16 that a float becomes.
_SPLIT = {1: 0, 2: 160, 3: 240}
#: Clocks of a ring under f32 scales, divided by those of its busiest pipe. In this order, if it is:
#: matrix cores, the path to memory, or instructions of fp8 by fp8; LDS, or instructions of float
#: rows; instructions of float rows with one tile of columns; instructions where integers are
#: decoded. Taken from the issue model, from which most estimates differ by less than a fifth.
_SLOWER, _SLOWER_LDS, _SLOWER_WAITS, _SLOWER_INTEGERS = 1.15, 1.35, 1.6, 1.25
#: Instructions of a ring under f32 scales for the sums of a tile, and for the scales of its
#: columns: one for each of the 16 sums of a lane.
_SCALED = 16
#: Share of the instructions for sums that is left where a stage has several runs under a scale
#: each: LLVM packs most of them, two sums an instruction.
_PACKED_SUMS = 0.6
#: Vector instructions of a stream for the sums of a tile and their f32 scales; bytes of a scale.
_OF_SUMS, _SCALE = 10, 4
#: Waits in a k-step of a workgroup that is alone on its compute unit, by the issue model. Streams,
#: as a share of the memory latency: of scaled sides, and of sides that are decoded. Rings, in
#: clocks: of floats, of floats that are read from LDS two parts ahead, and of sides that are
#: decoded once.
_STREAM_OF_SCALED, _STREAM_DECODES = 0.08, 0.05
_RING_OF_FLOATS, _READ_AHEAD, _DECODED_ONCE = 100, 70, 280
#: Share of a k-step in which a ring of floats issues the loads of a stage: with two stages, and
#: with more.
_ISSUED_OF_TWO, _ISSUED = 0.4, 0.7
#: Factors for kernels that split floats into several bf16. Applied before these waits to a
#: workgroup that is alone, without and with f32 scales; applied to every workgroup of a ring that
#: splits once for all waves.
_SPLIT_ALONE, _SPLIT_SUMMED, _SPLIT_ONCE = 1.1, 1.25, 1.15


def k_step_clocks(
    problem: Problem, schedule: GpuSchedule, device: Gpu, *, alone: bool = False
) -> float:
    """Clocks that a compute unit needs for a k-step of one workgroup. `alone`: whether the unit has
    no other workgroup, which would hide waits."""
    if schedule.transport == "decoded":
        clocks = _decoded_k_step(problem, schedule, device)
    elif any(problem.shared) and schedule.transport == "ring":
        clocks = _summed_k_step(problem, schedule, device)
    else:
        clocks = _direct_k_step(problem, schedule, device)
    return _alone(problem, schedule, device, clocks) if alone else clocks


def _alone(problem: Problem, schedule: GpuSchedule, device: Gpu, clocks: float) -> float:
    """Clocks of a k-step of a workgroup that is alone on its unit, with its waits. `clocks`: those
    of its busiest pipe."""
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
    """Clocks of a k-step of a stream, or of a ring whose partial sums no f32 scales multiply."""
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
    # A side that waves do not share goes straight to registers, and the other one through LDS. In
    # rings that decode, both go through LDS.
    own = (m if right > 1 or problem.decodes else 0, n if down > 1 or problem.decodes else 0)
    staged = waves * problem.side_bytes(schedule, *own)
    staged += problem.side_bytes(schedule, own[0] * down, own[1] * right)
    lds, path = staged / rates.lds_bytes_per_clock, loaded / rates.memory_bytes_per_clock
    if problem.decodes:
        return max(matrix, lds, path)
    shared = max(lds, path) / _SHARED
    if problem.is_dense:
        # Fragments are read from LDS one block before they are multiplied.
        shared = max(lds + instruction.groups * rates.lds_latency, path)
    # Loads arrive in the stages after the one that issues them: their latency is spread over these.
    late = rates.memory_latency / (problem.stage_k_steps(schedule) * max(1, schedule.stages - 2))
    return max(matrix, shared, late)


def _decoding(problem: Problem, device: Gpu) -> tuple[int, int]:
    """Vector instructions that decode a block of lhs, or split its floats, and that decode one of
    rhs."""
    converts, extends = device.matrix.converts, device.matrix.extends_fnuz
    known = _CONVERT if converts else _EXTEND if extends else _DECODE
    of_integers = _PLAIN_INTEGERS if any(problem.shared) else dict.fromkeys((4, 8), _INTEGERS)

    def of_block(side: int) -> int:
        bits = problem.bits[side]
        if bits > WIDEST:
            return 0
        if converts and problem.integers[side]:
            return of_integers[bits]
        if not problem.e4m3_scales[side]:
            return known[bits]
        return _BY_FLOATS if converts else known[bits] + _MORE_BY_FLOATS

    return (_SPLIT[problem.parts] if problem.is_float else of_block(0)), of_block(1)


def _summed_k_step(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Clocks of a k-step of a ring whose partial sums are multiplied by f32 scales. Only the rows
    of lhs are in LDS."""
    rates, instruction = device.rates, schedule.instruction
    (m, n), waves = schedule.tiles, schedule.waves[1]
    second = _decoding(problem, device)[1] if problem.parts else 0
    # Instructions for the sums of tiles; where columns of a tile have different scales, for these,
    # and for their products with the scales of rows.
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
        # Loads arrive in the stages after the one that issues them.
        rates.memory_latency / (schedule.k_steps * max(1, schedule.stages - 1)),
    )


def _decoded_k_step(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Clocks of a k-step of a ring that decodes once: in each stage a lane decodes a block of a row
    of each side, or a part of it, for the whole workgroup."""
    rates, instruction = device.rates, schedule.instruction
    m, n = schedule.tiles
    products = m * n * problem.parts * BLOCK // instruction.fragment
    # Where a side has fewer rows than there are lanes, several lanes decode parts of each block.
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
    # The floats of a workgroup are written to LDS once, and each wave reads those of its tiles.
    rows = schedule.rows * problem.parts + schedule.columns
    rows += down * right * instruction.rows * (m * problem.parts + n)
    lds = rows * BLOCK_BYTES * instruction.groups / rates.lds_bytes_per_clock
    # Blocks are loaded four blocks before they are decoded.
    late = rates.memory_latency * instruction.groups / K_STEPS
    clocks = max(matrix, issued * rates.issue, lds / _SHARED, path / _SHARED, late)
    return clocks * (_SPLIT_ONCE if problem.parts > 1 else 1)
