"""Turn scalars that the body of an elementwise operation captures into operands of the operation.

    %f = tensor.extract %t[]        linalg.generic ins(%y) { mulf %a, %f }
becomes
    linalg.generic ins(%y, %t) { mulf %a, %b }

Computations on captured scalars move into the body. So the program does not wait for the host to
read a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.dialects.dequantize import is_made_by, iterators
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import indexing_maps
from mxc.passes.rewriting.generics import yielded
from mxc.passes.rewriting.rebuild import clone_over, clone_scalar, discardable, replace

_COMPUTED = ("arith.", "math.")


def read_captured(op: ir.Operation) -> ir.Operation:
    """`op`, or its replacement if its body captures scalars other than constants."""
    found = _captured(op)
    if op.name != "linalg.generic" or not found:
        return op
    leaves = list(dict.fromkeys(leaf for value in found for leaf in _leaves(value)))
    with ir.InsertionPoint(op), op.location:
        given = [_tensor(leaf) for leaf in leaves]
        *inputs, init = op.operands
        *maps, written = indexing_maps(op)
        maps += [ir.AffineMap.get(written.n_dims, 0, [])] * len(given)
        new = linalg.GenericOp(
            [init.type],
            [*inputs, *given],
            [init],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(each) for each in (*maps, written)]),
            ir.ArrayAttr.get(iterators(op)),
        )
        block = new.regions[0].blocks.append(*(element_of(v) for v in (*inputs, *given, init)))
    for name in discardable(op):
        new.attributes[name] = op.attributes[name]
    with ir.InsertionPoint(block), op.location:
        old, now = list(op.regions[0].blocks[0].arguments), list(block.arguments)
        at = dict(zip(old[:-1], now, strict=False)) | {old[-1]: now[-1]}
        at |= dict(zip(leaves, now[len(inputs) :], strict=False))
        for value in found:
            _compute(value, at)
        linalg.YieldOp([clone_scalar(yielded(op), at)])
    replace(op, new.results[0])
    return new.operation


def _captured(op: ir.Operation) -> list[ir.Value]:
    """The scalars that a body captures, without constants. Empty if it reads a tensor, or captures
    something else than an integer or float."""
    found: dict[ir.Value, None] = {}
    body = op.regions[0].blocks[0]
    for view in body.operations:
        for value in view.operation.operands:
            if isinstance(value.type, ir.RankedTensorType):
                return []
            block = (
                value.owner if isinstance(value, ir.BlockArgument) else value.owner.operation.block
            )
            if block != body and not _is_constant(value):
                found[value] = None
    numbers = (ir.FloatType, ir.IntegerType)
    return list(found) if all(isinstance(value.type, numbers) for value in found) else []


def _leaves(value: ir.Value) -> Sequence[ir.Value]:
    """The scalars that `value` is computed from and that are not computed from other numbers."""
    if _is_constant(value):
        return []
    if not _is_computed(value):
        return [value]
    return [leaf for operand in value.owner.operands for leaf in _leaves(operand)]


def _compute(value: ir.Value, at: dict[ir.Value, ir.Value]) -> ir.Value:
    """Emit the scalar `value` in the new body. `at`: old scalars -> new ones, first of the leaves;
    all that are emitted are added."""
    if value in at or _is_constant(value):
        return at.get(value, value)
    for operand in value.owner.operands:
        _compute(operand, at)
    clone_over(value.owner, at)
    return at[value]


def _is_constant(value: ir.Value) -> bool:
    return is_made_by(value, "arith.constant")


def _is_computed(value: ir.Value) -> bool:
    """Whether a scalar is computed from other numbers."""
    if isinstance(value, ir.BlockArgument) or not value.owner.name.startswith(_COMPUTED):
        return False
    kinds = [operand.type for operand in value.owner.operands]
    return all(isinstance(kind, (ir.FloatType, ir.IntegerType)) for kind in kinds)


def _tensor(value: ir.Value) -> ir.Value:
    """The rank-0 tensor that holds a scalar: a slice of the tensor that it is extracted from, or a
    new tensor."""
    kind = ir.RankedTensorType.get([], value.type)
    if isinstance(value, ir.BlockArgument) or value.owner.name != "tensor.extract":
        return tensor.FromElementsOp(kind, [value]).result
    source, *at = value.owner.operands
    if not at:
        return source
    rank = len(shape_of(source))
    dynamic = ir.ShapedType.get_dynamic_size()
    ones = [1] * rank
    return tensor.ExtractSliceOp(kind, source, at, [], [], [dynamic] * rank, ones, ones).result
