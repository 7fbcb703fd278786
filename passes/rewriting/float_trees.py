"""Trees of scalars read without their casts between floats."""

from __future__ import annotations

from mxc.dialects.scalar_nodes import Apply, Literal, Tree

_CASTS = ("arith.extf", "arith.truncf")


def plain(tree: Tree) -> Tree:
    """A tree without casts between floats at its root."""
    while isinstance(tree, Apply) and tree.op.name in _CASTS:
        tree = tree.inputs[0]
    return tree


def inputs_of(tree: Tree, name: str) -> tuple[Tree, ...] | None:
    """The inputs of the operation `name` at the root of a tree, below casts; None for another."""
    tree = plain(tree)
    return tree.inputs if isinstance(tree, Apply) and tree.op.name == name else None


def number_in(tree: Tree) -> float | None:
    """The number that a tree is, below casts; None for another tree."""
    tree = plain(tree)
    return float(tree.number) if isinstance(tree, Literal) else None
