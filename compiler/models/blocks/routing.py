"""Routing: chooses the experts of each token and their shares from the logits of a router.

Letters: T tokens, E experts, J chosen experts per token, G groups of experts.

Sources: transformers' modeling files (5.23) of Mixtral and Qwen3-MoE (softmax), DeepSeek-V3 and
GLM-4.5 (sigmoid, correction bias, groups), DeepSeek-V2 (softmax, groups), MiniMax-M2 and ERNIE 4.5
(correction bias; ERNIE's least divisor), LFM2-MoE (epsilon).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from iree.compiler import ir
from iree.compiler.dialects import arith, math, tensor

from mxc.compiler.models.blocks.gates import sigmoid
from mxc.compiler.models.blocks.primitives import collapse, expand, f32, slice_of
from mxc.dialects.generic import constant, fill, generic, loop_index, shape_of, to_f32
from mxc.dialects.linalg_ext import top_k
from mxc.dialects.sizes import size_of


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The function from logits of a router to chosen experts and shares.

    `scores`: the function that is applied to the logits. `correction`: the name, after the
    mixture's, of a bias [E] that is added to the scores for the choice only; the checkpoint stores
    it as [1, E] with `correction_is_row`. `groups`: number of groups of experts; experts are chosen
    from the best `kept` groups, and the score of a group is the sum of its `counted` best scores.
    `normalized`: the shares of the chosen experts are divided by their sum plus `epsilon`, or by
    the greater of `least`, if given, and the sum. Without correction and groups, softmax scores
    need neither: the shares are the softmax over the chosen experts. `factor`: a factor of all
    shares. `factors`: the name, after the mixture's, of factors [E] of the shares of each
    expert (Gemma 4).
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    correction: str | None = None
    correction_is_row: bool = False
    groups: int = 1
    kept: int = 1
    counted: int = 2
    normalized: bool = True
    epsilon: float = 1e-20
    least: float | None = None
    factor: float = 1.0
    factors: str | None = None

    def build(
        self,
        logits: ir.Value,
        choices: int,
        correction: ir.Value | None = None,
        factors: ir.Value | None = None,
    ) -> tuple[ir.Value, ir.Value]:
        """Logits [T, E] -> (shares f32 [T, J], experts i32 [T, J]).

        choices: J. correction and factors: floats [E].
        """
        shares, experts = self._shares(logits, choices, correction)
        return _scaled(_multiplied(shares, experts, factors), self.factor), experts

    def _shares(
        self, logits: ir.Value, choices: int, correction: ir.Value | None
    ) -> tuple[ir.Value, ir.Value]:
        """Build shares and experts, before the factors."""
        if self.scores == "softmax" and correction is None and self.groups == 1:
            values, experts = top_k(logits, choices)
            # The softmax over the chosen equals the normalized shares of the softmax over all.
            shares = _softmax_of_few(values) if self.normalized else _softmax(values, logits)
            return shares, experts
        if self.scores == "softmax":
            scores = _softmax(logits, logits)
        else:
            scores = generic([(logits, "m e")], "m e", f32(), sigmoid)
        ranked = scores
        if correction is not None:
            ranked = generic(
                [(scores, "m e"), (correction, "e")],
                "m e",
                f32(),
                lambda s, b: arith.addf(s, to_f32(b)),
            )
        if self.groups > self.kept:
            ranked = _of_the_best_groups(ranked, self.groups, self.kept, self.counted)
        _, experts = top_k(ranked, choices)

        def chosen(expert: ir.Value) -> ir.Value:
            place = arith.index_cast(ir.IndexType.get(), expert)
            return tensor.extract(scores, [loop_index("m j", "m"), place])

        shares = generic([(experts, "m j")], "m j", f32(), chosen)
        if self.normalized:
            total = generic([(shares, "m j")], "m", f32(), lambda x, acc: arith.addf(x, acc))
            shares = generic(
                [(shares, "m j"), (total, "m")],
                "m j",
                f32(),
                lambda x, t: arith.divf(x, self._divisor(t)),
            )
        return shares, experts

    def _divisor(self, total: ir.Value) -> ir.Value:
        """Build the divisor of the shares of the chosen experts, whose sum is `total`."""
        if self.least is not None:
            return arith.maximumf(total, constant(self.least, f32()))
        return arith.addf(total, constant(self.epsilon, f32()))


#: Routing by the softmax over the chosen experts.
CHOSEN = Routing()


def _softmax_of_few(values: ir.Value) -> ir.Value:
    """The softmax of rows [T, J], unrolled, because its two short sums would be two kernels."""

    def share(value: ir.Value, *row: ir.Value) -> ir.Value:
        # maxnumf ignores NaN, but the sum of the exponentials propagates it.
        greatest = functools.reduce(arith.maxnumf, row)
        weights = [math.exp(arith.subf(each, greatest)) for each in (value, *row)]
        return arith.divf(weights[0], functools.reduce(arith.addf, weights[1:]))

    each = [(slice_of(values, 1, j), "m") for j in range(shape_of(values)[1])]
    return generic([(values, "m j"), *each], "m j", f32(), share)


def _softmax(values: ir.Value, summed: ir.Value) -> ir.Value:
    """exp(values) divided by the sum of exp(summed), row by row: f32 [T, J].

    The maximum of a row must be the same in `values` and `summed`.
    """
    greatest = _largest(values)

    def exponentials(of: ir.Value) -> ir.Value:
        return generic(
            [(of, "m j"), (greatest, "m")], "m j", f32(), lambda x, t: math.exp(arith.subf(x, t))
        )

    weights = exponentials(values)
    addends = weights if summed == values else exponentials(summed)
    total = generic([(addends, "m j")], "m", f32(), lambda x, acc: arith.addf(x, acc))
    return generic([(weights, "m j"), (total, "m")], "m j", f32(), lambda x, t: arith.divf(x, t))


def _largest(values: ir.Value) -> ir.Value:
    start = fill([size_of(values, 0)], f32(), float("-inf"))
    # maxnumf ignores NaN, but the sum of the exponentials propagates it.
    larger: Callable[..., ir.Value] = arith.maxnumf
    return generic([(values, "m j")], "m", f32(), larger, initial=start)


def _multiplied(shares: ir.Value, experts: ir.Value, factors: ir.Value | None) -> ir.Value:
    """Multiply shares [T, J] by the factors [E] of their experts, if there are factors."""
    if factors is None:
        return shares

    def multiplied(share: ir.Value, expert: ir.Value) -> ir.Value:
        factor = tensor.extract(factors, [arith.index_cast(ir.IndexType.get(), expert)])
        return arith.mulf(share, to_f32(factor))

    return generic([(shares, "m j"), (experts, "m j")], "m j", f32(), multiplied)


def _scaled(shares: ir.Value, factor: float) -> ir.Value:
    if factor == 1.0:
        return shares
    return generic(
        [(shares, "m j")], "m j", f32(), lambda x: arith.mulf(x, constant(factor, f32()))
    )


def _of_the_best_groups(ranked: ir.Value, groups: int, kept: int, counted: int) -> ir.Value:
    """Set ranked [T, E] to -inf for experts outside of the best `kept` groups."""
    tokens, experts = shape_of(ranked)
    size = experts // groups
    split = expand(ranked, [[0], [1, 2]], [tokens, groups, size])
    best, _ = top_k(collapse(split, [[0, 1], [2]]), counted)
    worth = generic([(best, "r j")], "r", f32(), lambda x, acc: arith.addf(x, acc))
    _, chosen = top_k(expand(worth, [[0, 1]], [tokens, groups]), kept)
    i1, i32 = ir.IntegerType.get_signless(1), ir.IntegerType.get_signless(32)

    def found(group: ir.Value, acc: ir.Value) -> ir.Value:
        here = arith.index_cast(i32, loop_index("m g j", "g"))
        return arith.ori(acc, arith.cmpi(arith.CmpIPredicate.eq, group, here))

    inside = generic(
        [(chosen, "m j")],
        "m g",
        i1,
        found,
        sizes={"g": groups},
        initial=fill([size_of(ranked, 0), groups], i1, 0),
    )

    def masked(value: ir.Value, keep: ir.Value) -> ir.Value:
        return arith.select(keep, value, constant(float("-inf"), f32()))

    kept_only = generic([(split, "m g e"), (inside, "m g")], "m g e", f32(), masked)
    return collapse(kept_only, [[0], [1, 2]])
