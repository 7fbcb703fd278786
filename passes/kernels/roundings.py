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
    if user.name != "linalg.generic" or match_scalar(user, ("arith.truncf", "%0")) is None:
        return None
    bf16 = str(element_of(value)) == "bf16"
    plain = all(each == ir.AffineMap.get_identity(each.n_dims) for each in indexing_maps(user))
    return user if bf16 and plain else None
