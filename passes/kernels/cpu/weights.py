"""A weight as a kernel reads it: panels of packed elements and of scales, by place.

Elements [.., panels, blocks, units, 64] bytes and scales [.., panels, blocks, 16] bytes: unit i of
a block are dword i of 16 rows. compiler/packing/panels.py writes both while packing, as
"panel16x4" and "panel16x1".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.cpu.elements import Elements
from mxc.passes.kernels.cpu.isa import Isa, Kind
from mxc.passes.kernels.vectors import bitcast, f32, i8, i32, index, load, of, prefetch, splat

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
    """Elements that meet activations as `kind`, under E8M0 scales or none."""

    elements: Elements
    kind: Kind
    scaled: bool

    def memrefs(self, experts: int, panels: int, blocks: int) -> list[ir.Type]:
        """Types of the elements, and of the scales if any; without `experts` there is no such
        dimension."""
        place = [*([experts] if experts else []), panels, blocks]
        units = ir.MemRefType.get([*place, self.elements.units, 4 * PANEL], i8())
        scales = ir.MemRefType.get([*place, PANEL], i8())
        return [units, scales] if self.scaled else [units]

    @property
    def layouts(self) -> list[str]:
        """Names of the layouts of the elements, and of the scales if any."""
        planes = "of6" if self.elements.units == 6 else ""
        return [f"panel16x4{planes}", "panel16x1"][: 1 + self.scaled]

    @property
    def step_count(self) -> int:
        """Registers that a block is decoded to."""
        return len(self.elements.order(self.kind))

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
        """The f32 scales of a block. E8M0: the byte is the exponent; 255 is NaN. Byte 0 (2^-127)
        becomes zero, as the machine's flush of subnormals makes it anyway."""
        raw = load(scales, [*column.place, block, column.lane], i8(), isa.lanes)
        wide = arith.extui(of(i32(), isa.lanes), raw)
        power = bitcast(arith.shli(wide, splat(23, i32(), isa.lanes)), f32(), isa.lanes)
        is_nan = arith.cmpi(arith.CmpIPredicate.eq, wide, splat(255, i32(), isa.lanes))
        return arith.select(is_nan, splat(float("nan"), f32(), isa.lanes), power)

    def prefetch(
        self,
        isa: Isa,
        elements: ir.Value,
        scales: ir.Value | None,
        place: Sequence[ir.Value],
        block: ir.Value,
    ) -> None:
        """Ask for a block of the panel at `place`, its scales too: one line for four blocks."""
        for unit in range(self.elements.units):
            prefetch(elements, [*place, block, index(unit), index(0)])
        if scales is not None:
            prefetch(scales, [*place, block, index(0)])
