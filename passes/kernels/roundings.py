"""Find results that are only rounded to bf16, which a kernel can store directly."""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.generic import element_of
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.scalar_pattern import match_scalar
from mxc.dialects.sizes import RESHAPES


def rounding_of(op: ir.Operation) -> ir.Operation | None:
    """The operation that rounds the result of `op` to bf16 and is its only reader, also through
    reshapes; else None."""
    user, value = op, op.results[0]
    while user is op or user.name in RESHAPES:
        users = [use.owner for use in value.uses]
        if len(users) != 1 or not users[0].operation.results:
            return None
        user = users[0].operation
        value = user.results[0]
    return user if is_rounding(user) else None


def is_rounding(op: ir.Operation) -> bool:
    """Whether an operation only rounds each element of a tensor to bf16."""
    if op.name != "linalg.generic" or match_scalar(op, ("arith.truncf", "%0")) is None:
        return False
    return str(element_of(op.results[0])) == "bf16" and is_plain(op)


def is_plain(op: ir.Operation) -> bool:
    """Whether all indexing maps of a linalg.generic are identities."""
    return all(each == ir.AffineMap.get_identity(each.n_dims) for each in indexing_maps(op))
