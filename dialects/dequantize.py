"""The value of a scaled element: its scalar form, built and matched.

A *factor* is one side of the product in a contraction: `arith.scaling_extf element, scale` for
f8E8M0FNU scales (OCP MX 1.0, 6.1), `mulf(extf(element), extf(scale))` as frontends also write it
and as nvfp4 must (arith.scaling_extf would read only the exponent of its f8E4M3FN scales), or a
plain float. All have the value in f32 that these give, rounded nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg


@dataclass(frozen=True)
class Factor:
    """Which arguments of a body one factor reads: the element and, if scaled, its scale.

    `exact` is false where the form in the IR rounds, or may overflow, on its way to f32.
    """

    element: int
    scale: int | None
    exact: bool = True


def extend(element: ir.Value, scale: ir.Value | None) -> ir.Value:
    """The f32 value of one element under its block scale, or of a float, at the insertion point."""
    f32 = ir.F32Type.get()
    if scale is not None and isinstance(scale.type, ir.Float8E8M0FNUType):
        return arith.scaling_extf(f32, element, scale)
    value = element if element.type == f32 else arith.extf(f32, element)
    return value if scale is None else arith.mulf(value, arith.extf(f32, scale))


def is_element(element: ir.Type) -> bool:
    """Whether the type is the element of a block format: a float of at most 8 bits, not a scale."""
    return (
        isinstance(element, ir.FloatType)
        and element.width <= 8
        and not isinstance(element, ir.Float8E8M0FNUType)
    )


def is_scale_of(scale: ir.Type, element: ir.Type) -> bool:
    """Whether `scale` is the type of a block scale over `element`: MX, or nvfp4's e2m1 and e4m3."""
    if isinstance(scale, ir.Float8E8M0FNUType):
        return is_element(element)
    return isinstance(scale, ir.Float8E4M3FNType) and isinstance(element, ir.Float4E2M1FNType)


def read_factor(value: ir.Value) -> Factor | None:
    """The factor that a value in the body of a linalg operation is, or None if it is another."""
    if isinstance(value, ir.BlockArgument):
        return Factor(value.arg_number, None)
    op = value.owner
    if op.name == "arith.scaling_extf":
        return _scaled(op.operands[0], op.operands[1], value.type)
    if op.name == "arith.mulf":
        sides = [s.owner.operands[0] for s in op.operands if _is(s, "arith.extf")]
        if len(sides) != 2:
            return None
        # Both may be 8-bit floats: the type says which of the two is the scale.
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
        exact = inner.exact and _narrowingis_exact(value, inner)
        return Factor(inner.element, inner.scale, exact)
    return None


def is_elementwise(op: ir.Operation) -> bool:
    """Whether all loops of a linalg operation are parallel."""
    return all("parallel" in str(kind) for kind in iterators(op))


def iterators(op: ir.Operation) -> list[ir.Attribute]:
    """Kinds of the loops of a linalg operation, named operations included."""
    if "iterator_types" in op.attributes:
        return list(ir.ArrayAttr(op.attributes["iterator_types"]))
    # A named operation keeps its loops to itself. Those that its result does not have, it reduces.
    maps = list(linalg.get_indexing_maps(op))
    written = {str(e) for e in ir.AffineMapAttr(maps[-1]).value.results}
    loops = [str(ir.AffineDimExpr.get(i)) for i in range(ir.AffineMapAttr(maps[-1]).value.n_dims)]
    return [
        ir.Attribute.parse(
            f"#linalg.iterator_type<{'parallel' if loop in written else 'reduction'}>"
        )
        for loop in loops
    ]


def _is(value: ir.Value, name: str) -> bool:
    return not isinstance(value, ir.BlockArgument) and value.owner.name == name


def _scaled(element: ir.Value, scale: ir.Value, result: ir.Type) -> Factor | None:
    arguments = isinstance(element, ir.BlockArgument) and isinstance(scale, ir.BlockArgument)
    if not arguments or not is_scale_of(scale.type, element.type):
        return None
    numbers = [value.arg_number for value in (element, scale)]
    return Factor(numbers[0], numbers[1], is_exact(element.type, scale.type, result))


def _narrowingis_exact(value: ir.Value, factor: Factor) -> bool:
    block = value.owner.operation.block
    element, scale = block.arguments[factor.element], block.arguments[factor.scale]
    return is_exact(element.type, scale.type, value.type)


#: Bits of significand and exponent of the least subnormal. OCP MX 1.0, 5.3; IEEE 754; bfloat16.
_PRECISION = {
    "f4E2M1FN": (2, -1),
    "f6E2M3FN": (4, -3),
    "f6E3M2FN": (3, -4),
    "f8E4M3FN": (4, -9),
    "f8E5M2": (3, -16),
    "f16": (11, -24),
    "bf16": (8, -133),
    "f32": (24, -149),
}


def is_exact(element: ir.Type, scale: ir.Type, result: ir.Type) -> bool:
    """Whether every product of an element and a scale is the same number in `result` as in f32.

    Only digits can be lost: bfloat16 and f32 both overflow at 2^128. f16 overflows earlier, but it
    also lacks the small end of every f8E8M0FNU scale, and holds nvfp4's largest, 6 * 448.
    """
    if str(element) not in _PRECISION or str(result) not in _PRECISION:
        return False
    digits, least = _PRECISION[str(element)]
    if isinstance(scale, ir.Float8E8M0FNUType):
        least -= 127
    else:
        digits, least = digits + _PRECISION[str(scale)][0], least + _PRECISION[str(scale)][1]
    limit, smallest = _PRECISION[str(result)]
    return digits <= limit and least >= smallest
