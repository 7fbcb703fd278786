"""Attention over dense keys and values: a named operation.

B sequences have T queries and S keys each; V key/value heads serve G query heads each.

    products = queries . keys                          [B, T, V, G, S]
    scores   = scale * products + mask                 -inf where causal, and s > t; or mask alone
    maximum  = greatest of scores, and LOWEST          [B, T, V, G]
    weights  = exp(scores - maximum)
    result   = weights . values / sum of weights       [B, T, V, G, M]; 0 where no weight is left
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, math, tensor

from mxc.dialects import named_operations
from mxc.dialects.generic import constant, generic, loop_index, shape_of, to_f32
from mxc.dialects.named_operations import PRODUCT, NamedCall

#: The operation's name.
DENSE_ATTENTION = "dense_attention"

#: The smallest maximum and the smallest divisor: a row without a key has the result zero.
LOWEST = float(np.finfo(np.float32).min)
SMALLEST = float(np.finfo(np.float32).tiny)

#: A masked score of at most this much has the weight zero beside any other score. Programs mask by
#: -1e9, also as a bf16, by the lowest number of a type, or by -inf.
LOW = -0.9e9

_QUERIES, _SCORES, _ROWS, _RESULT = "b t h g d", "b t h g s", "b t h g", "b t h g m"


@dataclass(frozen=True)
class DenseAttentionCall:
    """A call of the operation, with its operands and options as `dense_attention` describes
    them."""

    op: ir.Operation
    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    mask: ir.Value | None
    sharing: int
    replaces: float | None
    causal: bool
    scale: float


def dense_attention(
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    mask: ir.Value | None = None,
    *,
    sharing: int = 1,
    replaces: float | None = None,
    causal: bool,
    scale: float,
) -> ir.Value:
    """softmax(scale * q k + mask) v: f32 [B, T, V, G, M].

    queries f32 [B, T, V, G, D]; keys [B, S, V, D] and values [B, S, V, M], floats. `mask` f32
    [B / `sharing`, V * G, T, S] is added to scores. `sharing` consecutive sequences have one mask;
    where a size of the mask is 1, all sequences, heads or queries share it. `replaces`: a mask
    value of at most this replaces the score, even a NaN. `causal`: query t attends to the keys
    0 .. t.
    """
    sizes = [*shape_of(queries)[:-1], shape_of(values)[-1]]
    options: dict[str, ir.Attribute] = {"scale": ir.FloatAttr.get_f32(scale)}
    if causal:
        options["causal"] = ir.UnitAttr.get()
    if replaces is not None:
        options["replaces"] = ir.FloatAttr.get_f32(replaces)
    if sharing != 1:
        options["sharing"] = ir.IntegerAttr.get(ir.IndexType.get(), sharing)

    def reference(*given: ir.Value) -> list[ir.Value]:
        return [_reference(given, sharing, replaces, causal, scale)]

    (result,) = named_operations.call(
        DENSE_ATTENTION,
        [queries, keys, values] + ([] if mask is None else [mask]),
        [ir.RankedTensorType.get(sizes, ir.F32Type.get())],
        reference,
        options=options,
        sizes=[(0, axis) for axis, size in enumerate(sizes) if size < 0],
    )
    return result


def with_mask(score: ir.Value, mask: ir.Value, *, replaces: float | None) -> ir.Value:
    """Apply the mask to scores, f32 or vectors of f32; `replaces`: see `dense_attention`."""
    found = score + mask
    if replaces is None:
        return found
    low = arith.cmpf(arith.CmpFPredicate.OLE, mask, constant(replaces, mask.type))
    return arith.select(low, mask, found)


def dense_attention_calls(module: ir.Operation) -> Iterator[DenseAttentionCall]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
    for found in named_operations.calls(module, DENSE_ATTENTION):
        yield _read(found)


def _read(found: NamedCall) -> DenseAttentionCall:
    queries, keys, values, *mask = found.op.operands
    return DenseAttentionCall(
        op=found.op,
        queries=queries,
        keys=keys,
        values=values,
        mask=mask[0] if mask else None,
        sharing=found.options["sharing"].value if "sharing" in found.options else 1,
        replaces=found.options["replaces"].value if "replaces" in found.options else None,
        causal="causal" in found.options,
        scale=found.options["scale"].value,
    )


def _reference(
    given: tuple[ir.Value, ...],
    sharing: int,
    replaces: float | None,
    causal: bool,
    scale: float,
) -> ir.Value:
    queries, keys, values, *masks = given
    f32, index = ir.F32Type.get(), ir.IndexType.get()

    def product(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        return total + to_f32(left) * to_f32(right)

    products = generic([(queries, _QUERIES), (keys, "b s h d")], _SCORES, f32, product)
    products.owner.attributes[PRODUCT] = ir.UnitAttr.get()

    def score(product: ir.Value) -> ir.Value:
        sequence, query, head, member, key = (loop_index(_SCORES, letter) for letter in "bthgs")
        found = product * scale
        for mask in masks:
            at = [sequence // sharing, head * shape_of(queries)[3] + member, query, key]
            zero = constant(0, index)
            at = [zero if n == 1 else each for n, each in zip(shape_of(mask), at, strict=True)]
            found = with_mask(found, tensor.extract(mask, at), replaces=replaces)
        if not causal:
            return found
        seen = arith.cmpi(arith.CmpIPredicate.sle, key, query)
        return arith.select(seen, found, constant(float("-inf"), f32))

    scores = generic([(products, _SCORES)], _SCORES, f32, score)
    maximum = generic(
        [(scores, _SCORES)], _ROWS, f32, lambda x, top: arith.maxnumf(x, top), initial=LOWEST
    )
    weights = generic(
        [(scores, _SCORES), (maximum, _ROWS)], _SCORES, f32, lambda x, top: math.exp(x - top)
    )
    total = generic([(weights, _SCORES)], _ROWS, f32, lambda x, acc: x + acc)
    sums = generic([(weights, _SCORES), (values, "b s h m")], _RESULT, f32, product)
    sums.owner.attributes[PRODUCT] = ir.UnitAttr.get()
    least = constant(SMALLEST, f32)
    return generic(
        [(sums, _RESULT), (total, _ROWS)], _RESULT, f32, lambda x, t: x / arith.maximumf(t, least)
    )
