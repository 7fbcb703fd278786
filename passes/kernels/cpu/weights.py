"""A weight as a kernel reads it: panels of packed elements and of scales.

Elements are [.., panels, blocks, units, 64] bytes, and scales [.., panels, blocks of a scale, 16]
bytes or f32: unit i of a block is dword i of 16 rows. compiler/packing/panels.py writes both during
packing, units of four bytes as "panel16x4", of one byte as "panel16x1".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.passes.kernels.cpu.elements import Elements
from mxc.passes.kernels.cpu.isa import Isa, Kind
from mxc.passes.kernels.cpu.scales import Scales
from mxc.passes.kernels.extents import Buffer
from mxc.passes.kernels.vectors import i8, index, load, prefetch

#: Columns of a panel.
PANEL = 16

CACHE_LINE = 64


@dataclass(frozen=True)
class Column:
    """The columns of a register: the panel [expert.., panel], and the first lane in it."""

    place: tuple[ir.Value, ...]
    lane: ir.Value


@dataclass(frozen=True)
class RegisterWeights:
    """Elements that are multiplied with activations as `kind`, with scales or without.

    `rounded`: the type to which each scaled element is rounded, "" where the scales multiply the
    sums of blocks.
    """

    elements: Elements
    kind: Kind
    scales: Scales | None = None
    rounded: str = ""

    @property
    def packed(self) -> bool:
        """Whether the weights lie in panels."""
        return True

    @property
    def scaled(self) -> bool:
        """Whether blocks have scales."""
        return self.scales is not None

    @property
    def unit(self) -> float:
        """The value of the operand 1, without the scale."""
        if self._is_whole:
            return 1.0
        return self.elements.unit if self.kind == "quads" else 1.0

    @property
    def counts(self) -> float:
        """The value of the integer 1 in the kernel language."""
        return self.elements.unit if self._is_whole or self.kind == "quads" else 1.0

    @property
    def _is_whole(self) -> bool:
        """Whether integers count ones: with f32 scales. With E8M0, i8 is mxint8 in 64ths."""
        integers = self.elements.type in ("i8", "i4")
        return integers and self.scales is not None and self.scales.type == "f32"

    def buffers(self, experts: int, panels: int, blocks: int) -> list[Buffer]:
        """The elements, and the scales if any; with an expert dimension if `experts` is not 0."""
        place = [*([experts] if experts else []), panels, blocks]
        units = Buffer([*place, self.elements.units, 4 * PANEL], i8())
        if self.scales is None:
            return [units]
        place[-1] //= self.scales.steps
        return [units, Buffer([*place, PANEL], self.scales.memory)]

    @property
    def layouts(self) -> list[str]:
        """Names of the layouts of the elements and, if any, of the scales."""
        planes = "of6" if self.elements.bits == 6 else ""
        found = [f"panel16x4{planes}"]
        if self.scales is not None:
            found.append("panel16x4" if self.scales.type == "f32" else "panel16x1")
        return found

    def column(self, isa: Isa, expert: Sequence[ir.Value], register: ir.Value) -> Column:
        """The columns of a register."""
        if isa.lanes == PANEL:
            return Column((*expert, register), index(0))
        parts = index(PANEL // isa.lanes)
        lane = register % parts * isa.lanes
        return Column((*expert, register // parts), lane)

    def steps(
        self, isa: Isa, elements: ir.Value, column: Column, block: ir.Value
    ) -> Iterator[ir.Value]:
        """Yield the register of each step of a block; each is built when it is requested."""
        at = column.lane * 4

        def raw(unit: int) -> ir.Value:
            return load(elements, [*column.place, block, index(unit), at], i8(), 4 * isa.lanes)

        return self.elements.decode(isa, self.kind, raw)

    def scale(self, isa: Isa, scales: ir.Value, column: Column, block: ir.Value) -> ir.Value:
        """The f32 scales of a block."""
        assert self.scales is not None
        found = self.scales.floats(self.raw_scales(isa, scales, column, block), isa.lanes)
        if self._is_whole and self.kind != "quads":
            # The elements were decoded as 64ths or as quarters; this factor is a power of two, and
            # exact.
            found = found * (1 / self.elements.unit)
        return found

    def raw_scales(self, isa: Isa, scales: ir.Value, column: Column, block: ir.Value) -> ir.Value:
        """The scales of a block as stored."""
        assert self.scales is not None
        at = [*column.place, self._scale_of(block), column.lane]
        return load(scales, at, self.scales.memory, isa.lanes)

    def _scale_of(self, block: ir.Value) -> ir.Value:
        """The number of the scale of a block."""
        assert self.scales is not None
        steps = self.scales.steps
        return block if steps == 1 else block // steps

    def prefetch(
        self,
        isa: Isa,
        elements: ir.Value,
        scales: ir.Value | None,
        place: Sequence[ir.Value],
        block: ir.Value,
    ) -> None:
        """Prefetch a block of the panel at `place`, and its scales; a cache line of scales serves
        several blocks."""
        for unit in range(self.elements.units):
            prefetch(elements, [*place, block, index(unit), index(0)])
        if scales is not None:
            prefetch(scales, [*place, self._scale_of(block), index(0)])
