"""Recognize lookups of rows of a table. Frontends write them element by element:

    linalg.generic ins(%ids [T]) -> [T, K] { tensor.extract %table[index_cast %id, linalg.index 1] }

is a gather of T rows of the table.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.generic import generic, shape_of
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.linalg_ext import gather
from mxc.dialects.sizes import axes_of, product, sizes_of, split
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.rewriting.generics import yielded
from mxc.passes.rewriting.rebuild import clone_scalar

_CASTS = ("arith.index_cast", "arith.index_castui")
#: Bits of the integers to which numbers of rows are cast that a body computes as index values.
_WIDE = 64


@dataclass(frozen=True)
class Lookup:
    """A lookup of rows of `table` by `number`, a scalar that the body of `op` computes from its one
    input."""

    op: ir.Operation
    table: ir.Value
    number: ir.Value

    def gathered(self, numbers: ir.Value) -> ir.Value:
        """Build the gather that replaces the lookup. `numbers`: see the method."""
        found = gather(self.table, numbers)
        lead, row = sizes_of(self.op.operands[0]), shape_of(self.table)[1:]
        if len(lead) == 1:
            return found
        groups = [list(range(len(lead))), *([len(lead) + axis] for axis in range(len(row)))]
        shape, dynamic = split([*lead, *row])
        return tensor.expand_shape(self.op.results[0].type, found, groups, dynamic, shape)

    def numbers(self) -> ir.Value:
        """Build the list of the numbers of rows, a tensor of rank 1: the input, or what the body
        computes from it."""
        ids = self.op.operands[0]
        argument = self.op.regions[0].blocks[0].arguments[0]
        if self.number != argument:
            kind, axes = self.number.type, axes_of(ids)
            if isinstance(kind, ir.IndexType):
                kind = ir.IntegerType.get_signless(_WIDE)
            ids = generic([(ids, axes)], axes, kind, self._number)
        return reshape(ids, *split([product(sizes_of(ids))]))

    def _number(self, id: ir.Value) -> ir.Value:
        made = clone_scalar(self.number, {self.op.regions[0].blocks[0].arguments[0]: id})
        if isinstance(made.type, ir.IndexType):
            return arith.index_cast(ir.IntegerType.get_signless(_WIDE), made)
        return made


class Numbers:
    """The lists of row numbers of lookups. Lookups by the same numbers in a block share a list."""

    def __init__(self) -> None:
        """Start without lists."""
        self._built: list[tuple[ir.Value, str, ir.Block, ir.Value]] = []

    def of(self, lookup: Lookup) -> ir.Value:
        """The list of a lookup: one that was built for an earlier call, or a new one at the
        insertion point, which must come after those of earlier calls."""
        ids, said, block = lookup.op.operands[0], _said(lookup.number), lookup.op.operation.block
        for known in self._built:
            if known[:3] == (ids, said, block):
                return known[3]
        made = lookup.numbers()
        self._built.append((ids, said, block, made))
        return made


def _said(value: ir.Value) -> str:
    """A text that is equal for scalars of two bodies if they are computed alike."""
    if isinstance(value, ir.BlockArgument):
        return f"%{value.arg_number}"
    op = value.owner
    attributes = ", ".join(f"{name} = {op.attributes[name]}" for name in sorted(op.attributes))
    return f"{op.name}({', '.join(map(_said, op.operands))}) {{{attributes}}} : {value.type}"


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
    lead = len(shape_of(op.operands[0]))
    if dims(read) != list(range(lead)) or not lead:
        return None
    row, *columns = at
    if [_loop(each) for each in columns] != list(range(lead, written.n_dims)):
        return None
    if shape_of(table)[1:] != shape_of(op.results[0])[lead:] or min(shape_of(table)) < 0:
        return None
    if isinstance(row, ir.BlockArgument):
        return None
    number = row.owner.operands[0] if row.owner.name in _CASTS else row
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
