"""Costs of dispatches and contractions: bytes, floating-point operations and times.

Sizes are those of the types, or those at a sample of the arguments (dialects/samples.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from iree.compiler import ir

from mxc.compiler.report import OperationCost
from mxc.compiler.report.kernel_time import Time, by_schedule, roofline
from mxc.compiler.report.preparation import operand
from mxc.dialects import kernel_calls
from mxc.dialects.contraction import Contraction
from mxc.dialects.contractions import FactorPair, Side
from mxc.dialects.dispatches import (
    Dispatch,
    element_bits,
    moved_bytes,
    operand_bytes,
    result_bytes,
    shaped_bytes,
)
from mxc.dialects.pool_reads import read_pool
from mxc.dialects.samples import Sizes, read_estimates
from mxc.dialects.split_sums import read_split_sums
from mxc.targets.target import Target


def operation_cost(
    dispatch: Dispatch,
    call: Contraction | None,
    inside: Sequence[FactorPair],
    target: Target,
    sizes: Sizes,
) -> OperationCost:
    """Return the cost of one dispatch: of `call` if a kernel of ours computes it, else of the
    products `inside` its body.
    """
    pool = read_pool(dispatch.op)
    products: list[int | None] = []
    if call is not None:
        call = at_sizes(dispatch, call, sizes)
        moved = kernel_calls.moved_bytes(dispatch, call, sizes)
        products = [_flops(row_size(call.batch), row_size(call.m), call.n, call.k)]
    else:
        moved = moved_bytes(dispatch, sizes)
        known = [product_at(dispatch, each, sizes) for each in inside]
        products = [_flops(each.batch, each.m, each.n, each.k) for each in known]
    attention = pool.flops(dispatch.op, sizes) if pool is not None else 0
    flops = summed([*products, attention])
    issued = summed([*products, *[attention] * (1 if pool is None else pool.products)])
    # Partial sums are moved only where workgroups share K: the lower bound does not include them.
    split = read_split_sums(dispatch.op)
    needed = moved if split is None else _difference(moved, split.bytes(dispatch.op, sizes))
    return OperationCost(bytes_moved=moved, flops=flops, time=_time(call, needed, issued, target))


def estimated(dispatch: Dispatch, call: Contraction | None, sample: int) -> Contraction | None:
    """Return `call` with the clocks and workgroups of sample number `sample`, if known."""
    estimates = read_estimates(dispatch.op)
    if call is None or not estimates:
        return call
    clocks, workgroups = estimates[sample]
    return replace(call, clocks=clocks, workgroups=workgroups)


def at_sizes(dispatch: Dispatch, call: Contraction, sizes: Sizes) -> Contraction:
    """Return `call` with its dynamic sizes as numbers. They are the first values of the workload:
    rows (if dynamic), then groups (if dynamic)."""
    unknown = [size for size in (call.batch, call.m) if size is None]
    if not unknown or call.any_sizes:
        return call
    given = iter([sizes.number(value) for value in reversed(dispatch.workload[: len(unknown)])])
    batch, m = (next(given, None) if size is None else size for size in (call.batch, call.m))
    return replace(call, batch=batch, m=m)


def product_at(dispatch: Dispatch, product: FactorPair, sizes: Sizes) -> FactorPair:
    """Return `product` with its dynamic groups or rows, derived from the size of its result."""
    others = [size for size in (product.batch, product.m, product.n) if size >= 0]
    shape = sizes.inside(product.op.results[0], dispatch.op)
    if product.k < 0 or len(others) != 2 or product.n < 0 or shape is None:
        return product
    found = math.prod(shape) // max(1, math.prod(others))
    return replace(
        product,
        batch=found if product.batch < 0 else product.batch,
        m=found if product.m < 0 else product.m,
    )


def least_bytes(
    dispatch: Dispatch, call: Contraction, after: Sequence[Dispatch], sizes: Sizes
) -> int | None:
    """Return the bytes of both packed operands and the output, each counted once."""
    if call.batch is None or call.m is None or min(call.n, call.k) < 0:
        return None
    rows = call.batch * call.m
    written = call.out.matrix_bytes(rows, call.n)
    # A gated product writes half of the columns.
    written = min(written, _results(dispatch, sizes) or written)
    for finish in after:
        written = min(written, result_bytes(finish, 0, sizes) or written)
    return (
        call.weights * call.rhs.matrix_bytes(call.n, call.k)
        + call.lhs.matrix_bytes(rows, call.k)
        + written
    )


def minimum(
    dispatch: Dispatch,
    contraction: FactorPair,
    packed: tuple[Side, Side],
    block: int,
    after: Sequence[Dispatch],
    sizes: Sizes,
) -> int | None:
    """Return the bytes of both packed operands, their scales and the output, each counted once.

    Rows that several groups of a batch share are counted once: at most the size of the operand. The
    output is the smaller of the contraction's result and what the dispatch, or the last one after
    it, writes.
    """
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    result = contraction.op.results[0]
    own = shaped_bytes(result.type, sizes.inside(result, dispatch.op))
    written = _results(after[-1] if after else dispatch, sizes)
    if min(batch, m, n, k) < 0 or own is None or written is None:
        return None
    total = min(own, written)
    for rows, side, actual in zip((m, n), packed, (contraction.lhs, contraction.rhs), strict=True):
        elements = batch * rows * k
        needed = math.ceil(elements * element_bits(side.element) / 8)
        total += _at_most_whole(dispatch, side.tensor, actual.tensor, needed, sizes)
        if side.scale is not None and block:
            width = element_bits(ir.RankedTensorType(side.scale.type).element_type)
            needed = math.ceil(elements // block * width / 8)
            total += _at_most_whole(dispatch, side.scale, actual.scale, needed, sizes)
    return total


def _at_most_whole(
    dispatch: Dispatch, packed: ir.Value, actual: ir.Value | None, needed: int, sizes: Sizes
) -> int:
    same = actual is not None and packed == actual
    whole = operand(dispatch, packed) if same else None
    if whole is None:
        return needed
    place = next(at for at, value in enumerate(dispatch.operands) if value == whole)
    held = operand_bytes(dispatch, place, sizes)
    return needed if held is None else min(needed, held)


def _results(dispatch: Dispatch, sizes: Sizes) -> int | None:
    """Return the bytes of all results of a dispatch that the program reads."""
    split = read_split_sums(dispatch.op)
    left_out = () if split is None else split.results
    places = [n for n in range(len(dispatch.op.results)) if n not in left_out]
    return summed([result_bytes(dispatch, n, sizes) for n in places])


def _difference(first: int | None, second: int | None) -> int | None:
    """Return first - second, or None if one is not known."""
    return None if first is None or second is None else first - second


def _time(
    call: Contraction | None, moved: int | None, flops: int | None, target: Target
) -> Time | None:
    if target.gpu is None or moved is None or flops is None:
        return None
    if call is None:
        return roofline(target.gpu, moved, flops)
    widths = (call.lhs.bits, call.rhs.bits) if call.kind == "scaled matrix" else None
    bound = roofline(target.gpu, moved, flops, widths)
    return by_schedule(target.gpu, bound, call.clocks, call.workgroups) if call.clocks else bound


def _flops(batch: int, m: int, n: int, k: int) -> int | None:
    return None if min(batch, m, n, k) < 0 else 2 * batch * m * n * k


def row_size(known: int | None) -> int:
    """Return a size as the report has it: -1 if it is not known."""
    return -1 if known is None else known


def summed(parts: Sequence[int | None]) -> int | None:
    """Return the sum, or None if a part is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
