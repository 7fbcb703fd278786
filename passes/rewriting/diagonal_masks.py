"""Recognize masks that depend on query t and key s only by comparing t - s with small numbers.

Such a mask is constant along diagonals. It is also constant where t - s is beyond all numbers that
it is compared with. So its values for SAMPLE queries and keys determine it for any number of them.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.indexing import dim_of
from mxc.dialects.scalar_nodes import AffineIndex, Apply, Literal, Tree

#: Number of queries, and of keys, for which a mask is evaluated if their number is dynamic.
SAMPLE = 64

_SIGNED = frozenset(
    getattr(arith.CmpIPredicate, name) for name in ("eq", "ne", "slt", "sle", "sgt", "sge")
)
_CASTS = frozenset(("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.trunci"))

#: Bits of an index; least bits of an integer type in which computations do not overflow, because it
#: holds any number of queries.
_INDEX_BITS, _LEAST_BITS = 64, 32
#: A linear expression a * t + b * s + c of query t and key s, as (a, b, c).
_Linear = tuple[int, int, int]


def is_constant_along_diagonals(tree: Tree, query: int, key: int) -> bool:
    """Whether a mask is computed only from constants and from signed comparisons of a multiple of
    query - key with a number whose magnitude is below SAMPLE - 1. `query`, `key`: loops."""
    if isinstance(tree, Literal):
        return True
    if not isinstance(tree, Apply):
        return False
    if tree.op.name == "arith.cmpi":
        sides = [_linear(each, (query, key)) for each in tree.inputs]
        if sides[0] is not None and sides[1] is not None:
            t, s, number = _sum(sides[0], sides[1], -1)
            near = abs(number) < SAMPLE - 1 or t == 0
            return _predicate(tree.op) in _SIGNED and t + s == 0 and near
    return all(is_constant_along_diagonals(each, query, key) for each in tree.inputs)


def _predicate(op: ir.Operation) -> arith.CmpIPredicate:
    return arith.CmpIPredicate(ir.IntegerAttr(op.attributes["predicate"]).value)


def _linear(tree: Tree, loops: tuple[int, int]) -> _Linear | None:
    """An integer as a linear expression of two loops; None if it is not linear, or is computed in a
    type of fewer than _LEAST_BITS, which may overflow."""
    if getattr(tree.type, "width", _INDEX_BITS) < _LEAST_BITS:
        return None
    if isinstance(tree, AffineIndex):
        return _linear_index(tree.at, loops)
    if isinstance(tree, Literal):
        bits = getattr(tree.type, "width", _INDEX_BITS)
        number = int(tree.number)
        return 0, 0, number - (1 << bits) if number >> (bits - 1) else number
    if not isinstance(tree, Apply):
        return None
    if tree.op.name in _CASTS:
        return _linear(tree.inputs[0], loops)
    if tree.op.name not in ("arith.addi", "arith.subi", "arith.muli"):
        return None
    left, right = (_linear(each, loops) for each in tree.inputs)
    if left is None or right is None:
        return None
    if tree.op.name != "arith.muli":
        return _sum(left, right, 1 if tree.op.name == "arith.addi" else -1)
    if any(left[:2]):
        left, right = right, left
    return None if any(left[:2]) else _sum((0, 0, 0), right, left[2])


def _linear_index(index: ir.AffineExpr, loops: tuple[int, int]) -> _Linear | None:
    """An affine expression as a linear expression of two loops; None if it has other terms."""
    if isinstance(index, ir.AffineConstantExpr):
        return 0, 0, int(index.value)
    loop = dim_of(index)
    if loop is not None:
        return (int(loop == loops[0]), int(loop == loops[1]), 0) if loop in loops else None
    if isinstance(index, ir.AffineAddExpr):
        sides = (index.lhs.maybe_downcast(), index.rhs.maybe_downcast())
        left, right = (_linear_index(each, loops) for each in sides)
        return None if left is None or right is None else _sum(left, right, 1)
    return None


def _sum(left: _Linear, right: _Linear, factor: int) -> _Linear:
    """left + factor * right."""
    t, s, number = (a + factor * b for a, b in zip(left, right, strict=True))
    return t, s, number
