"""Weights as tiles of bf16: one step of 32 elements of a panel of 16 columns, under its scales.

What is emitted here is what kernels/decode.py computes in numpy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, scf, vector

from mxc.kernels.amx import TILE
from mxc.kernels.decode import STEP, ExponentTable, takes_exponents
from mxc.kernels.lowering.index import Number, value_of
from mxc.kernels.lowering.places import At
from mxc.passes.kernels.cpu.elements import Codes, Elements
from mxc.passes.kernels.cpu.isa import Amx, Exponents, halves, pair
from mxc.passes.kernels.cpu.weights import PANEL, Weights
from mxc.passes.kernels.vectors import bitcast, i8, i16, i32, index, load, of, prefetch, splat

#: Puts a register of a tile by its number.
Put = Callable[[int, ir.Value], None]

#: Bits of a bf16 below its exponent.
_MANTISSA = 7


@dataclass(frozen=True)
class DecodedTiles:
    """`elements` and `scales` are panels in memory; `panels`: of half of the columns of a gate."""

    weights: Weights
    elements: ir.Value
    scales: ir.Value | None
    panels: int

    def tile(self, at: At, ahead: int, put: Put) -> None:
        """The 16 registers of the step at coordinates; `ahead`: elements that are asked for."""
        place = self._place(at)
        if ahead:
            self._ask(place, at["k"], ahead)
        if self.scales is None:
            self._put(Amx(), place, at, put)
            return
        table = self._table
        if table is None:
            self._put(Amx(), place, at, put, self._factors(place, at))
            return
        raw = self._raw_scales(place, at, 0)
        wide = arith.extui(of(i32(), TILE), raw)
        exact = self._all_between(raw, table)
        op = scf.IfOp(exact, [], has_else=True)
        with ir.InsertionPoint(op.then_block):
            less = arith.subi(splat(table.most, i32(), TILE), wide)
            # In both halves of a dword: the two elements of a column.
            less = arith.muli(less, splat((1 << _MANTISSA) * 0x10001, i32(), TILE))
            less = bitcast(less, i16(), 2 * TILE)
            self._put(Exponents(), place, at, lambda number, found: put(number, _less(found, less)))
            scf.YieldOp([])
        with ir.InsertionPoint(op.else_block):
            self._put(Amx(), place, at, put, self._factors(place, at))
            scf.YieldOp([])

    @property
    def _step(self) -> Elements:
        return replace(self.weights.elements, block=STEP)

    @property
    def _table(self) -> ExponentTable | None:
        """How scales are subtracted from exponents, where they can be."""
        elements, scales = self.weights.elements, self.weights.scales
        if scales is None or not isinstance(elements, Codes):
            return None
        if not takes_exponents(scales.type, scales.block):
            return None
        return ExponentTable.of(elements.element.values)

    def _place(self, at: At) -> list[ir.Value]:
        """Expert, if there are any, and panel."""
        panel = at["n"] // PANEL + at.get("h", 0) * self.panels
        return [*([value_of(at["e"])] if "e" in at else []), value_of(panel)]

    def _block(self, k: Number, part: int) -> ir.Value:
        """The block of an element, where a step has several the one of a part of it."""
        return value_of(k // self.weights.elements.block + part)

    def _put(
        self,
        isa: Amx,
        place: Sequence[ir.Value],
        at: At,
        put: Put,
        factors: Sequence[ir.Value] = (),
    ) -> None:
        """Every register of the step, under f32 scales of each block if there are any."""
        units = self.weights.elements.units

        def raw(unit: int) -> ir.Value:
            block = self._block(at["k"], unit // units)
            at_ = [*place, block, index(unit % units), index(0)]
            return load(self.elements, at_, i8(), 4 * TILE)

        registers = self._step.decode(isa, "pairs", raw)
        for number, found in enumerate(registers):
            if factors:
                factor = factors[number * len(factors) // TILE]
                two = [arith.mulf(half, factor) for half in halves(found, TILE)]
                found = pair(two[0], two[1], TILE)
            put(number, found)

    def _raw_scales(self, place: Sequence[ir.Value], at: At, part: int) -> ir.Value:
        assert self.scales is not None
        assert self.weights.scales is not None
        scale = value_of(
            (at["k"] + part * self.weights.elements.block) // self.weights.scales.block
        )
        return load(self.scales, [*place, scale, index(0)], i8(), TILE)

    def _factors(self, place: Sequence[ir.Value], at: At) -> list[ir.Value]:
        """The f32 scales of each block of a step."""
        assert self.weights.scales is not None
        parts = STEP // self.weights.elements.block
        raw = (self._raw_scales(place, at, part) for part in range(parts))
        return [self.weights.scales.floats(each, TILE) for each in raw]

    def _all_between(self, raw: ir.Value, table: ExponentTable) -> ir.Value:
        """Whether every scale byte is one that a table is exact for."""
        first = arith.subi(raw, splat(table.least, i8(), TILE))
        width = splat(table.most - table.least, i8(), TILE)
        inside = arith.cmpi(arith.CmpIPredicate.ule, first, width)
        word = vector.bitcast(of(i16(), 1), inside)
        every = arith.ConstantOp(i16(), -1).result
        found = vector.extract(word, [], [0])
        return arith.cmpi(arith.CmpIPredicate.eq, found, every)

    def _ask(self, place: Sequence[ir.Value], k: Number, ahead: int) -> None:
        """Ask for the weights of a later step: behind the end of K they are those of the next
        panel, which lies there."""
        elements = self.weights.elements
        for unit in range(STEP * elements.bits // 32):
            block = self._block(k + ahead, unit // elements.units)
            at = [*place, block, index(unit % elements.units), index(0)]
            prefetch(self.elements, at)
        if self.scales is not None and self.weights.scales is not None:
            scale = value_of((k + ahead) // self.weights.scales.block)
            prefetch(self.scales, [*place, scale, index(0)])


def _less(value: ir.Value, less: ir.Value) -> ir.Value:
    """i16 minus i16, saturated: vpsubsw."""
    bits = bitcast(value, i16(), 2 * TILE)
    found = ir.Operation.create(
        "llvm.intr.ssub.sat", results=[bits.type], operands=[bits, less]
    ).result
    return bitcast(found, ir.BF16Type.get(), 2 * TILE)
