"""The initial values of reductions: recognize neutral ones, and let sums start from a fill of 0."""

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

#: Most tensors through which an initial value is followed.
_MOST = 16
#: The lowest finite number of each float type that scores of attention may have.
_LOWEST = {
    "f32": float(np.finfo(np.float32).min),
    "f16": float(np.finfo(np.float16).min),
    "bf16": -float.fromhex("0x1.fep127"),
}


def number_of_all(value: ir.Value) -> float | int | None:
    """The number that all elements of a tensor are equal to; None for other tensors. Constants,
    fills, and reshapes and broadcasts of these are recognized."""
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
    """Whether starting from the tensor `value` does not change the result of a reduction.

    `name`: the operation that reduces. A maximum of floats may start from -inf or from the lowest
    finite number of its type; the latter differs only if all elements are -inf.
    """
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
    """Replace the initial value of the sum `op` by a linalg.fill of zero, if it is none yet."""
    last = len(op.operands) - 1
    value = op.operands[last]
    if not is_zero(value):
        with ir.InsertionPoint(op), op.location:
            op.operands[last] = fill(sizes_of(value), element_of(value), 0.0)


def add_after(op: ir.Operation) -> None:
    """Let the sum `op` of floats start from zero, and add its former initial value to the result.

    An initial value that is a broadcast, such as a bias, is read without the broadcast.
    """
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
