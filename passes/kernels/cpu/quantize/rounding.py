"""Round a block of floats in registers to element codes: a quick method, and one for all numbers.

The quick method rounds by an addition: the low bits of the float |x| + C are |x| in multiples of
the last place of C, rounded to nearest even. If C = 2^(E + 23 - m) and E is the exponent of x, the
last place is the one that an element with m mantissa bits keeps. For subnormal elements, E is the
exponent of the smallest normal element. C also has the exponent part of the code in its low bits,
an even number that does not change the rounding, so that the low bits of the sum are the code. x
is not divided by its scale; instead, E is relative to the exponent of the scale:

    e    = max(exponent field of x, `least`)
    C    = e + (e >> 23 - m) + `start`              all as integers; `least` and `start` by block
    code = low bits of |x| + C

Fixed point (mxint8) has one C per block, and the low bits of x + C are the code in two's
complement.

This is exact while no intermediate number is subnormal, which IREE's workers flush, or beyond
float32: for scale bytes from `lowest` to `highest`. Other blocks (very small and very large
numbers, Inf, NaN) are computed in integers by dialects/quantize_scalars.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, scf, vector

from mxc.dialects.quantize_scalars import (
    MAGNITUDE,
    as_bits,
    as_float,
    bits_of,
    element_code,
    like,
    scale_byte,
)
from mxc.formats.formats import BlockFormat
from mxc.formats.recipes import MANTISSA, ScaleRecipe
from mxc.passes.kernels.vectors import equal

_BIAS = 127
_EXPONENT = 0xFF << MANTISSA


@dataclass(frozen=True)
class RoundingConstants:
    """Constants of the quick method, i32: one of each for a block, or a lane for each block.
    `least`, `start`: see the module docstring. `largest`: magnitudes are limited to it; None if no
    limit is needed."""

    least: ir.Value
    start: ir.Value
    largest: ir.Value | None = None

    @property
    def values(self) -> list[ir.Value]:
        """The constants that are not None."""
        return [self.least, self.start, *([] if self.largest is None else [self.largest])]


@dataclass(frozen=True)
class Rounding:
    """Rounds to elements of `format`, with scales by `recipe`. Floats are given as bits, i32."""

    format: BlockFormat
    recipe: ScaleRecipe

    @property
    def name(self) -> str:
        """The name as a part of symbols."""
        return f"{self.format.name}_{self.recipe}"

    @property
    def lowest(self) -> int:
        """The smallest scale byte of the quick method: subnormal numbers become zero, and the
        smallest normal element is not subnormal in f32."""
        return 2 - _log2(self.format.element.min_positive)

    @property
    def highest(self) -> int:
        """The largest scale byte of the quick method: C of the largest element is finite."""
        element = self.format.element
        return 253 - element.emax - (MANTISSA - element.mantissa)

    @property
    def saturates(self) -> bool:
        """Whether rounding may exceed the largest element, which some recipes prevent."""
        if self.recipe is not ScaleRecipe.EVEN:
            return self.recipe is ScaleRecipe.FLOOR
        # From halfway to the next power of two on, the scale doubles. Just below this point are the
        # largest element, or codes that are not numbers.
        element = self.format.element
        return element.exponent > 0 and (element.max_code + 1) % (1 << element.mantissa) != 0

    def scale(self, amax: ir.Value) -> ir.Value:
        """The scale byte, i32, for a largest magnitude, given as bits."""
        return scale_byte(amax, self.format.element, self.recipe)

    def ordinary(
        self, amax: ir.Value, byte: ir.Value, *, zeros: bool
    ) -> tuple[ir.Value, RoundingConstants]:
        """Return whether the quick method is exact for blocks, i1, and its constants for them.
        `amax`, `byte`: the largest magnitudes and the scales, i32. `zeros`: if amax is zero, all
        elements are zero."""
        used = byte
        if zeros:
            # Blocks of zeros have the scale byte 0, and are zeros under any scale.
            nothing = equal(amax, like(amax, 0))
            used = arith.select(nothing, like(amax, _BIAS), byte)
        above = used - like(used, self.lowest)
        inside = like(used, self.highest - self.lowest)
        quick = arith.cmpi(arith.CmpIPredicate.ule, above, inside)
        return quick, self._constants(used - like(used, _BIAS))

    def _constants(self, exponent: ir.Value) -> RoundingConstants:
        """The constants for scales 2^exponent."""
        element = self.format.element
        moved = exponent << like(exponent, MANTISSA)

        def scaled(value: float) -> ir.Value:
            return moved + like(moved, bits_of(value))

        largest = scaled(element.max) if self.saturates else None
        if not element.exponent:
            # 1.5 times the power: the sum keeps its exponent for values of either sign.
            start = scaled(1.5 * element.min_positive * 2.0**MANTISSA)
            return RoundingConstants(least=start, start=start, largest=largest)
        kept = MANTISSA - element.mantissa
        # The excess of the exponent part of the code in e >> kept.
        base = _log2(element.min_normal) + _BIAS
        rest = like(moved, (kept << MANTISSA) - (base << element.mantissa))
        start = rest - (exponent << like(exponent, element.mantissa))
        return RoundingConstants(least=scaled(element.min_normal), start=start, largest=largest)

    def quick(self, x: ir.Value, constants: RoundingConstants) -> ir.Value:
        """Round x by the quick method to codes, i32 of its shape. Fixed-point codes have their
        signs, others have none.

        There are other bits above the code: see `halves.packed`.
        """
        element = self.format.element
        if not element.exponent:
            return self._fixed_point(x, constants)
        kept = MANTISSA - element.mantissa
        size = x & like(x, MAGNITUDE)
        exponent = arith.maxsi(x & like(x, _EXPONENT), constants.least)
        steps = exponent >> like(x, kept)
        sum_of = exponent + steps + constants.start
        if constants.largest is not None:
            size = arith.minsi(size, constants.largest)
        return as_bits(as_float(size) + as_float(sum_of))

    def _fixed_point(self, x: ir.Value, constants: RoundingConstants) -> ir.Value:
        value = as_float(x)
        if constants.largest is not None:
            largest = as_float(constants.largest)
            # NaN does not occur here, and the sign of a zero makes no difference.
            value = _chosen(arith.CmpFPredicate.OLT, value, largest)
            value = _chosen(arith.CmpFPredicate.OGT, value, arith.negf(largest))
        return as_bits(value + as_float(constants.start))

    def codes(self, xs: Sequence[ir.Value], amax: ir.Value, byte: ir.Value) -> list[ir.Value]:
        """Round the parts `xs` of one block to codes, i32 of the same shapes, with signs and
        without other bits.

        `amax`, `byte`: the largest magnitude of the block and its scale, i32.
        """
        ordinary, constants = self.ordinary(amax, byte, zeros=True)
        either = scf.IfOp(ordinary, [x.type for x in xs], has_else=True)

        def spread(value: ir.Value) -> ir.Value:
            return vector.broadcast(xs[0].type, value)

        with ir.InsertionPoint(either.then_block):
            known = RoundingConstants(*map(spread, constants.values))
            scf.YieldOp([self.signed(self.quick(x, known), x) for x in xs])
        with ir.InsertionPoint(either.else_block):
            scf.YieldOp([self.exact(x, spread(byte)) for x in xs])
        return list(either.results)

    def signed(self, code: ir.Value, x: ir.Value) -> ir.Value:
        """Add signs to codes of `quick`, and clear the bits above them; fixed-point codes are
        sign-extended."""
        element = self.format.element
        if not element.exponent:
            top = like(code, 32 - element.bits)
            return arith.shrsi(code << top, top)
        code = code & like(code, element.magnitude_mask)
        sign = x >> like(x, 32 - element.bits)
        return code | sign & like(sign, element.sign_bit)

    def exact(self, x: ir.Value, byte: ir.Value) -> ir.Value:
        """Round any x under the scale bytes `byte` to codes, i32 of its shape."""
        return element_code(x, byte, self.format.element)


def _chosen(predicate: arith.CmpFPredicate, value: ir.Value, limit: ir.Value) -> ir.Value:
    """`value` where it compares true with `limit`, else `limit`."""
    return arith.select(arith.cmpf(predicate, value, limit), value, limit)


def _log2(power: float) -> int:
    return (bits_of(power) >> MANTISSA) - _BIAS
