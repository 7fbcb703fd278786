"""The scaled contraction of an operation, read once: its attribute `mxc.contraction`.

mxc-check-contractions reads it at the end of *normalise*. Choice of schedule, lowering and report
go by the attribute; an operation without one, as where a pass runs alone, is read there.

    %y = linalg.generic {..} ins(%x, %w, %p, %s) outs(%zero) attrs = {mxc.contraction = {
        batch = 1, m = 16, n = 96, k = 64, out = {element = f32},
        lhs = {block = 32, element = f4E2M1FN, scale = f8E8M0FNU}, rhs = {..}}} { .. }
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.contraction import Contraction, OperandFormat, read_contraction
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.passes.kernels.values import is_zero, producer

#: Dimensions of rows of blocks, without a batch.
_RANK = 3


@dataclass(frozen=True)
class Described:
    """What an operation computes, and its operands."""

    op: ir.Operation
    of: Contraction
    lhs: ir.Value
    rhs: ir.Value
    lhs_scale: ir.Value | None
    rhs_scale: ir.Value


def described(op: ir.Operation) -> Described | Reason:
    """The contraction of `op` that kernels may compute, which its attribute then has."""
    of = read_contraction(op)
    if of is None:
        found = match_scaled_contraction(op, rounded=True, mixed=True)
        read = found if isinstance(found, Reason) else _read(found)
        if isinstance(read, Reason):
            return read
        read.write(op)
        of = read
    lhs, rhs, *scales, _ = op.operands
    return Described(op, of, lhs, rhs, scales[0] if of.lhs.scale else None, scales[-1])


def _read(found: ScaledContraction) -> Contraction | Reason:
    usual = found.is_canonical or found.loops.ki or any(found.rounded)
    if not usual or found.numbers != tuple(range(len(found.numbers))):
        return Reason("its operands, loops or body are not in canonical order")
    rank = _RANK + len(found.loops.ki)
    if not (found.is_row_major and len(found.maps[0].results) == len(found.batch) + rank):
        return Reason("an operand has its dimensions in another order than batch, row, block")
    if len(found.batch) > 1:
        return Reason(f"it has {len(found.batch)} batch dimensions; kernels take one")
    assert found.rhs_scale is not None
    if min(found.n, found.k) <= 0 or 0 in (found.m, *found.batch):
        sizes = "x".join("?" if size < 0 else str(size) for size in (found.m, found.n, found.k))
        return Reason(f"M x N x K = {sizes}; kernels take positive sizes, and know N and K")
    if not is_zero(found.acc):
        return Reason("the accumulator is not zero")
    groups, m = (None if size < 0 else size for size in ((found.batch or (1,))[0], found.m))
    weights = gathered(found.rhs)
    experts = weights.experts
    if len(found.maps[1].results) == rank:
        if weights.ids is not None:
            return Reason("its weights are gathered, and it has no batch")
        # One weight for all: their rows are those of one product.
        m = None if groups is None or m is None else groups * m
        groups = 1
    elif weights.ids is None:
        if groups is None:
            return Reason("each group has weights of its own, and their number comes with the call")
        experts = groups
    if gathered(found.rhs_scale).ids != weights.ids:
        return Reason("elements and scales of the weights are gathered by different ids")
    return Contraction(
        batch=groups,
        m=m,
        n=found.n,
        k=found.k,
        lhs=_format(found.lhs, found.lhs_scale, found.blocks[0], found.rounded[0]),
        rhs=_format(found.rhs, found.rhs_scale, found.blocks[1], found.rounded[1]),
        out=OperandFormat("f32"),
        experts=experts,
        chosen=weights.ids is not None,
    )


def _format(elements: ir.Value, scales: ir.Value | None, block: int, rounded: str) -> OperandFormat:
    if scales is None:
        return OperandFormat(str(element_of(elements)))
    return OperandFormat(str(element_of(elements)), str(element_of(scales)), block, rounded)


@dataclass(frozen=True)
class Gathered:
    """A tensor of all experts, or of one; `chain`: the operations between it and what reads it.
    `parameter`: the global that it is loaded from, None where it was not looked for."""

    tensor: ir.Value
    ids: ir.Value | None = None
    experts: int = 0
    chain: tuple[ir.Operation, ...] = ()
    parameter: str | None = None


def gathered(value: ir.Value) -> Gathered:
    """What `value` is read from: by the i32 ids of experts, and in smaller blocks, or as it is."""
    chain: tuple[ir.Operation, ...] = ()
    op = producer(value)
    if op is not None and op.name == "tensor.expand_shape":
        before = op.operands[0]
        if shape_of(value)[0] == shape_of(before)[0]:
            op, value, chain = producer(before), before, (op,)
    if op is not None and op.name == GATHER:
        whole, ids = list(op.operands)[:2]
        first = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"])) == [0]
        if first and str(element_of(ids)) == "i32" and len(shape_of(ids)) == 1:
            return Gathered(whole, ids, shape_of(whole)[0], (*chain, op))
    return Gathered(value, chain=chain)
