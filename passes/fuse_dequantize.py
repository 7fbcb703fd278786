"""mxc-fuse-dequantize: dequantize inside the contraction that reads the elements.

A weight that is dequantized by a separate operation is written to memory at 8 times its size and
read back. This pass puts the body of the dequantize operation, or of a chain of them, into each
contraction that reads its result. Every user gets its own copy, so a weight that is used twice is
dequantized twice, in registers. Reshapes, transposes and broadcasts in between become indexing
maps; where they divide a loop, the loop is split. Results do not change by a bit.

before:
    %d = linalg.generic ins(%w, %s) { scaling_extf } -> tensor<NxKOx32xf32>
    %c = tensor.collapse_shape %d [[0], [1, 2]]
    linalg.matmul ins(%x, %c) outs(%acc)
after:
    %x3 = tensor.expand_shape %x [[0], [1, 2]]
    linalg.generic {indexing_maps = [(m, n, ko, kb) -> (m, ko, kb), (m, n, ko, kb) -> (n, ko, kb),
                    (m, n, ko, kb) -> (n, ko), (m, n, ko, kb) -> (m, n)]}
      ins(%x3, %w, %s) outs(%acc) { scaling_extf, mulf, addf }

A scale may also be a float, of a tensor, a row or a block.

Leaves alone: a dequantized tensor that no reduction reads, and one that passes through an operation
that does more than move elements (mxc-check-contractions refuses it).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import (
    is_byte,
    is_elementwise,
    is_integer,
    is_packed,
    read_factor,
)
from mxc.dialects.indexing import dim_of, indexing_maps, loop_ranges, read_through, trace
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import (
    Inlined,
    OperandRead,
    Scalar,
    linalg_operations,
    reads_of,
    rebuild,
    sums_floats,
    sweep,
)
from mxc.passes.rewriting.split_loops import is_plain

_DECODING = frozenset(
    (
        "arith.scaling_extf",
        "arith.extf",
        "arith.sitofp",
        "arith.truncf",
        "arith.mulf",
        "linalg.yield",
    )
)


#: Bits of the widest scale of a block format.
_SCALE_BITS = 8


@dataclass(frozen=True)
class FuseDequantize(Pass):
    """Dequantize inside the contraction that reads the elements."""

    name = "mxc-fuse-dequantize"

    def run(self, module: ir.Operation) -> None:
        """Inline dequantization into every linalg operation that sums the decoded values."""
        for op in reversed(linalg_operations(module)):
            if not sums_floats(op):
                continue
            ranges = loop_ranges(op)
            inputs = [
                _resolve(value, list(affine.results), ranges)
                for value, affine in zip(op.operands, indexing_maps(op), strict=True)
            ][:-1]
            if any(isinstance(item, Inlined) for item in inputs):
                rebuild(op, inputs, split=not _has_float_quotients(inputs))
        sweep(module)


def _has_float_quotients(inputs: Sequence[Scalar]) -> bool:
    """Whether every index is a loop or a quotient of a loop, and a float scale is read by a
    quotient.

    mxc-float-scales handles these contractions, without a split of loops: the rows that share a
    scale need not be whole blocks.
    """
    reads = [read for item in inputs for read in reads_of(item)]
    floats = (
        isinstance(kind := ir.RankedTensorType(read.value.type).element_type, ir.FloatType)
        and kind.width > _SCALE_BITS
        for read in reads
        if not is_plain(read.map)
    )
    return any(floats) and all(
        dim_of(expression) is not None
        or (isinstance(expression, ir.AffineFloorDivExpr) and dim_of(expression.lhs) is not None)
        for read in reads
        for expression in read.map.results
    )


def is_decoding(op: ir.Operation) -> bool:
    """Whether `op` computes floats from elements and scales only.

    A scale may be a float that several elements share.
    """
    if op.name != "linalg.generic" or len(op.results) != 1 or not is_elementwise(op):
        return False
    block = op.regions[0].blocks[0]
    names = [inner.operation.name for inner in block.operations]
    init = block.arguments[len(block.arguments) - 1]
    if len(names) == 1 or list(init.uses):
        return False
    if _decodes_bytes(block):
        return True
    if not set(names) <= _DECODING:
        return False
    inputs = list(op.operands)[:-1]
    packed = [_is_packed(value) for value in inputs]
    scales = (_is_float_scale(value, op.results[0]) for value in inputs)
    return any(packed) and all(one or other for one, other in zip(packed, scales, strict=True))


def _decodes_bytes(block: ir.Block) -> bool:
    """Whether a body computes the value of an mxint8 element with its scale."""
    factor = read_factor(list(block.operations)[-1].operands[0])
    if factor is None or factor.scale is None:
        return False
    element, scale = (block.arguments[number].type for number in (factor.element, factor.scale))
    return is_byte(element) and isinstance(scale, ir.Float8E8M0FNUType)


def _is_float_scale(value: ir.Value, result: ir.Value) -> bool:
    """Whether `value` is a float, or a tensor that comes from fewer floats than `result` has
    elements: several elements share one."""
    if not isinstance(value.type, ir.RankedTensorType):
        return isinstance(value.type, ir.FloatType)
    if not isinstance(value.type.element_type, (ir.F32Type, ir.BF16Type, ir.F16Type)):
        return False
    source, _ = trace(value, [ir.AffineConstantExpr.get(0)] * value.type.rank, [])
    return _elements(source) < _elements(result)


def _elements(value: ir.Value) -> int:
    """The product of the static sizes."""
    return math.prod(size for size in ir.RankedTensorType(value.type).shape if size >= 0)


def _is_packed(value: ir.Value) -> bool:
    """Whether a tensor holds packed elements, scales or integers, or is decoded from such."""
    if not isinstance(value.type, ir.RankedTensorType):
        return False
    element = value.type.element_type
    if is_packed(element) or is_integer(element):
        return True
    source, _ = trace(value, [ir.AffineConstantExpr.get(0)] * value.type.rank, [])
    return not isinstance(source, ir.BlockArgument) and is_decoding(source.owner.operation)


def _resolve(
    value: ir.Value,
    indices: Sequence[ir.AffineExpr],
    ranges: Sequence[int | None],
    *,
    decoded: bool = False,
) -> OperandRead | Inlined:
    """The scalar at `indices` of `value`, computed from packed data if possible, else read from
    `value`.

    `decoded`: the scalar is an input of a decoding, where the source of a scale is read instead of
    a copy for each element.
    """
    here = OperandRead(value, ir.AffineMap.get(len(ranges), 0, list(indices)))
    if not isinstance(value.type, ir.RankedTensorType):
        return here
    source, at = trace(value, indices, ranges)
    if isinstance(source, ir.BlockArgument) or not is_decoding(source.owner.operation):
        # A unit dimension that a reshape has added has no loop.
        added = any(isinstance(index, ir.AffineConstantExpr) for index in indices)
        copied = decoded and _elements(source) < _elements(value)
        moves = added or copied
        return OperandRead(source, ir.AffineMap.get(len(ranges), 0, at)) if moves else here
    producer = source.owner.operation
    inputs = []
    for number, operand in enumerate(list(producer.operands)[:-1]):
        through = read_through(producer, number, at, ranges)
        if through is None:
            return here
        inputs.append(_resolve(operand, through, ranges, decoded=True))
    return Inlined(producer, tuple(inputs))
