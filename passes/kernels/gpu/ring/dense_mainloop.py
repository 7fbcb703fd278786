"""The loop along K of a dense ring: sums of chunks of K, each from zero, added in their order.

    whole = -0
    for each chunk of K                                                  # dense/chunks.py
      sum = products of its stages, from zero
      whole = whole + sum

The last line is computed tile by tile while the first stage of the next chunk is multiplied, for
each tile before its first product there. So matrix cores do not wait for it.

Weights are loaded straight to registers, as many stages ahead as an iteration of the loop has
(`together`). So each load goes to the registers of the fragment that was multiplied right before.
With another distance, weights in flight would have to be copied to other registers at the end of an
iteration, and a copy waits for its load.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import mark_loads, pinned, wait_for_all_loads
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.gpu.dense.chunks import STAGE, Chunks
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.ring.float_mainloop import FloatMainloop
from mxc.passes.kernels.gpu.ring.float_registers import FloatRegisters, Rates
from mxc.passes.kernels.gpu.ring.interleave import InterleavedWork, evenly
from mxc.passes.kernels.gpu.ring.staging import LATENCIES, DirectSide, StagedSide
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import bitcast, bitcast_like, f32, i32, index, loop, splat
from mxc.targets.amd import GFX950

#: What a wave issues beside a product, which takes 16 clocks: 4 issue slots, one of them its own.
_RATES = Rates(budget=3, load=3, pace=0.5, read=0.8)
#: Most registers of a lane for weights, loaded or in flight.
_REGISTERS = 128
#: Most tiles of a wave where elements of lhs have 16 bits: see `most_tiles_dense`.
_TILES = 32
#: Fewest rounds of a chunk of which some remain a loop: the first round stands before the loop, and
#: LLVM unrolls a loop of one iteration.
_LOOP = 3
#: Registers of a fragment of weights: two elements each.
_FRAGMENT = FRAGMENT // 2


@dataclass
class DenseRegisters(FloatRegisters):
    """`totals` are the sums of one chunk. `whole`: the sums of all chunks before it, added up;
    `ahead`: fragments of weights that are loaded or in flight, in the order of use."""

    whole: list[ir.Value] = field(default_factory=list)
    ahead: list[ir.Value] = field(default_factory=list)


class DenseMainloop(FloatMainloop):
    """The loop of a wave along K; no other wave of the workgroup has its columns."""

    def __init__(
        self, schedule: GpuSchedule, lhs: StagedSide, rhs: DirectSide, chunks: Chunks
    ) -> None:
        """Keep what the loop needs. No operation is built."""
        super().__init__(schedule, (lhs, rhs), _RATES)
        self._rhs = rhs
        self._chunks = chunks
        self._together = together(schedule, chunks)
        #: Number of parts of stages for which a lane has weights: the one that is multiplied, and
        #: those ahead. Fragments loaded before the loop. Fragments of the part that is multiplied.
        self._parts_ahead = self._together * self._parts
        self._prefetched: list[ir.Value] = []
        self._own: list[ir.Value] = []

    def sums(self) -> list[ir.Value]:
        """Build all stages; return the sums of the tiles, row by row."""
        begun = self._begin()
        # -0 + x is x for every x, also for zeros of either sign.
        none = [splat(-0.0, f32(), self._instruction.totals)] * len(begun.totals)
        begun.totals = list(none)
        held = DenseRegisters(**vars(begun), whole=none, ahead=self._prefetched)
        bounds = index(0), index(self._chunks.count), index(1)
        with loop(*bounds, values_of(held)) as (chunk, given, op):
            scf.YieldOp(values_of(self._chunk(with_values(held, given), chunk)))
        held = with_values(held, op.results)
        wait_for_all_loads()
        return [one + other for one, other in zip(held.whole, held.totals, strict=True)]

    def _chunk(self, held: DenseRegisters, chunk: ir.Value) -> DenseRegisters:
        """Build the stages of a chunk; return what is held after them."""
        stages, size = self._chunks.size // STAGE, self._together
        rounds, rest = divmod(stages, size)
        first = chunk * stages
        self._tiles_to_flush = set(range(len(held.totals)))
        self._round(held, first, size)
        with loop(index(1), index(rounds), index(1), values_of(held)) as (number, given, op):
            now = with_values(held, given)
            self._round(now, first + number * size, size)
            scf.YieldOp(values_of(now))
        held = with_values(held, op.results)
        self._round(held, first + rounds * size, rest)
        return held

    def _round(self, held: DenseRegisters, first: ir.Value, stages: int) -> None:
        for at in range(stages):
            self._stage(held, first + at, 0)

    def _take_sums(self, held: FloatRegisters, at: int) -> None:
        """Add a tile's sums of the chunk before to `whole`."""
        assert isinstance(held, DenseRegisters)
        # Pinned: else LLVM adds later, and sums of both chunks are in registers at once.
        (held.whole[at],) = pinned([held.whole[at] + held.totals[at]])

    def _fill(self) -> None:
        """Issue the loads that come before the loop, in its order, as if stages before the first
        one were multiplied: else its first waits would be for more loads than necessary."""
        size, last = self._slot_bytes, self._stages - 1
        for stage in range(-max(self._stages, self._together), 0):
            for part in range(self._parts):
                soon = (part + 1) % self._parts
                if soon == 0 and stage + last >= 0:
                    mark_loads()
                coming = part + self._parts_ahead - 1 + stage * self._parts
                if coming >= 0:
                    for issue in self._weights(*divmod(coming, self._parts), self._prefetched):
                        issue()
                to = stage + (last if soon else self._stages)
                if to >= 0:
                    for issue in self._portion(self._loads(index(to), index(to * size)), soon):
                        issue()

    def _further_work(
        self, held: FloatRegisters, stage: ir.Value, soon: int
    ) -> list[InterleavedWork]:
        """Take the weights of a part; return loads of later ones, which go to the registers of the
        part before."""
        assert isinstance(held, DenseRegisters)
        own = [held.ahead.pop(0) for _ in self._columns]
        # In accumulation registers: vector registers have the sums.
        words = pinned([bitcast(each, i32(), _FRAGMENT) for each in own], "a")
        self._own = [bitcast_like(*each) for each in zip(words, own, strict=True)]
        part = (soon - 1) % self._parts
        later, which = divmod(part + self._parts_ahead - 1, self._parts)
        loads = self._weights(stage + later, which, held.ahead)
        return evenly("vmem_read", loads, 0.1, 1.0, self._rates.load)

    def _fragments(self, held: FloatRegisters, key: int, part: int) -> list[ir.Value]:
        """Return the fragments of a tile in a part; of a tile of columns its weights."""
        column = key - len(self._rows)
        return super()._fragments(held, key, part) if column < 0 else [self._own[column]]

    def _weights(
        self, stage: ir.Value | int, part: int, into: list[ir.Value]
    ) -> list[Callable[[], None]]:
        """Return loads of the weights of a part of a stage; zeros beyond the end of K."""
        kind = self._rhs.layout.kind
        assert isinstance(kind, FloatBlocks)
        at = index(stage) if isinstance(stage, int) else stage
        end = index(kind.blocks)
        left = end - arith.minui(at * self._blocks, end)
        (run,) = self._rhs.layout.runs[part]

        def load(tile: int) -> None:
            found = self._rhs.load(tile, run.piece, at, left=left)
            into.append(bitcast(found, kind.element, FRAGMENT))

        return [partial(load, tile) for tile in self._columns]


