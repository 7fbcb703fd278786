"""Base of the kernels of a product: shapes, buffers, experts and epilogue. Subclasses bring the
operands to registers and multiply them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import memref

from mxc.dialects.amdgpu import BEYOND, uniform
from mxc.passes.kernels.epilogues import NOTHING, Epilogue
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, product, quotient, quotient_up
from mxc.passes.kernels.gpu.conversions import BlockConversion
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.float_scales import sums_of
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.lanes import long
from mxc.passes.kernels.gpu.output import BlockOutput, tiles_of
from mxc.passes.kernels.gpu.panels import padded
from mxc.passes.kernels.gpu.ring.split import SplitTiles, split_buffers
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.rotary_writes import RotaryKernel
from mxc.passes.kernels.vectors import below, i8, i32, when

#: Number of index values of a call that a rotary embedding needs: the entry of keys in a page, and
#: the number of pages.
_OF_ROTARY = 2


@dataclass(frozen=True)
class GpuContraction(Sized, ABC):
    """The kernel of `groups` products of [rows, K] and [columns, K].

    `groups` and `rows` are None if they come with each call, as index scalars in this order, until
    `given` sets them. `share`: number of consecutive rows of the result that have the same row of
    lhs. `decoded`: the float type of both sides in registers; None if scaled instructions take the
    elements. `after`: the epilogue. `out`: the conversion of the result to MX blocks, if any.

    `experts`: number of different rhs; 0 if all groups share one. `chosen`: whether ids say which
    expert a group has; else group i has expert i. `unused`: whether ids may be no expert; a group
    with such an id is not computed.

    If the schedule has several `splits`, `lhs` and `rhs` describe one split: a row has only its
    part of K, and each row of the product is `splits` consecutive rows (ring/split.py). There is
    one group then.

    `rotary`: rotates and stores the result, if its columns are heads of queries, keys and values.
    The entry of keys and the pages of the pool come with each call, before groups and rows.

    Buffers, in order: elements and scales of lhs; ids, if any; elements and scales of rhs; operands
    of the epilogue; operands of `rotary`; counters, if there are splits; results; partial sums, if
    there are splits. Results are the one that the epilogue keeps, if any, and its final one; or
    elements and scales of `out`; or the results of `rotary`. Floats have no scales.
    """

    lhs: ScaledBlocks | FloatBlocks
    rhs: ScaledBlocks | FloatBlocks
    groups: Size
    rows: Size
    columns: int
    experts: int
    schedule: GpuSchedule
    share: int = 1
    after: Epilogue = NOTHING
    out: BlockConversion | None = None
    rotary: RotaryKernel | None = None
    chosen: bool = True
    unused: bool = False
    decoded: Register | None = None

    def __post_init__(self) -> None:
        """Raise ValueError if the tiles of a wave are not the same number of both halves, or end
        within a block of the result; if one buffer does not reach both halves; or if there are
        splits beside experts or several groups."""
        if self.schedule.tiles[1] % self.halves:
            raise ValueError(f"{self.schedule}: an odd number of tiles for two halves of a result")
        if self.schedule.tiles[1] % (self.halves * self.stored_together):
            raise ValueError(f"{self.schedule}: a wave has a part of a block of the result")
        if self.cut and self.halves > 1:
            raise ValueError(f"a buffer does not reach both halves of {self.columns} columns")
        if self.splits > 1 and (self.experts or self.groups != 1):
            raise ValueError(f"{self.schedule}: K of experts has one split")

    @property
    def scalars(self) -> int:
        """Number of index values that a call supplies."""
        return super().scalars + (0 if self.rotary is None else _OF_ROTARY)

    def given(self, scalars: Sequence[ir.Value]) -> Self:
        """Return a copy with these values for what comes with each call."""
        if self.rotary is None:
            return super().given(scalars)
        entry, pages, *own = scalars
        made = super().given(own)
        return replace(made, rotary=replace(self.rotary, entry=entry, pages=pages, rows=made.rows))

    @property
    def splits(self) -> int:
        """Workgroups of a tile of the result, each for a part of K."""
        return self.schedule.splits

    @property
    def split_tiles(self) -> SplitTiles:
        """The tiles of the result, for partial sums of several workgroups each."""
        down = quotient_up(self.rows, self.schedule.rows)
        return SplitTiles(self.schedule, product(down, self.right))

    @property
    def halves(self) -> int:
        """2 if the columns of rhs are computed in two halves: those that a gated epilogue combines,
        or the first and second elements of rotary pairs; else 1."""
        return 2 if self.after.gated or self.rotary is not None else 1

    def column_of(self, column: ir.Value, half: ir.Value | int) -> ir.Value:
        """Build the column of rhs for a column of the result in a half, 0 or 1."""
        if self.rotary is None:
            return column + half * self.width if self.halves > 1 else column
        apart = self.rotary.rotation.distance
        return column + (column // apart + half) * apart

    @property
    def tile_has_one_scale(self) -> bool:
        """Whether all columns of a tile share one row of scales of rhs."""
        size, apart = self.schedule.instruction.rows, 0
        if self.halves > 1:
            apart = self.width if self.rotary is None else self.rotary.rotation.distance
        return self.rhs.rows_of_scale % size == 0 and apart % size == 0

    @property
    def stored_together(self) -> int:
        """Tiles along columns that are stored together: as many as hold a block of 32 where results
        become MX blocks, else one."""
        whole = self.in_blocks or self.out is not None
        return tiles_of(self.schedule.instruction) if whole else 1

    @property
    def in_blocks(self) -> bool:
        """Whether pages of keys and values are MX blocks with scales of their own."""
        return self.rotary is not None and self.rotary.in_blocks

    @property
    def value_of_one(self) -> float:
        """What the product of two elements of value 1 adds to the accumulators: 1, or less where
        4-bit integers have f32 scales. The accumulators are divided by it at the end."""
        sides = (self.lhs, self.rhs)
        return prod(side.value_of_one for side in sides if isinstance(side, ScaledBlocks))

    @property
    def sums(self) -> int:
        """Partial sums of a tile in a k-step, each multiplied by f32 scales; 0 without such
        scales."""
        sides = [side for side in (self.lhs, self.rhs) if isinstance(side, ScaledBlocks)]
        shared = [side.shared for side in sides if side.has_f32_scales]
        return sums_of(self.schedule.instruction.groups, *shared) if shared else 0

    @property
    def width(self) -> int:
        """Columns of the result: those of one half."""
        return self.columns // self.halves

    @property
    def cut(self) -> bool:
        """Whether rhs is too large for one bounded buffer: then the buffer of a workgroup has only
        the columns of that workgroup."""
        return self.splits * self.columns * max(self.rhs.row_sizes) >= BEYOND

    @property
    def rhs_rows(self) -> tuple[int, ...]:
        """Rows in memory of the elements and of the scales, if any, of one expert's rhs, with those
        of all splits."""
        elements = padded(self.columns) if self.rhs.panels else self.columns
        scales = -(-self.columns // self.rhs.rows_of_scale)
        both = (elements * self.splits, scales * self.splits)
        return both[: len(self.rhs.row_sizes)]

    @property
    def height(self) -> Size:
        """Rows of the result, with those of all groups."""
        return product(self.groups, self.rows)

    @property
    def right(self) -> int:
        """Workgroups along columns."""
        return -(-self.width // (self.schedule.columns // self.halves))

    @property
    def workgroups(self) -> list[Size]:
        """Workgroups along columns, along rows, and along groups or splits."""
        last = self.groups if self.splits == 1 else self.splits
        return [self.right, quotient_up(self.rows, self.schedule.rows), last]

    @property
    def results(self) -> list[Buffer]:
        """The buffers of the results."""
        rows = self.height
        if self.out is not None:
            return BlockOutput.buffers(self.out, rows, self.width)
        if self.rotary is not None:
            return self.rotary.made
        final = Buffer([rows, self.width], self.after.result)
        kept = self.after.kept_result
        return [final] if kept is None else [Buffer([rows, self.width], kept), final]

    @property
    def operands(self) -> list[Buffer]:
        """The buffers that are only read."""
        rows = self.height
        found = self.lhs.buffers(product(quotient(rows, self.share), self.splits))
        if self.experts and self.chosen:
            found.append(Buffer([self.groups], i32()))
        found += [
            Buffer([max(self.experts, 1) * rows * size], i8())
            for rows, size in zip(self.rhs_rows, self.rhs.row_sizes, strict=True)
        ]
        beside = [] if self.rotary is None else self.rotary.beside
        return [*found, *self.after.buffers(rows, self.groups), *beside]

    @property
    def buffers(self) -> list[Buffer]:
        """All buffers, in the order of the class description."""
        if self.splits == 1:
            return [*self.operands, *self.results]
        return split_buffers(self.operands, self.results, self.split_tiles.elements)

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        if not self.unused:
            self.compute(*buffers)
            return
        ids = buffers[len(self.lhs.row_sizes)]
        expert = uniform(long(memref.LoadOp(ids, [workgroup(2)]).result))
        with when(below(expert, self.experts)):
            self.compute(*buffers)

    @abstractmethod
    def compute(self, *buffers: ir.Value) -> None:
        """Build what a workgroup does for its group."""

    @property
    def attributes(self) -> Mapping[str, str]:
        """Attributes of the function, for LLVM."""
        return {}
