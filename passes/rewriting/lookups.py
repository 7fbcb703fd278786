"""Recognize lookups of rows as frontends write them: an element of a table per element of the
result.

    linalg.generic ins(%ids [T]) -> [T, K] { tensor.extract %table[index_cast %id, linalg.index 1] }

is a gather of rows of the table.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.generic import empty, shape_of
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.linalg_ext import gather
from mxc.dialects.sizes import size_of
from mxc.passes.rewriting.generics import yielded
from mxc.passes.rewriting.rebuild import clone_scalar
from mxc.passes.rewriting.split_loops import reassociation

_CASTS = ("arith.index_cast", "arith.index_castui")


@dataclass(frozen=True)
class Lookup:
    """Rows of `table` by `number`, a scalar in the body of `op` that is computed from its input."""

    op: ir.Operation
    table: ir.Value
    number: ir.Value

    def gathered(self) -> ir.Value:
        """Build the gather that is equivalent to the lookup."""
        ids = self._ids()
        lead, row = shape_of(ids), shape_of(self.table)[1:]
        if len(lead) == 1:
            return gather(self.table, ids)
        every = [list(range(len(lead)))]
        flat = ir.RankedTensorType.get(
            [math.prod(lead)], ir.RankedTensorType(ids.type).element_type
        )
        found = gather(self.table, tensor.CollapseShapeOp(flat, ids, reassociation(every)).result)
        groups = [*every, *([len(lead) + axis] for axis in range(len(row)))]
        return tensor.ExpandShapeOp(
            self.op.results[0].type,
            found,
            reassociation(groups),
            output_shape=[],
            static_output_shape=[*lead, *row],
        ).result

    def _ids(self) -> ir.Value:
        """The numbers of the rows, which the body may compute from the input."""
        ids = self.op.operands[0]
        argument = self.op.regions[0].blocks[0].arguments[0]
        if self.number == argument:
            return ids
        rank = len(shape_of(ids))
        maps = [ir.AffineMap.get_identity(rank)] * 2
        loops = [linalg.IteratorType.parallel] * rank
        init = empty([size_of(ids, axis) for axis in range(rank)], self.number.type)
        return linalg.generic([ids], [init], maps, loops)(
            lambda id, _: clone_scalar(self.number, {argument: id})
        )


def lookup_of(op: ir.Operation) -> Lookup | None:
    """The lookup of rows that a linalg.generic computes; None for other operations."""
    if op.name != "linalg.generic" or len(op.operands) != 2 or not is_elementwise(op):
        return None
    value, (read, written) = yielded(op), indexing_maps(op)
    if written != ir.AffineMap.get_identity(written.n_dims):
        return None
    if isinstance(value, ir.BlockArgument) or value.owner.name != "tensor.extract":
        return None
    table, *at = value.owner.operands
    ids = shape_of(op.operands[0])
    lead = len(ids)
    if dims(read) != list(range(lead)) or (lead != 1 and min(ids, default=-1) < 0):
        return None
    row, *columns = at
    if [_loop(each) for each in columns] != list(range(lead, written.n_dims)):
        return None
    if shape_of(table)[1:] != shape_of(op.results[0])[lead:] or min(shape_of(table)) < 0:
        return None
    if isinstance(row, ir.BlockArgument) or row.owner.name not in _CASTS:
        return None
    number = row.owner.operands[0]
    return Lookup(op, table, number) if _is_computed(number, op) else None


def _loop(value: ir.Value) -> int | None:
    """The loop whose index a scalar is; None for other scalars."""
    if isinstance(value, ir.BlockArgument) or value.owner.name != "linalg.index":
        return None
    return int(ir.IntegerAttr(value.owner.attributes["dim"]).value)


def _is_computed(value: ir.Value, op: ir.Operation) -> bool:
    """Whether an integer is computed from the first argument of a body and constants only."""
    if isinstance(value, ir.BlockArgument):
        return bool(value == op.regions[0].blocks[0].arguments[0])
    inner = value.owner
    if inner.name == "arith.constant":
        return True
    return inner.name.startswith("arith.") and all(_is_computed(v, op) for v in inner.operands)
