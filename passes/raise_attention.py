"""mxc-raise-attention: attention that a program writes out becomes the named operation.

Frontends write attention as a product, a softmax and a product, with a scale and with masks in
different forms, and with copies that bring operands to the order of a batch of matrices. This pass
recognizes it (passes/rewriting/attention_forms.py). Queries become f32; keys and values are read
where they are copied from, so that heads that share them are known. A mask of conditions on the
numbers of queries and keys, that of causal attention, becomes an option; other masks become one
tensor that is added to scores.

before:
    %s = linalg.batch_matmul ins(%q, %kt)
    %m = linalg.generic ins(%s) { maximumf }                    // over keys
    %e = linalg.generic ins(%s, %m) { exp (subf %s, %m) }
    %t = linalg.generic ins(%e) { addf }                        // over keys
    %w = linalg.generic ins(%e, %t) { divf }
    %y = linalg.batch_matmul ins(%w, %v)
after:
    %y = util.call @mxc.dense_attention(%q, %k, %v)

Rows whose scores are all -inf have the result zero afterwards. Roundings of scores and weights to
bf16 or f16 are left out. Where a program says otherwise, a note says so.

Leaves alone: a softmax in another form, which gets the reason; a dynamic number of sequences or
heads; queries with several loops, as those of heads in a loop of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects import named_operations
from mxc.dialects.decoded_formats import CodeTable, variables
from mxc.dialects.dense_attention import dense_attention
from mxc.dialects.generic import constant, element_of, generic, loop_index
from mxc.dialects.indexing import dim_of, trace
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.pages import to_f32
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
from mxc.dialects.sizes import Size, product, size_of, split
from mxc.passes.base import Pass, add_note
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.rewriting.attention_forms import (
    LOW,
    AttentionForm,
    D,
    G,
    M,
    Masked,
    N,
    S,
    SoftmaxProduct,
    T,
    V,
    attention_form,
    softmax_product,
)
from mxc.passes.rewriting.digits import arranged, digits_of, number_of, simplified, split_digits
from mxc.passes.rewriting.rebuild import linalg_operations, replace, sweep

#: Most elements of a mask that is evaluated, and most nodes of its tree.
_MOST_PLACES, _MOST_NODES = 1 << 24, 1 << 10
_LETTERS = "nvgtsdm"
#: Notes for users on the numbers.
_ROUNDED = "attention: scores and weights stay f32 where the program rounds them to {}"
_EMPTY = (
    "attention: a query whose keys are all masked by -inf gives zeros where the program gives NaN"
)


@dataclass(frozen=True)
class RaiseAttention(Pass):
    """Rewrite attention to calls of the named operation."""

    name = "mxc-raise-attention"

    def run(self, module: ir.Operation) -> None:
        """Rewrite all attention that is recognized; the rest gets the reason."""
        for op in linalg_operations(module):
            product = softmax_product(op)
            if product is None or named_operations.is_inside(op):
                continue
            found = _raised(product)
            if isinstance(found, Reason):
                write_reason(op, Reason(f"it is attention in another form: {found.text}"))
                continue
            replace(op, found.result)
            for note in found.notes:
                add_note(module, note)
        sweep(module)


@dataclass(frozen=True)
class _Raised:
    """The result of a call, and what it computes otherwise than the program says."""

    result: ir.Value
    notes: tuple[str, ...]


def _raised(product: SoftmaxProduct) -> _Raised | Reason:
    """The result of the call that replaces a contraction."""
    reasons = []
    # Where copies are more than those of heads, the operands of the contractions are taken.
    for traced, grouped in ((True, False), (True, True), (False, False)):
        found = _called(product, traced=traced, grouped=grouped)
        if isinstance(found, _Raised):
            return found
        reasons.append(found)
    return reasons[0]


def _called(product: SoftmaxProduct, *, traced: bool, grouped: bool) -> _Raised | Reason:
    form = attention_form(product, traced=traced, grouped=grouped)
    if isinstance(form, Reason):
        return form
    with ir.InsertionPoint(product.op), product.op.location:
        return _call(form)


def _call(form: AttentionForm) -> _Raised | Reason:
    """The call of a form and its result, at the insertion point; else the reason."""
    ranges, operands = form.ranges, []
    # Heads that are outside of keys are sequences of one head.
    sequences, heads = ([N], [V]) if form.inner else ([N, V], [])
    for side, groups in (
        (form.queries, [sequences, [T], heads, [G], [D]]),
        (form.keys, [sequences, [S], heads, [D]]),
        (form.values, [sequences, [S], heads, [M]]),
    ):
        operand = arranged(side.value, side.at, groups, ranges)
        if operand is None:
            return Reason("an operand is copied in a way that is not followed")
        operands.append(operand)
    queries, keys, values = operands
    sizes = {T: size_of(queries, 1), S: size_of(keys, 1)}
    causal, masks = False, []
    for mask in form.masks:
        hidden = _hidden(mask, ranges)
        if hidden is None:
            masks.append(mask)
        elif np.array_equal(hidden, np.triu(np.ones_like(hidden), 1)):
            causal = True
        elif hidden.any():
            masks.append(mask)
    lead = (sequences, [*heads, G])
    added = _mask(masks, ranges, sizes, lead) if masks else None
    if isinstance(added, Reason):
        return added
    f32 = ir.F32Type.get()
    if element_of(queries) != f32:
        queries = generic([(queries, "n t v g d")], "n t v g d", f32, to_f32)
    result = dense_attention(queries, keys, values, added, causal=causal, scale=form.scale)
    order = [digits_of(index, ranges) or [] for index in form.result]
    at = [number_of(group, ranges) for group in (sequences, [T], heads, [G], [M])]
    whole = arranged(result, at, order, ranges)
    if whole is None:
        return Reason("its result is in an order that is not followed")
    notes = [_ROUNDED.format(kind) for kind in form.rounded]
    # Weights are NaN where all scores of a query are -inf.
    if not form.guarded and any(not isinstance(m, Masked) or m.score == -inf for m in masks):
        notes.append(_EMPTY)
    return _Raised(whole, tuple(notes))


def _hidden(mask: Tree | Masked, ranges: Sequence[int | None]) -> NDArray[np.bool_] | None:
    """Which keys [T, S] a mask hides from queries, where these numbers decide it alone; else
    None."""
    tokens, keys = ranges[T], ranges[S]
    if tokens is None or keys is None or tokens * keys > _MOST_PLACES:
        return None
    tree = _computed(mask.condition if isinstance(mask, Masked) else mask, ranges)
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
        return np.asarray((values != 0) == mask.where)
    low = np.asarray(values <= LOW)
    return low if (low | (values == 0)).all() else None


def _computed(tree: Tree, ranges: Sequence[int | None]) -> Tree:
    """A tree of which reads are computed further, as far as operations are elementwise."""
    left = iter(range(_MOST_NODES))
    if isinstance(tree, TensorElement):
        at = [simplified(index, ranges) for index in tree.at]
        return tree_of(tree.value, at, ranges, lambda value: next(left, None) is not None)
    if isinstance(tree, Apply):
        return Apply(tree.op, tuple(_computed(each, ranges) for each in tree.inputs))
    return tree


def _mask(
    masks: Sequence[Tree | Masked],
    ranges: Sequence[int | None],
    sizes: dict[int, Size],
    lead: tuple[list[int], list[int]],
) -> ir.Value | Reason:
    """The sum of masks, f32 [sequences, heads, T, S], where sizes in which they do not differ are
    1. `lead`: the loops of sequences and of heads."""
    trees = [mask.condition if isinstance(mask, Masked) else mask for mask in masks]
    inputs: dict[TensorElement, tuple[ir.Value, list[int]]] = {}
    for read in (read for tree in trees for read in reads(tree)):
        found = split_digits(*trace(read.value, read.at, ranges), ranges)
        if found is None or not set(found[1]) <= {N, V, G, T, S}:
            return Reason("its mask is read in a way that is not followed")
        inputs[read] = found
    used = {digit for _, digits in inputs.values() for digit in digits} | {S}
    used |= {loop for tree in trees for index in variables(tree) for loop in loops_of([index])}
    for group in lead:
        # All digits up to the last that is used.
        used |= {digit for at, digit in enumerate(group) if used & set(group[at:])}
    used |= set(lead[1]) if used & set(lead[1]) else set()
    digits = [digit for digit in (N, V, G, T, S) if digit in used and ranges[digit] != 1]
    output = " ".join(_LETTERS[digit] for digit in digits)
    extents = {digit: n if (n := ranges[digit]) is not None else sizes[digit] for digit in digits}
    if not all(map(_can_emit, trees)):
        return Reason("its mask is computed in a way that is not followed")

    def body(*scalars: ir.Value) -> ir.Value:
        known = dict(zip(inputs, scalars, strict=True))
        total = None
        for mask, tree in zip(masks, trees, strict=True):
            value = _emitted(tree, known, output)
            if isinstance(mask, Masked):
                low, none = (constant(number, ir.F32Type.get()) for number in (mask.score, 0.0))
                sides = (low, none) if mask.where else (none, low)
                value = arith.select(value, *sides)
            total = to_f32(value) if total is None else total + to_f32(value)
        return total

    found = generic(
        [(value, " ".join(_LETTERS[d] for d in own)) for value, own in inputs.values()],
        output,
        ir.F32Type.get(),
        body,
        sizes={_LETTERS[digit]: size for digit, size in extents.items()},
    )
    whole = [
        product([extents[digit] for digit in group if digit in extents])
        for group in (*lead, [T], [S])
    ]
    return reshape(found, *split(whole))


def _can_emit(tree: Tree) -> bool:
    return isinstance(tree, Apply | TensorElement | Literal | AffineIndex) and all(
        map(_can_emit, parts(tree))
    )


def _emitted(tree: Tree, known: Mapping[TensorElement, ir.Value], output: str) -> ir.Value:
    """The scalar of a tree, in the body of a generic operation with these loops."""
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
    """An affine expression of loops, of type index."""
    loop = dim_of(index)
    if loop is not None:
        letter = _LETTERS[loop]
        return loop_index(output, letter) if letter in output else _place(0)
    if isinstance(index, ir.AffineConstantExpr):
        return _place(index.value)
    left, right = (_index(each.maybe_downcast(), output) for each in (index.lhs, index.rhs))
    if isinstance(index, ir.AffineAddExpr):
        return left + right
    if isinstance(index, ir.AffineMulExpr):
        return left * right
    return left // right if isinstance(index, ir.AffineFloorDivExpr) else left % right


def _place(number: int) -> ir.Value:
    return constant(number, ir.IndexType.get())
