"""The schedules that a product may have, for its kernels to compute; choice.py takes one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mxc.passes.kernels.gpu.cost import result_tiles
from mxc.passes.kernels.gpu.dense.chunks import ROWS, STAGE, Chunks
from mxc.passes.kernels.gpu.fragments import FRAGMENT, K_STEPS, TileInstruction
from mxc.passes.kernels.gpu.output import tiles_of
from mxc.passes.kernels.gpu.problem import NARROW, Problem
from mxc.passes.kernels.gpu.ring.decoded_mainloop import SLOTS
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES
from mxc.passes.kernels.gpu.ring.dense_mainloop import most_tiles, together
from mxc.passes.kernels.gpu.ring.factors import factor_bytes
from mxc.passes.kernels.gpu.ring.pipeline import ACCUMULATORS
from mxc.passes.kernels.gpu.ring.scales import AT_ONCE, scale_bytes
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, LATENCIES, PIECE, layout_bytes
from mxc.passes.kernels.gpu.ring.summed_kernel import k_steps_under, most_summed, run_under
from mxc.passes.kernels.gpu.schedule import GpuSchedule, Transport
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

#: Waves along K of a stream, at most, by the tiles of rows that each has.
_ALONG_K = (8, 4, 4, 4)
#: Tiles of a wave that has a chunk of a dense product, and of one that has them all, in a ring.
_FEW = 4
_DENSE_TILES = ((8, 4), (4, 4), (4, 2), (2, 4), (2, 2), (1, 2), (1, 4), (2, 1), (1, 1))
#: Rows of a tile: between its multiples nothing changes.
_TILE = 16
#: Workgroups that share K, for each unit.
_SHARED_UNITS = 2
#: Tiles of a wave along rows and columns at most, where f32 scales multiply the sums of a ring; of
#: one that decodes; and parts of a stage after which its loads are asked for and waited for.
_SUMMED_TILES, _SUMMED_DECODED, _LATE = (4, 2), 2, 1.25
#: Tiles of a wave, at most.
_TILES = 16
#: Bits of an element of both sides, where both are decoded, of which 16 tiles have registers.
_PACKED = 12
#: Registers for addresses, and for a block while it is decoded.
_DECODERS = 70
#: Stages of a ring of floats, at most.
_MOST_STAGES = 8
#: Tiles of rows that all waves of a ring of floats may have, side by side.
_FEW_TILES = 2
#: Stages of a ring: with fewer than two nothing is loaded while something is multiplied, and more
#: than these are asked for long before they are needed.
_STAGES = range(4, 1, -1)
#: Stages where one is brief: no more than so many clocks.
_MANY, _BRIEF = 8, 512
#: K-steps of a stage: two blocks of six bits are whole pieces.
_K_STEPS = 2
#: Tiles of a wave along the side that goes straight to registers, and along the other one.
_DIRECT, _STAGED = (2, 1), (8, 7, 6, 5, 4, 3, 2, 1)


def candidates(problem: Problem, device: Gpu = GFX950) -> Iterator[GpuSchedule]:
    """Schedules that compute a product."""
    if problem.is_dense:
        yield from _dense_streams(problem, device)
        if device.matrix.dma == PIECE and problem.parts == 1:
            yield from _dense_rings(problem, device)
        return
    yield from _streams(problem, device)
    for ring in _scaled_rings(problem, device):
        yield ring
        yield from _split(problem, ring, device)


def _split(problem: Problem, ring: GpuSchedule, device: Gpu) -> Iterator[GpuSchedule]:
    """A ring whose workgroups share K."""
    tiles = result_tiles(problem, ring)
    # Rows of one tile read little but weights, and parts would be as many bytes again.
    for splits in problem.splits if problem.rows > _TILE else ():
        whole = problem.blocks // splits % _stage_blocks(problem, ring) == 0
        if any(problem.shared) and ring.transport == "ring" and not whole:
            continue
        if tiles * splits <= _SHARED_UNITS * device.units:
            yield replace(ring, splits=splits)


def _scaled_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """The rings of scaled sides, each with all of K."""
    if any(problem.shared):
        yield from _summed_rings(problem, device)
        return
    if problem.parts:
        # Where both cost the same, the matrix cores are busier in the first by the issue model: of
        # gfx950 0.86 and 0.96 for bf16 x f4, 0.96 and 0.88 for nvfp4 x nvfp4.
        rings = [_decoded_rings, _float_rings]
        if problem.is_float and not any(problem.integers):
            rings.reverse()
        for each in rings:
            yield from each(problem, device)
    # A ring has tiles of 32 rows: fewer than half of them are few, and streamed.
    few = 2 * problem.rows < INSTRUCTION.rows
    if device.matrix.dma == PIECE and not problem.parts and not few:
        yield from _rings(problem, device)


def _streams(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    small = TileInstruction(16, device.matrix)
    steps, least = -(-problem.blocks // small.step), _least(problem, small)
    simds = device.unit.simds
    along = [(tiles, 1, most) for tiles, most in enumerate(_ALONG_K, start=1)]
    if problem.parts:
        # With two waves on a SIMD some that decode have not enough registers.
        along.append((1, 1, simds))
    if problem.is_float and problem.parts == 1 and device.matrix.converts:
        # Floats are most of the bytes of a stream: these read them for more columns at once.
        along += product((1, 2), (2, 4), (_ALONG_K[0], simds))
    elif problem.is_float and problem.parts > 1:
        # What is split is split once for two tiles, and waves along K wait for it side by side.
        along += [(1, 2, most) for most in (_ALONG_K[0], simds)]
    for down, across, most in along:
        waves = (1, 1, _along(steps, min(most, steps)))
        yield GpuSchedule(instruction=small, tiles=(down, across * least), waves=waves)
    for tiles_m, tiles_n in product((4, 2, 1), repeat=2):
        if tiles_n % least == 0:
            yield GpuSchedule(instruction=small, tiles=(tiles_m, tiles_n), waves=(2, 2, 1))


def _dense_streams(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Each wave of a workgroup has a chunk of K, or one has all of them."""
    small = TileInstruction(ROWS, device.matrix)
    along = Chunks.of(problem.blocks).count
    for m, n in product((4, 2, 1), repeat=2):
        if n % _least(problem, small) == 0:
            yield GpuSchedule(instruction=small, tiles=(m, n), waves=(2, 2, 1))
            if m * n <= _FEW and along > 1:
                yield GpuSchedule(instruction=small, tiles=(m, n), waves=(1, 1, along))


