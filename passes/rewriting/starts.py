"""What reductions start from."""

from __future__ import annotations

import math

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.generic import element_of, empty, fill, shape_of
from mxc.dialects.indexing import dim_of, trace
from mxc.dialects.scalar_nodes import Literal
from mxc.dialects.scalar_trees import tree_of
from mxc.dialects.sizes import sizes_of
from mxc.passes.kernels.values import is_zero
from mxc.passes.rewriting.float_trees import plain

#: Most tensors that a start is followed through.
_MOST = 16
#: The lowest finite number of types of scores.
_LOWEST = {
    "f32": float(np.finfo(np.float32).min),
    "f16": float(np.finfo(np.float16).min),
    "bf16": -float.fromhex("0x1.fep127"),
}


def number_of_all(value: ir.Value) -> float | int | None:
    """The number that every element of a tensor is: a constant, a fill, or reshapes and broadcasts
    of one; None for other tensors."""
    shape, left = shape_of(value), iter(range(_MOST))
    loops = [ir.AffineDimExpr.get(i) for i in range(len(shape))]
    ranges = [size if size >= 0 else None for size in shape]
    found = plain(tree_of(value, loops, ranges, lambda _: next(left, None) is not None))
    return found.number if isinstance(found, Literal) else None


def starts_from_zero(value: ir.Value) -> bool:
    """Whether every element of a tensor of floats is 0.0, and not -0.0."""
    found = number_of_all(value)
    return found == 0 and math.copysign(1, found) > 0


def is_neutral(value: ir.Value, name: str) -> bool:
    """Whether a reduction by the operation `name` that starts from a tensor has the result of its
    elements alone: finite ones and -inf of its type."""
    found = number_of_all(value)
    if found is None:
        return False
    kind = element_of(value)
    if not isinstance(kind, ir.FloatType):
        ones = (1 << ir.IntegerType(kind).width) - 1
        return found == {"arith.andi": ones, "arith.ori": 0}.get(name)
    if name == "arith.addf":
        return found == 0
    return str(kind) in _LOWEST and found <= _LOWEST[str(kind)]


def fill_start(op: ir.Operation) -> None:
    """Start the sum from a fill of zero."""
    last = len(op.operands) - 1
    value = op.operands[last]
    if not is_zero(value):
        with ir.InsertionPoint(op), op.location:
            op.operands[last] = fill(sizes_of(value), element_of(value), 0.0)


def add_after(op: ir.Operation) -> None:
    """Start a sum of floats from zero, and add what it started from to the result. A bias that was
    broadcast is read without the broadcast."""
    result, addend = op.results[0], op.operands[len(op.operands) - 1]
    shape = shape_of(result)
    identity = [ir.AffineDimExpr.get(i) for i in range(len(shape))]
    source, at = trace(addend, identity, [size if size >= 0 else None for size in shape])
    if any(dim_of(index) is None for index in at):
        source, at = addend, identity
    with ir.InsertionPoint.after(op), op.location:
        maps = [ir.AffineMap.get(len(shape), 0, each) for each in (identity, at, identity)]
        loops = [linalg.IteratorType.parallel] * len(shape)
        init = empty(sizes_of(addend), element_of(result))
        total = linalg.generic([result, source], [init], maps, loops)(
            lambda left, right, _: left + right
        )
    result.replace_all_uses_except(total, total.owner.operation)
    fill_start(op)
