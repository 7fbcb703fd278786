"""Nodes of the expressions that scalar_trees.py builds for the elements of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from iree.compiler import ir

from mxc.dialects.scalar_operations import Array


@dataclass(frozen=True)
class TensorElement:
    """An element of a tensor."""

    value: ir.Value
    at: tuple[ir.AffineExpr, ...]

    @property
    def type(self) -> ir.Type:
        """Type of the element."""
        return ir.RankedTensorType(self.value.type).element_type


@dataclass(frozen=True)
class Literal:
    """A constant: the bits of an integer, or the value of a float."""

    number: float | int
    type: ir.Type


@dataclass(frozen=True)
class AffineIndex:
    """An integer that is an affine expression of loops."""

    at: ir.AffineExpr
    type: ir.Type


@dataclass(frozen=True, eq=False)
class TableElement:
    """An element of a constant tensor, at indices that are trees."""

    table: Array
    type: ir.Type
    at: tuple[Tree, ...]


@dataclass(frozen=True)
class Apply:
    """The result of a scalar operation on its inputs."""

    op: ir.Operation
    inputs: tuple[Tree, ...]

    @property
    def type(self) -> ir.Type:
        """Type of the result."""
        return self.op.results[0].type


@dataclass(frozen=True)
class FloatProduct:
    """The product of two floats of the same type."""

    left: Tree
    right: Tree

    @property
    def type(self) -> ir.Type:
        """Type of the result."""
        return self.left.type


@dataclass(frozen=True)
class Cast:
    """The bits of an element, bitcast to another type of the same width."""

    inner: Tree
    type: ir.Type


@dataclass(frozen=True)
class Select:
    """The case whose number equals an affine expression, else `otherwise`."""

    at: ir.AffineExpr
    cases: tuple[tuple[int, Tree], ...]
    otherwise: Tree

    @property
    def type(self) -> ir.Type:
        """Type of every case."""
        return self.otherwise.type


Tree: TypeAlias = (
    TensorElement | Literal | AffineIndex | TableElement | Apply | FloatProduct | Cast | Select
)


def reads(tree: Tree) -> Iterator[TensorElement]:
    """Yield all reads in a tree, with repetitions."""
    if isinstance(tree, TensorElement):
        yield tree
    for inner in parts(tree):
        yield from reads(inner)


def parts(tree: Tree) -> tuple[Tree, ...]:
    """The operands of a tree."""
    if isinstance(tree, Apply):
        return tree.inputs
    if isinstance(tree, FloatProduct):
        return (tree.left, tree.right)
    if isinstance(tree, Cast):
        return (tree.inner,)
    if isinstance(tree, TableElement):
        return tree.at
    if isinstance(tree, Select):
        return (*(case for _, case in tree.cases), tree.otherwise)
    return ()


def loops_of(expressions: Iterable[ir.AffineExpr]) -> list[int]:
    """The sorted numbers of the loops that expressions depend on."""
    found: set[int] = set()
    pending = list(expressions)
    while pending:
        expression = pending.pop().maybe_downcast()
        if isinstance(expression, ir.AffineDimExpr):
            found.add(int(expression.position))
        elif isinstance(expression, ir.AffineBinaryExpr):
            pending += [expression.lhs, expression.rhs]
    return sorted(found)
