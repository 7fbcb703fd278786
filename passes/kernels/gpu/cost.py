"""What a schedule costs: clocks of the device for a product, estimated from shapes alone.

    time    = max(k-steps of all rounds, bytes from memory / bandwidth reached) + start + result
    rounds  = ceil(workgroups / workgroups that run at once)
    a k-step  = the busiest of: matrix cores, LDS, the path of the unit to memory
    reached = min(bandwidth, bytes asked for and not there yet / latency)

A k-step is one instruction along K. What runs at once, and is asked for, follows from registers and
LDS. Each byte of the operands comes from memory once: what several workgroups read is in a cache
then, which the path to memory sees and memory does not. The figures are those of the records in
targets/amd/; like the issue model (compiler/report) this ranks schedules, it predicts no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES, PIECES
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.gpu import Gpu

#: Waves of a streaming kernel that a SIMD holds: what its registers allow, mostly.
_STREAM_WAVES = 2
#: Vector instructions that decode a block of so many bits an element, where no conversion does.
_DECODE = {4: 100, 6: 180, 8: 150}
#: The same where conversions read FNUZ numbers.
_EXTEND = {4: 100, 6: 160, 8: 130}
#: The same where conversions read elements and scales; of integers there, and of elements that are
#: multiplied by E4M3 scales as floats.
_CONVERT = {4: 20, 6: 5, 8: 20}
_INTEGERS, _BY_FLOATS = 90, 70
#: The same where they are decoded without scales, which multiply sums.
_PLAIN_INTEGERS = {4: 75, 8: 55}
#: Instructions beside these for a stage of which each block is decoded once: loads, stores, scales.
_BESIDE = 30
#: What waves get of LDS, and of the path to memory, when they all want it.
_SHARED = 0.9
#: Vector instructions that split 32 floats into so many bf16, and times that a k-step waits for a
#: tile of them. By the issue model four k-steps of f32 by f4 take 18812 clocks.
_SPLIT, _WAITS = {1: 0, 2: 160, 3: 240}, 4
#: The same for a tile of rows or of columns, where f32 scales multiply the sums of a stream, and
#: how many times as much where no side is floats: by the issue model 1.2 latencies with one of
#: each, 2.7 with two, and 0.8 without floats.
_LATE_TILE, _LATE_PACKED = 0.6, 0.6
#: How much longer a k-step of a ring of split floats takes if no other workgroup fills its waits:
#: by the issue model 1.3 to 1.8 of f32 by f4, in less than so many tiles a wave.
_ALONE, _FULL = 1.4, 8
#: The same of other decoded sides, where K is split: clocks of a k-step, and the part of its
#: products that comes on top. By the issue model, of bf16 by f4, 466 clocks with one tile a wave,
#: 720 with four, 1100 with eight.
_ALONE_K_STEP, _ALONE_PRODUCTS = 375, 0.7
#: How much longer than its busiest pipe a ring takes whose sums f32 scales multiply: matrix cores,
#: path to memory, and instructions with fp8 on both sides; LDS, and instructions beside floats;
#: these of one tile of columns, or of integers. By the issue model, most within a fifth.
_SUMMED, _SUMMED_LDS, _SUMMED_WAITS = 1.15, 1.35, 1.6
#: Instructions of these for the sums of a tile, and for the scales of its columns.
_SCALED = 16
#: Latencies of memory between the last product of a split and the sum of all.
_MERGED = 3
#: Tiles of a wave of a ring at most, if its SIMD is to have registers for another one; and lanes of
#: a wave that may be alone on its SIMD.
_TWICE, _WIDE = 4, 64
#: Bytes of a load of a lane, and of a result.
_LOAD, _RESULT = 16, 4
#: Bits of an element with a scale, at most.
_WIDEST = 8


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`groups` products of [rows, blocks] and [columns, blocks], elements of so many bits.

    `halves`: 2 where the columns are computed in halves. `width`: columns of the result; 0: those
    of a half. `experts`: different rhs that
    the groups read; 0 where they read one. `parts`: the floats that an element of lhs is
    multiplied as; 0 where both sides are multiplied as they are, with their scales. `shared`: of
    lhs and of rhs the blocks that share an f32 scale, which multiplies sums; 0 without such scales.
    `in_blocks`: all columns of a block of the result are stored together. `integers`: whether the
    elements of lhs and of rhs are integers, which no conversion of scaled elements decodes;
    `by_floats`: whether their scales are E4M3, which no such conversion takes.
    `splits`: numbers of parts that K may be cut into, of workgroups that share a tile. `panels`:
    whether rhs is packed in panels.
    """

    rows: int
    columns: int
    blocks: int
    bits: tuple[int, int] = (4, 4)
    groups: int = 1
    halves: int = 1
    width: int = 0
    experts: int = 0
    parts: int = 0
    shared: tuple[int, int] = (0, 0)
    in_blocks: bool = False
    integers: tuple[bool, bool] = (False, False)
    by_floats: tuple[bool, bool] = (False, False)
    splits: tuple[int, ...] = ()
    panels: bool = False

    @property
    def is_float(self) -> bool:
        """Whether lhs has no scales."""
        return self.bits[0] > _WIDEST

    @property
    def is_dense(self) -> bool:
        """Whether neither side has scales."""
        return self.bits[1] > _WIDEST

    @property
    def workgroups_of(self) -> int:
        """Different rhs that are read."""
        return min(self.groups, self.experts) if self.experts else 1

    def row_bytes(self, side: int) -> int:
        """Bytes of a block of a row of lhs (0) or rhs (1), with its scale."""
        return BLOCK * self.bits[side] // 8 + (not self.is_dense)


