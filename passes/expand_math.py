"""mxc-expand-math: compute functions whose approximations for CPUs have no bound on their error.

On CPUs IREE computes `math.sin`, `cos` and `tan` with an error that grows with the angle (0.003 for
100,000), `math.powf` as exp(y log x), which is NaN for x < 0 and for 0 to the power of 0, and
`math.atan` and `atan2` with an error of 40 ulp, NaN where both numbers are 0 or infinite. This pass
writes them with other operations, and with the special values of IEEE 754. Angles are reduced by
pi / 2 in three parts. Powers are 2 to the power of y log2 |x|, whose logarithm and product have two
parts.

before:
    %y = math.sin %x : f32
after:
    %t = arith.mulf %x, %two_over_pi : f32
    ..                                             q, the nearest integer
    ..                                             three math.fma, polynomials, selects by q mod 4

Angles may be up to 2^22. Numbers of f16 and bf16 are computed in f32.

Leaves alone: kernels of mxc; functions of f64; tensors, which are scalars when this pass runs.
"""

from __future__ import annotations

import math as numbers
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.generic import constant
from mxc.passes.base import Pass
from mxc.passes.kernels.narrow_floats import widened
from mxc.passes.rewriting.worklist import Worklist, replace_op

#: pi / 2 and 2 / ln 2 as sums of f32, the largest first.
_HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)
_LOG_SCALE = (2.885390043258667, 3.851926067000022e-08)
#: The f32 numbers near this one are integers: adding and subtracting it rounds to an integer.
_INTEGERS = 1.5 * 2.0**23
#: Bits of an f32 below its exponent, and the exponent of 1.
_FRACTION, _BIAS = 23, 127
#: 2 to a power greater than this is infinite in f32; 2 to a power less than its negative is zero.
_MOST_POWER = 160.0


@dataclass(frozen=True)
class ExpandMath(Pass):
    """Compute sines, cosines, tangents, powers and angles by other operations on f32.

    `fma`: whether the target has fused multiply-adds.
    """

    fma: bool = True

    name = "mxc-expand-math"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every such function of scalars outside of kernels."""
        kinds = (ir.F32Type, ir.F16Type, ir.BF16Type)
        found = [
            op
            for op in walk_outside_kernels(module)
            if op.name in _FUNCTIONS and isinstance(op.results[0].type, kinds)
        ]
        functions = _Functions(fma=self.fma)
        for op in Worklist(found):
            with ir.InsertionPoint(op), op.location:
                kind = op.results[0].type
                made = getattr(functions, _FUNCTIONS[op.name])(*map(widened, op.operands))
                replace_op(op, [made if made.type == kind else arith.truncf(kind, made)])


def _number(value: float) -> ir.Value:
    return constant(value, ir.F32Type.get())


def _integer(value: int) -> ir.Value:
    return constant(value, ir.IntegerType.get_signless(32))


def _compared(how: arith.CmpFPredicate, value: ir.Value, other: ir.Value | float) -> ir.Value:
    return arith.cmpf(how, value, _number(other) if isinstance(other, float) else other)


def _equal(value: ir.Value, other: ir.Value | float) -> ir.Value:
    return _compared(arith.CmpFPredicate.OEQ, value, other)


def _one_of(quarter: ir.Value, first: float, second: float) -> ir.Value:
    return arith.ori(_equal(quarter, first), _equal(quarter, second))


def _signed(value: ir.Value, negative: ir.Value) -> ir.Value:
    return arith.select(negative, arith.negf(value), value)


def _nearest(x: ir.Value) -> ir.Value:
    """The integer nearest to a number of at most 2^22, ties to even. This needs only an addition
    and a subtraction, which every CPU has."""
    return arith.subf(arith.addf(x, _number(_INTEGERS)), _number(_INTEGERS))


def _is_whole(x: ir.Value) -> ir.Value:
    """Whether a number is an integer. Numbers from 2^24 on, which are even integers and may not fit
    an i32, are replaced by zero."""
    bounded = _compared(arith.CmpFPredicate.OLT, math.absf(x), 2.0**24)
    kept = arith.select(bounded, x, _number(0.0))
    i32 = ir.IntegerType.get_signless(32)
    return _equal(arith.sitofp(x.type, arith.fptosi(i32, kept)), kept)


def _is_negative(x: ir.Value) -> ir.Value:
    """Whether the sign bit is set, also that of -0.0."""
    return _compared(arith.CmpFPredicate.OLT, math.copysign(_number(1.0), x), 0.0)


def _halves(x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Two numbers with at most 12 significant bits whose sum is x (Veltkamp's splitting)."""
    large = arith.mulf(x, _number(4097.0))
    first = arith.subf(large, arith.subf(large, x))
    return first, arith.subf(x, first)


