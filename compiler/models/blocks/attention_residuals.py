"""Attention residuals: each part of a layer reads a mixture of earlier values of the stream.

    x        = the sum of what the parts of layers return, from the beginning of the block of
               `period` layers on; before the first block, the embeddings
    values   = x before each block that has begun, then x itself, if it has an addend already
    score    = sum over k of proj[k] norm(value)[k]
    read     = sum of the values, weighted by the softmax of their scores     [T, H]

Attention, MLP and the head each have a norm and a projection of their own. The first block's
attention reads the embeddings. Source: the code in moonshotai/Kimi-K3 (_apply_attn_res).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.norms import Norm
from mxc.compiler.models.blocks.parameters import CheckpointRows, Dim, Parameter
from mxc.compiler.models.blocks.primitives import f32
from mxc.compiler.models.blocks.scope import Scope
from mxc.dialects.generic import constant, generic, to_f32


@dataclass(frozen=True, kw_only=True)
class AttentionResiduals:
    """The mixtures of a model whose blocks have `period` layers; `norm`: the norm of values."""

    period: int
    norm: Norm

    #: Names of the mixtures that attention, MLP and the head read.
    attention: ClassVar[str] = "self_attention_res"
    mlp: ClassVar[str] = "mlp_res"
    head: ClassVar[str] = "output_attn_res"

    def begins(self, layer: int) -> bool:
        """Whether a block begins at layer number `layer`."""
        return layer % self.period == 0

    def parameters(self, name: str, hidden: Dim) -> Iterator[Parameter]:
        """Yield the parameters of the mixture `name`: its norm, and its projection [H]."""
        yield from self.norm.parameters(f"{name}_norm", hidden)
        key = f"{name}_proj.weight"
        rows = (CheckpointRows(tensor=key, dims=(("one", 1), hidden)),)
        yield Parameter(key=key, shape=(hidden[1],), rows=rows)

    def build(self, scope: Scope, values: Sequence[ir.Value], name: str, width: int) -> ir.Value:
        """Build the mixture `name` of `values`, each f32 [T, H] with H = `width`: f32 [T, H]."""
        if len(values) == 1:
            return values[0]
        norm, proj = (
            scope.weights.load(f"{name}_{part}.weight", width) for part in ("norm", "proj")
        )
        with ir.Location.name(name):
            scores = [self._score(value, norm, proj, width) for value in values]
            return _mixture(values, scores)

    def _score(self, value: ir.Value, norm: ir.Value, proj: ir.Value, width: int) -> ir.Value:
        """The score f32 [T] of a value f32 [T, H]."""
        squares = generic(
            [(value, "m k")], "m", f32(), lambda a, acc: arith.addf(acc, arith.mulf(a, a))
        )

        def weighted(a: ir.Value, n: ir.Value, p: ir.Value, acc: ir.Value) -> ir.Value:
            return arith.addf(acc, arith.mulf(a, arith.mulf(to_f32(n), to_f32(p))))

        sums = generic([(value, "m k"), (norm, "k"), (proj, "k")], "m", f32(), weighted)

        def score(total: ir.Value, square: ir.Value) -> ir.Value:
            mean = arith.divf(square, constant(float(width), f32()))
            return arith.mulf(
                total, math.rsqrt(arith.addf(mean, constant(self.norm.epsilon, f32())))
            )

        return generic([(sums, "m"), (squares, "m")], "m", f32(), score)


def _mixture(values: Sequence[ir.Value], scores: Sequence[ir.Value]) -> ir.Value:
    """The sum of values [T, H], weighted by the softmax of scores [T]: f32 [T, H]."""

    def share(number: int, *own: ir.Value) -> ir.Value:
        most = reduce(arith.maximumf, own)
        powers = [math.exp(arith.subf(each, most)) for each in own]
        return arith.divf(powers[number], reduce(arith.addf, powers))

    rows = [(score, "m") for score in scores]
    shares = [
        (generic(rows, "m", f32(), partial(share, number)), "m") for number in range(len(scores))
    ]

    def mixed(*given: ir.Value) -> ir.Value:
        count = len(values)
        return reduce(arith.addf, map(arith.mulf, given[:count], given[count:]))

    return generic([*((value, "m n") for value in values), *shares], "m n", f32(), mixed)
