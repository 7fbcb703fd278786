"""Results that are only rounded: a kernel stores them as the bf16 that they become."""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.generic import element_of
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.scalar_pattern import match_scalar

#: What moves nothing.
_RESHAPES = ("tensor.collapse_shape", "tensor.expand_shape")


def rounding_of(op: ir.Operation) -> ir.Operation | None:
    """What rounds all of the f32 result of `op` to bf16, if nothing else reads it."""
    user, value = op, op.results[0]
    while user is op or user.name in _RESHAPES:
        users = [use.owner for use in value.uses]
        if len(users) != 1 or not users[0].operation.results:
            return None
        user = users[0].operation
        value = user.results[0]
    return user if is_rounding(user) else None


def is_rounding(op: ir.Operation) -> bool:
    """Whether an operation rounds a tensor to bf16, and nothing else."""
    if op.name != "linalg.generic" or match_scalar(op, ("arith.truncf", "%0")) is None:
        return False
    return str(element_of(op.results[0])) == "bf16" and is_plain(op)


def is_plain(op: ir.Operation) -> bool:
    """Whether each element of a linalg.generic is one of the same place in all operands."""
    return all(each == ir.AffineMap.get_identity(each.n_dims) for each in indexing_maps(op))