def workgroups(problem: Problem, schedule: GpuSchedule) -> int:
    """In all."""
    return result_tiles(problem, schedule) * schedule.splits


def result_tiles(problem: Problem, schedule: GpuSchedule) -> int:
    """Tiles of the result, of all groups: one workgroup each, or one for each split."""
    down = -(-problem.rows // schedule.rows)
    return down * -(-problem.columns // schedule.columns) * problem.groups


def padding(problem: Problem, schedule: GpuSchedule) -> float:
    """The part of the products that is computed for nothing: beyond rows, columns and K."""
    computed = result_tiles(problem, schedule) * schedule.rows * schedule.columns
    groups, waves = schedule.instruction.groups, schedule.waves[2]
    blocks = groups * (schedule.k_steps or K_STEPS) * waves
    along = -(-problem.blocks // blocks) * blocks
    return 1 - problem.rows * problem.columns * problem.groups * problem.blocks / computed / along


def cost(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Clocks of the device, estimated."""
    rates = device.rates
    count = workgroups(problem, schedule)
    per_unit = _at_once(schedule, device)
    at_once = min(count, device.units * per_unit)
    # What shares a unit shares its pipes.
    rounds = -(-count // device.units)
    blocks = problem.blocks // schedule.splits
    k_steps = -(-blocks // (schedule.instruction.groups * schedule.waves[2]))
    start: float = rates.memory_latency + rates.lds_latency
    result = schedule.rows * schedule.columns * _RESULT / rates.memory_bytes_per_clock
    if schedule.splits > 1:
        # The last workgroup waits for its part to be stored, for its count, and for all parts.
        start += _MERGED * rates.memory_latency + (schedule.splits + 1) * result
    k_step = _k_step(problem, schedule, device)
    tiles = schedule.tiles[0] * schedule.tiles[1]
    fits = _fits_twice(problem, schedule, device)
    alone = rounds == 1 or (schedule.splits > 1 and not fits)
    if any(problem.shared) and schedule.transport == "decoded":
        k_step *= _ALONE if rounds == 1 or not fits else 1
    elif alone and problem.is_float and problem.parts > 1 and schedule.transport != "stream":
        k_step *= _ALONE if tiles < _FULL else 1
    elif alone and schedule.splits > 1 and problem.parts:
        products = tiles * schedule.instruction.decoded_clocks
        k_step = max(k_step, _ALONE_K_STEP + _ALONE_PRODUCTS * products)
    busy = rounds * (k_steps * k_step + result) + start
    busy = max(busy, -(-rounds // per_unit) * k_steps * _late(problem, schedule, device))
    moved = _bytes(problem) + _bytes_of_parts(problem, schedule)
    in_flight = min(at_once * _asked(problem, schedule), moved)
    bandwidth = min(device.bytes_a_clock, in_flight / device.latency_clocks)
    return max(busy, moved / bandwidth + start)


def requests(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Requests of the loads of a unit. A load of a wave is one for four lanes that read bytes
    which lie together, and one for each row where they have rows (docs/gpu-quality.md)."""
    instruction, lanes = schedule.instruction, schedule.instruction.unit.lanes
    waves, (m, n), (down, right, along) = schedule.threads // lanes, schedule.tiles, schedule.waves
    rows = instruction.lane_groups * min(problem.rows, instruction.rows)
    scales = [rows / K_STEPS, lanes / K_STEPS]
    each = [
        _loads(problem, 0) * rows,
        _loads(problem, 1) * (lanes / 4 if problem.panels else lanes),
    ]
    for side in range(2):
        each[side] += 0 if problem.is_dense or (side == 0 and problem.is_float) else scales[side]
    counts = [waves * m * each[0], waves * n * each[1]]
    if schedule.transport == "ring":
        # What waves share goes through LDS, whose lanes read rows of a stage as they follow.
        whole = [down * m * _loads(problem, 0), right * n * _loads(problem, 1)]
        shared = [right > 1 or problem.parts > 0, down > 1 or problem.parts > 0]
        counts = [
            lanes / 4 * all_of if through else direct
            for all_of, direct, through in zip(whole, counts, shared, strict=True)
        ]
    rounds = -(-workgroups(problem, schedule) // device.units)
    blocks = problem.blocks // schedule.splits
    return rounds * -(-blocks // (instruction.groups * along)) * sum(counts)


def _loads(problem: Problem, side: int) -> float:
    """Loads of 16 bytes that a lane needs for a block."""
    return BLOCK * problem.bits[side] / 8 / _LOAD


def _bytes_of_parts(problem: Problem, schedule: GpuSchedule) -> int:
    """Bytes of the sums that workgroups of a tile leave, and that the last of them reads."""
    if schedule.splits == 1:
        return 0
    tile = schedule.rows * schedule.columns * _RESULT
    return 2 * schedule.splits * result_tiles(problem, schedule) * tile


def _fits_twice(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Whether a unit has LDS and registers for two workgroups of a ring."""
    m, n = schedule.tiles
    side = schedule.rows * problem.bits[0] + schedule.columns * problem.bits[1]
    stage = side * BLOCK * schedule.instruction.groups // 8 * schedule.k_steps
    if schedule.transport == "decoded":
        stage = (schedule.rows * problem.parts + schedule.columns) * BLOCK_BYTES
    # Floats that are split wait in registers, beside both sums.
    held = m * n * (2 if any(problem.shared) and problem.parts > 1 else 1)
    return 2 * stage * schedule.stages <= device.unit.lds_bytes and held <= _TWICE


def _late(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Clocks for which one workgroup waits for memory in a k-step, whatever others do: floats of a
    stream that are split come when they are needed, if they take the registers of a step; so does
    much of both sides, where f32 scales multiply sums."""
    tiles, columns = schedule.tiles
    if schedule.transport != "stream":
        return 0
    waits = 0.0
    if any(problem.shared):
        waits = _LATE_TILE * (tiles + columns) * (1 if problem.is_float else _LATE_PACKED)
    if problem.is_float and problem.parts > 1 and (problem.parts > 2 or tiles > 1):
        waits = max(waits, _WAITS * tiles)
    return waits * device.rates.memory_latency


def _at_once(schedule: GpuSchedule, device: Gpu) -> int:
    """Workgroups that a unit holds."""
    waves = schedule.threads // device.unit.wave
    limit = _STREAM_WAVES if schedule.transport == "stream" else 1
    return max(1, limit * device.unit.simds // waves)


def _k_step(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Clocks of a k-step of one workgroup that has a unit to itself."""
    if schedule.transport == "decoded":
        return _decoded_k_step(problem, schedule, device)
    if any(problem.shared) and schedule.transport == "ring":
        return _summed_k_step(problem, schedule, device)
    unit, rates = device.unit, device.rates
    m, n = schedule.tiles
    waves = schedule.threads // unit.wave
    instruction = schedule.instruction
    if problem.parts:
        first, second = _decoding(problem, device)
        products = m * n * problem.parts * BLOCK // instruction.fragment
        issued = products + m * first + n * second
        clocks = m * n * instruction.decoded_clocks * problem.parts
        if schedule.transport == "stream" and _is_alone(problem, schedule):
            # It decodes, then multiplies. A ring does both at once.
            clocks += issued * rates.issue
        clocks = max(clocks, issued * rates.issue)
    else:
        clocks = m * n * instruction.clocks * (2 if 8 in problem.bits else 1)
    matrix = clocks * -(-waves // unit.simds)
    fragments = waves * _side_bytes(problem, schedule, m, n)
    if schedule.transport == "stream":
        return max(matrix, fragments / rates.memory_bytes_per_clock)
    down, right, _ = schedule.waves
    loaded = _side_bytes(problem, schedule, m * down, n * right)
    # A side that waves do not share goes to registers, the other one through LDS.
    own = (m if right > 1 else 0, n if down > 1 else 0)
    staged = waves * _side_bytes(problem, schedule, *own)
    staged += _side_bytes(problem, schedule, own[0] * down, own[1] * right)
    lds, path = staged / rates.lds_bytes_per_clock, loaded / rates.memory_bytes_per_clock
    if problem.is_dense:
        # What is read in a block is multiplied in the next one.
        shared = max(lds + instruction.groups * rates.lds_latency, path)
    else:
        shared = max(lds, path) / _SHARED
    # What is asked for comes some stages later.
    late = rates.memory_latency / (_of_stage(problem, schedule) * max(1, schedule.stages - 2))
    return max(matrix, shared, late)


def _is_alone(problem: Problem, schedule: GpuSchedule) -> bool:
    """Whether tiles that make up for decoding leave one wave a SIMD: of both sides, and where no
    conversion decodes, of one. Not in waves of 32, which have half of the tiles."""
    unit = schedule.instruction.unit
    if unit.converts:
        return not problem.is_float
    return not problem.is_dense and unit.lanes == _WIDE


def _decoding(problem: Problem, device: Gpu) -> tuple[int, int]:
    """Vector instructions that decode, or split, a block of lhs and one of rhs."""
    converts, extends = device.matrix.converts, device.matrix.extends_fnuz
    known = _CONVERT if converts else _EXTEND if extends else _DECODE
    of_integers = _PLAIN_INTEGERS if any(problem.shared) else dict.fromkeys((4, 8), _INTEGERS)

    def of_block(side: int) -> int:
        bits = problem.bits[side]
        if bits > _WIDEST:
            return 0
        if converts and problem.integers[side]:
            return of_integers[bits]
        return _BY_FLOATS if converts and problem.by_floats[side] else known[bits]

    return (_SPLIT[problem.parts] if problem.is_float else of_block(0)), of_block(1)


def _summed_k_step(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """The same where f32 scales multiply the sums of a ring. LDS has the rows alone."""
    rates, instruction = device.rates, schedule.instruction
    (m, n), waves = schedule.tiles, schedule.waves[1]
    second = _decoding(problem, device)[1] if problem.parts else 0
    scaled = (m * n * (1 if problem.is_float else 2) + n) * _SCALED / schedule.k_steps
    products = m * n * max(1, problem.parts * BLOCK // instruction.fragment)
    issued = products + n * second + scaled + _BESIDE
    decoded = instruction.decoded_clocks * problem.parts
    loaded = _side_bytes(problem, schedule, m, n * waves)
    lds = (1 + waves) * _side_bytes(problem, schedule, m, 0)
    waits = _SUMMED_WAITS if n == 1 or any(problem.integers) else _SUMMED_LDS
    return max(
        m * n * (decoded or 2 * instruction.clocks) * _SUMMED,
        issued * rates.issue * (waits if problem.parts else _SUMMED),
        lds / rates.lds_bytes_per_clock * _SUMMED_LDS,
        loaded / rates.memory_bytes_per_clock * _SUMMED,
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
    path = _side_bytes(problem, schedule, m * down, n * right) / rates.memory_bytes_per_clock
    # Each wave reads the floats of its tiles; those of a workgroup are written once.
    rows = schedule.rows * problem.parts + schedule.columns
    rows += down * right * instruction.rows * (m * problem.parts + n)
    lds = rows * BLOCK_BYTES * instruction.groups / rates.lds_bytes_per_clock
    # What is asked for comes four blocks later.
    late = rates.memory_latency * instruction.groups / K_STEPS
    return max(matrix, issued * rates.issue, lds / _SHARED, path / _SHARED, late)


def _side_bytes(problem: Problem, schedule: GpuSchedule, m: int, n: int) -> int:
    """Bytes of a k-step, for so many tiles of lhs and of rhs."""
    size = schedule.instruction.rows * schedule.instruction.groups
    return size * (m * problem.row_bytes(0) + n * problem.row_bytes(1))


def _asked(problem: Problem, schedule: GpuSchedule) -> int:
    """Bytes that a workgroup has asked of memory at any time.

    Of a stream a step of four k-steps; of a ring all stages but the one that is multiplied. Of the
    side with fewer rows most is in a cache.
    """
    m, n = schedule.tiles
    down, right, k = schedule.waves
    tiles = (0, n * right) if problem.rows < problem.columns else (m * down, 0)
    k_steps: float = K_STEPS * k
    if schedule.transport == "ring":
        k_steps = _of_stage(problem, schedule) * (schedule.stages - 1)
    elif schedule.transport == "decoded":
        k_steps = K_STEPS / schedule.instruction.groups
    return int(k_steps * _side_bytes(problem, schedule, *tiles))


def _of_stage(problem: Problem, schedule: GpuSchedule) -> float:
    """K-steps of a stage of a ring; those of a dense product are over one block."""
    return schedule.k_steps / (schedule.instruction.groups if problem.is_dense else 1)


def _bytes(problem: Problem) -> int:
    """That must come from memory and go there."""
    lhs = problem.groups * problem.rows * problem.blocks * problem.row_bytes(0)
    rhs = problem.workgroups_of * problem.columns * problem.blocks * problem.row_bytes(1)
    width = problem.width or problem.columns // problem.halves
    return lhs + rhs + problem.groups * problem.rows * width * _RESULT
