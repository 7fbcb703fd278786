"""Decode weights to tiles of bf16: a step of 32 elements of a panel of 16 columns, with scales.

kernels/decode.py has the same computation in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from iree.compiler import ir
from iree.compiler.dialects import arith, scf, vector

from mxc.formats.panels import PANEL
from mxc.kernels.amx import TILE
from mxc.kernels.decode import STEP, ExponentTable, takes_exponents
from mxc.kernels.lowering.index import Number, value_of
from mxc.kernels.lowering.index import of as number_of
from mxc.kernels.lowering.places import At
from mxc.passes.kernels.cpu.elements import CodeElements
from mxc.passes.kernels.cpu.isa import Amx, Exponents, halves, pair
from mxc.passes.kernels.cpu.weights import Column, Later, RegisterWeights
from mxc.passes.kernels.vectors import (
    bitcast,
    equal,
    i8,
    i16,
    i32,
    index,
    load,
    loop,
    of,
    splat,
)

#: Called with the number and the value of each register of a tile.
Put = Callable[[Number, ir.Value], None]

#: Mantissa bits of a bf16.
_MANTISSA = 7


@dataclass(frozen=True)
class _Block:
    """A block of weights: its number, and what to prefetch meanwhile."""

    number: ir.Value
    later: Later | None


@dataclass(frozen=True)
class DecodedTiles:
    """Emits the decoding of weights to tiles. `elements`, `scales`: memrefs of panels. `panels`:
    number of panels per half of a gate."""

    weights: RegisterWeights
    elements: ir.Value
    scales: ir.Value | None
    panels: int

    def tile(self, at: At, ahead: int, put: Put) -> None:
        """Emit the 16 registers of the step at coordinates `at`. `ahead`: prefetch distance in
        elements along K, 0 for no prefetch."""
        weights = self.weights
        panel = value_of(at["n"] // PANEL + at.get("h", 0) * self.panels)
        column = weights.column(Amx(), [value_of(at["e"])] if "e" in at else [], panel)
        blocks = [self._block(at, column, part, ahead) for part in self._parts]
        if self.scales is None:
            self._put(Amx(), column, blocks, put)
            return
        table = self._table
        if table is None:
            self._put(Amx(), column, blocks, self._multiplied(column, blocks, put))
            return
        raw = weights.raw_scales(Amx(), self.scales, column, blocks[0].number)
        wide = arith.extui(of(i32(), TILE), raw)
        exact = self._all_between(raw, table)
        op = scf.IfOp(exact, [], has_else=True)
        with ir.InsertionPoint(op.then_block):
            less = splat(table.most, i32(), TILE) - wide
            # In both halves of a dword, for the two elements of a column.
            less = less * ((1 << _MANTISSA) * 0x10001)
            less = bitcast(less, i16(), 2 * TILE)

            def subtracted(number: Number, found: ir.Value) -> None:
                put(number, _less(found, less))

            self._put(Exponents(), column, blocks, subtracted)
            scf.YieldOp([])
        with ir.InsertionPoint(op.else_block):
            self._put_unit_by_unit(column, blocks[0], self._multiplied(column, blocks, put))
            scf.YieldOp([])

    def _block(self, at: At, column: Column, part: int, ahead: int) -> _Block:
        """Block number `part` of the step at coordinates `at`."""
        size = self.weights.elements.block
        number = value_of(at["k"] // size + part)
        if not ahead:
            return _Block(number, None)
        # Past the end of K, this prefetches the next panel, which follows in memory.
        block = value_of((at["k"] + ahead) // size + part)
        return _Block(number, Later(column.place, block, self.scales))

    @property
    def _parts(self) -> range:
        """The numbers of the blocks of a step: one, or two with 16 elements each."""
        return range(STEP // self.weights.elements.block)

    @property
    def _table(self) -> ExponentTable | None:
        """The lookup table for scales that are subtracted from exponents; None if they are
        multiplied."""
        elements, scales = self.weights.elements, self.weights.scales
        if scales is None or not isinstance(elements, CodeElements):
            return None
        if not takes_exponents(scales.type, scales.block):
            return None
        return ExponentTable.of(elements.element.values)

    def _put(self, isa: Amx, column: Column, blocks: Sequence[_Block], put: Put) -> None:
        """Decode every register of a step and pass it to `put`."""
        steps = (
            self.weights.steps(isa, self.elements, column, block.number, block.later)
            for block in blocks
        )
        for number, found in enumerate(chain.from_iterable(steps)):
            put(number, found)

    def _put_unit_by_unit(self, column: Column, block: _Block, put: Put) -> None:
        """Decode a block that is a whole step in a loop over its units, without prefetches, and
        pass every register to `put`. The code is short, because the case is rare. 6-bit elements,
        which are read from two units at once, are decoded by `_put` instead."""
        elements = self.weights.elements
        if elements.bits not in (4, 8):
            self._put(Amx(), column, [block], put)
            return
        part = replace(elements, block=STEP // elements.units)
        with loop(index(0), index(elements.units), index(1)) as (unit, _, _):

            def raw(_: int) -> ir.Value:
                return load(
                    self.elements, [*column.place, block.number, unit, column.lane], i8(), 4 * TILE
                )

            first = number_of(unit) * (TILE // elements.units)
            for number, found in enumerate(part.decode(Amx(), "pairs", raw)):
                put(first + number, found)

    def _multiplied(self, column: Column, blocks: Sequence[_Block], put: Put) -> Put:
        """Return a `Put` that multiplies registers by the f32 scales of their blocks, then calls
        `put`."""
        assert self.scales is not None
        factors = [self.weights.scale(Amx(), self.scales, column, block.number) for block in blocks]

        def multiplied(number: Number, found: ir.Value) -> None:
            factor = factors[0]
            if len(factors) > 1:
                assert isinstance(number, int)
                factor = factors[number * len(factors) // TILE]
            two = [half * factor for half in halves(found, TILE)]
            put(number, pair(two[0], two[1], TILE))

        return multiplied

    def _all_between(self, raw: ir.Value, table: ExponentTable) -> ir.Value:
        """Whether every scale byte is in the range for which the table is exact: i1."""
        first = raw - table.least
        width = splat(table.most - table.least, i8(), TILE)
        inside = arith.cmpi(arith.CmpIPredicate.ule, first, width)
        word = vector.bitcast(of(i16(), 1), inside)
        every = arith.ConstantOp(i16(), -1).result
        found = vector.extract(word, [], [0])
        return equal(found, every)


def _less(value: ir.Value, less: ir.Value) -> ir.Value:
    """Subtract i16 with saturation from the bits of bf16: vpsubsw."""
    bits = bitcast(value, i16(), 2 * TILE)
    found = ir.Operation.create(
        "llvm.intr.ssub.sat", results=[bits.type], operands=[bits, less]
    ).result
    return bitcast(found, ir.BF16Type.get(), 2 * TILE)
