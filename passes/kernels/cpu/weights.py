"""A weight as a kernel reads it: panels of packed elements and of scales.

Elements are [.., panels, blocks, units, 64] bytes: unit i of a block is dword i of 16 rows. Scales
are [.., panels, scales along K, 16] bytes or f32. compiler/packing/panels.py writes both during
packing, units of four bytes as "panel16x4", units of one byte as "panel16x1".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.formats.panels import PANEL
from mxc.passes.kernels.cpu.elements import Elements
from mxc.passes.kernels.cpu.isa import Isa, Kind
from mxc.passes.kernels.cpu.scales import Scales
from mxc.passes.kernels.extents import Buffer
from mxc.passes.kernels.vectors import i8, in_order, index, load, prefetch

CACHE_LINE = 64

#: Distance in bytes between a load and the cache line that is prefetched before it from L2 to L1.
_NEAR = 512


@dataclass(frozen=True)
class Column:
    """The columns of a register. `place`: the indices of their panel, [expert.., panel]. `lane`:
    the first column within the panel."""

    place: tuple[ir.Value, ...]
    lane: ir.Value


@dataclass(frozen=True)
class Later:
    """What to prefetch while a block is decoded: block `block` of a panel. `panel`: the indices of
    the panel. `scales`: the memref of scales, if these are prefetched too."""

    panel: Sequence[ir.Value]
    block: ir.Value
    scales: ir.Value | None


@dataclass(frozen=True)
class RegisterWeights:
    """Weights that are multiplied with activations as `kind`, with scales or without.

    `rounded`: the type to which each scaled element is rounded; "" if scales multiply the sums of
    blocks instead.
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
        """The value of an integer operand of 1, without the scale of its block; 1 for float
        operands."""
        if self._is_whole:
            return 1.0
        return self.elements.unit if self.kind == "quads" else 1.0

    @property
    def counts(self) -> float:
        """The number by which the values of codes are divided in the kernel language: the value of
        an integer 1; 1 for codes that become floats."""
        return self.elements.unit if self._is_whole or self.kind == "quads" else 1.0

    @property
    def _is_whole(self) -> bool:
        """Whether elements are plain integers: int8 or int4 under f32 scales. Under E8M0 scales, i8
        is mxint8, which counts 64ths."""
        integers = self.elements.type in ("i8", "i4")
        return integers and self.scales is not None and self.scales.type == "f32"

    def buffers(self, experts: int, panels: int, blocks: int) -> list[Buffer]:
        """The buffers of the elements and, if any, of the scales. They have a dimension of experts
        unless `experts` is 0."""
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
        """Describe the columns of a register. `expert`: its number, if there are experts.
        `register`: the number of the register of columns."""
        if isa.lanes == PANEL:
            return Column((*expert, register), index(0))
        parts = index(PANEL // isa.lanes)
        lane = register % parts * isa.lanes
        return Column((*expert, register // parts), lane)

    def steps(
        self,
        isa: Isa,
        elements: ir.Value,
        column: Column,
        block: ir.Value,
        later: Later | None,
    ) -> Iterator[ir.Value]:
        """Yield the operand of each step of a block. Each is emitted when it is requested, with
        prefetches of its part of `later`."""
        seen = set[int]()

        def raw(unit: int) -> ir.Value:
            if later is not None and unit not in seen:
                self._prefetch(elements, column, block, unit, later)
            seen.add(unit)
            return self._unit(isa, elements, column, block, unit)

        return self.elements.decode(isa, self.kind, raw)

    def _unit(
        self, isa: Isa, elements: ir.Value, column: Column, block: ir.Value, unit: int
    ) -> ir.Value:
        """Load a unit of a block: i8 [4 * lanes]."""
        at = [*column.place, block, index(unit), column.lane * 4]
        return load(elements, at, i8(), 4 * isa.lanes)

    def scale(self, isa: Isa, scales: ir.Value, column: Column, block: ir.Value) -> ir.Value:
        """Load the scales of a block, as f32."""
        assert self.scales is not None
        found = self.scales.floats(self.raw_scales(isa, scales, column, block), isa.lanes)
        if self._is_whole and self.kind != "quads":
            # The elements were decoded as 64ths (int8) or quarters (int4). This factor is a power
            # of two, and the product is exact.
            found = found * (1 / self.elements.unit)
        return found

    def raw_scales(self, isa: Isa, scales: ir.Value, column: Column, block: ir.Value) -> ir.Value:
        """Load the scales of a block as they are stored."""
        assert self.scales is not None
        at = [*column.place, self._scale_of(block), column.lane]
        return load(scales, at, self.scales.memory, isa.lanes)

    def _scale_of(self, block: ir.Value) -> ir.Value:
        """The index along K of the scale of a block."""
        assert self.scales is not None
        steps = self.scales.steps
        return block if steps == 1 else block // steps

    def _prefetch(
        self, elements: ir.Value, column: Column, block: ir.Value, unit: int, later: Later
    ) -> None:
        """Prefetch a unit of a later block to L2, and the same unit of a block that is decoded soon
        to L1. With the first unit of a block, prefetch its scales to L2 too; a cache line of scales
        serves several blocks. After the last block of a panel, the next panel follows in memory.

        Each load has its own prefetches, right before it, because loads wait behind several
        prefetches in a row. On two cores of a Xeon, one row of mxfp8 reads 24 to 29 of 30 GB/s of
        DRAM this way, and 18 GB/s if all prefetches of a block are together.
        """
        in_order()
        prefetch(elements, [*later.panel, later.block, index(unit), index(0)], far=True)
        if unit == 0 and later.scales is not None:
            scale = self._scale_of(later.block)
            prefetch(later.scales, [*later.panel, scale, index(0)], far=True)
        soon = block + max(1, _NEAR // (self.elements.units * CACHE_LINE))
        prefetch(elements, [*column.place, soon, index(unit), index(0)])
        in_order()
