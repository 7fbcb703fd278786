"""The schedules by which kernels can compute a product; choice.py chooses one of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from mxc.passes.kernels.gpu.cost import result_tiles
from mxc.passes.kernels.gpu.dense.chunks import ROWS, STAGE, Chunks
from mxc.passes.kernels.gpu.fragments import FRAGMENT, K_STEPS, SMALLEST_TILE, TileInstruction
from mxc.passes.kernels.gpu.output import tiles_of
from mxc.passes.kernels.gpu.problem import NARROW, Problem
from mxc.passes.kernels.gpu.ring.decoded_mainloop import SLOTS
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES
from mxc.passes.kernels.gpu.ring.dense_mainloop import most_tiles_dense, together
from mxc.passes.kernels.gpu.ring.factors import factor_bytes
from mxc.passes.kernels.gpu.ring.pipeline import ACCUMULATORS
from mxc.passes.kernels.gpu.ring.scales import AT_ONCE, scale_bytes
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, LATENCIES, PIECE, layout_bytes
from mxc.passes.kernels.gpu.ring.summed_kernel import k_steps_under, most_tiles_summed, run_under
from mxc.passes.kernels.gpu.schedule import GpuSchedule, Transport
from mxc.targets.amd import GFX950
from mxc.targets.gpu import Gpu

#: Most waves along K of a stream: entry n - 1 is for waves with n tiles of rows.
_ALONG_K = (8, 4, 4, 4)
#: Dense products: most tiles of a wave that computes one chunk of K in a stream; tiles (rows,
#: columns) of a wave of a ring, which computes all chunks.
_CHUNK_TILES = 4
_DENSE_TILES = ((8, 4), (4, 4), (4, 2), (2, 4), (2, 2), (1, 2), (1, 4), (2, 1), (1, 1))
#: Most workgroups for each compute unit in a schedule with splits.
_SHARED_UNITS = 2
#: Rings whose partial sums are multiplied by f32 scales. Most tiles of a wave along rows and along
#: columns; most tiles along either, where sides are decoded once; and stages in addition to those
#: that cover the memory latency, because loads are issued and waited for in the middle of a stage.
_SUMMED_TILES, _SUMMED_DECODED, _EXTRA_STAGES = (4, 2), 2, 1.25
#: Most tiles of a wave of a ring of floats.
_TILES = 16
#: Two sides that each wave decodes: most bits of an element of lhs and one of rhs together, if a
#: wave is to have registers for 16 tiles.
_BITS_FOR_16_TILES = 12
#: Registers of a lane for addresses, and for temporaries while a block is decoded.
_DECODERS = 70
#: Most stages of a ring of a dense product, or of one under f32 scales.
_MOST_STAGES = 8
#: Most tiles of rows of a wave of a ring of floats, if each wave has all rows of the workgroup.
_FEW_TILES = 2
#: Stages of a ring, the most first. With one stage nothing would be loaded while another is
#: multiplied; loads of more than four would be issued long before they are needed.
_STAGES = range(4, 1, -1)
#: Stages of a ring of scaled sides may be _MANY if the matrix instructions of one take no more
#: clocks than _BRIEF.
_MANY, _BRIEF = 8, 512
#: K-steps of a stage of a ring of scaled sides: two, because two 6-bit blocks are whole pieces of
#: 16 bytes.
_K_STEPS = 2
#: Rings of scaled sides: tiles of a wave along the side that goes straight to registers, and along
#: the side that goes through LDS.
_DIRECT, _STAGED = (2, 1), (8, 7, 6, 5, 4, 3, 2, 1)


def candidates(problem: Problem, device: Gpu = GFX950) -> Iterator[GpuSchedule]:
    """Yield schedules that can compute a product. Streams among them may spill: see `choose`."""
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
    """Yield copies of a ring in which several workgroups share K, one for each possible number."""
    tiles = result_tiles(problem, ring)
    # With one tile of rows little but weights is read, and partial sums would be as many bytes.
    for splits in problem.splits if problem.rows > SMALLEST_TILE else ():
        whole = problem.blocks // splits % _stage_blocks(problem, ring) == 0
        if any(problem.shared) and ring.transport == "ring" and not whole:
            continue
        if tiles * splits <= _SHARED_UNITS * device.units:
            yield replace(ring, splits=splits)


def _scaled_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Yield the rings of scaled sides, without splits of K."""
    if any(problem.shared):
        yield from _summed_rings(problem, device)
        return
    if problem.parts:
        # Of rings that cost the same the first is chosen. How busy the matrix cores of gfx950 are
        # by the issue model, with sides decoded once and by each wave: 0.86 and 0.96 for bf16 x f4,
        # 0.94 and 0.68 for nvfp4 x nvfp4.
        rings = [_decoded_rings, _float_rings]
        if problem.is_float and not any(problem.integers):
            rings.reverse()
        for each in rings:
            yield from each(problem, device)
    # Tiles of a ring have 32 rows: products with fewer than 16 rows are streamed.
    few = 2 * problem.rows < INSTRUCTION.rows
    if device.matrix.dma == PIECE and not problem.parts and not few:
        yield from _rings(problem, device)