def _dense_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """As many stages as there is room for, up to those in which memory has time to answer."""
    small, latency = TileInstruction(ROWS, device.matrix), device.rates.memory_latency
    for tiles in _DENSE_TILES:
        if math.prod(tiles) > most_tiles(problem.bits[0]):
            continue
        stage = math.prod(tiles) * small.form.clocks * STAGE
        wanted = min(_MOST_STAGES, 2 + math.ceil(LATENCIES * latency / stage))
        found = _ring(small, tiles, (1, device.unit.simds, 1), wanted, STAGE)
        stages = min(wanted, device.unit.lds_bytes // _slot_bytes(problem, found))
        if stages - 1 == together(found, Chunks.of(problem.blocks)):
            # In a round of as many stages the slot of each is a constant.
            stages -= 1
        if tiles[1] % _least(problem, small) == 0 and stages > min(_STAGES):
            yield replace(found, stages=stages)


def _least(problem: Problem, instruction: TileInstruction) -> int:
    """Tiles of a wave along columns, at least: other numbers are multiples of it."""
    return problem.halves * (tiles_of(instruction) if problem.in_blocks else 1)


def _ring(
    instruction: TileInstruction,
    tiles: tuple[int, int],
    waves: tuple[int, int, int],
    stages: int,
    k_steps: int,
    transport: Transport = "ring",
) -> GpuSchedule:
    return GpuSchedule(
        instruction=instruction,
        tiles=tiles,
        waves=waves,
        transport=transport,
        stages=stages,
        k_steps=k_steps,
    )


def _stage_blocks(problem: Problem, schedule: GpuSchedule) -> int:
    """Blocks along K of a stage of a ring."""
    return schedule.k_steps * INSTRUCTION.groups if any(problem.shared) else STAGE


def _slot_bytes(problem: Problem, schedule: GpuSchedule) -> int:
    """Bytes of LDS of a stage of a ring."""
    blocks = _stage_blocks(problem, schedule)
    sides = (schedule.rows, problem.bits[0]), (schedule.columns, problem.bits[1])
    # What waves do not share goes straight to registers.
    staged = sides[:1] if problem.is_dense or any(problem.shared) else sides
    scales = 0
    if any(problem.shared):
        scaled, runs = sides[1:] if problem.is_float else sides, problem.runs(schedule)
        scales = sum(factor_bytes(rows, 4, runs) for rows, _ in scaled)
    return sum(layout_bytes(rows, bits, blocks, 4) for rows, bits in staged) + scales


def _along(steps: int, most: int) -> int:
    """Waves that share the steps of K: of those that are not far fewer than `most` the ones that
    have the least to do beyond the end."""
    return min(range(most, most // 2, -1), key=lambda waves: -(-steps // waves) * waves)


def _rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    waves = device.unit.simds
    for direct, staged in product(_DIRECT, _STAGED):
        if direct * staged * INSTRUCTION.totals > ACCUMULATORS:
            continue
        for tiles, places in (
            ((direct, staged), (waves, 1, 1)),
            ((staged, direct), (1, waves, 1)),
        ):
            if tiles[1] % problem.halves:
                continue
            bits = problem.bits[1 if places[0] > 1 else 0]
            rows = staged * INSTRUCTION.rows
            slot = layout_bytes(rows, bits, _K_STEPS * INSTRUCTION.groups, waves)
            k_step = direct * staged * INSTRUCTION.clocks
            for stages in _STAGES if k_step * _K_STEPS > _BRIEF else (_MANY, *_STAGES):
                if stages * slot + scale_bytes(rows, waves) <= device.unit.lds_bytes:
                    yield _ring(INSTRUCTION, tiles, places, stages, _K_STEPS)
                    break


def _summed_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Rings whose sums f32 scales multiply. Tiles of 32 rows are too many for fewer than half of
    them."""
    if 2 * problem.rows < INSTRUCTION.rows:
        return
    shared = [blocks for blocks in problem.shared if blocks]
    if problem.parts and math.gcd(K_STEPS, *shared) > 1:
        # Three or four tiles of columns and one of rows spill.
        for ring in _decoded_rings(problem, device):
            if max(ring.tiles) <= _SUMMED_DECODED:
                yield ring
    # Rows that are decoded, split or rounded are so once for all waves.
    floats = problem.is_float and problem.parts == 1 and problem.bits[0] <= NARROW
    k_steps = k_steps_under(*shared)
    if device.matrix.dma != PIECE or (problem.parts and not floats):
        return
    if not k_steps or problem.blocks % (k_steps * INSTRUCTION.groups):
        return
    clocks = INSTRUCTION.decoded_clocks if problem.parts else INSTRUCTION.byte_clocks
    tiles = most_summed(problem.bits[1] if problem.integers[1] else 0, run_under(*shared))
    for m, n in product(*(range(most, 0, -1) for most in _SUMMED_TILES)):
        if n % problem.halves or m * n > tiles:
            continue
        latencies = LATENCIES * device.rates.memory_latency / (m * n * k_steps * clocks)
        wanted = min(_MOST_STAGES, math.ceil(latencies + _LATE))
        found = _ring(INSTRUCTION, (m, n), (1, device.unit.simds, 1), wanted, k_steps)
        stages = min(wanted, device.unit.lds_bytes // _slot_bytes(problem, found))
        if stages >= min(_STAGES):
            yield replace(found, stages=stages)


def _decoded_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """A stage is one block along K; there are two in LDS. None where no instruction has as many
    sums as waves have registers for. Of as many tiles those with the fewest rows in LDS are first.
    """
    if all(form.m != INSTRUCTION.rows for form in device.matrix.forms):
        return
    large = TileInstruction(INSTRUCTION.rows, device.matrix)
    every = product((4, 3, 2, 1), repeat=2)
    for m, n in sorted(every, key=lambda mn: (-mn[0] * mn[1], mn[0] * problem.parts + mn[1])):
        found = _ring(large, (m, n), (2, 2, 1), SLOTS, 1, "decoded")
        size = SLOTS * (found.rows * problem.parts + found.columns) * BLOCK_BYTES
        fits = size <= device.workgroup_lds_bytes
        if n % problem.halves == 0 and fits and _of_decoded(problem, m, n) <= device.unit.registers:
            yield found


def _of_decoded(problem: Problem, m: int, n: int) -> int:
    """Registers of a wave of such a ring: sums, half a stage and the one after it, four blocks of a
    row of each side, and what they are decoded with."""
    fragments = 2 * FRAGMENT // 2 * (m * problem.parts + n)
    return m * n * INSTRUCTION.totals + fragments + K_STEPS * sum(problem.bits) + _DECODERS


def _float_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """A stage is one k-step; there are as many as memory needs to answer, and one more, but no more
    than an iteration of the loop has, so that the place of each is a constant. Where they take more
    than half of LDS, also as many as leave room for another workgroup. None of few blocks, or where
    no load goes straight to LDS.

    Waves are two by two, or, of few rows, side by side: with 64 rows each decodes half as many
    columns, for two tiles of rows, and of 32 rows none is without work.
    """
    if device.matrix.dma != PIECE or problem.blocks < AT_ONCE:
        return
    # Three parts of an f32 and wide weights leave no registers for 16 tiles, nor do two packed
    # sides of 6 bits and more.
    wide = problem.parts > 2 and problem.bits[1] > 4
    wide |= not problem.is_float and sum(problem.bits) > _PACKED
    every = list(product([(2, 2, 1)], (4, 3, 2, 1), (4, 3, 2, 1)))
    if problem.rows <= _FEW_TILES * INSTRUCTION.rows:
        every += product([(1, device.unit.simds, 1)], range(_FEW_TILES, 0, -1), (4, 3, 2, 1))
    for waves, m, n in every:
        if n % problem.halves or (m * n == _TILES and wide):
            continue
        k_step = m * n * INSTRUCTION.decoded_clocks * problem.parts
        wanted = 2 + math.ceil(LATENCIES * device.rates.memory_latency / k_step)
        found = _ring(INSTRUCTION, (m, n), waves, wanted, 1)
        most = device.unit.lds_bytes // _slot_bytes(problem, found)
        stages = min(wanted, K_STEPS, most)
        for count in sorted({stages, min(stages, most // 2)}, reverse=True):
            if count >= min(_STAGES):
                yield replace(found, stages=count)
