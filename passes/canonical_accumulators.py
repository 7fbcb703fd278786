"""mxc-canonical-accumulators: every sum starts from a fill of zero, as kernels need.

Frontends write the zero that a contraction starts from as a fill, as a constant of the whole
tensor, or as a reshape or a bitcast of one. All become a fill. Another start value, a bias or an
earlier sum, is added after the contraction: kernels start from zero, and compute elementwise
operations that follow before they store. A bias that was broadcast to the shape of the result is
read without the broadcast.

before:
    %big = linalg.broadcast ins(%bias : tensor<Nxf32>) outs(..) dimensions = [0]
    %y = linalg.generic ins(%x, %w, %ws) outs(%big : tensor<MxNxf32>) { scaling_extf, mulf, addf }
after:
    %zero = linalg.fill ins(0.0)
    %p = linalg.generic ins(%x, %w, %ws) outs(%zero) { scaling_extf, mulf, addf }
    %y = linalg.generic {[(m, n) -> (m, n), (m, n) -> (n)]} ins(%p, %bias) { addf }

The sum of a row is rounded in another order than if it started from the addend, as with any kernel.
A sum that starts from -0.0 and adds only negative zeros is -0.0; after this pass it starts from
0.0. The attribute mxc.notes of the module then says so, and the report prints it.

Leaves alone: contractions without scaled sides that start from another value than zero, and
accumulators that are not f32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.decoded_formats import constant_value
from mxc.dialects.generic import element_of, empty, fill, shape_of
from mxc.dialects.indexing import dim_of, trace
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_trees import tree_of
from mxc.dialects.scaled import match_scaled_contraction
from mxc.dialects.sizes import size_of
from mxc.passes.base import Pass, add_note
from mxc.passes.kernels.values import is_zero
from mxc.passes.rewriting.codes import Codes
from mxc.passes.rewriting.rebuild import linalg_operations, sums_floats, sweep

_NEGATIVE_ZERO = "sums from -0.0 start from 0.0: where all products are -0.0 the result is 0.0"


@dataclass(frozen=True)
class CanonicalAccumulators(Pass):
    """Start sums from a fill of zero, and add other start values after the contraction."""

    name = "mxc-canonical-accumulators"

    def run(self, module: ir.Operation) -> None:
        """Rewrite the accumulator of every sum of floats."""
        codes = Codes(module)
        for op in linalg_operations(module):
            if not sums_floats(op):
                continue
            value = op.operands[len(op.operands) - 1]
            start = _constant(value, codes)
            found = match_scaled_contraction(op, rounded=True, mixed=True)
            scaled = not isinstance(found, Reason)
            if start == 0 and math.copysign(1, start) > 0:
                _fill(op)
            elif start == 0 and scaled:
                _fill(op)
                add_note(module, _NEGATIVE_ZERO)
            elif start != 0 and scaled:
                _add(op, value)
        sweep(module)


def _constant(value: ir.Value, codes: Codes) -> float | int | None:
    """The number that fills a whole tensor; None for other tensors."""
    shape = shape_of(value)
    ranges = [size if size >= 0 else None for size in shape]
    loops = [ir.AffineDimExpr.get(i) for i in range(len(shape))]
    return constant_value(tree_of(value, loops, ranges, codes.enter))


def _fill(op: ir.Operation) -> None:
    """Start the sum from a fill of zero."""
    last = len(op.operands) - 1
    value = op.operands[last]
    if not is_zero(value):
        with ir.InsertionPoint(op), op.location:
            op.operands[last] = fill(_sizes(value), element_of(value), 0.0)


def _add(op: ir.Operation, addend: ir.Value) -> None:
    """Start the sum from zero, and add `addend` to the result."""
    result = op.results[0]
    shape = shape_of(result)
    identity = [ir.AffineDimExpr.get(i) for i in range(len(shape))]
    source, at = trace(addend, identity, [size if size >= 0 else None for size in shape])
    if any(dim_of(index) is None for index in at):
        source, at = addend, identity
    with ir.InsertionPoint.after(op), op.location:
        maps = [ir.AffineMap.get(len(shape), 0, each) for each in (identity, at, identity)]
        loops = [linalg.IteratorType.parallel] * len(shape)
        init = empty(_sizes(addend), element_of(result))
        total = linalg.generic([result, source], [init], maps, loops)(
            lambda left, right, _: left + right
        )
    result.replace_all_uses_except(total, total.owner.operation)
    _fill(op)


def _sizes(value: ir.Value) -> list[int | ir.Value]:
    return [size_of(value, axis) for axis in range(len(shape_of(value)))]
