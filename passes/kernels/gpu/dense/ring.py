"""Dense products of many rows: both sides pass through a ring of stages in shared memory.

    result[p, n] = sum over k of lhs[p, k] * rhs[e(p), n, k]

As in ring/kernel.py a workgroup has a tile of the result and loads each byte once, some stages
ahead, straight to LDS. A stage is two blocks along K, each a k-step of matrix instructions:

    for each span of K:                                                # spans.py
      for each stage of it:
        multiply the first block; meanwhile read the second one from LDS
        wait for the loads of the next stage, and for all waves
        multiply the second block; meanwhile read the first one of the next stage, and load what
          comes into the slot that has been read
      total = total + sum of the span
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import arith, scf, vector

from mxc.dialects.amdgpu import mark_loads, mfma, pinned, shared, wait_for_loads, zeros
from mxc.dialects.quantize_scalars import i32 as number
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.gpu.contraction import Given
from mxc.passes.kernels.gpu.dense.spans import ROWS, STAGE, Spans
from mxc.passes.kernels.gpu.floats import Floats
from mxc.passes.kernels.gpu.fragments import FRAGMENT, Instruction
from mxc.passes.kernels.gpu.lanes import lane_of
from mxc.passes.kernels.gpu.ring.float_mainloop import moved
from mxc.passes.kernels.gpu.ring.float_pipeline import as_index
from mxc.passes.kernels.gpu.ring.interleave import Work, evenly, interleaved_within
from mxc.passes.kernels.gpu.ring.staged_product import StagedProduct, stage_loads
from mxc.passes.kernels.gpu.ring.staging import (
    INSTRUCTION,
    PIECE,
    Layout,
    Slice,
    StagedSide,
    layout_bytes,
)
from mxc.passes.kernels.gpu.ring.tile import Tile
from mxc.passes.kernels.vectors import bitcast, f32, i8, i32, index, loop, of, splat
from mxc.targets.amd import GFX950

_INSTRUCTION = Instruction(ROWS)
#: Tiles of a wave: their sums, twice, and what is read for them have registers.
_TILES = 32
#: Instructions that a wave issues while its matrix core computes a product, besides this one.
_BUDGET = 3
#: Instructions of a direct load, with those of its addresses.
_LOAD = 3
#: Share of a k-step, before which reads are issued.
_READ = 0.6


@dataclass(frozen=True)
class DenseLayout(Layout):
    """A stage of a side. A k-step is one block; each lane group has consecutive elements of it."""

    kind: Floats

    @property
    def tile_rows(self) -> int:
        """Rows of a tile of the instruction."""
        return ROWS

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return self.k_steps

    @property
    def bytes(self) -> int:
        """In LDS."""
        return layout_bytes(
            self.rows, self.kind.bits, self.k_steps // INSTRUCTION.groups, self.waves
        )

    def _slices(self, k_step: int) -> tuple[Slice, ...]:
        whole, groups = self.kind.block_bytes // PIECE, _INSTRUCTION.groups
        each = whole // groups
        return tuple(Slice(k_step * whole + at, each, 0, PIECE) for at in range(each))


@dataclass(frozen=True)
class DenseRing(StagedProduct):
    """A dense product by a schedule of the transport "ring"."""

    lhs: Floats
    rhs: Floats

    layout = DenseLayout

    def __post_init__(self) -> None:
        """Raise ValueError where the schedule cannot compute this product."""
        super().__post_init__()
        schedule = self.schedule
        (m, n), (down, right, along) = schedule.tiles, schedule.waves
        if schedule.instruction != _INSTRUCTION or along != 1 or down * right > GFX950.unit.simds:
            raise ValueError(f"{schedule}: a ring has tiles of {ROWS}, up to 4 waves, none along K")
        if m * n > _TILES:
            raise ValueError(f"{schedule}: a wave has registers for {_TILES} tiles")
        if self.out is not None:
            raise ValueError(f"{schedule}: a tile of {ROWS} columns has no whole block")
        if self.decoded is None or self.lhs.parts(self.decoded) > 1:
            raise ValueError(f"{self.lhs.memory} are more than one {self.decoded}")
        self.require_fit(k_steps=STAGE)

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM: one wave per SIMD."""
        return {"amdgpu-waves-per-eu": "1, 1"}

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        lane = lane_of(_INSTRUCTION)
        buffers = Given(self, given)
        tile = Tile(self, lane, buffers)
        memory = shared([self.lds_bytes], i8())
        left, right = self.layouts
        (activations,), (weights,) = buffers.lhs(tile.start), buffers.rhs(tile.first)
        lhs = StagedSide(left, lane, activations, memory, 0, tile.first_row, tile.lhs_row)
        places = tile.first_column, tile.rhs_row
        rhs = StagedSide(right, lane, weights, memory, left.bytes, *places)
        tile.store(_Pipeline(self, (lhs, rhs)).sums())


#: What a lane multiplies in a k-step, of one side: by tile.
Fragments = list[ir.Value]


