"""Masks of attention: recognize the causal one, and make one tensor of the others.

A kernel with the option for causal attention skips the keys that the causal mask hides. So the mask
can become the option only if these keys have the weight zero in every row. They have it if the mask
makes their scores -inf. If it makes them a number that is only very low, they have it in rows with
a score that no mask hides. Then all masks must be known when the program is compiled, and each row
must have such a score: a mask that is known at run time only may hide all scores of a row, in which
case all keys have weights, also those that the causal mask hides.

Where a mask chooses scores (`Masked`), those that it hides count for nothing, even if they are NaN.
The tensor has the chosen number there. Its elements of at most that number, or at most LOW if other
masks are added, replace scores; greater ones are added (`replaces` of dialects/dense_attention.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects.decoded_formats import CodeTable, variables
from mxc.dialects.dense_attention import LOW
from mxc.dialects.generic import constant, generic, loop_index, to_f32
from mxc.dialects.indexing import dim_of, trace
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_nodes import (
    AffineIndex,
    Apply,
    Literal,
    TensorElement,
    Tree,
    loops_of,
    parts,
    reads,
)
from mxc.dialects.scalar_trees import tree_of
from mxc.dialects.sizes import Size, product, split, value_of
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.rewriting.attention_forms import Masked
from mxc.passes.rewriting.attention_loops import G, N, S, T, V
from mxc.passes.rewriting.diagonal_masks import SAMPLE, is_constant_along_diagonals
from mxc.passes.rewriting.digits import simplified, split_digits

#: Most elements of a mask that is evaluated, and most tensors that its tree is followed through.
_MOST_PLACES, _MOST_NODES = 1 << 24, 1 << 10
_LETTERS = "nvgtsdm"

Mask = Tree | Masked


@dataclass(frozen=True)
class _Hidden:
    """What a mask hides. `keys`: whether it hides each key from each query, [T, S]. `by_infinity`:
    whether it does so by -inf."""

    keys: NDArray[np.bool_]
    by_infinity: bool


def without_causal(masks: Sequence[Mask], ranges: Sequence[int | None]) -> tuple[bool, list[Mask]]:
    """Return whether attention is causal, and the masks that are left, the outermost first.

    Masks that hide nothing are dropped, and so are causal masks that the option replaces.
    """
    known = [_hidden(mask, ranges) for mask in masks]
    causal, left = False, []
    for number, (mask, hidden) in enumerate(zip(masks, known, strict=True)):
        if hidden is None:
            left.append(mask)
        elif np.array_equal(hidden.keys, np.triu(np.ones_like(hidden.keys), 1)):
            skipped = _are_weightless(hidden, masks[:number]) or _each_row_has_a_key(known, ranges)
            causal |= skipped
            left += [] if skipped else [mask]
        elif hidden.keys.any():
            left.append(mask)
    return causal, left


def _are_weightless(hidden: _Hidden, outer: Sequence[Mask]) -> bool:
    """Whether hidden keys have the score -inf. `outer`: the masks outside of this one, which may
    replace the score."""
    chosen = [mask.score for mask in outer if isinstance(mask, Masked)]
    return hidden.by_infinity and all(score == -inf for score in chosen)


def _each_row_has_a_key(masks: Sequence[_Hidden | None], ranges: Sequence[int | None]) -> bool:
    """Whether all masks are known (not None), and each query has a key that none hides.

    If the number of queries or keys is dynamic, that key must be the first one.
    """
    keys = [mask.keys for mask in masks if mask is not None]
    hidden = np.logical_or.reduce(keys)
    empty = hidden[:, 0] if None in (ranges[T], ranges[S]) else hidden.all(axis=1)
    return len(keys) == len(masks) and not empty.any()


def _hidden(mask: Mask, ranges: Sequence[int | None]) -> _Hidden | None:
    """Return what a mask hides, if only the positions of query and key decide it; else None.

    If the number of queries or keys is dynamic, the result is for the first SAMPLE of each. A mask
    that is added must be 0 or at most LOW everywhere, and a mask that chooses must choose at most
    LOW.
    """
    tree = _computed(mask.condition if isinstance(mask, Masked) else mask, ranges)
    tokens, keys = ranges[T], ranges[S]
    if tokens is None or keys is None:
        if not is_constant_along_diagonals(tree, T, S):
            return None
        tokens = keys = SAMPLE
    if tokens * keys > _MOST_PLACES:
        return None
    both = [ir.AffineDimExpr.get(loop) for loop in (T, S)]
    if any(True for _ in reads(tree)) or not set(variables(tree)) <= set(both):
        return None
    numbers = np.arange(max(tokens, keys)).astype(np.uint64)
    places = {both[0]: numbers[:tokens, None, None], both[1]: numbers[None, None, :keys]}
    values = CodeTable({}, places).of(tree)
    if values is None:
        return None
    values = np.broadcast_to(values, (tokens, 1, keys))[:, 0]
    if isinstance(mask, Masked):
        hides = (values != 0) == mask.where
        return _Hidden(np.asarray(hides), mask.score == -inf) if mask.score <= LOW else None
    low = np.asarray(values <= LOW)
    if not (low | (values == 0)).all():
        return None
    return _Hidden(low, bool((values[low] == -inf).all()))


def _computed(tree: Tree, ranges: Sequence[int | None]) -> Tree:
    """A tree with its reads of tensors replaced by how these are computed, as far as operations are
    elementwise."""
    left = iter(range(_MOST_NODES))
    if isinstance(tree, TensorElement):
        at = [simplified(index, ranges) for index in tree.at]
        return tree_of(tree.value, at, ranges, lambda value: next(left, None) is not None)
    if isinstance(tree, Apply):
        return Apply(tree.op, tuple(_computed(each, ranges) for each in tree.inputs))
    return tree


def mask_tensor(
    masks: Sequence[Mask],
    ranges: Sequence[int | None],
    sizes: dict[int, Size],
    lead: tuple[list[int], list[int]],
) -> tuple[ir.Value, int] | Reason:
    """Build the tensor of `masks`, the outermost first: what they make of a score of zero.

    Returns an f32 tensor [sequences, heads, T, S], in which dimensions along which the masks do not
    differ have size 1, and the number of consecutive sequences that share a mask; or the reason why
    it cannot be built. `sizes`: of the loops whose ranges are dynamic. `lead`: the loops of
    sequences, and the loops of heads.
    """
    trees = [mask.condition if isinstance(mask, Masked) else mask for mask in masks]
    f32 = ir.F32Type.get()
    inputs: dict[TensorElement, tuple[ir.Value, list[int]]] = {}
    for read in (read for tree in trees for read in reads(tree)):
        found = split_digits(*trace(read.value, read.at, ranges), ranges)
        if found is None or not set(found[1]) <= {N, V, G, T, S}:
            return Reason("its mask is read in a way that is not followed")
        inputs[read] = found
    used = {digit for _, digits in inputs.values() for digit in digits} | {S}
    used |= {loop for tree in trees for index in variables(tree) for loop in loops_of([index])}
    for group in lead:
        # Each digit that is at or before the last one that is used, so that they form one index.
        used |= {digit for at, digit in enumerate(group) if used & set(group[at:])}
    used |= set(lead[1]) if used & set(lead[1]) else set()
    digits = [digit for digit in (N, V, G, T, S) if digit in used and ranges[digit] != 1]
    output = " ".join(_LETTERS[digit] for digit in digits)
    extents = {digit: n if (n := ranges[digit]) is not None else sizes[digit] for digit in digits}
    if not all(map(_can_emit, trees)):
        return Reason("its mask is computed in a way that is not followed")

    def body(*scalars: ir.Value) -> ir.Value:
        known = dict(zip(inputs, scalars, strict=True))
        score = None
        for mask, tree in list(zip(masks, trees, strict=True))[::-1]:
            value = _emitted(tree, known, output)
            if isinstance(mask, Masked):
                low = constant(mask.score, f32)
                score = constant(0.0, f32) if score is None else score
                score = arith.select(value, *((low, score) if mask.where else (score, low)))
            else:
                score = to_f32(value) if score is None else score + to_f32(value)
        return score

    found = generic(
        [(value, " ".join(_LETTERS[d] for d in own)) for value, own in inputs.values()],
        output,
        f32,
        body,
        sizes={_LETTERS[digit]: size for digit, size in extents.items()},
    )
    whole = [
        product([extents[digit] for digit in group if digit in extents])
        for group in (*lead, [T], [S])
    ]
    own = [loop for loop in lead[0] if loop in extents]
    sharing = math.prod(ranges[loop] or 1 for loop in lead[0] if loop not in own) if own else 1
    return reshape(found, *split(whole)), sharing


def _can_emit(tree: Tree) -> bool:
    """Whether `_emitted` knows all nodes of a tree."""
    return isinstance(tree, Apply | TensorElement | Literal | AffineIndex) and all(
        map(_can_emit, parts(tree))
    )


def _emitted(tree: Tree, known: Mapping[TensorElement, ir.Value], output: str) -> ir.Value:
    """Build the scalar of a tree in the body of a generic operation. `known`: the scalar of each
    tensor that the tree reads. `output`: the letters of the loops of the operation."""
    if isinstance(tree, TensorElement):
        return known[tree]
    if isinstance(tree, Literal):
        return constant(tree.number, tree.type)
    if isinstance(tree, AffineIndex):
        found = _index(tree.at, output)
        same = isinstance(tree.type, ir.IndexType)
        return found if same else arith.index_cast(tree.type, found)
    assert isinstance(tree, Apply)
    inputs = [_emitted(each, known, output) for each in tree.inputs]
    copy = tree.op.clone()
    for number, value in enumerate(inputs):
        copy.operands[number] = value
    return copy.results[0]


def _index(index: ir.AffineExpr, output: str) -> ir.Value:
    """Build an affine expression of loops, as a scalar of type index. Loops that are not in
    `output` have the index 0."""
    loop = dim_of(index)
    if loop is not None:
        letter = _LETTERS[loop]
        return loop_index(output, letter) if letter in output else value_of(0)
    if isinstance(index, ir.AffineConstantExpr):
        return value_of(index.value)
    left, right = (_index(each.maybe_downcast(), output) for each in (index.lhs, index.rhs))
    if isinstance(index, ir.AffineAddExpr):
        return left + right
    if isinstance(index, ir.AffineMulExpr):
        return left * right
    return left // right if isinstance(index, ir.AffineFloorDivExpr) else left % right
