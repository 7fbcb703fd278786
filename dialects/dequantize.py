"""The value of a scaled element: its scalar form, built and matched.

A *factor* is one side of the product in a contraction: `arith.scaling_extf element, scale` for
f8E8M0FNU scales (OCP MX 1.0, 6.1), or `mulf(extf(element), extf(scale))`, which frontends also
write and nvfp4 needs (arith.scaling_extf would read only the exponent of its f8E4M3FN scales), or a
plain float. All have the f32 value that these forms give without rounding.

arith.scaling_extf takes no integers. i8 elements have two forms, by the type of their scale:

    f8E8M0FNU   mxint8 (OCP MX 1.0, 5.3.4): mulf(mulf(sitofp(i8), 2^-6), extf(scale)). This order
                avoids needless overflow and rounding: i8 * 2^-6 is within 2^-6 .. 2, and only
                -2 * 2^127, a code that no quantizer of mxc writes, is Inf. Products below 2^-126
                are exact subnormals. Targets that flush subnormals read zeros there, and for a
                whole block of scale 2^-127, which is itself subnormal.
    f32         int8 with a scale per block, which no standard names: mulf(sitofp(i8), scale). It
                stands for the real product; a kernel may sum integers before it multiplies and
                rounds. i4 elements have this form only.

A NaN scale makes every element NaN in all forms, including zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg

from mxc.dialects.generic import to_f32
from mxc.formats.formats import INT8

#: The weight of the lowest bit of an mxint8 element.
INT8_STEP = 2.0**-INT8.mantissa


@dataclass(frozen=True)
class Factor:
    """The arguments of a body that one factor reads: the element and, if scaled, its scale.

    `exact` is false where the form in the IR rounds, or may overflow, on the way to f32. `rounded`:
    the type to which the f32 value is rounded, where that one rounding is the only inexact
    operation.
    """

    element: int
    scale: int | None
    exact: bool = True
    rounded: str = ""


def extend(element: ir.Value, scale: ir.Value | None) -> ir.Value:
    """Emit the f32 value of an element times its scale, or of a float, at the insertion point."""
    f32 = ir.F32Type.get()
    if scale is not None and is_integer(element.type):
        value = arith.sitofp(f32, element)
        if scale.type == f32:
            return value * scale
        return value * INT8_STEP * arith.extf(f32, scale)
    if scale is not None and isinstance(scale.type, ir.Float8E8M0FNUType):
        return arith.scaling_extf(f32, element, scale)
    value = to_f32(element)
    return value if scale is None else value * to_f32(scale)


def is_packed(element: ir.Type) -> bool:
    """Whether the type is an element or a scale of a block format: a float of at most 8 bits."""
    return isinstance(element, ir.FloatType) and element.width <= 8


def is_element(element: ir.Type) -> bool:
    """Whether the type is an element of a block format: a float of at most 8 bits, not E8M0."""
    return is_packed(element) and not isinstance(element, ir.Float8E8M0FNUType)


def is_byte(element: ir.Type) -> bool:
    """Whether the type is i8: an element where it has a scale, else packed bytes."""
    return bool(element == ir.IntegerType.get_signless(8))


def is_integer(element: ir.Type) -> bool:
    """Whether the type is i8 or i4."""
    return is_byte(element) or bool(element == ir.IntegerType.get_signless(4))


def is_code(element: ir.Type) -> bool:
    """Whether the type is an element of a format under scales: a small float, i8 or i4."""
    return is_element(element) or is_integer(element)


def is_scale_of(scale: ir.Type, element: ir.Type) -> bool:
    """Whether `scale` is a type of block scales for `element`.

    Element floats and i8 (mxint8) take f8E8M0FNU or f32; f4E2M1FN also f8E4M3FN (nvfp4); i4 f32.
    """
    if isinstance(scale, ir.F32Type):
        return is_code(element)
    if isinstance(scale, ir.Float8E8M0FNUType):
        return is_element(element) or is_byte(element)
    return isinstance(scale, ir.Float8E4M3FNType) and isinstance(element, ir.Float4E2M1FNType)


def read_factor(value: ir.Value) -> Factor | None:
    """Match a value in the body of a linalg operation as a factor; None for other values."""
    if isinstance(value, ir.BlockArgument):
        return Factor(value.arg_number, None)
    op = value.owner
    if op.name == "arith.scaling_extf":
        return _scaled(op.operands[0], op.operands[1], value.type)
    if op.name == "arith.mulf":
        sides = [s.owner.operands[0] for s in op.operands if is_made_by(s, "arith.extf")]
        floats = [s for s in op.operands if isinstance(s, ir.BlockArgument)]
        if len(sides) == len(floats) == 1:
            return _scaled(sides[0], floats[0], value.type)
        if len(sides) != 2:
            return _read_integer(op)
        # Both may be 8-bit floats: the types tell which of the two is the scale.
        element, scale = sides if is_scale_of(sides[1].type, sides[0].type) else reversed(sides)
        return _scaled(element, scale, value.type)
    if op.name in ("arith.extf", "arith.truncf"):
        inner = read_factor(op.operands[0])
        if inner is None or (inner.scale is None and op.name == "arith.truncf"):
            return None
        if inner.scale is None and not isinstance(op.operands[0], ir.BlockArgument):
            return None
        if inner.scale is None:
            return inner if not is_element(op.operands[0].type) else None
        return _narrowed(value, inner)
    return None


def is_elementwise(op: ir.Operation) -> bool:
    """Whether all loops of a linalg operation are parallel."""
    return all("parallel" in str(kind) for kind in iterators(op))


def iterators(op: ir.Operation) -> list[ir.Attribute]:
    """Kinds of the loops of a linalg operation, also of a named operation."""
    if "iterator_types" in op.attributes:
        return list(ir.ArrayAttr(op.attributes["iterator_types"]))
    # A named operation has no attribute of its loops. Loops that its result lacks are reductions.
    maps = list(linalg.get_indexing_maps(op))
    written = {str(e) for e in ir.AffineMapAttr(maps[-1]).value.results}
    loops = [str(ir.AffineDimExpr.get(i)) for i in range(ir.AffineMapAttr(maps[-1]).value.n_dims)]
    return [
        ir.Attribute.parse(
            f"#linalg.iterator_type<{'parallel' if loop in written else 'reduction'}>"
        )
        for loop in loops
    ]


def is_made_by(value: ir.Value, name: str) -> bool:
    """Whether a value is the result of an operation of this name; False for a block argument."""
    return not isinstance(value, ir.BlockArgument) and value.owner.name == name


def _read_integer(product: ir.Operation) -> Factor | None:
    """Match a product with an integer as a factor; the module docstring has the two forms."""
    pair, step = list(product.operands), None
    for outer, inner in (pair, reversed(pair)):
        # A product of a product: one of the three factors must be the step of mxint8.
        if is_made_by(inner, "arith.mulf"):
            factors = [outer, *inner.owner.operands]
            step = next((i for i, factor in enumerate(factors) if is_step(factor)), None)
            if step is None:
                return None
            pair = [factor for i, factor in enumerate(factors) if i != step]
            break
    element, scale = pair if is_made_by(pair[0], "arith.sitofp") else reversed(pair)
    extends = is_made_by(scale, "arith.extf")
    if not is_made_by(element, "arith.sitofp") or (step is not None) != extends:
        return None
    scale = scale if step is None else scale.owner.operands[0]
    factor = _scaled(element.owner.operands[0], scale, product.results[0].type)
    if factor is None or not is_integer(element.owner.operands[0].type):
        return None
    # If the step is the outer factor, i8 * 2^127 overflows before the step is applied.
    return Factor(factor.element, factor.scale, factor.exact and step != 0)


def is_step(value: ir.Value) -> bool:
    """Whether a scalar is the constant 2^-6."""
    if not is_made_by(value, "arith.constant"):
        return False
    number = value.owner.attributes["value"]
    return isinstance(number, ir.FloatAttr) and ir.FloatAttr(number).value == INT8_STEP


def _scaled(element: ir.Value, scale: ir.Value, result: ir.Type) -> Factor | None:
    arguments = isinstance(element, ir.BlockArgument) and isinstance(scale, ir.BlockArgument)
    if not arguments or not is_scale_of(scale.type, element.type):
        return None
    numbers = [value.arg_number for value in (element, scale)]
    if is_exact(element.type, scale.type, result):
        return Factor(numbers[0], numbers[1])
    # bf16 holds both factors, so that only their product is rounded; f16 lacks most scales.
    rounded = "bf16" if isinstance(result, ir.BF16Type) else ""
    return Factor(numbers[0], numbers[1], exact=False, rounded=rounded)


def _narrowed(value: ir.Value, factor: Factor) -> Factor:
    """The factor after a conversion of its value."""
    block = value.owner.operation.block
    element, scale = block.arguments[factor.element], block.arguments[factor.scale]
    if is_exact(element.type, scale.type, value.type):
        return factor
    wide = isinstance(value.owner.operands[0].type, ir.F32Type)
    once = factor.exact and wide and value.owner.name == "arith.truncf"
    return replace(factor, exact=False, rounded=str(value.type) if once else "")


#: Bits of the significand, and exponent of the least subnormal. OCP MX 1.0, 5.3; IEEE 754;
#: bfloat16.
_PRECISION = {
    "i8": (7, -INT8.mantissa),
    "f4E2M1FN": (2, -1),
    "f6E2M3FN": (4, -3),
    "f6E3M2FN": (3, -4),
    "f8E4M3FN": (4, -9),
    "f8E5M2": (3, -16),
    "f8E4M3FNUZ": (4, -10),
    "f8E5M2FNUZ": (3, -17),
    "f16": (11, -24),
    "bf16": (8, -133),
    "f32": (24, -149),
}


def loses_digits(element: ir.Type, scale: ir.Type, result: ir.Type) -> bool:
    """Whether rounding to `result` changes products of normal numbers within its range."""
    if isinstance(scale, ir.F32Type):
        return not isinstance(result, ir.F32Type)
    digits, (limit, _) = _PRECISION[str(element)][0], _PRECISION[str(result)]
    if not isinstance(scale, ir.Float8E8M0FNUType):
        digits += _PRECISION[str(scale)][0]
    return digits > limit


def is_exact(element: ir.Type, scale: ir.Type, result: ir.Type) -> bool:
    """Whether every product of an element and a scale is the same number in `result` as in f32.

    Only digits can be lost: bfloat16 and f32 both overflow at 2^128. f16 overflows earlier, but it
    also lacks the small end of every f8E8M0FNU scale, and holds nvfp4's largest, 6 * 448. The
    product of an element and an f32 scale is defined as f32 rounds it.
    """
    if isinstance(scale, ir.F32Type):
        return isinstance(result, ir.F32Type)
    if str(element) not in _PRECISION or str(result) not in _PRECISION:
        return False
    digits, least = _PRECISION[str(element)]
    if isinstance(scale, ir.Float8E8M0FNUType):
        least -= 127
    else:
        digits, least = digits + _PRECISION[str(scale)][0], least + _PRECISION[str(scale)][1]
    limit, smallest = _PRECISION[str(result)]
    return digits <= limit and least >= smallest
