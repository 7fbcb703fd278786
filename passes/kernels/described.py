"""The contraction of an operation, matched once and stored as its attribute `mxc.contraction`.

A contraction of scaled elements must be in canonical form. In a contraction of plain numbers, K
must be the last dimension of both operands.

mxc-check-contractions writes the attribute at the end of *normalize*. The choice of schedules, the
lowering and the report use it. An operation without the attribute, such as in a pass that runs
alone, is matched there.

    %y = linalg.generic {..} ins(%x, %w, %p, %s) outs(%zero) attrs = {mxc.contraction = {
        batch = 1, m = 16, n = 96, k = 64, out = {element = f32},
        lhs = {block = 32, element = f4E2M1FN, scale = f8E8M0FNU}, rhs = {..}}} { .. }
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iree.compiler import ir

from mxc.dialects.contraction import Contraction, OperandFormat, read_contraction
from mxc.dialects.contractions import is_scaled_reduction, read
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.product import read_product
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.dialects.sizes import RESHAPES
from mxc.passes.kernels.values import is_zero, producer

#: Most loops of a plain lhs besides K: a batch and its rows.
_MOST_LOOPS = 2
#: Rank of a scaled operand without a batch, [rows, ko, kb], and of a plain operand with one,
#: [batch, rows, k]. Also the number of operands of a plain product: lhs, rhs and accumulator.
_RANK = 3


@dataclass(frozen=True)
class Described:
    """The operation `op`, the contraction `of` that it computes, and its operands."""

    op: ir.Operation
    of: Contraction
    lhs: ir.Value
    rhs: ir.Value
    lhs_scale: ir.Value | None
    rhs_scale: ir.Value | None


def described(op: ir.Operation, *, plain: bool = True) -> Described | Reason:
    """Return the contraction that `op` computes, or the reason why kernels do not take it.

    It is read from the attribute of `op`. Without the attribute it is matched, then written there.

    `plain`: also accept products of plain numbers.
    """
    of = read_contraction(op)
    if of is None:
        scaled = match_scaled_contraction(op, rounded=True, mixed=True)
        if not isinstance(scaled, Reason):
            found = _scaled(scaled)
        else:
            found = _plain(op) if plain and not is_scaled_reduction(op) else scaled
        if isinstance(found, Reason):
            return found
        found.write(op)
        of = found
    lhs, rhs, *scales, _ = op.operands
    sides = (scales[0] if of.lhs.scale else None, scales[-1] if of.rhs.scale else None)
    return Described(op, of, lhs, rhs, *sides)


def _scaled(found: ScaledContraction) -> Contraction | Reason:
    """Return the description of a contraction of scaled elements, or why kernels do not take it."""
    usual = found.is_canonical or found.loops.ki or any(found.rounded)
    if not usual or found.numbers != tuple(range(len(found.numbers))):
        return Reason("its operands, loops or body are not in canonical order")
    rank = _RANK + len(found.loops.ki)
    if not (found.is_row_major and len(found.maps[0].results) == len(found.batch) + rank):
        return Reason("an operand has its dimensions in another order than batch, row, block")
    if len(found.batch) > 1:
        return Reason(f"it has {len(found.batch)} batch dimensions; kernels take one")
    assert found.rhs_scale is not None
    if not _is_same(gathered(found.rhs_scale).ids, gathered(found.rhs).ids):
        return Reason("elements and scales of the weights are gathered by different ids")
    return _sized(
        found.op,
        ((found.batch or (1,))[0], found.m, found.n, found.k),
        _format(found.lhs, found.lhs_scale, found.blocks[0], found.rounded[0]),
        _format(found.rhs, found.rhs_scale, found.blocks[1], found.rounded[1]),
        shared=len(found.maps[1].results) == rank,
    )


def _is_same(one: ir.Value | None, other: ir.Value | None) -> bool:
    """Whether both are the same value, or both None: an ir.Value cannot be compared with None."""
    return one is other if one is None or other is None else bool(one == other)


def _plain(op: ir.Operation) -> Contraction | Reason:
    """Return the description of a contraction of plain numbers, or why kernels do not take it."""
    found = read(op)
    if found is None or found.block:
        return Reason(f"it is a {op.name} that is no product of two tensors, summed")
    weights = stored(found.rhs.tensor)
    if isinstance(weights, Reason):
        return weights
    if op.name != "linalg.generic":
        return Reason(f"it is a {op.name}; kernels take it as a linalg.generic")
    if (held := element_of(weights.tensor)) != found.rhs.element:
        return Reason(f"its weights are {found.rhs.element} in a parameter of {held}")
    shared = len(found.rhs.dims) < _RANK
    n, k = len(found.lhs.dims) - 1, len(found.lhs.dims)
    wanted = (n, k) if shared else (0, n, k)
    known = range(1, _MOST_LOOPS + 1) if shared else (_MOST_LOOPS,)
    written = dims(indexing_maps(op)[-1])
    if (found.lhs.dims, found.rhs.dims) != ((*range(n), k), wanted) or n not in known:
        return Reason("an operand has its dimensions in another order than batch, row, K")
    if written != list(range(k)):
        return Reason("its result has its dimensions in another order than batch, row, column")
    # `read` accepts any product of two factors; here it must be the plain product, summed in f32.
    if isinstance(body := read_product(op), Reason):
        return body
    if len(op.operands) != _RANK:
        return Reason(f"it has {len(op.operands)} operands where a product has {_RANK}")
    sides = (_format(side.tensor, None) for side in (found.lhs, found.rhs))
    return _sized(op, (found.batch, found.m, found.n, found.k), *sides, shared=shared)


def _sized(
    op: ir.Operation,
    sizes: tuple[int, int, int, int],
    lhs: OperandFormat,
    rhs: OperandFormat,
    *,
    shared: bool,
) -> Contraction | Reason:
    """Return the contraction with these batch, m, n and k, or why kernels do not take it.

    `sizes`: negative where dynamic. `shared`: whether rhs has no batch, so that all groups use it.
    """
    batch, m, n, k = sizes
    if min(n, k) <= 0 or 0 in (m, batch):
        text = "x".join("?" if size < 0 else str(size) for size in (m, n, k))
        return Reason(f"M x N x K = {text}; kernels take positive sizes, and know N and K")
    if not is_zero(op.operands[len(op.operands) - 1]):
        return Reason("the accumulator is not zero")
    groups, rows = (None if size < 0 else size for size in (batch, m))
    weights = gathered(op.operands[1])
    experts = weights.experts
    if shared:
        if weights.ids is not None:
            return Reason("its weights are gathered, and it has no batch")
        # All groups share one weight: their rows are the rows of one product.
        rows = None if groups is None or rows is None else groups * rows
        groups = 1
    elif weights.ids is None:
        if groups is None:
            return Reason("each group has weights of its own, and their number comes with the call")
        experts = groups
    return Contraction(
        batch=groups,
        m=rows,
        n=n,
        k=k,
        lhs=lhs,
        rhs=rhs,
        out=OperandFormat("f32"),
        experts=experts,
        chosen=weights.ids is not None,
    )


def _format(
    elements: ir.Value, scales: ir.Value | None, block: int = 0, rounded: str = ""
) -> OperandFormat:
    if scales is None:
        return OperandFormat(str(element_of(elements)))
    return OperandFormat(str(element_of(elements)), str(element_of(scales)), block, rounded)


@dataclass(frozen=True)
class Gathered:
    """The tensor that an operand of a contraction is read from.

    `ids`: the expert ids by which it is gathered, None without a gather. `experts`: the number of
    experts in the tensor, 0 without a gather. `chain`: the operations between the operand and the
    tensor, the one next to the contraction first. `parameter`: the name of the global from which
    the tensor is loaded; None if it is not loaded, or was found by `gathered`, which does not look.
    """

    tensor: ir.Value
    ids: ir.Value | None = None
    experts: int = 0
    chain: tuple[ir.Operation, ...] = ()
    parameter: str | None = None


def gathered(value: ir.Value) -> Gathered:
    """Return the tensor that `value` is gathered from by a list of i32 expert ids; without such a
    gather, `value` itself.

    A reshape after the gather that keeps the first dimension is looked through in both cases.
    """
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


def stored(value: ir.Value) -> Gathered | Reason:
    """Follow reshapes, a gather by expert ids and bitcasts back to the tensor or parameter that
    `value` is read from, which may have another shape; or return why kernels do not take it."""
    read = gathered(value)
    chain, value = read.chain, read.tensor
    op = producer(value)
    if op is not None and op.name == GATHER and read.ids is None:
        along = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
        kind = op.operands[1].type
        return Reason(
            f"weights are gathered along dimensions {along} by {kind}; kernels take the first, by "
            "a list of i32"
        )
    while op is not None and _renames(op, gathered=read.ids is not None):
        chain, value = (*chain, op), op.operands[0]
        op = producer(value)
    name = None
    if op is not None and op.name == "util.global.load":
        name = ir.FlatSymbolRefAttr(op.attributes["global"]).value
    elif min(shape_of(value), default=0) < 0:
        return Reason(f"the size of {value.type}, which has weights, comes with the call")
    return replace(read, tensor=value, chain=chain, parameter=name)


def _renames(op: ir.Operation, *, gathered: bool) -> bool:
    """Whether `op` is a bitcast or a static reshape, whose result has the bytes of its operand.

    `gathered`: whether the result is gathered by expert ids, so that a reshape must keep the first
    dimension.
    """
    if op.name == "flow.tensor.bitcast":
        return True
    if op.name not in RESHAPES:
        return False
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    return min(*before, *after) > 0 and not (gathered and before[0] != after[0])
