"""Masks that depend on a query t and a key s by comparisons of t - s with small numbers.

Such a mask is constant along diagonals, and beyond the numbers that are compared. So its values for
as many queries and keys as `SAMPLE` show what it is for any number of them.
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.indexing import dim_of
from mxc.dialects.scalar_nodes import AffineIndex, Apply, Literal, Tree

#: Queries and keys for which a mask is evaluated.
SAMPLE = 64

_SIGNED = frozenset(
    getattr(arith.CmpIPredicate, name) for name in ("eq", "ne", "slt", "sle", "sgt", "sge")
)
_CASTS = frozenset(("arith.index_cast", "arith.index_castui", "arith.extsi", "arith.trunci"))

#: Bits of an index, and of integers that hold any number of queries.
_INDEX_BITS, _LEAST_BITS = 64, 32
#: Factors of t and of s, and a number.
_Linear = tuple[int, int, int]


def is_constant_along_diagonals(tree: Tree, query: int, key: int) -> bool:
    """Whether a mask depends only on comparisons of the loop `query` minus the loop `key` with
    numbers below SAMPLE - 1."""
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
    """An integer as a sum of multiples of two loops and a number; None for another one, and for one
    in which a number of queries may overflow."""
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
