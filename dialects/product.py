"""The body of a contraction: one product of two factors, added to the accumulator in f32.

`read_product` accepts every order of operands; `is_canonical_body` only the one that scaled.py
builds.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.dequantize import Factor, is_integer, is_made_by, is_step, read_factor
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_nodes import loops_of


def read_product(op: ir.Operation, *, rounded: bool = False) -> tuple[Factor, Factor] | Reason:
    """The two factors of a multiply-accumulate body in f32, or the reason why the body is not one.

    `rounded`: accept factors that are rounded once to another type, which `Factor.rounded` names.
    """
    block = op.regions[0].blocks[0]
    total = list(block.operations)[-1].operands[0]
    added = f32_operands(total, "arith.addf")
    if added is None:
        return _no_sum(total)
    acc = block.arguments[len(block.arguments) - 1]
    terms = [value for value in added if value != acc]
    product = f32_operands(terms[0], "arith.mulf") if len(terms) == 1 else None
    if product is None:
        return Reason("its body does not add one f32 product to the accumulator")
    factors = [read_factor(value) for value in product]
    if factors[0] is None or factors[1] is None:
        return Reason("a side of its product is more than an element under its scale")
    if not all(factor.exact or (rounded and factor.rounded) for factor in factors if factor):
        return Reason(
            "a side is dequantized to a type that does not hold every value of the format"
        )
    if any(_is_of_each_element(op, factor) for factor in factors if factor):
        return Reason("a float is multiplied with each element, and is no scale of a block")
    return factors[0], factors[1]


def _no_sum(total: ir.Value) -> Reason:
    """The reason why the result of a body is not an f32 addition."""
    value = total
    if is_made_by(value, "arith.truncf"):
        value = value.owner.operands[0]
    added = is_made_by(value, "arith.addf")
    # The accumulator has the type that the body yields.
    if added and not isinstance(total.type, ir.F32Type):
        return Reason(f"it sums in {total.type}; kernels sum in f32")
    return Reason("its body does not end in an f32 addition")


def _is_of_each_element(op: ir.Operation, factor: Factor) -> bool:
    """Whether a float scale varies along K like the elements, so that blocks do not share it."""
    maps = indexing_maps(op)
    if factor.scale is None or not isinstance(_argument(op, factor.scale).type, ir.F32Type):
        return False
    written = dims(maps[-1])
    along = [e for e in maps[factor.element].results if not set(loops_of([e])) <= set(written)]
    return all(e in maps[factor.scale].results for e in along)


def _argument(op: ir.Operation, number: int) -> ir.Value:
    return op.regions[0].blocks[0].arguments[number]


def is_canonical_body(op: ir.Operation, lhs: Factor, rhs: Factor) -> bool:
    """Whether the body of `op` equals the one that the builder writes for these factors."""
    return _text(op) == _canonical_text(op, lhs, rhs)


def f32_operands(value: ir.Value, name: str) -> list[ir.Value] | None:
    """The operands of the f32 operation `name` that defines a value; else None."""
    if isinstance(value, ir.BlockArgument) or value.owner.name != name:
        return None
    return list(value.owner.operands) if isinstance(value.type, ir.F32Type) else None


def _text(op: ir.Operation) -> list[tuple[str, ...]]:
    """The body as a list of (operation, operands..), where %i is an argument and i the result of
    line i.

    Constants have no line, since IREE moves them out of bodies; as operands they are "step" or "?".
    """
    block = op.regions[0].blocks[0]
    names = {argument: f"%{i}" for i, argument in enumerate(block.arguments)}
    lines: list[tuple[str, ...]] = []
    for inner in block.operations:
        if inner.operation.name == "arith.constant":
            continue
        read = (names.get(v) or ("step" if is_step(v) else "?") for v in inner.operands)
        names |= {result: str(len(lines)) for result in inner.results}
        lines.append((inner.operation.name, *read))
    return lines


def _canonical_text(op: ir.Operation, lhs: Factor, rhs: Factor) -> list[tuple[str, ...]]:
    """The `_text` of the body that `contraction_into` builds."""
    arguments = op.regions[0].blocks[0].arguments
    lines: list[tuple[str, ...]] = []
    sides = []
    for factor in (lhs, rhs):
        element, scale = f"%{factor.element}", f"%{factor.scale}"
        if factor.scale is None:
            if not isinstance(arguments[factor.element].type, ir.F32Type):
                lines.append(("arith.extf", element))
                element = str(len(lines) - 1)
            sides.append(element)
            continue
        first = len(lines)
        if is_integer(arguments[factor.element].type):
            lines.append(("arith.sitofp", element))
            if isinstance(arguments[factor.scale].type, ir.F32Type):
                lines.append(("arith.mulf", str(first), scale))
            else:
                lines += [("arith.mulf", str(first), "step"), ("arith.extf", scale)]
                lines.append(("arith.mulf", str(first + 1), str(first + 2)))
        elif isinstance(arguments[factor.scale].type, ir.Float8E8M0FNUType):
            lines.append(("arith.scaling_extf", element, scale))
        elif isinstance(arguments[factor.scale].type, ir.F32Type):
            lines += [("arith.extf", element), ("arith.mulf", str(first), scale)]
        else:
            lines += [("arith.extf", element), ("arith.extf", scale)]
            lines.append(("arith.mulf", str(first), str(first + 1)))
        sides.append(str(len(lines) - 1))
    lines.append(("arith.mulf", *sides))
    lines.append(("arith.addf", f"%{len(arguments) - 1}", str(len(lines) - 1)))
    lines.append(("linalg.yield", str(len(lines) - 1)))
    return lines
