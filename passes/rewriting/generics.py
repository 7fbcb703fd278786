"""Build a linalg.generic from parts of another: its loops, and scalars of its body."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.dequantize import iterators
from mxc.dialects.generic import element_of
from mxc.dialects.indexing import indexing_maps
from mxc.passes.rewriting.rebuild import INDEX, OperandRead, discardable


def generic_like(
    op: ir.Operation,
    inputs: Sequence[OperandRead],
    init: ir.Value,
    body: Callable[[Sequence[ir.Value]], ir.Value],
) -> ir.Value:
    """Build a linalg.generic before `op` with the loops, the result's indexing map and the
    discardable attributes of `op`, over `inputs` and `init`. Return its result.

    `body` gets the scalars of the inputs and the accumulator, and returns the scalar to yield.
    """
    values = [*(read.value for read in inputs), init]
    maps = [*(read.map for read in inputs), indexing_maps(op)[-1]]
    with ir.InsertionPoint(op), op.location:
        new = linalg.GenericOp(
            [init.type],
            values[:-1],
            values[-1:],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in maps]),
            ir.ArrayAttr.get(iterators(op)),
        )
        block = new.regions[0].blocks.append(*(element_of(value) for value in values))
    for name in discardable(op):
        new.attributes[name] = op.attributes[name]
    with ir.InsertionPoint(block), op.location:
        linalg.YieldOp([body(list(block.arguments))])
    return new.results[0]


def arguments_of(value: ir.Value) -> set[ir.Value]:
    """The arguments of a body that a scalar in it is computed from."""
    if isinstance(value, ir.BlockArgument):
        return {value}
    found: set[ir.Value] = set()
    for operand in value.owner.operands:
        found |= arguments_of(operand)
    return found


def computes_from_index(value: ir.Value) -> bool:
    """Whether a scalar of a body is computed from the index of a loop, or by operations with
    regions, which may read one."""
    if isinstance(value, ir.BlockArgument):
        return False
    op = value.owner
    if op.name == INDEX or len(op.regions):
        return True
    return any(computes_from_index(operand) for operand in op.operands)


def yielded(op: ir.Operation) -> ir.Value:
    """The scalar that the body of a linalg operation yields."""
    return list(op.regions[0].blocks[0].operations)[-1].operands[0]


def is_product(value: ir.Value) -> bool:
    """Whether a scalar is the result of an f32 multiplication."""
    if isinstance(value, ir.BlockArgument) or value.owner.name != "arith.mulf":
        return False
    return isinstance(value.type, ir.F32Type)


def read_map(op: ir.Operation, argument: ir.Value) -> ir.AffineMap:
    """The indexing map of the operand that an argument of the body belongs to."""
    return indexing_maps(op)[argument.arg_number]