class _Functions:
    """Builds the functions at the insertion point."""

    def __init__(self, *, fma: bool) -> None:
        """`fma`: whether the target has fused multiply-adds; else they are emulated."""
        self._fused = fma

    def _fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """x y + z, rounded once. Without fused multiply-adds it is computed as if the product had
        twice the bits; the product must be less than 2^115."""
        if self._fused:
            return math.fma(x, y, z)
        product = arith.mulf(x, y)
        (x1, x2), (y1, y2) = map(_halves, (x, y))
        lost = arith.subf(arith.mulf(x1, y1), product)
        for one, other in ((x1, y2), (x2, y1), (x2, y2)):
            lost = arith.addf(lost, arith.mulf(one, other))
        total = arith.addf(product, z)
        of_z = arith.subf(total, product)
        rest = arith.addf(arith.subf(product, arith.subf(total, of_z)), arith.subf(z, of_z))
        return arith.addf(total, arith.addf(rest, lost))

    def _polynomial(self, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
        """The sum of coefficient i times x to the power of i."""
        *rest, found = map(_number, coefficients)
        for each in reversed(rest):
            found = self._fma(found, x, each)
        return found

    def _angle(self, x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """(sin(r), cos(r), n modulo 4), where x = n pi / 2 + r for an integer n.

        The first subtraction for r is exact up to n = 2^22. The Taylor series have an error of less
        than 1e-9.
        """
        steps = _nearest(arith.mulf(x, _number(2 / numbers.pi)))
        rest = x
        for part in _HALF_PI:
            rest = self._fma(steps, _number(-part), rest)
        square = arith.mulf(rest, rest)
        sines = [(-1) ** n / numbers.factorial(2 * n + 1) for n in range(1, 6)]
        cosines = [(-1) ** n / numbers.factorial(2 * n) for n in range(7)]
        # n / 4 - 3 / 8 is rounded to n / 4 rounded down.
        whole = _nearest(arith.subf(arith.mulf(steps, _number(0.25)), _number(0.375)))
        quarter = self._fma(whole, _number(-4.0), steps)
        sine = self._fma(arith.mulf(rest, square), self._polynomial(square, sines), rest)
        return sine, self._polynomial(square, cosines), quarter

    def sin(self, x: ir.Value) -> ir.Value:
        sine, cosine, quarter = self._angle(x)
        found = arith.select(_one_of(quarter, 1.0, 3.0), cosine, sine)
        found = _signed(found, _one_of(quarter, 2.0, 3.0))
        return arith.select(_equal(x, 0.0), x, found)

    def cos(self, x: ir.Value) -> ir.Value:
        sine, cosine, quarter = self._angle(x)
        found = arith.select(_one_of(quarter, 1.0, 3.0), sine, cosine)
        return _signed(found, _one_of(quarter, 1.0, 2.0))

    def tan(self, x: ir.Value) -> ir.Value:
        sine, cosine, quarter = self._angle(x)
        odd = _one_of(quarter, 1.0, 3.0)
        above, below = arith.select(odd, arith.negf(cosine), sine), arith.select(odd, sine, cosine)
        return arith.select(_equal(x, 0.0), x, arith.divf(above, below))

    def _log2(self, x: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The base-2 logarithm of x >= 0 as a sum of two numbers, the second small.

        It is e + log2(m) for x = 2^e m, with m from sqrt(1/2) to sqrt(2).
        """
        i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
        small = _compared(arith.CmpFPredicate.OLT, x, 2.0**-126)
        scaled = arith.select(small, arith.mulf(x, _number(2.0**24)), x)
        bits = arith.bitcast(i32, scaled)
        exponent = arith.subi(arith.shrui(bits, _integer(_FRACTION)), _integer(_BIAS))
        power = arith.sitofp(f32, exponent)
        power = arith.select(small, arith.subf(power, _number(24.0)), power)
        fraction = arith.andi(bits, _integer((1 << _FRACTION) - 1))
        m = arith.bitcast(f32, arith.ori(fraction, _integer(_BIAS << _FRACTION)))
        large = _compared(arith.CmpFPredicate.OGT, m, numbers.sqrt(2))
        m = arith.select(large, arith.mulf(m, _number(0.5)), m)
        power = arith.select(large, arith.addf(power, _number(1.0)), power)
        # ln(m) = 2 artanh((m - 1) / (m + 1)). t is the quotient, up to 0.172; `rest` its error.
        one = _number(1.0)
        above, below = arith.subf(m, one), arith.addf(m, one)
        lost = arith.subf(m, arith.subf(below, one))
        t = arith.divf(above, below)
        rest = arith.subf(self._fma(arith.negf(t), below, above), arith.mulf(t, lost))
        rest = arith.divf(rest, below)
        square = arith.mulf(t, t)
        series = arith.mulf(square, self._polynomial(square, [1 / (2 * n + 3) for n in range(5)]))
        scale, scale_rest = map(_number, _LOG_SCALE)
        first = arith.mulf(scale, t)
        second = self._fma(scale, t, arith.negf(first))
        second = self._fma(scale_rest, t, second)
        second = self._fma(scale, rest, second)
        second = self._fma(first, series, second)
        total = arith.addf(power, first)
        second = arith.addf(arith.addf(arith.subf(power, total), first), second)
        total = arith.select(_equal(x, 0.0), _number(-numbers.inf), total)
        # Infinity and NaN are their own logarithms.
        finite = _compared(arith.CmpFPredicate.OLT, x, numbers.inf)
        total = arith.select(finite, total, x)
        usual = arith.andi(finite, _compared(arith.CmpFPredicate.OGT, x, 0.0))
        return total, arith.select(usual, second, _number(0.0))

    def _exp2(self, x: ir.Value, more: ir.Value) -> ir.Value:
        """2 to the power of x + more, where `more` is small."""
        i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
        x = arith.maximumf(arith.minimumf(x, _number(_MOST_POWER)), _number(-_MOST_POWER))
        whole = _nearest(x)
        terms = [numbers.log(2) ** n / numbers.factorial(n) for n in range(9)]
        found = self._polynomial(arith.addf(arith.subf(x, whole), more), terms)
        ordered = _compared(arith.CmpFPredicate.ORD, x, x)
        power = arith.fptosi(i32, arith.select(ordered, whole, _number(0.0)))
        # Multiplied in two steps, as 2^power may not be a normal number.
        half = arith.shrsi(power, _integer(1))
        for each in (half, arith.subi(power, half)):
            bits = arith.shli(arith.addi(each, _integer(_BIAS)), _integer(_FRACTION))
            found = arith.mulf(found, arith.bitcast(f32, bits))
        return found

    def pow(self, x: ir.Value, y: ir.Value) -> ir.Value:
        size = math.absf(x)
        log, log_rest = self._log2(size)
        product = arith.mulf(y, log)
        rest = self._fma(y, log_rest, self._fma(y, log, arith.negf(product)))
        counts = _compared(arith.CmpFPredicate.OLT, math.absf(product), _MOST_POWER)
        found = self._exp2(product, arith.select(counts, rest, _number(0.0)))
        whole, negative = _is_whole(y), _is_negative(x)
        true = constant(1, ir.IntegerType.get_signless(1))
        odd = arith.andi(whole, arith.xori(_is_whole(arith.mulf(y, _number(0.5))), true))
        found = _signed(found, arith.andi(odd, negative))
        # A finite negative number to a power that is no integer is NaN.
        below = _compared(arith.CmpFPredicate.OLT, x, 0.0)
        bounded = _compared(arith.CmpFPredicate.OLT, size, numbers.inf)
        real = arith.ori(whole, arith.xori(arith.andi(below, bounded), true))
        found = arith.select(real, found, _number(numbers.nan))
        endless = arith.andi(_equal(size, 1.0), _equal(math.absf(y), numbers.inf))
        one = arith.ori(arith.ori(_equal(y, 0.0), _equal(x, 1.0)), endless)
        return arith.select(one, _number(1.0), found)

    def _acute(self, ratio: ir.Value) -> ir.Value:
        """atan of a ratio from 0 to 1: by the Taylor series up to pi / 8, and beyond as pi / 4 plus
        atan of (ratio - 1) / (ratio + 1)."""
        one = _number(1.0)
        large = _compared(arith.CmpFPredicate.OGT, ratio, numbers.sqrt(2) - 1)
        beyond = arith.divf(arith.subf(ratio, one), arith.addf(ratio, one))
        x = arith.select(large, beyond, ratio)
        square = arith.mulf(x, x)
        series = self._polynomial(square, [(-1) ** n / (2 * n + 1) for n in range(1, 10)])
        found = self._fma(arith.mulf(x, square), series, x)
        return arith.select(large, arith.addf(found, _number(numbers.pi / 4)), found)

    def atan(self, x: ir.Value) -> ir.Value:
        """The angle from -pi / 2 to pi / 2 whose tangent is x."""
        return self.atan2(x, _number(1.0))

    def atan2(self, y: ir.Value, x: ir.Value) -> ir.Value:
        """The angle of the point (x, y), from the angle up to pi / 4 whose tangent is the smaller
        absolute value over the larger one."""
        across, up = math.absf(x), math.absf(y)
        small, large = arith.minimumf(across, up), arith.maximumf(across, up)
        # 0 / 0 is 0 here, and infinity over infinity 1.
        ratio = arith.select(_equal(large, 0.0), large, arith.divf(small, large))
        ratio = arith.select(_equal(small, numbers.inf), _number(1.0), ratio)
        found = self._acute(ratio)
        steep = _compared(arith.CmpFPredicate.OGT, up, across)
        found = arith.select(steep, arith.subf(_number(numbers.pi / 2), found), found)
        found = arith.select(_is_negative(x), arith.subf(_number(numbers.pi), found), found)
        return math.copysign(found, y)


#: Operation -> name of the method of _Functions that computes it.
_FUNCTIONS = {
    "math.atan": "atan",
    "math.atan2": "atan2",
    "math.cos": "cos",
    "math.powf": "pow",
    "math.sin": "sin",
    "math.tan": "tan",
}
