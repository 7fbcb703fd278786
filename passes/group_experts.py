"""mxc-group-experts: rows that choose an expert each are sorted into groups of one expert, on GPUs.

A product of one row a group reads the weights of an expert once for each row that chose it. In a
group of 16 or more rows they are read once for all of them (dialects/expert_groups.py), and a tile
of a matrix instruction multiplies 16 rows in the time of one. What mxc builds has such groups;
here those of other programs get them (mxc-raise-experts).

before:
    %g = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids) -> tensor<?xNxKxbf16>
    %y = linalg.generic ins(%x, %g : tensor<?x1xKxbf16>, tensor<?xNxKxbf16>) outs(%zero) {..}
after:
    %experts, %pairs, %slots, %rows = util.call @mxc.group_by_expert(%ids, .., %x)
    %g = iree_linalg_ext.gather dimension_map = [0] ins(%w, %clamped)
    %r = linalg.generic ins(%rows, %g : tensor<?x?xKxbf16>, tensor<?xNxKxbf16>) outs(%zeros) {..}
    %y = linalg.generic ins(%slots) { tensor.extract %r }

Where the result is only rounded to bf16, it is rounded before its rows are put in order.

Leaves alone: contractions that no kernel takes, or with several rows a group; at most 16 pairs, of
a known number, which are as many reads of weights; activations with scales.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.dialects.contraction import ATTRIBUTE
from mxc.dialects.dequantize import iterators
from mxc.dialects.expert_groups import (
    COPIED,
    clamped,
    group_by_expert,
    rows_at,
    rows_of_groups,
)
from mxc.dialects.generic import element_of, fill, generic, shape_of
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.linalg_ext import gather
from mxc.dialects.sizes import product, quotient, size_of, sizes_of, split
from mxc.passes.base import Pass
from mxc.passes.kernels.described import gathered
from mxc.passes.kernels.gpu.calls import GpuContractionCall, match
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.kernels.roundings import rounding_of
from mxc.passes.rewriting.rebuild import discardable, linalg_operations, replace, sweep
from mxc.passes.rewriting.worklist import erase
from mxc.targets.amd import known_gpu
from mxc.targets.gpu import GroupRows


@dataclass(frozen=True)
class GroupExperts(Pass):
    """Sort the rows of contractions by expert where kernels of `target` compute them."""

    name = "mxc-group-experts"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every contraction of single rows. PassError for a target without a record."""
        gpu = known_gpu(self.target)
        for op in linalg_operations(module):
            call = match(op, gpu.matrix)
            if isinstance(call, GpuContractionCall) and _is_of_rows(call, gpu.group_rows):
                _group(call, gpu.group_rows)
        sweep(module)


def _is_of_rows(call: GpuContractionCall, known: GroupRows) -> bool:
    """Whether each group of a contraction is one row that chooses an expert, and there may be more
    of them than the rows of the smallest groups in `known`."""
    few = call.of.batch is not None and call.of.batch <= known[0][1]
    return call.ids is not None and call.of.m == 1 and not few and len(call.lhs.tensors) == 1


def _group(call: GpuContractionCall, known: GroupRows) -> None:
    op = call.op
    rounding = rounding_of(op)
    last = op if rounding is None else rounding
    with ir.InsertionPoint(op), op.location:
        made, slots = _grouped(call, known)
        if rounding is not None:
            made = _rounded(made, "g m n")
        groups, rows, columns = sizes_of(made)
        flat = reshape(made, *split([product([groups, rows]), columns]))
        ordered = rows_at(flat, slots, 1)
    with ir.InsertionPoint(last), op.location:
        replace(last, reshape(ordered, *split(sizes_of(last.results[0]))))


def _grouped(call: GpuContractionCall, known: GroupRows) -> tuple[ir.Value, ir.Value]:
    """Build the contraction over rows grouped by expert. Return it, [groups, rows, columns], and
    the slot of each pair of a row and an expert among the rows of all groups."""
    op, of, (x,) = call.op, call.of, call.lhs.tensors
    assert call.ids is not None
    pairs = size_of(call.ids, 0)
    x = reshape(x, *split([quotient(pairs, call.lhs.share), of.k]))
    whole = of.k * element_of(x).width % (8 * COPIED) == 0
    rows = rows_of_groups(pairs, of.experts, known)
    owners, pair_of_slot, slots, *copied = group_by_expert(
        call.ids, of.experts, rows, x if whole else None, most_rows=known[-1][1]
    )
    x = copied[0] if copied else rows_at(x, pair_of_slot, call.lhs.share)
    if call.lhs.source.rounded:
        x = _rounded(x, "s k")
    groups = size_of(owners, 0)
    before, *weights, start = op.operands
    x = reshape(x, *split([groups, rows, *shape_of(before)[2:]]))
    owners = clamped(owners, of.experts)
    weights = [_gathered(value, owners) for value in weights]
    zero = fill([groups, rows, of.n], element_of(start), 0)
    made = linalg.GenericOp(
        [zero.type],
        [x, *weights],
        [zero],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in indexing_maps(op)]),
        ir.ArrayAttr.get(iterators(op)),
    )
    copy = op.clone()
    copy.regions[0].blocks[0].append_to(made.regions[0])
    erase(copy)
    for name in discardable(op):
        if name != ATTRIBUTE:
            made.attributes[name] = op.attributes[name]
    return made.results[0], slots


def _gathered(value: ir.Value, ids: ir.Value) -> ir.Value:
    """Rebuild the gather `value` of weights or scales, with the reshape after it, by other ids."""
    found = gathered(value)
    made = gather(found.tensor, ids)
    inner = shape_of(value)[1:]
    if inner == shape_of(made)[1:]:
        return made
    # A reshape of rows to blocks follows the gather.
    (expansion, _) = found.chain
    shape, dynamic = split([size_of(ids, 0), *inner])
    groups = [[int(axis) for axis in group] for group in expansion.attributes["reassociation"]]
    kind = ir.RankedTensorType.get(shape, element_of(made))
    return tensor.expand_shape(kind, made, groups, dynamic, shape)


def _rounded(values: ir.Value, loops: str) -> ir.Value:
    bf16 = ir.BF16Type.get()
    return generic([(values, loops)], loops, bf16, lambda value: arith.truncf(bf16, value))
