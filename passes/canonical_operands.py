"""mxc-canonical-operands: write each scaled contraction in the order of dialects/scaled.py.

The order of operands decides which instruction IREE selects: for (a, a_scale, b, b_scale) there is
no scaled matrix instruction on gfx950, for (a, b, a_scale, b_scale) there is.

before:
    linalg.generic {iterator_types = ["reduction", "parallel", "parallel", "reduction"]}
      ins(%w_scale, %w, %x) outs(%acc)
      { mulf(extf(%w), extf(%w_scale)), mulf, addf }
after:
    linalg.generic {iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%x, %w, %w_scale) outs(%acc)
      { scaling_extf(%w, %w_scale), mulf(%x, _), addf(%acc, _) }

An operand whose dimensions are in another order than the loops, weights [K, N] or scales [K / 32,
N], is transposed before the contraction, because kernels read rows. The attribute mxc.notes of the
module says so, except for a constant, which is transposed at compile time, and for dimensions of
size 1, which a reshape moves. A result in another order, such as [N, M] for weights as the first
operand, is transposed after the contraction.

Where the program rounds what it dequantizes, or the blocks of the two sides differ in size, the
body is not changed.

Leaves alone: a generic that is not a scaled contraction; operands with 6-bit elements in another
order, and operands with 4-bit elements whose new last dimension would be odd.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.generic import element_of, fill
from mxc.dialects.indexing import dims, substitute
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, contraction_into, match_scaled_contraction
from mxc.dialects.sizes import size_of
from mxc.dialects.tensor_constants import is_constant
from mxc.passes.base import Pass, add_note
from mxc.passes.kernels.values import is_zero
from mxc.passes.rewriting.generics import yielded
from mxc.passes.rewriting.rebuild import (
    clone_scalar,
    discardable,
    linalg_operations,
    replace,
    sweep,
)
from mxc.passes.rewriting.transposes import is_movable, is_reshape, transposed

_NOTE = "an operand of a product that is not stored by rows of the sum is transposed with each call"


@dataclass(frozen=True)
class CanonicalOperands(Pass):
    """Write each scaled contraction in the canonical order of operands, loops and body."""

    name = "mxc-canonical-operands"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every scaled contraction that is not canonical."""
        for op in linalg_operations(module):
            found = match_scaled_contraction(op, rounded=True, mixed=True)
            if isinstance(found, Reason):
                continue
            *operands, result = _orders(found)
            moves = any(order != sorted(order) for order in operands)
            if any(
                order != sorted(order) and not (is_constant(value) or is_reshape(value, order))
                for value, order in zip(_operands(found), operands, strict=True)
            ):
                add_note(module, _NOTE)
            own = any(found.rounded) or bool(found.loops.ki)
            moves |= result != sorted(result) or list(found.numbers) != sorted(found.numbers)
            if moves or not (found.is_canonical or own):
                _rewrite(found, [*operands, result], own_body=own)
        sweep(module)


def _orders(found: ScaledContraction) -> list[list[int]]:
    """For each operand and the result, the order of its dimensions in the canonical form: sorted by
    the order of the loops; or the current order, where a tensor cannot be transposed."""
    orders = []
    for value, affine in zip([*_operands(found), found.acc], found.maps, strict=True):
        places = [found.loops.order.index(loop) for loop in dims(affine) if loop is not None]
        own = list(range(len(places)))
        order = sorted(own, key=places.__getitem__)
        orders.append(order if is_movable(value, order) else own)
    return orders


def _operands(found: ScaledContraction) -> list[ir.Value]:
    scales = [scale for scale in (found.lhs_scale, found.rhs_scale) if scale is not None]
    return [found.lhs, found.rhs, *scales]


def _rewrite(found: ScaledContraction, orders: list[list[int]], *, own_body: bool) -> None:
    order = found.loops.order
    loops = [ir.AffineDimExpr.get(order.index(i)) for i in range(len(order))]
    result = orders[-1]
    with ir.InsertionPoint(found.op), found.op.location:
        maps = []
        for affine, own in zip(found.maps, orders, strict=True):
            reads = [substitute(affine.results[axis], loops) for axis in own]
            maps.append(ir.AffineMap.get(len(order), 0, reads))
        values = [
            value if own == sorted(own) else transposed(value, own)
            for value, own in zip(_operands(found), orders, strict=False)
        ]
        acc = _start(found.acc, result)
        new = (
            _as_it_is(found, values, acc, maps)
            if own_body
            else _canonical(found, values, acc, maps)
        )
        new_op = new.owner
        if result != sorted(result):
            new = transposed(new, [result.index(axis) for axis in range(len(result))])
    for name in discardable(found.op):
        new_op.attributes[name] = found.op.attributes[name]
    replace(found.op, new)


def _start(acc: ir.Value, order: list[int]) -> ir.Value:
    """The accumulator with its dimensions in this order."""
    if order == sorted(order):
        return acc
    if is_zero(acc):
        return fill([size_of(acc, axis) for axis in order], element_of(acc), 0.0)
    return transposed(acc, order)


def _canonical(
    found: ScaledContraction, values: list[ir.Value], acc: ir.Value, maps: list[ir.AffineMap]
) -> ir.Value:
    lhs, rhs, *scales = values
    lhs_scale = scales.pop(0) if found.lhs_scale is not None else None
    rhs_scale = scales.pop(0) if found.rhs_scale is not None else None
    return contraction_into(lhs, rhs, lhs_scale, rhs_scale, acc, maps)


def _as_it_is(
    found: ScaledContraction, values: list[ir.Value], acc: ir.Value, maps: list[ir.AffineMap]
) -> ir.Value:
    """Build a linalg.generic with the body of the contraction, over operands in canonical order."""
    old = found.op.regions[0].blocks[0].arguments
    numbers = [*found.numbers, len(old) - 1]
    parallel = len(maps[-1].results)
    kinds = [linalg.IteratorType.parallel] * parallel
    kinds += [linalg.IteratorType.reduction] * (maps[-1].n_dims - parallel)

    def body(*scalars: ir.Value) -> ir.Value:
        at = {old[number]: scalar for number, scalar in zip(numbers, scalars, strict=True)}
        return clone_scalar(yielded(found.op), at)

    return linalg.generic(values, [acc], maps, kinds)(body)