def _streams(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Yield the streams of scaled sides, and of floats by scaled weights: waves along K for few
    rows, then 2 x 2 waves."""
    small = TileInstruction(16, device.matrix)
    steps, least = -(-problem.blocks // small.step), _least_column_tiles(problem, small)
    simds = device.unit.simds
    along = [(tiles, 1, most) for tiles, most in enumerate(_ALONG_K, start=1)]
    if problem.parts:
        # One wave on each SIMD: beside a second one, some that decode have too few registers.
        along.append((1, 1, simds))
    if problem.is_float and problem.parts == 1 and device.matrix.converts:
        # Most bytes that a stream loads are float activations: with more tiles of columns a wave
        # loads them once for more columns.
        along += product((1, 2), (2, 4), (_ALONG_K[0], simds))
    elif problem.is_float and problem.parts > 1:
        # A wave splits floats into bf16 once for two tiles of columns, and the waits of several
        # waves along K overlap.
        along += [(1, 2, most) for most in (_ALONG_K[0], simds)]
    for down, across, most in along:
        waves = (1, 1, _waves_along_k(steps, min(most, steps)))
        yield GpuSchedule(instruction=small, tiles=(down, across * least), waves=waves)
    for tiles_m, tiles_n in product((4, 2, 1), repeat=2):
        if tiles_n % least == 0:
            yield GpuSchedule(instruction=small, tiles=(tiles_m, tiles_n), waves=(2, 2, 1))


def _dense_streams(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Yield the streams of a dense product: 2 x 2 waves, each of which computes all chunks of K,
    and a wave for each chunk."""
    small = TileInstruction(ROWS, device.matrix)
    along = Chunks.of(problem.blocks).count
    for m, n in product((4, 2, 1), repeat=2):
        if n % _least_column_tiles(problem, small) == 0:
            yield GpuSchedule(instruction=small, tiles=(m, n), waves=(2, 2, 1))
            if m * n <= _CHUNK_TILES and along > 1:
                yield GpuSchedule(instruction=small, tiles=(m, n), waves=(1, 1, along))


def _dense_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Yield the rings of a dense product, with as many stages as LDS has room for, up to the number
    that covers the memory latency."""
    small, latency = TileInstruction(ROWS, device.matrix), device.rates.memory_latency
    for tiles in _DENSE_TILES:
        if math.prod(tiles) > most_tiles_dense(problem.bits[0]):
            continue
        stage = math.prod(tiles) * small.form.clocks * STAGE
        wanted = min(_MOST_STAGES, 2 + math.ceil(LATENCIES * latency / stage))
        found = _ring(small, tiles, (1, device.unit.simds, 1), wanted, STAGE)
        stages = min(wanted, device.unit.lds_bytes // _slot_bytes(problem, found))
        if stages - 1 == together(found, Chunks.of(problem.blocks)):
            # With as many stages as an iteration of the loop has, the LDS slot of each is constant.
            stages -= 1
        if tiles[1] % _least_column_tiles(problem, small) == 0 and stages > min(_STAGES):
            yield replace(found, stages=stages)


def _least_column_tiles(problem: Problem, instruction: TileInstruction) -> int:
    """Least number of tiles of a wave along columns: other numbers must be multiples of it."""
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
    """Blocks of 32 along K in a stage of a ring."""
    return schedule.k_steps * INSTRUCTION.groups if any(problem.shared) else STAGE


def _slot_bytes(problem: Problem, schedule: GpuSchedule) -> int:
    """Bytes of LDS that a stage of a ring takes."""
    blocks = _stage_blocks(problem, schedule)
    sides = (schedule.rows, problem.bits[0]), (schedule.columns, problem.bits[1])
    # Where waves lie side by side, the columns of each go straight to registers.
    staged = sides[:1] if problem.is_dense or any(problem.shared) else sides
    scales = 0
    if any(problem.shared):
        scaled, runs = sides[1:] if problem.is_float else sides, problem.runs(schedule)
        scales = sum(factor_bytes(rows, 4, runs) for rows, _ in scaled)
    return sum(layout_bytes(rows, bits, blocks, 4) for rows, bits in staged) + scales


def _waves_along_k(steps: int, most: int) -> int:
    """Return the number of waves among which `steps` along K are divided: of the numbers from
    `most` down to more than half of it the one with the fewest steps past the end of K."""
    return min(range(most, most // 2, -1), key=lambda waves: -(-steps // waves) * waves)


def _rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Yield the rings of two sides that scaled instructions take as they are, with the most stages
    that fit into LDS. All waves share one side, which goes through LDS."""
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
    """Yield the rings whose partial sums are multiplied by f32 scales. None for fewer than 16 rows:
    tiles have 32."""
    if 2 * problem.rows < INSTRUCTION.rows:
        return
    shared = [blocks for blocks in problem.shared if blocks]
    if problem.parts and math.gcd(K_STEPS, *shared) > 1:
        # A wave with one tile of rows and three or four tiles of columns spills.
        for ring in _decoded_rings(problem, device):
            if max(ring.tiles) <= _SUMMED_DECODED:
                yield ring
    # Rows that are decoded, split or rounded to bf16 are decoded once for all waves, as above: the
    # other ring multiplies rows as they are.
    floats = problem.is_float and problem.parts == 1 and problem.bits[0] <= NARROW
    k_steps = k_steps_under(*shared)
    if device.matrix.dma != PIECE or (problem.parts and not floats):
        return
    if not k_steps or problem.blocks % (k_steps * INSTRUCTION.groups):
        return
    clocks = INSTRUCTION.decoded_clocks if problem.parts else INSTRUCTION.byte_clocks
    tiles = most_tiles_summed(problem.bits[1] if problem.integers[1] else 0, run_under(*shared))
    for m, n in product(*(range(most, 0, -1) for most in _SUMMED_TILES)):
        if n % problem.halves or m * n > tiles:
            continue
        latencies = LATENCIES * device.rates.memory_latency / (m * n * k_steps * clocks)
        wanted = min(_MOST_STAGES, math.ceil(latencies + _EXTRA_STAGES))
        found = _ring(INSTRUCTION, (m, n), (1, device.unit.simds, 1), wanted, k_steps)
        stages = min(wanted, device.unit.lds_bytes // _slot_bytes(problem, found))
        if stages >= min(_STAGES):
            yield replace(found, stages=stages)


def _decoded_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Yield the rings that decode once. A stage is one block along K, and LDS has two stages.

    None for a device without a matrix instruction of 32 rows. The most tiles of a wave come first;
    of equal numbers of tiles, those with the fewest rows of floats in LDS.
    """
    if all(form.m != INSTRUCTION.rows for form in device.matrix.forms):
        return
    large = TileInstruction(INSTRUCTION.rows, device.matrix)
    every = product((4, 3, 2, 1), repeat=2)
    for m, n in sorted(every, key=lambda mn: (-mn[0] * mn[1], mn[0] * problem.parts + mn[1])):
        found = _ring(large, (m, n), (2, 2, 1), SLOTS, 1, "decoded")
        size = SLOTS * (found.rows * problem.parts + found.columns) * BLOCK_BYTES
        fits = size <= device.workgroup_lds_bytes
        if (
            n % problem.halves == 0
            and fits
            and _decoded_registers(problem, m, n) <= device.unit.registers
        ):
            yield found


def _decoded_registers(problem: Problem, m: int, n: int) -> int:
    """Estimated registers of a lane of a ring that decodes once: accumulators, fragments of the two
    halves of a stage, four loaded blocks of a row of each side, and temporaries for decoding."""
    fragments = 2 * FRAGMENT // 2 * (m * problem.parts + n)
    return m * n * INSTRUCTION.totals + fragments + K_STEPS * sum(problem.bits) + _DECODERS


def _float_rings(problem: Problem, device: Gpu) -> Iterator[GpuSchedule]:
    """Yield the rings that multiply floats, and in which each wave decodes what is packed.

    A stage is one k-step. There are two stages more than cover the memory latency, but no more than
    an iteration of the loop has, so that the LDS slot of each is constant. Where the stages take
    more than half of LDS, a second schedule has as many as leave room for another workgroup. None
    for fewer than AT_ONCE blocks along K, or for a device that cannot load straight to LDS.

    Waves are 2 x 2, or, for up to 64 rows, side by side along the columns: with 64 rows each wave
    then decodes half as many columns, for two tiles of rows, and with 32 rows no wave has only
    padding.
    """
    if device.matrix.dma != PIECE or problem.blocks < AT_ONCE:
        return
    # Three bf16 parts of an f32 and weights of more than 4 bits leave no registers for 16 tiles,
    # nor do two packed sides with more than 12 bits together.
    wide = problem.parts > 2 and problem.bits[1] > 4
    wide |= not problem.is_float and sum(problem.bits) > _BITS_FOR_16_TILES
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