def most_tiles_dense(bits: int) -> int:
    """Return the most tiles of a wave for which there are registers: for two sets of sums, and for
    the fragments that are read. `bits`: of an element of lhs in memory."""
    return _TILES * 16 // bits


def together(schedule: GpuSchedule, chunks: Chunks) -> int:
    """Return the number of stages of a round, an iteration of the loop over a chunk.

    At least two, and as many as memory needs to answer; at most as many as there are registers for
    their weights. Of these numbers, one that leaves the fewest stages of the chunk behind the loop.
    If it leaves none, the largest with which a loop remains, since each round has scalar
    instructions of its own. Else the smallest, which takes the fewest registers.
    """
    stages, parts = chunks.size // STAGE, STAGE
    rows, columns = schedule.tiles
    clocks = rows * columns * schedule.instruction.form.clocks
    wanted = LATENCIES * GFX950.rates.memory_latency / clocks + 1
    most = min(stages, max(2, _REGISTERS // (columns * parts * _FRAGMENT)))
    least = min(most, max(2, math.ceil(wanted / parts)))

    def preference(size: int) -> tuple[int, int]:
        rounds, rest = divmod(stages, size)
        return rest, -size if rest == 0 and rounds >= _LOOP else size

    return min(range(least, most + 1), key=preference)