class _Pipeline:
    """What a wave does along K."""

    def __init__(self, kernel: DenseRing, sides: tuple[StagedSide, StagedSide]) -> None:
        self._kernel, self._sides = kernel, sides
        self._tiles, self._stages = kernel.schedule.tiles, kernel.schedule.stages
        self._count = self._tiles[0] * self._tiles[1]

    def sums(self) -> list[ir.Value]:
        """Build all spans: the sums of the tiles, row after row."""
        spans, count = Spans.of(self._kernel.lhs.blocks), self._count
        each = spans.size // STAGE
        for stage in range(self._stages):
            for issue in self._loads(index(stage), index(stage * self._kernel.slot_bytes)):
                issue()
            mark_loads()
        wait_for_loads(self._stages - 1)
        slot = number(0)
        read = [issue() for issue in self._reads(0, slot)]
        kind = of(f32(), _INSTRUCTION.totals)
        # What is added to the negative zero stays what it is, whatever its sign.
        whole, zero = [splat(-0.0, f32(), _INSTRUCTION.totals)] * count, [zeros(kind)] * count
        held = whole, read, slot
        turns = index(0), index(spans.count), index(1)
        with loop(*turns, values_of(held)) as (span, given, op):
            before, fragments, slot = with_values(held, given)
            carried = [*zero, *fragments, slot]
            with loop(index(0), index(each), index(1), carried) as (at, inside, inner):
                stage = span * each + at
                scf.YieldOp(self._stage(*with_values(held, inside), stage))
            totals, fragments, slot = with_values(held, inner.results)
            added = [arith.addf(*pair) for pair in zip(before, totals, strict=True)]
            scf.YieldOp([*added, *fragments, slot])
        # No load may write to LDS that is another workgroup's by then.
        wait_for_loads(0)
        return with_values(held, op.results)[0]

    def _stage(
        self, totals: list[ir.Value], first: Fragments, slot: ir.Value, stage: ir.Value
    ) -> list[ir.Value]:
        """One stage: the totals, the first fragments of the next one, and its slot."""
        size, last = self._kernel.slot_bytes, self._stages - 1
        after = moved(slot, last * size, 0, size)
        second = self._k_step(totals, first, self._reads(1, slot), [], waits=True)
        wait_for_loads(self._stages - 2)
        loads = self._loads(stage + self._stages, as_index(slot))
        coming = self._k_step(totals, second, self._reads(0, after), loads, waits=False)
        mark_loads()
        return [*totals, *coming, after]

    def _k_step(
        self,
        totals: list[ir.Value],
        fragments: Fragments,
        reads: Sequence[Callable[[], ir.Value]],
        loads: Sequence[Callable[[], None]],
        *,
        waits: bool,
    ) -> Fragments:
        """Multiply the fragments, changing the totals; gives those that are read meanwhile."""
        found: dict[int, ir.Value] = {}

        def read(at: int) -> None:
            found[at] = reads[at]()

        count = max(layout.kind.block_bytes for layout in self._kernel.layouts) // (4 * PIECE)
        works: list[Work] = evenly(
            "ds_read", [partial(read, at) for at in range(len(reads))], 0.0, _READ, count
        )
        works += evenly("vmem_read", loads, 0.1, 1.0, _LOAD)
        products = [
            partial(self._multiply, totals, fragments, m, n)
            for m, n in product(*(range(tiles) for tiles in self._tiles))
        ]
        interleaved_within(products, works, _BUDGET, waits=waits)
        return _pinned([found[at] for at in range(len(reads))])

    def _multiply(self, totals: list[ir.Value], fragments: Fragments, m: int, n: int) -> None:
        rows, columns = self._tiles
        at = m * columns + n
        shape = (ROWS, ROWS, _INSTRUCTION.form.k)
        totals[at] = mfma(shape, fragments[rows + n], fragments[m], totals[at])

    def _loads(self, stage: ir.Value, slot: ir.Value) -> list[Callable[[], None]]:
        blocks = self._kernel.lhs.blocks
        return stage_loads(self._sides, stage, slot, size=STAGE, blocks=blocks)

    def _reads(self, k_step: int, slot: ir.Value) -> list[Callable[[], ir.Value]]:
        """Reads of the fragments of a k-step of the stage in a slot."""
        return [
            partial(self._read, side, tile, k_step, slot)
            for side, tiles in zip(self._sides, self._tiles, strict=True)
            for tile in range(tiles)
        ]

    def _read(self, side: StagedSide, tile: int, k_step: int, slot: ir.Value) -> ir.Value:
        """What a lane has of a block of a tile, as it is multiplied."""
        layout = side.layout
        assert isinstance(layout, DenseLayout)
        kind, count = layout.kind, len(layout.slices[k_step])
        pieces = [side.read(tile, each.piece, as_index(slot)) for each in layout.slices[k_step]]
        found = [bitcast(each, kind.element, FRAGMENT // count) for each in pieces]
        whole = found[0] if count == 1 else vector.shuffle(*found, list(range(FRAGMENT)))
        return arith.truncf(of(ir.BF16Type.get(), FRAGMENT), whole) if kind.rounded else whole


def _pinned(fragments: Fragments) -> Fragments:
    """What is multiplied next is there from here on."""
    element = ir.VectorType(fragments[0].type).element_type
    words = [bitcast(each, i32(), FRAGMENT // 2) for each in fragments]
    return [bitcast(each, element, FRAGMENT) for each in pinned(words)]
