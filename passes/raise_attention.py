"""mxc-raise-attention: attention that a program writes out becomes the named operation.

Frontends write attention as a product, a softmax and a product, with a scale and with masks in
different forms, and with copies that bring operands to the order of a batch of matrices. This pass
recognizes it (passes/rewriting/attention_forms.py). Queries become f32; keys and values are read
where they are copied from, so that heads that share them are known. A mask of conditions on the
numbers of queries and keys, that of causal attention, becomes an option; other masks become one
tensor that is added to scores, or replaces them (passes/rewriting/attention_masks.py).

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

Leaves alone: a softmax in another form, or with a sum or a maximum that starts from another number,
which gets the reason; a dynamic number of heads; queries with more loops than tokens and heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import inf

from iree.compiler import ir

from mxc.dialects import named_operations
from mxc.dialects.dense_attention import LOW, dense_attention
from mxc.dialects.generic import element_of, generic, to_f32
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import quotient, size_of
from mxc.passes.base import Pass, add_note
from mxc.passes.rewriting.attention_forms import (
    AttentionForm,
    Masked,
    SoftmaxProduct,
    attention_form,
    softmax_product,
)
from mxc.passes.rewriting.attention_loops import D, G, M, N, S, T, V
from mxc.passes.rewriting.attention_masks import mask_tensor, without_causal
from mxc.passes.rewriting.digits import arranged, digits_of, number_of
from mxc.passes.rewriting.rebuild import linalg_operations, replace, sweep

#: Notes for users on the numbers.
_ROUNDED = "attention: scores and weights stay f32 where the program rounds them to {}"
_EMPTY = (
    "attention: a query whose keys are all masked by -inf gives zeros where the program gives NaN"
)
_LEFT_OUT = (
    f"attention: a score that is NaN counts for nothing where a mask adds at most {LOW:g} to it, "
    "for other masks choose scores"
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
    """The result of a call. `notes`: where it differs from what the program says."""

    result: ir.Value
    notes: tuple[str, ...]


def _raised(product: SoftmaxProduct) -> _Raised | Reason:
    """Build the call that computes the attention that a contraction ends, or return the reason why
    there is none."""
    reasons = []
    # If operands cannot be taken from before their copies, those of the contractions are taken.
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
    """Build the call of a form at the insertion point, or return the reason why there is none."""
    ranges, operands = form.ranges, []
    # If heads lie outside of keys, [N, V, S, ..], each head becomes a sequence with one head.
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
    inside = math.prod(ranges[loop] or 1 for loop in sequences[1:])
    sizes = {N: quotient(size_of(queries, 0), inside), T: size_of(queries, 1), S: size_of(keys, 1)}
    causal, masks = without_causal(form.masks, ranges)
    mask, sharing = None, 1
    if masks:
        made = mask_tensor(masks, ranges, sizes, (sequences, [*heads, G]))
        if isinstance(made, Reason):
            return made
        mask, sharing = made
    f32 = ir.F32Type.get()
    if element_of(queries) != f32:
        queries = generic([(queries, "n t v g d")], "n t v g d", f32, to_f32)
    chosen = [mask.score for mask in masks if isinstance(mask, Masked)]
    mixed = 0 < len(chosen) < len(masks)
    if mixed and max(chosen) > LOW:
        return Reason(f"a mask chooses the score {max(chosen):g}, and another one adds to scores")
    result = dense_attention(
        queries,
        keys,
        values,
        mask,
        sharing=sharing,
        replaces=(LOW if mixed else max(chosen)) if chosen else None,
        causal=causal,
        scale=form.scale,
    )
    order = [digits_of(index, ranges) or [] for index in form.result]
    at = [number_of(group, ranges) for group in (sequences, [T], heads, [G], [M])]
    whole = arranged(result, at, order, ranges)
    if whole is None:
        return Reason("its result is in an order that is not followed")
    notes = [_ROUNDED.format(kind) for kind in form.rounded]
    # Weights are NaN where all scores of a query are -inf.
    if not form.guarded and any(not isinstance(m, Masked) or m.score == -inf for m in masks):
        notes.append(_EMPTY)
    if mixed:
        notes.append(_LEFT_OUT)
    return _Raised(whole, tuple(notes))
