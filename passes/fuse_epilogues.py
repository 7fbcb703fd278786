"""mxc-fuse-epilogues: make a chain of the elementwise operations after each contraction.

Frontends write an activation as one operation per step, several of which read the same result, and
write constants as tensors of one repeated number. A kernel takes a chain, in which each operation
is the only reader of the one before. An operation with a single reader is inlined into this reader
where both read the same result. Repeated numbers become scalars.

before:
    %y = linalg.generic ins(%x, %w, %s) { scaling_extf, mulf, addf }
    %s = linalg.generic ins(%y) { divf 1, (addf 1, (exp (negf %y))) }
    %r = linalg.generic ins(%y, %s) { mulf }
after:
    %y = linalg.generic ins(%x, %w, %s) { scaling_extf, mulf, addf }
    %r = linalg.generic ins(%y, %y) { mulf %y, (divf 1, (addf 1, (exp (negf %y)))) }

Operations after a transpose of a product are computed before the transpose. Scalars that a body
captures from outside are read as tensors.

Results do not change by a bit.

Leaves alone: results that are also read by other operations than elementwise ones over the same
loops, and existing chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.contractions import read
from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.generic import element_of, empty, shape_of
from mxc.dialects.indexing import (
    dim_of,
    indexing_maps,
    loop_ranges,
    read_through,
    substitute,
    trace,
)
from mxc.dialects.sizes import size_of
from mxc.dialects.tensor_constants import constant_of
from mxc.passes.base import Pass
from mxc.passes.rewriting.captured import read_captured
from mxc.passes.rewriting.generics import generic_like, yielded
from mxc.passes.rewriting.rebuild import (
    Constant,
    Inlined,
    OperandRead,
    Scalar,
    clone_scalar,
    linalg_operations,
    rebuild,
    replace,
    sweep,
)
from mxc.passes.rewriting.transposes import transposed
from mxc.passes.rewriting.worklist import erase


@dataclass(frozen=True)
class FuseEpilogues(Pass):
    """Make one chain of the elementwise operations that follow each contraction."""

    name = "mxc-fuse-epilogues"

    def run(self, module: ir.Operation) -> None:
        """Fold constants and join branches in the operations after each contraction."""
        for op in linalg_operations(module):
            if read(op) is not None:
                _follow(op.results[0])
        sweep(module)


def _follow(value: ir.Value) -> None:
    """Turn the elementwise readers of `value`, and theirs in turn, into a chain."""
    while (users := _users(_before_transpose(value))) is not None:
        for user in users:
            _detach(user)
        if len(users) == 1:
            value = _rebuilt(users[0])
            continue
        inlined = next((user for user in users if _only_user(user) is not None), None)
        if inlined is None:
            return
        _inline(inlined)


def _before_transpose(value: ir.Value) -> ir.Value:
    """Return `value`, after moving elementwise readers of its transpose before the transpose."""
    users = [use.owner.operation for use in value.uses]
    if len(users) != 1 or users[0].name != "linalg.transpose":
        return value
    transpose = users[0]
    result = transpose.results[0]
    order = list(ir.DenseI64ArrayAttr(transpose.attributes["permutation"]))
    stages = _users(result) or []
    for user in stages:
        names = [view.operation.name for view in user.regions[0].blocks[0].operations]
        if user.name != "linalg.generic" or "linalg.index" in names:
            return value
    for user in stages:
        _move(user, result, value, order)
    if stages:
        erase(transpose)
    return value


def _move(op: ir.Operation, result: ir.Value, value: ir.Value, order: list[int]) -> None:
    """Let `op` read `value` instead of its transpose `result`, and transpose the result of `op`."""
    loops = [ir.AffineDimExpr.get(axis) for axis in order]
    reads = []
    for operand, affine in zip(list(op.operands)[:-1], indexing_maps(op), strict=False):
        at = ir.AffineMap.get(len(loops), 0, [substitute(e, loops) for e in affine.results])
        same = operand == result
        reads.append(
            OperandRead(value, ir.AffineMap.get_identity(len(loops)))
            if same
            else OperandRead(operand, at)
        )
    with ir.InsertionPoint(op), op.location:
        init = empty(
            [size_of(value, axis) for axis in range(len(order))], element_of(op.results[0])
        )
    block = op.regions[0].blocks[0]

    def body(scalars: Sequence[ir.Value]) -> ir.Value:
        at = dict(zip(block.arguments, scalars, strict=True))
        return clone_scalar(yielded(op), at)

    computed = generic_like(op, reads, init, body)
    with ir.InsertionPoint(op), op.location:
        replace(op, transposed(computed, order))


def _users(value: ir.Value) -> list[ir.Operation] | None:
    """The operations that read `value`, if all are elementwise over its loops; else None.

    Scalars that their bodies capture are changed to tensors that they read.
    """
    found = list(dict.fromkeys(use.owner.operation for use in value.uses))
    if not found or not all(_is_stage(op, value) for op in found):
        return None
    return [read_captured(op) for op in found]


def _detach(op: ir.Operation) -> None:
    """Let `op` write to a new tensor.empty, where it takes another value for its output only to
    give its shape."""
    last = len(op.operands) - 1
    value = op.operands[last]
    if isinstance(value, ir.BlockArgument) or value.owner.name != "tensor.empty":
        with ir.InsertionPoint(op), op.location:
            sizes = [size_of(value, axis) for axis in range(len(shape_of(value)))]
            op.operands[last] = empty(sizes, element_of(value))


def _is_stage(op: ir.Operation, value: ir.Value) -> bool:
    """Whether `op` computes each element of a tensor from the same element of `value`."""
    if not op.name.startswith("linalg.") or len(op.results) != 1 or not is_elementwise(op):
        return False
    if op.name == "linalg.map" or list(op.operands).count(value) == 0:
        return False
    maps = indexing_maps(op)
    identity = ir.AffineMap.get_identity(maps[-1].n_dims)
    if maps[-1] != identity:
        return False
    block = op.regions[0].blocks[0]
    if list(block.arguments[len(block.arguments) - 1].uses):
        return False
    return all(
        affine == identity
        for operand, affine in zip(op.operands, maps, strict=True)
        if operand == value
    )


def _only_user(op: ir.Operation) -> ir.Operation | None:
    """The only reader of the result of `op`, if `op` can be inlined into it; else None."""
    users = _users(op.results[0])
    if users is None or len(users) != 1:
        return None
    _detach(users[0])
    return users[0]


def _inline(op: ir.Operation) -> None:
    """Inline `op` into the body of the one operation that reads its result."""
    user = _only_user(op)
    assert user is not None
    into = Inlined(op, tuple(_inputs(op)))
    scalars: list[Scalar] = [
        into if isinstance(item, OperandRead) and item.value == op.results[0] else item
        for item in _inputs(user)
    ]
    rebuild(user, scalars)
    erase(op)


def _rebuilt(op: ir.Operation) -> ir.Value:
    """The result of `op`, rebuilt if `_inputs` differ from its operands."""
    inputs = _inputs(op)
    same = [OperandRead(v, a) for v, a in zip(op.operands, indexing_maps(op), strict=True)][:-1]
    if op.name == "linalg.generic" and inputs == same:
        return op.results[0]
    result = rebuild(op, inputs)
    assert result is not None
    return result


def _inputs(op: ir.Operation) -> list[Scalar]:
    """The inputs of the body of `op`: constants for tensors of one repeated number; other tensors
    are read from before they were broadcast or extended."""
    found: list[Scalar] = []
    ranges = loop_ranges(op)
    for value, affine in zip(list(op.operands)[:-1], indexing_maps(op), strict=False):
        table = constant_of(value)
        if table is None or not table.size or any(table.strides):
            found.append(_source(value, affine, ranges))
        else:
            found.append(Constant(table.reshape(-1)[0].item(), element_of(value)))
    return found


def _source(value: ir.Value, affine: ir.AffineMap, ranges: list[int | None]) -> Scalar:
    """The read of `value`, from the smaller tensor that it is broadcast from, and the narrower one
    that it is extended from, if any."""
    here = OperandRead(value, affine)
    if not isinstance(value.type, ir.RankedTensorType):
        return here
    source, at = trace(value, list(affine.results), ranges)
    if isinstance(source, ir.BlockArgument) or not _widens(source.owner.operation):
        smaller = source.type.rank < value.type.rank and None not in map(dim_of, at)
        return OperandRead(source, ir.AffineMap.get(affine.n_dims, 0, at)) if smaller else here
    producer = source.owner.operation
    through = read_through(producer, 0, at, ranges)
    if through is None or None in map(dim_of, through):
        return here
    inner = ir.AffineMap.get(affine.n_dims, 0, through)
    return Inlined(producer, (_source(producer.operands[0], inner, ranges),))


def _widens(op: ir.Operation) -> bool:
    """Whether `op` only extends each element of one tensor."""
    if not op.name.startswith("linalg.") or len(op.operands) != 2 or not is_elementwise(op):
        return False
    names = [view.operation.name for view in op.regions[0].blocks[0].operations]
    return names == ["arith.extf", "linalg.yield"]
