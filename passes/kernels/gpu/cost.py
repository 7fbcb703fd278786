"""The cost model of schedules: clocks of the device for a product, estimated from shapes alone.

    time    = max(rounds * (k-steps + store of the result), bytes of memory / reached) + start
    rounds  = ceil(workgroups / compute units)
    k-step  = the busiest of: matrix cores, vector units, LDS, path to memory (k_step_clocks.py)
    reached = min(bandwidth of memory, bytes in flight / latency of memory)

A k-step is one scaled matrix instruction along K. How many workgroups run at once, and how many
bytes they have in flight, follows from registers and LDS. Each byte of the operands comes from
memory once. What several workgroups read is in a cache after the first read: this counts for the
path from L1 to registers, but not for memory. The figures are those of the records in targets/amd/.
Like the issue model (compiler/report), this model ranks schedules; it does not predict times.
"""

from __future__ import annotations

from mxc.passes.kernels.gpu.fragments import BLOCK, K_STEPS
from mxc.passes.kernels.gpu.k_step_clocks import k_step_clocks
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.gpu.stream_registers import leaves_room
from mxc.targets.gpu import Gpu

#: Waves of a streaming kernel that a SIMD has registers for, in most cases.
_STREAM_WAVES = 2
#: Rings that decode: most tiles of a wave that leaves registers on its SIMD for another wave; the
#: same where f32 scales multiply partial sums, or floats are split.
_TILES_FOR_TWO, _FEW_TILES_FOR_TWO = 6, 4
#: Memory latencies between the last product of a split and the sum of all splits.
_MERGED = 3
#: Bytes of a load of a lane, and of an element of the result or of a partial sum (f32).
_LOAD, _RESULT = 16, 4


def workgroups(problem: Problem, schedule: GpuSchedule) -> int:
    """Number of workgroups of a product, with those of all splits."""
    return result_tiles(problem, schedule) * schedule.splits


def result_tiles(problem: Problem, schedule: GpuSchedule) -> int:
    """Number of workgroup tiles of the results of all groups. A tile has one workgroup, or one for
    each split."""
    down = -(-problem.rows // schedule.rows)
    return down * -(-problem.columns // schedule.columns) * problem.groups


def padding(problem: Problem, schedule: GpuSchedule) -> float:
    """Share of the multiplications that is wasted: past the end of rows, columns or K."""
    computed = result_tiles(problem, schedule) * schedule.rows * schedule.columns
    groups, waves = schedule.instruction.groups, schedule.waves[2]
    blocks = groups * (schedule.k_steps or K_STEPS) * waves
    along = -(-problem.blocks // blocks) * blocks
    return 1 - problem.rows * problem.columns * problem.groups * problem.blocks / computed / along


def cost(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Estimated clocks of the device for a product."""
    rates = device.rates
    count = workgroups(problem, schedule)
    per_unit = _at_once(problem, schedule, device)
    at_once = min(count, device.units * per_unit)
    # Not divided by the workgroups that a unit holds: these share its pipes.
    rounds = -(-count // device.units)
    blocks = problem.blocks // schedule.splits
    k_steps = -(-blocks // (schedule.instruction.groups * schedule.waves[2]))
    start: float = rates.memory_latency + rates.lds_latency
    result = schedule.rows * schedule.columns * _RESULT / rates.memory_bytes_per_clock
    if schedule.splits > 1:
        # The last workgroup waits for its part to be stored, for its count, and for all parts.
        start += _MERGED * rates.memory_latency + (schedule.splits + 1) * result
    waves = min(rounds, per_unit) * schedule.threads // device.unit.wave
    alone = waves <= device.unit.simds
    k_step = k_step_clocks(problem, schedule, device, alone=alone)
    busy = rounds * (k_steps * k_step + result) + start
    moved = _bytes_moved(problem) + _bytes_of_partial_sums(problem, schedule)
    in_flight = min(at_once * _bytes_in_flight(problem, schedule), moved)
    bandwidth = min(device.bytes_a_clock, in_flight / device.latency_clocks)
    return max(busy, moved / bandwidth + start)


def requests(problem: Problem, schedule: GpuSchedule, device: Gpu) -> float:
    """Number of memory requests of all loads of a compute unit (docs/gpu-quality.md). Four lanes
    that read contiguous bytes are one request, and lanes that read different rows one each."""
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
        # A side that waves share is loaded to LDS: there adjacent lanes load contiguous bytes.
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
    """Loads of 16 bytes that a lane needs for a block of 32 elements of a side."""
    return BLOCK * problem.bits[side] / 8 / _LOAD


def _bytes_of_partial_sums(problem: Problem, schedule: GpuSchedule) -> int:
    """Bytes of partial sums that the workgroups of all tiles store, and that the last ones load."""
    if schedule.splits == 1:
        return 0
    tile = schedule.rows * schedule.columns * _RESULT
    return 2 * schedule.splits * result_tiles(problem, schedule) * tile


def _fits_twice(problem: Problem, schedule: GpuSchedule, device: Gpu) -> bool:
    """Whether a compute unit has LDS and registers for two workgroups of a ring that decodes."""
    m, n = schedule.tiles
    side = schedule.rows * problem.bits[0] + schedule.columns * problem.bits[1]
    stage = side * BLOCK * schedule.instruction.groups // 8 * schedule.k_steps
    if schedule.transport == "decoded":
        stage = (schedule.rows * problem.parts + schedule.columns) * BLOCK_BYTES
    # Under f32 scales, floats that are split wait in registers beside both sets of sums.
    held = m * n * (2 if any(problem.shared) and problem.parts > 1 else 1)
    most = _FEW_TILES_FOR_TWO if any(problem.shared) or problem.parts > 1 else _TILES_FOR_TWO
    return 2 * stage * schedule.stages <= device.unit.lds_bytes and held <= most


def _at_once(problem: Problem, schedule: GpuSchedule, device: Gpu) -> int:
    """Workgroups that a compute unit holds at a time."""
    if schedule.transport == "stream":
        waves = _STREAM_WAVES if leaves_room(problem, schedule, device) else 1
        return max(1, waves * device.unit.simds * device.unit.wave // schedule.threads)
    return 2 if problem.decodes and _fits_twice(problem, schedule, device) else 1


def _bytes_in_flight(problem: Problem, schedule: GpuSchedule) -> int:
    """Bytes of loads from memory that a workgroup has in flight at any time.

    A stream has a step of four k-steps in flight for each wave along K, a ring all stages but the
    one that is multiplied, and a ring that decodes once four blocks. Only the side with more rows
    counts: most of the other one is in a cache.
    """
    m, n = schedule.tiles
    down, right, k = schedule.waves
    tiles = (0, n * right) if problem.rows < problem.columns else (m * down, 0)
    k_steps: float = K_STEPS * k
    if schedule.transport == "ring":
        k_steps = problem.stage_k_steps(schedule) * (schedule.stages - 1)
    elif schedule.transport == "decoded":
        k_steps = K_STEPS / schedule.instruction.groups
    return int(k_steps * problem.side_bytes(schedule, *tiles))


def _bytes_moved(problem: Problem) -> int:
    """Bytes of the operands and of the result, each of which is loaded or stored once."""
    lhs = problem.groups * problem.rows * problem.blocks * problem.row_bytes(0)
    rhs = problem.rhs_count * problem.columns * problem.blocks * problem.row_bytes(1)
    width = problem.width or problem.columns // problem.halves
    return lhs + rhs + problem.groups * problem.rows * width * _RESULT
