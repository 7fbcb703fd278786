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

from mxc.dialects.decoded_formats import constant_value
from mxc.dialects.generic import shape_of
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_trees import tree_of
from mxc.dialects.scaled import match_scaled_contraction
from mxc.passes.base import Pass, add_note
from mxc.passes.rewriting.codes import Codes
from mxc.passes.rewriting.rebuild import linalg_operations, sums_floats, sweep
from mxc.passes.rewriting.starts import add_after, fill_start

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
                fill_start(op)
            elif start == 0 and scaled:
                fill_start(op)
                add_note(module, _NEGATIVE_ZERO)
            elif start != 0 and scaled:
                add_after(op)
        sweep(module)


def _constant(value: ir.Value, codes: Codes) -> float | int | None:
    """The number that all elements of a tensor are equal to, found without its values in memory;
    None for other tensors."""
    shape = shape_of(value)
    ranges = [size if size >= 0 else None for size in shape]
    loops = [ir.AffineDimExpr.get(i) for i in range(len(shape))]
    return constant_value(tree_of(value, loops, ranges, codes.enter))
