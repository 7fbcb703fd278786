"""mxc-gather-packed: gather packed elements and scales, and dequantize the result.

A mixture of experts chooses its weights by number. A frontend that dequantizes all experts and then
gathers the chosen ones writes all of them to memory for each token. Gathering the packed tensors
reads only the chosen ones, and leaves the dequantize operation next to the contraction, which can
absorb it. Rows of an embedding are treated alike. Where rows of these, of packed tensors or of
their bytes are read element by element (tensor.extract), the reads first become a gather.

before:
    %d = linalg.generic ins(%w, %s) { scaling_extf } -> tensor<ExNxKOx32xf32>
    iree_linalg_ext.gather dimension_map = [0] ins(%d, %ids : .., tensor<Txi32>)
after:
    %wt = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids)
    %st = iree_linalg_ext.gather dimension_map = [0] ins(%s, %ids)
    linalg.generic ins(%wt, %st) { scaling_extf } -> tensor<TxNxKOx32xf32>

Numbers of rows become i32, which kernels read.

Leaves alone: gathers of tensors that are not dequantized, along other dimensions than the first,
and by index tensors of rank other than 1; lookups with several dynamic dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.dialects.dequantize import is_packed, iterators
from mxc.dialects.generic import element_of, generic, shape_of
from mxc.dialects.indexing import dim_of, indexing_maps, trace
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.scalar_nodes import loops_of
from mxc.dialects.sizes import size_of
from mxc.passes.base import Pass
from mxc.passes.fuse_dequantize import is_decoding
from mxc.passes.rewriting.lookups import Lookup, Numbers, lookup_of
from mxc.passes.rewriting.rebuild import (
    discardable,
    linalg_operations,
    operations_named,
    replace,
    sweep,
)

#: The operation that reinterprets bytes as elements.
BITCAST = "flow.tensor.bitcast"


@dataclass(frozen=True)
class GatherPacked(Pass):
    """Gather elements and scales instead of dequantized tensors."""

    name = "mxc-gather-packed"

    def run(self, module: ir.Operation) -> None:
        """Replace every gather of a dequantized tensor by gathers of its packed tensors."""
        numbers = Numbers()
        for op in linalg_operations(module):
            found = lookup_of(op)
            if found is not None and (_is_decoded(found.table) or _is_read_packed(found)):
                with ir.InsertionPoint(op), op.location:
                    replace(op, found.gathered(numbers.of(found)))
        narrowed: dict[ir.Value, ir.Value] = {}
        for op in operations_named(module, GATHER):
            if chooses_rows(op):
                _narrow(op, narrowed)
                with ir.InsertionPoint(op), op.location:
                    moved = _gather(op.operands[0], op.operands[1])
                if moved is not None:
                    replace(op, moved)
        sweep(module)


def _is_read_packed(found: Lookup) -> bool:
    """Whether rows are packed elements, or bytes that are read as such."""
    users = [use.owner for use in found.op.results[0].uses]
    unpacks = (user.name == BITCAST and is_packed(element_of(user.results[0])) for user in users)
    return is_packed(element_of(found.table)) or any(unpacks)


def chooses_rows(op: ir.Operation) -> bool:
    """Whether `op` gathers along the first dimension, by a tensor of rank 1 of numbers."""
    if op.name != GATHER:
        return False
    along = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"]))
    return along == [0] and op.operands[1].type.rank == 1


def _narrow(op: ir.Operation, narrowed: dict[ir.Value, ir.Value]) -> None:
    """Let `op` gather by numbers of i32, which is enough for a tensor of known size. Gathers by the
    same numbers share them: `narrowed` has those that were made."""
    table, ids = op.operands[0], op.operands[1]
    rows, i32 = shape_of(table)[0], ir.IntegerType.get_signless(32)
    if str(element_of(ids)) != "i64" or not 0 < rows <= 1 << 31:
        return
    if ids not in narrowed:
        with _after(ids), op.location:
            narrowed[ids] = generic([(ids, "t")], "t", i32, lambda id: arith.trunci(i32, id))
    op.operands[1] = narrowed[ids]


def _after(value: ir.Value) -> ir.InsertionPoint:
    """The insertion point right after the definition of a value."""
    if isinstance(value, ir.BlockArgument):
        return ir.InsertionPoint.at_block_begin(value.owner)
    return ir.InsertionPoint.after(value.owner)


def _gather(value: ir.Value, ids: ir.Value) -> ir.Value | None:
    """Build the rows `ids` of `value` from gathers of packed tensors; None if it is not decoded
    from these."""
    return _move(value, ids, _source(value)) if _is_decoded(value) else None


def _source(value: ir.Value) -> ir.Value:
    """The tensor from which `value` is only moved."""
    return trace(value, [ir.AffineConstantExpr.get(0)] * value.type.rank, [])[0]


def _is_decoded(value: ir.Value) -> bool:
    """Whether a tensor is decoded from packed tensors, and then only moved."""
    source = _source(value)
    return not isinstance(source, ir.BlockArgument) and is_decoding(source.owner.operation)


def _move(value: ir.Value, ids: ir.Value, decoded: ir.Value) -> ir.Value | None:
    """Rebuild the operations from the decoding, which makes `decoded`, to `value`, for the rows
    `ids`. Return the new value; None where rows cannot be followed through an operation."""
    op = value.owner.operation
    before = op.operands[0] if op.name == "tensor.expand_shape" else value
    if before != value and not isinstance(before, ir.BlockArgument):
        # A reshape that is undone by the next one is left out.
        merged = before.owner.operation
        again = merged.name == "tensor.collapse_shape" and merged.operands[0].type == value.type
        return _move(merged.operands[0], ids, decoded) if again else None
    if op.name == "tensor.collapse_shape":
        inner = _move(op.operands[0], ids, decoded) if _keeps_rows(op) else None
        if inner is None:
            return None
        shape = _chosen(value, ids)
        return tensor.CollapseShapeOp(shape, inner, op.attributes["reassociation"]).result
    if not op.name.startswith("linalg."):
        return None
    maps = indexing_maps(op)
    row = dim_of(maps[-1].results[0])
    inputs = []
    for operand, affine in zip(list(op.operands)[:-1], maps, strict=False):
        if row not in loops_of(affine.results):
            inputs.append(operand)
            continue
        first, *rest = affine.results
        if dim_of(first) != row or row in loops_of(rest):
            return None
        chosen = _move(operand, ids, decoded) if value != decoded else None
        if value != decoded and chosen is None:
            return None
        inputs.append(chosen if chosen is not None else gather_rows(operand, ids))
    return _again(op, inputs, _empty(value, ids), maps)


def _keeps_rows(op: ir.Operation) -> bool:
    """Whether a tensor.collapse_shape keeps the first dimension."""
    return len(ir.ArrayAttr(ir.ArrayAttr(op.attributes["reassociation"])[0])) == 1


def _again(
    op: ir.Operation, inputs: Sequence[ir.Value], init: ir.Value, maps: Sequence[ir.AffineMap]
) -> ir.Value:
    """Rebuild a linalg operation as a linalg.generic over other tensors of the same ranks."""
    new = linalg.GenericOp(
        [init.type],
        list(inputs),
        [init],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in maps]),
        ir.ArrayAttr.get(iterators(op)),
    )
    # The body comes from a clone, since others may still read the original.
    op.clone().regions[0].blocks[0].append_to(new.regions[0])
    for name in discardable(op):
        new.attributes[name] = op.attributes[name]
    return new.results[0]


def gather_rows(source: ir.Value, ids: ir.Value) -> ir.Value:
    """Build the gather of rows `ids` [T] of `source` [E, ..], a tensor [T, ..], at the insertion
    point."""
    init = _empty(source, ids)
    return ir.Operation.create(
        GATHER,
        results=[init.type],
        operands=[source, ids, init],
        attributes={"dimension_map": ir.DenseI64ArrayAttr.get([0])},
    ).result


def _chosen(value: ir.Value, ids: ir.Value) -> ir.RankedTensorType:
    """The type of `value` with one row per element of `ids`."""
    source = ir.RankedTensorType(value.type)
    shape = [*list(ids.type.shape), *list(source.shape)[1:]]
    return ir.RankedTensorType.get(shape, source.element_type)


def _empty(value: ir.Value, ids: ir.Value) -> ir.Value:
    """Build a tensor.empty for the rows `ids` of `value`."""
    chosen = _chosen(value, ids)
    sizes = [size_of(value if axis else ids, axis) for axis in range(chosen.rank)]
    return tensor.empty(sizes, chosen.element_type)
