"""Scatters of StableHLO at one place: JAX's `x.at[:, 1:].add(y)` and its like."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.compiler.programs.stablehlo.operations import as_type, signless
from mxc.compiler.programs.stablehlo.places import lists_of
from mxc.compiler.programs.stablehlo.sizes import has_no_sign
from mxc.dialects.generic import element_of, generic, loop_index, shape_of
from mxc.dialects.sizes import axes_of, size_of, value_of

_Combine = Callable[[ir.Value, ir.Value], ir.Value]
#: How floats, integers and those that have no sign are combined with those of an update.
_FLOATS: dict[str, _Combine] = {
    "stablehlo.add": arith.addf, "stablehlo.multiply": arith.mulf,
    "stablehlo.maximum": arith.maximumf, "stablehlo.minimum": arith.minimumf,
}  # fmt: skip
_INTEGERS: dict[str, _Combine] = {
    "stablehlo.add": arith.addi, "stablehlo.multiply": arith.muli,
    "stablehlo.maximum": arith.maxsi, "stablehlo.minimum": arith.minsi,
    "stablehlo.and": arith.andi, "stablehlo.or": arith.ori,
}  # fmt: skip
_BITS: dict[str, _Combine] = {"stablehlo.and": arith.andi, "stablehlo.or": arith.ori}
_UNSIGNED = _INTEGERS | {"stablehlo.maximum": arith.maxui, "stablehlo.minimum": arith.minui}


def scattered(op: ir.Operation) -> ir.Value | None:
    """The result of a scatter of one part, of as many dimensions as the tensor, or of unsigned
    numbers; None for others, which IREE lowers. What is beyond the end of the tensor is left out.
    """
    combine = _combination(op)
    if len(op.operands) != 3 or combine is None:
        return None
    value, places, part = op.operands
    lists = lists_of(op, "scatter_dimension_numbers")
    dropped = lists.get("inserted_window_dims", [])
    kept = [axis for axis in range(len(shape_of(value))) if axis not in dropped]
    if lists.get("update_window_dims", []) != list(range(len(shape_of(part)))):
        return None
    if len(kept) != len(shape_of(part)) or len(shape_of(places)) != 1:
        return None
    if dropped and not has_no_sign(value):
        return None
    if has_no_sign(places):
        return None
    if has_no_sign(value):
        value, part = (as_type(each, signless(each.type)) for each in (value, part))
    axes = lists.get("scatter_dims_to_operand_dims", [])
    starts = {
        axis: arith.index_cast(ir.IndexType.get(), tensor.extract(places, [value_of(number)]))
        for number, axis in enumerate(axes)
    }
    counts = {axis: value_of(size_of(part, number)) for number, axis in enumerate(kept)}
    output = axes_of(value)

    def body(own: ir.Value) -> ir.Value:
        loops = [loop_index(output, letter) for letter in output.split()]
        inside, safe = [], []
        for axis, loop in enumerate(loops):
            at = arith.subi(loop, starts[axis]) if axis in starts else loop
            here = arith.cmpi(arith.CmpIPredicate.ult, at, counts.get(axis, value_of(1)))
            inside.append(here)
            if axis in counts:
                safe.append(arith.select(here, at, value_of(0)))
        new = combine(own, tensor.extract(part, safe))
        return arith.select(reduce(arith.andi, inside), new, own)

    found = generic([(value, output)], output, element_of(value), body)
    kind = op.results[0].type
    return found if found.type == kind else as_type(found, kind)


def _combination(op: ir.Operation) -> _Combine | None:
    """What the body of a scatter does to an element and that of an update; None if it is more."""
    block = op.regions[0].blocks[0]
    inner, end = list(block.operations)[:-1], list(block.operations)[-1]
    if not inner and end.operands[0] == block.arguments[1]:
        return lambda old, new: new
    if len(inner) != 1 or set(inner[0].operands) != set(block.arguments):
        return None
    name = inner[0].operation.name
    if isinstance(element_of(op.results[0]), ir.FloatType):
        return _FLOATS.get(name)
    if element_of(op.results[0]) == ir.IntegerType.get_signless(1):
        return _BITS.get(name)
    return (_UNSIGNED if has_no_sign(op.results[0]) else _INTEGERS).get(name)
