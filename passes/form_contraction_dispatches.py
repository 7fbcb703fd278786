"""mxc-form-contraction-dispatches: put each scaled contraction with its neighbours in one dispatch.

A dispatch region encloses the contraction, its zero accumulator, the gathers that feed it (weights,
scales and bias of chosen experts) and its elementwise epilogue (bias, activation). Without it, IREE
makes a dispatch of each gather, which copies the packed weights of every chosen expert before they
are read. Gathers inside a region are fused into the reads.

before:
    %w = iree_linalg_ext.gather dimension_map = [0] ins(%weights, %experts) ..
    %s = iree_linalg_ext.gather dimension_map = [0] ins(%scales, %experts) ..
    %zero = linalg.fill ..
    %y = linalg.generic ins(%x, %w, %s) outs(%zero) { scaling_extf, mulf, addf }
    %z = linalg.generic ins(%y, %bias) { addf }
after:
    %z = flow.dispatch.region -> (tensor<..xf32>) {
      %w = iree_linalg_ext.gather ..
      %s = iree_linalg_ext.gather ..
      %zero = linalg.fill ..
      %y = linalg.generic ..
      %z = linalg.generic ..
      flow.return %z
    }

Leaves alone: contractions that are in a region already; producers of the unscaled side; an epilogue
that is not elementwise over the result, or whose input has other readers; operations in another
block.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.indexing import indexing_maps
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.dialects.sizes import size_of, value_of
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import clone_over, linalg_operations
from mxc.passes.rewriting.worklist import erase

REGION = "flow.dispatch.region"

#: Producers that are cheaper to recompute in the dispatch than to store before it.
_PROLOGUE = (GATHER, "linalg.fill", "tensor.empty", "arith.constant")


@dataclass(frozen=True)
class FormContractionDispatches(Pass):
    """Put each scaled contraction, its gathers and its epilogue into one dispatch region."""

    name = "mxc-form-contraction-dispatches"

    def run(self, module: ir.Operation) -> None:
        """Form the region of every scaled contraction that has none."""
        for op in linalg_operations(module):
            found = match_scaled_contraction(op)
            if not isinstance(found, Reason) and not _in_region(op):
                _form(op)


def _in_region(op: ir.Operation) -> bool:
    parent = op.parent
    while parent is not None:
        if parent.name == REGION:
            return True
        parent = parent.operation.parent
    return False


def _form(contraction: ir.Operation) -> None:
    body = [contraction]
    while (following := _epilogue(body[-1])) is not None:
        body.append(following)
    last = body[-1]
    for op in tuple(body):
        body += _prologue(op, body)
    body.sort(key=functools.cmp_to_key(_in_block_order))
    with ir.InsertionPoint(last), contraction.location:
        sizes = _dynamic_sizes(contraction, last.results[0])
        region = ir.Operation.create(
            REGION,
            results=[last.results[0].type],
            operands=sizes,
            attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(sizes), 0])},
            regions=2,
        )
    block = region.regions[0].blocks.append()
    inside: dict[ir.Value, ir.Value] = {}
    with ir.InsertionPoint(block):
        for op in body:
            clone_over(op, inside)
        ir.Operation.create("flow.return", operands=[inside[last.results[0]]], loc=last.location)
    last.results[0].replace_all_uses_with(region.result)
    for op in reversed(body):
        if not any(list(result.uses) for result in op.results):
            erase(op)


def _in_block_order(a: ir.Operation, b: ir.Operation) -> int:
    return -1 if a.is_before_in_block(b) else 1


def _prologue(op: ir.Operation, known: list[ir.Operation]) -> list[ir.Operation]:
    """Cheap producers of `op` that are not in `known`."""
    found: list[ir.Operation] = []
    pending = list(op.operands)
    while pending:
        value = pending.pop()
        if isinstance(value, ir.BlockArgument) or value.owner.name not in _PROLOGUE:
            continue
        producer = value.owner.operation
        if producer.block == op.block and producer not in [*known, *found]:
            found.append(producer)
            pending.extend(producer.operands)
    return found


def _epilogue(op: ir.Operation) -> ir.Operation | None:
    """The elementwise generic that alone reads the result of `op`, or None."""
    uses = list(op.results[0].uses)
    if not uses or any(use.owner != uses[0].owner for use in uses):
        return None
    user = uses[0].owner.operation
    # In another block, the operation may run many times, or not at all.
    if user.block != op.block or user.name != "linalg.generic" or len(user.results) != 1:
        return None
    rank = ir.RankedTensorType(op.results[0].type).rank
    maps = indexing_maps(user)
    identity = ir.AffineMap.get_identity(rank)
    reads = [maps[use.operand_number] for use in uses]
    if any(affine != identity for affine in [*reads, maps[-1]]):
        return None
    return user


def _dynamic_sizes(contraction: ir.Operation, result: ir.Value) -> list[ir.Value]:
    """Sizes of the dynamic dimensions of `result`, from the operands of the contraction.

    The epilogue is elementwise, so its result has the sizes of the contraction's result.
    """
    found = match_scaled_contraction(contraction)
    assert not isinstance(found, Reason)
    written = found.maps[-1]
    dynamic = [
        loop
        for axis, loop in enumerate(written.results)
        if ir.RankedTensorType(result.type).is_dynamic_dim(axis)
    ]
    return [_size(found, loop) for loop in dynamic]


def _size(found: ScaledContraction, loop: ir.AffineExpr) -> ir.Value:
    """The extent of a loop, as the size of an operand that it indexes."""
    for operand, affine in zip((found.lhs, found.rhs), found.maps[:2], strict=True):
        for place, expression in enumerate(affine.results):
            if expression == loop:
                return value_of(size_of(operand, place))
    raise AssertionError(f"no side of {found.op.name} has loop {loop}")
