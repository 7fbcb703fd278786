"""Normalization over the last dimension: RMS norm, layer norm, and their variants.

Sources: transformers' modeling files (5.23) of Llama (RMS), Gemma (stores weight - 1), Cohere 2 and
Starcoder 2 (layer norm, without and with a bias).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.compiler.models.blocks.parameters import Dim, Parameter, Split, vector
from mxc.compiler.models.blocks.primitives import f32, slice_of
from mxc.compiler.models.blocks.weights import Weights
from mxc.dialects.generic import constant, generic, shape_of, to_f32
from mxc.dialects.row_norms import row_norm


@dataclass(frozen=True, kw_only=True)
class Norm:
    """x * rsqrt(mean(x^2) + epsilon) * (offset + weight) + bias.

    `centered`: the mean of x is subtracted first, which makes it a layer norm. `offset` is added to
    the checkpoint's weight (Gemma stores weight - 1).
    """

    epsilon: float
    centered: bool = False
    offset: float = 0.0
    bias: bool = False

    def parameters(
        self, name: str, size: Dim, *, split: Split | None = None
    ) -> Iterator[Parameter]:
        """Yield the parameters `name`.weight and, if the norm has a bias, `name`.bias."""
        yield vector(f"{name}.weight", size, split=split)
        if self.bias:
            yield vector(f"{name}.bias", size, split=split)

    def build(self, weights: Weights, x: ir.Value, name: str, *, named: bool = False) -> ir.Value:
        """Build the norm of x [.., H], of rank 2 or 3: f32 of the same shape.

        named: build an RMS norm of rank 2 without bias as a named operation, which kernels compute.
        """
        *lead, width = shape_of(x)
        weight = weights.load(f"{name}.weight", width)
        bias = [weights.load(f"{name}.bias", width)] if self.bias else []
        with ir.Location.name(name):
            if named and not self.centered and not self.bias and len(lead) == 1:
                numbers = {"epsilon": self.epsilon, "offset": self.offset}
                return row_norm(x, weight, self._normed, **numbers)
            return self._normed(x, weight, *bias)

    def squares(self, x: ir.Value) -> ir.Value:
        """Build the sum of squares of each row of x [T, H], a part of the columns: [T, 1]."""
        assert not self.centered
        loops = [(x, "m k")]
        one = {"o": 1}
        return generic(
            loops, "m o", f32(), lambda a, acc: arith.addf(acc, arith.mulf(a, a)), sizes=one
        )

    def build_part(
        self, weights: Weights, x: ir.Value, squares: ir.Value, width: int, name: str
    ) -> ir.Value:
        """Build the norm of x [T, H], columns of rows of `width` with sums `squares` [T, 1]."""
        weight = weights.load(f"{name}.weight", shape_of(x)[1])
        with ir.Location.name(name):
            return self._scaled(x, slice_of(squares, 1, 0), width, weight)

    def _normed(self, x: ir.Value, weight: ir.Value, *bias: ir.Value) -> ir.Value:
        *lead, width = shape_of(x)
        rows = " ".join("mh"[: len(lead)])
        whole = f"{rows} k"
        if self.centered:
            sums = generic([(x, whole)], rows, f32(), lambda a, acc: arith.addf(acc, a))
            x = generic(
                [(x, whole), (sums, rows)],
                whole,
                f32(),
                lambda a, total: arith.subf(a, _mean(total, width)),
            )
        squares = generic(
            [(x, whole)], rows, f32(), lambda a, acc: arith.addf(acc, arith.mulf(a, a))
        )
        return self._scaled(x, squares, width, weight, *bias)

    def _scaled(
        self, x: ir.Value, squares: ir.Value, width: int, weight: ir.Value, *bias: ir.Value
    ) -> ir.Value:
        """Scale x [.., H] by the weight over the root of the mean of `width` squares."""
        rows = " ".join("mh"[: len(shape_of(squares))])
        whole = f"{rows} k"

        def normalized(a: ir.Value, total: ir.Value, w: ir.Value, *b: ir.Value) -> ir.Value:
            variance = arith.addf(_mean(total, width), constant(self.epsilon, f32()))
            factor = to_f32(w)
            if self.offset:
                factor = arith.addf(constant(self.offset, f32()), factor)
            y = arith.mulf(factor, arith.mulf(a, math.rsqrt(variance)))
            return arith.addf(y, to_f32(b[0])) if b else y

        operands = [(x, whole), (squares, rows), (weight, "k"), *((b, "k") for b in bias)]
        return generic(operands, whole, f32(), normalized)


def _mean(total: ir.Value, width: int) -> ir.Value:
    return arith.divf(total, constant(float(width), f32()))
