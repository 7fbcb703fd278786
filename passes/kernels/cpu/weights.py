"""A weight as a kernel reads it: panels of packed elements and of scales, by place.

Elements [.., panels, blocks, units, 64] bytes and scales [.., panels, blocks of a scale, 16] of a
byte or an f32: unit i of a block are dword i of 16 rows. compiler/packing/panels.py writes both
while packing, units of four bytes as "panel16x4", of one as "panel16x1".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.cpu.elements import Elements
from mxc.passes.kernels.cpu.isa import Isa, Kind
from mxc.passes.kernels.cpu.scales import Scales
from mxc.passes.kernels.extents import Buffer
from mxc.passes.kernels.vectors import f32, i8, index, load, prefetch, splat

#: Columns of a panel.
PANEL = 16

CACHE_LINE = 64


@dataclass(frozen=True)
class Column:
    """Where the columns of a register begin: the panel [expert.., panel] and the lane in it."""

    place: tuple[ir.Value, ...]
    lane: ir.Value


@dataclass(frozen=True)
class Weights:
    """Elements that meet activations as `kind`, under scales or none.

    `rounded`: the type to which each element is rounded under its scale, "" where the scales
    multiply the sums of blocks.
    """

    elements: Elements
    kind: Kind
    scales: Scales | None = None
    rounded: str = ""

    @property
    def packed(self) -> bool:
        """Whether they lie in panels."""
        return True

    @property
    def scaled(self) -> bool:
        """Whether its blocks have scales."""
        return self.scales is not None

    @property
    def unit(self) -> float:
        """What a one of the operands is worth, beside the scale."""
        if self._is_whole:
            return 1.0
        return self.elements.unit if self.kind == "quads" else 1.0

    @property
    def counts(self) -> float:
        """What integers count: the value of a one."""
        return self.elements.unit if self._is_whole or self.kind == "quads" else 1.0

    @property
    def _is_whole(self) -> bool:
        """Integers under floats count ones; under E8M0 int8 is mxint8, which counts 64ths."""
        integers = self.elements.type in ("i8", "i4")
        return integers and self.scales is not None and self.scales.type == "f32"

    def buffers(self, experts: int, panels: int, blocks: int) -> list[Buffer]:
        """The elements, and the scales if any; without `experts` there is no such dimension."""
        place = [*([experts] if experts else []), panels, blocks]
        units = Buffer([*place, self.elements.units, 4 * PANEL], i8())
        if self.scales is None:
            return [units]
        place[-1] //= self.scales.steps
        return [units, Buffer([*place, PANEL], self.scales.memory)]

    @property
    def layouts(self) -> list[str]:
        """Names of the layouts of the elements, and of the scales if any."""
        planes = "of6" if self.elements.bits == 6 else ""
        found = [f"panel16x4{planes}"]
        if self.scales is not None:
            found.append("panel16x4" if self.scales.type == "f32" else "panel16x1")
        return found

    def column(self, isa: Isa, expert: Sequence[ir.Value], register: ir.Value) -> Column:
        """Where the columns of a register are."""
        if isa.lanes == PANEL:
            return Column((*expert, register), index(0))
        parts = index(PANEL // isa.lanes)
        lane = arith.muli(arith.remui(register, parts), index(isa.lanes))
        return Column((*expert, arith.divui(register, parts)), lane)

    def steps(
        self, isa: Isa, elements: ir.Value, column: Column, block: ir.Value
    ) -> Iterator[ir.Value]:
        """The register of each step of a block, built when it is asked for."""
        at = arith.muli(column.lane, index(4))

        def raw(unit: int) -> ir.Value:
            return load(elements, [*column.place, block, index(unit), at], i8(), 4 * isa.lanes)

        return self.elements.decode(isa, self.kind, raw)

    def scale(self, isa: Isa, scales: ir.Value, column: Column, block: ir.Value) -> ir.Value:
        """The f32 scales of a block."""
        assert self.scales is not None
        found = self.scales.floats(self.raw_scales(isa, scales, column, block), isa.lanes)
        if self._is_whole and self.kind != "quads":
            # The elements were read as 64ths, or as quarters: a power of two, exact.
            found = arith.mulf(found, splat(1 / self.elements.unit, f32(), isa.lanes))
        return found

    def raw_scales(self, isa: Isa, scales: ir.Value, column: Column, block: ir.Value) -> ir.Value:
        """The scales of a block as they are in memory."""
        assert self.scales is not None
        at = [*column.place, self._scale_of(block), column.lane]
        return load(scales, at, self.scales.memory, isa.lanes)

    def _scale_of(self, block: ir.Value) -> ir.Value:
        """The scale of a block, by its number."""
        assert self.scales is not None
        steps = self.scales.steps
        return block if steps == 1 else arith.divui(block, index(steps))

    def prefetch(
        self,
        isa: Isa,
        elements: ir.Value,
        scales: ir.Value | None,
        place: Sequence[ir.Value],
        block: ir.Value,
    ) -> None:
        """Ask for a block of the panel at `place`, its scales too: one line for some blocks."""
        for unit in range(self.elements.units):
            prefetch(elements, [*place, block, index(unit), index(0)])
        if scales is not None:
            prefetch(scales, [*place, self._scale_of(block), index(0)])
