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

An operand whose dimensions are in another order than the loops, weights [K, N] or scales
[K / 32, N], is transposed before: kernels read rows. The attribute mxc.notes of the module says so.

Leaves alone: a generic that is no scaled contraction; operands of less than 8 bits an element in
another order, of which a transpose would cut bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import element_of
from mxc.dialects.indexing import dims, substitute
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_operations import bits_of
from mxc.dialects.scaled import ScaledContraction, contraction_into, match_scaled_contraction
from mxc.passes.base import Pass, add_note
from mxc.passes.rewriting.rebuild import discardable, linalg_operations, replace, sweep
from mxc.passes.rewriting.transposes import transposed

_BYTE = 8
_NOTE = "an operand of a product that is not stored by rows of the sum is transposed with each call"


@dataclass(frozen=True)
class CanonicalOperands(Pass):
    """Write each scaled contraction in the canonical order of operands, loops and body."""

    name = "mxc-canonical-operands"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every scaled contraction that is not canonical."""
        for op in linalg_operations(module):
            found = match_scaled_contraction(op)
            if isinstance(found, Reason):
                continue
            moves = any(order != sorted(order) for order in _orders(found))
            if moves:
                add_note(module, _NOTE)
            if moves or not found.is_canonical:
                _rewrite(found)
        sweep(module)


def _orders(found: ScaledContraction) -> list[list[int]]:
    """Of each operand but the accumulator, its dimensions in the order of the loops.

    The order that they have where elements are less than a byte.
    """
    orders = []
    for value, affine in zip(_operands(found), found.maps, strict=False):
        places = [found.loops.order.index(loop) for loop in dims(affine) if loop is not None]
        own = list(range(len(places)))
        whole = bits_of(element_of(value)) >= _BYTE
        orders.append(sorted(own, key=places.__getitem__) if whole else own)
    return orders


def _operands(found: ScaledContraction) -> list[ir.Value]:
    scales = [scale for scale in (found.lhs_scale, found.rhs_scale) if scale is not None]
    return [found.lhs, found.rhs, *scales]


def _rewrite(found: ScaledContraction) -> None:
    order = found.loops.order
    loops = [ir.AffineDimExpr.get(order.index(i)) for i in range(len(order))]
    with ir.InsertionPoint(found.op), found.op.location:
        values, maps = [], []
        for value, affine, own in zip(_operands(found), found.maps, _orders(found), strict=False):
            reads = [substitute(affine.results[axis], loops) for axis in own]
            values.append(value if own == sorted(own) else transposed(value, own))
            maps.append(ir.AffineMap.get(len(order), 0, reads))
        written = [substitute(e, loops) for e in found.maps[-1].results]
        maps.append(ir.AffineMap.get(len(order), 0, written))
        lhs, rhs, *scales = values
        lhs_scale = scales.pop(0) if found.lhs_scale is not None else None
        rhs_scale = scales.pop(0) if found.rhs_scale is not None else None
        new = contraction_into(lhs, rhs, lhs_scale, rhs_scale, found.acc, maps)
    for name in discardable(found.op):
        new.owner.attributes[name] = found.op.attributes[name]
    replace(found.op, new)
