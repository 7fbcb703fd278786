"""What a wave of a ring of floats works with along K (float_mainloop.py builds it)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.amdgpu import mark_loads, wait_for_loads, zeros
from mxc.dialects.quantize_scalars import i32 as number
from mxc.passes.kernels.gpu.floats import Floats
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.ring.pairs import FRAGMENTS, Decoder, split, steps_of
from mxc.passes.kernels.gpu.ring.row_scales import RowScales
from mxc.passes.kernels.gpu.ring.staged_product import stage_loads
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, StagedSide, packed
from mxc.passes.kernels.gpu.schedule import Schedule
from mxc.passes.kernels.vectors import bitcast, f32, index, of

#: Share of a k-step in which the loads of a stage are issued: where there are two stages memory has
#: the rest of it to answer, else another k-step too.
_PACE = {2: 0.5}


@dataclass
class Weights:
    """Weights of a tile in a k-step: i8 as they are packed and their factor until all is decoded;
    fragments by number; pairs of the one that is being decoded."""

    block: ir.Value | None
    factor: ir.Value | None
    known: dict[int, ir.Value] = field(default_factory=dict)
    pairs: list[ir.Value] = field(default_factory=list)


@dataclass
class Held:
    """What a lane holds between k-steps.

    `floats`: by tile, bf16 fragments that add up to what it multiplies next; `raw`: floats that are
    yet to be split; `words`: scales of four k-steps, by tile; `slot`: i32, the offset of the stage.
    """

    totals: list[ir.Value]
    floats: dict[int, list[ir.Value]]
    raw: dict[int, list[ir.Value]]
    weights: list[Weights]
    words: list[list[ir.Value]]
    slot: ir.Value


@dataclass(frozen=True)
class FloatPipeline:
    """The pipeline of one lane: `kind` of the floats, both sides in LDS, the scales of the
    weights."""

    kind: Floats
    sides: tuple[StagedSide, StagedSide]
    scales: RowScales
    decoder: Decoder
    schedule: Schedule
    slot_bytes: int

    @property
    def steps(self) -> tuple[int, ...]:
        """In which a pair of floats is split; none where they are bf16."""
        return steps_of(self.kind)

    @property
    def parts(self) -> int:
        """The bf16 whose sum is one float."""
        return self.kind.parts("bf16")

    @property
    def stages(self) -> int:
        """In all: k-steps."""
        return -(-self.kind.blocks // INSTRUCTION.groups)

    def loads(self, stage: ir.Value, slot: ir.Value) -> list[Callable[[], None]]:
        """The direct loads of a stage; past the end, zeros."""
        size, blocks = INSTRUCTION.groups, self.kind.blocks
        return stage_loads(self.sides, stage, slot, size=size, blocks=blocks)

    def portion(self, loads: Sequence[Callable[[], None]], part: int) -> list[Callable[[], None]]:
        """Those that a part issues, counted from the one after the barrier."""
        pace = _PACE.get(self.schedule.stages, 1.0) * FRAGMENTS
        size = len(loads)
        first, last = (min(size, round(size * (part + more) / pace)) for more in range(2))
        return list(loads[first:last])

    def begin(self) -> Held:
        """Fill the ring, and bring what is multiplied first."""
        rows, columns = (range(tiles) for tiles in self.schedule.tiles)
        scales = self.scales.load(index(0))
        last = self.schedule.stages - 1
        for stage in range(last):
            for issue in self.loads(index(stage), index(stage * self.slot_bytes)):
                issue()
            mark_loads()
        # The others are issued in the first k-step, as always.
        for issue in self.portion(self.loads(index(last), index(last * self.slot_bytes)), 0):
            issue()
        words = self.scales.words(scales, index(0))
        wait_for_loads(last - 1)
        slot = number(0)
        raw = {tile: self.read(tile, 0, slot) for tile in rows}
        # What is split is split right before it is multiplied.
        ready = [0] if self.steps else rows
        floats = {tile: split(self.kind, raw.pop(tile)) for tile in ready}
        weights = [
            Weights(self.packed(tile, slot), self.scales.factor(words[tile], 0)) for tile in columns
        ]
        for each in weights:
            self.decode(each)
        totals = [zeros(of(f32(), INSTRUCTION.totals))] * (len(rows) * len(columns))
        return Held(totals, floats, raw, weights, words, slot)

    def decode(self, weights: Weights) -> None:
        """The whole block, where an instruction does that; else the first fragment."""
        block, factor = weights.block, weights.factor
        assert block is not None
        assert factor is not None
        fragments = self.decoder.block(self.sides[1].block(block), factor)
        if self.decoder.whole:
            weights.known = dict(enumerate(fragments))
            weights.block = weights.factor = None
        else:
            weights.known = {0: fragments[0]}

    @property
    def pieces(self) -> int:
        """Reads of LDS for the floats of a tile in a part."""
        (slices,) = self.sides[0].layout.slices
        return len(slices) // FRAGMENTS

    def read(self, tile: int, part: int, slot: ir.Value) -> list[ir.Value]:
        """A lane's floats of a part: one vector, or two."""
        (slices,) = self.sides[0].layout.slices
        own = slices[part * self.pieces : (part + 1) * self.pieces]
        found = [self.sides[0].read(tile, each.piece, as_index(slot)) for each in own]
        return [bitcast(each, self.kind.element, FRAGMENT // self.pieces) for each in found]

    def packed(self, tile: int, slot: ir.Value) -> ir.Value:
        """A lane's weights of a k-step: i8."""
        side = self.sides[1]
        found = {
            (tile, piece): side.read(tile, piece, as_index(slot))
            for piece in side.layout.new_pieces(0)
        }
        return packed(side.layout, found, tile, 0)


def as_index(value: ir.Value) -> ir.Value:
    """An i32 that is not negative. What is carried around a loop has 32 bits, not an index's 64."""
    return arith.index_castui(ir.IndexType.get(), value)
