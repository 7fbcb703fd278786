"""mxc-widen-sums: sums and products of bf16 and f16 are accumulated in f32, and rounded once.

A layer norm of a model in bf16 is the mean of thousands of numbers. Where each step is rounded to 8
bits, the mean is off by a hundredth. torch, onnxruntime and XLA accumulate in f32.

before:
    %y = linalg.generic ins(%x) outs(%start : bf16) { arith.addf %out, %x : bf16 }
after:
    %wide = linalg.generic ins(%start) { arith.extf }          or a fill, where %start is one
    %sum = linalg.generic ins(%x) outs(%wide : f32) { arith.extf, arith.addf : f32 }
    %y = linalg.generic ins(%sum) { arith.truncf : bf16 }

A term that is a product is not rounded either, because f32 holds it.

Leaves alone: accumulators of other types, results that are the largest or the least of elements,
operations with several results, and those that read scalars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dequantize import is_made_by
from mxc.dialects.generic import fill, generic
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.sizes import axes_of, sizes_of
from mxc.passes.base import Pass
from mxc.passes.kernels.values import is_zero
from mxc.passes.rewriting.generics import generic_like, yielded
from mxc.passes.rewriting.rebuild import (
    OperandRead,
    clone_scalar,
    linalg_operations,
    replace,
    sums_floats,
    sweep,
)

_NARROW = ("bf16", "f16")
_STEPS = {"arith.addf": arith.addf, "arith.mulf": arith.mulf}


@dataclass(frozen=True)
class WidenSums(Pass):
    """Accumulate sums and products of bf16 and f16 in f32."""

    name = "mxc-widen-sums"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every reduction by sum or product in bf16 or f16."""
        for op in linalg_operations(module):
            tensors = all(isinstance(each.type, ir.RankedTensorType) for each in op.operands)
            if tensors and len(op.results) == 1 and sums_floats(op):
                _widen(op)
        sweep(module)


def _widen(op: ir.Operation) -> None:
    """Rewrite `op` to accumulate in f32, if its body adds one term to the accumulator, or
    multiplies it by one, in bf16 or f16."""
    total, (*given, accumulator) = yielded(op), op.regions[0].blocks[0].arguments
    if str(total.type) not in _NARROW or isinstance(total, ir.BlockArgument):
        return
    step = total.owner
    terms = [value for value in step.operands if value != accumulator]
    if step.name not in _STEPS or len(terms) != 1 or len(list(accumulator.uses)) != 1:
        return
    term, narrow = terms[0], total.type
    is_product = is_made_by(term, "arith.mulf")

    def body(scalars: Sequence[ir.Value]) -> ir.Value:
        at = dict(zip(given, scalars, strict=False))
        factors = term.owner.operands if is_product else [term]
        wide = [arith.extf(ir.F32Type.get(), clone_scalar(each, at)) for each in factors]
        whole = wide[0] * wide[1] if is_product else wide[0]
        return _STEPS[step.name](scalars[-1], whole)

    *inputs, start = op.operands
    maps = indexing_maps(op)
    reads = [OperandRead(value, affine) for value, affine in zip(inputs, maps, strict=False)]
    with ir.InsertionPoint(op), op.location:
        result = generic_like(op, reads, _widened(start), body)
        axes = axes_of(result)
        rounded = generic([(result, axes)], axes, narrow, lambda x: arith.truncf(narrow, x))
    replace(op, rounded)


def _widened(start: ir.Value) -> ir.Value:
    """Build the initial value of a sum in f32."""
    wide = ir.F32Type.get()
    if is_zero(start):
        return fill(sizes_of(start), wide, 0.0)
    axes = axes_of(start)
    return generic([(start, axes)], axes, wide, lambda x: arith.extf(wide, x))
