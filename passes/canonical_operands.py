"""mxc-canonical-operands: write each scaled contraction in the one order of dialects/scaled.py.

The order of operands decides which instruction IREE selects: with (a, a_scale, b, b_scale) there is
no scaled matrix instruction on gfx950, with (a, b, a_scale, b_scale) there is.

before:
    linalg.generic {iterator_types = ["reduction", "parallel", "parallel", "reduction"]}
      ins(%w_scale, %w, %x) outs(%acc)
      { mulf(extf(%w), extf(%w_scale)), mulf, addf }
after:
    linalg.generic {iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %w_scale) outs(%acc)
      { scaling_extf(%w, %w_scale), mulf(%x, _), addf(%acc, _) }

Leaves alone: a generic that is no scaled contraction, and the order of the dimensions within each
operand, which is the order of bytes in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.indexing import substitute
from mxc.dialects.scaled import ScaledContraction, contraction_into, match_scaled_contraction
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import discardable, linalg_operations, replace, sweep


@dataclass(frozen=True)
class CanonicalOperands(Pass):
    """Write each scaled contraction in the canonical order of operands, loops and body."""

    name = "mxc-canonical-operands"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every scaled contraction that is not canonical."""
        for op in linalg_operations(module):
            found = match_scaled_contraction(op)
            if found is not None and not found.is_canonical:
                _rewrite(found)
        sweep(module)


def _rewrite(found: ScaledContraction) -> None:
    order = found.loops.order
    loops = [ir.AffineDimExpr.get(order.index(i)) for i in range(len(order))]
    maps = [
        ir.AffineMap.get(len(order), 0, [substitute(e, loops) for e in affine.results])
        for affine in found.maps
    ]
    with ir.InsertionPoint(found.op), found.op.location:
        new = contraction_into(
            found.lhs, found.rhs, found.lhs_scale, found.rhs_scale, found.acc, maps
        )
    for name in discardable(found.op):
        new.owner.attributes[name] = found.op.attributes[name]
    replace(found.op, new)
