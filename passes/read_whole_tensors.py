"""mxc-read-whole-tensors: elements of slices are looked up in the tensors these are cut from.

On GPUs IREE 3.13 turns `tensor.extract` in loops into loads at the place in the tensor, counted row
by row. Where that tensor is a part of a buffer, the rows of memory are longer than those of the
part, so other elements are read. On CPUs it refuses parts whose elements are not side by side.

Runs at IREE's flow phase, where the operations of a dispatch are known: IREE reads slices in place
that it finds behind transposes too.

before:
    %s = iree_tensor_ext.dispatch.tensor.load %x, offsets = [0, 2], sizes = [%n, 4]
    linalg.generic ins(%ids) { tensor.extract %s[%i, %j] }
after:
    %w = iree_tensor_ext.dispatch.tensor.load %x, offsets = [0, 0], sizes = [%n, 8]
    linalg.generic ins(%ids) { %k = arith.addi %j, 2;  tensor.extract %w[%i, %k] }

Leaves alone: slices that something else reads, whole tensors, and kernels of mxc.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects.dispatches import LOAD
from mxc.dialects.generic import shape_of
from mxc.dialects.sizes import constant, kept_axes, segments
from mxc.passes.base import Pass
from mxc.passes.kernels.values import producer
from mxc.passes.rewriting.rebuild import operations_named, replace
from mxc.passes.rewriting.worklist import Worklist, erase

#: Operations that slice a tensor, or load a slice of a buffer.
_SLICES = ("tensor.extract_slice", LOAD)


@dataclass(frozen=True)
class ReadWholeTensors(Pass):
    """Read elements of slices from the tensors that these are cut from."""

    name = "mxc-read-whole-tensors"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every lookup of an element of a slice."""
        slices: list[ir.Operation] = []
        for op in operations_named(module, "tensor.extract"):
            whole, *place = op.operands
            while (slice := _cut(whole)) is not None:
                slices.append(slice)
                whole = _whole(slice)
                with ir.InsertionPoint(op), op.location:
                    place = _in_source(slice, place)
            if whole != op.operands[0]:
                with ir.InsertionPoint(op), op.location:
                    replace(op, tensor.extract(whole, place))
        # Each once, behind all that are cut from it.
        for slice in reversed(Worklist(reversed(slices))):
            if not any(list(slice.results[0].uses)):
                erase(slice)


def _cut(value: ir.Value) -> ir.Operation | None:
    """The operation that makes `value` as a slice of a tensor or buffer; None for other values."""
    op = producer(value)
    if op is None or op.name not in _SLICES:
        return None
    whole = op.name == LOAD and shape_of(value) == _kind(op).shape and not any(_offsets(op))
    return None if whole else op


def _offsets(op: ir.Operation) -> list[int]:
    return list(ir.DenseI64ArrayAttr(op.attributes["static_offsets"]))


def _kind(load: ir.Operation) -> ir.RankedTensorType:
    """The type of the tensor in the buffer that a load reads."""
    # !iree_tensor_ext.dispatch.tensor<readonly:tensor<?x8xf32>>
    _, _, inside = str(load.operands[0].type).partition(":")
    return ir.RankedTensorType(ir.Type.parse(inside.removesuffix(">")))


def _whole(op: ir.Operation) -> ir.Value:
    """The tensor that a slice is cut from. If `op` loads a slice of a buffer, a load of the whole
    buffer is built."""
    if op.name != LOAD:
        return op.operands[0]
    (buffer,), sizes, *_ = segments(op)
    kind = _kind(op)
    rank, given = kind.rank, len(sizes)
    with ir.InsertionPoint.after(op), op.location:
        return ir.Operation.create(
            LOAD,
            results=[kind],
            operands=[buffer, *sizes, *sizes],
            attributes={
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, given, 0, given, 0]),
                "static_offsets": ir.DenseI64ArrayAttr.get([0] * rank),
                "static_sizes": ir.DenseI64ArrayAttr.get(list(kind.shape)),
                "static_strides": ir.DenseI64ArrayAttr.get([1] * rank),
            },
        ).result


def _in_source(op: ir.Operation, place: Sequence[ir.Value]) -> list[ir.Value]:
    """Build the indices, in the tensor that `op` slices, of the element at `place` of the slice."""
    index = ir.IndexType.get()
    sizes, strides = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("sizes", "strides")
    )
    *_, given_offsets, _, given_strides = segments(op)
    offsets_given, strides_given = iter(given_offsets), iter(given_strides)
    offsets, found = _offsets(op), []
    kept = dict(zip(kept_axes(sizes, shape_of(op.results[0])), place, strict=True))
    for axis, (offset, stride) in enumerate(zip(offsets, strides, strict=True)):
        start = next(offsets_given) if offset < 0 else constant(offset, index)
        step = next(strides_given) if stride < 0 else constant(stride, index)
        own = kept.get(axis)
        if own is None:
            found.append(start)
            continue
        moved = own if stride == 1 else arith.muli(own, step)
        found.append(moved if offset == 0 else arith.addi(moved, start))
    return found
