"""Look at the root of a scalar tree below casts between float types."""

from __future__ import annotations

from mxc.dialects.scalar_nodes import Apply, Literal, Tree

_CASTS = ("arith.extf", "arith.truncf")


def plain(tree: Tree) -> Tree:
    """A tree without casts between floats at its root."""
    while isinstance(tree, Apply) and tree.op.name in _CASTS:
        tree = tree.inputs[0]
    return tree


def inputs_of(tree: Tree, name: str) -> tuple[Tree, ...] | None:
    """The inputs of the operation at the root of a tree, below casts, if its name is `name`; else
    None."""
    tree = plain(tree)
    return tree.inputs if isinstance(tree, Apply) and tree.op.name == name else None


def number_in(tree: Tree) -> float | None:
    """The number of a tree that is a literal, below casts; None for another tree."""
    tree = plain(tree)
    return float(tree.number) if isinstance(tree, Literal) else None
