"""Rows of a plain weight that lies in panels, looked up: an embedding that is the head too.

An element keeps its bits in a panel (compiler/packing/panels.py), so a lookup reads it there. With
E elements in a unit of four bytes, element [n, k] of a weight [N, K] is in panels [P, K / E, 16 E]

    at [n / 16, k / E, E (n % 16) + k % E]

A row is scattered over as many cache lines as it has units. That is a small part of what a model
reads for a token, and a copy of the table in rows would be as large as the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, flow, tensor

from mxc.dialects.generic import element_of, generic, loop_index, shape_of
from mxc.dialects.linalg_ext import GATHER
from mxc.passes.gather_packed import chooses_rows
from mxc.passes.kernels.cpu.parameters import load, loads
from mxc.passes.kernels.cpu.weights import PANEL
from mxc.passes.kernels.vectors import index
from mxc.passes.rewriting.rebuild import replace

_EXTRACT = "tensor.extract"
#: Bytes of a unit.
_UNIT = 4


def is_lookup(use: ir.OpOperand) -> bool:
    """Whether an operation looks up elements or rows of a weight [N, K]."""
    op = use.owner.operation
    rows = op.name == _EXTRACT or (op.name == GATHER and chooses_rows(op))
    return rows and use.operand_number == 0 and op.operands[0].type.rank == 2


def look_up_in_panels(module: ir.Operation, name: str, kind: ir.Type) -> None:
    """Let all lookups in the parameter @name read its panels, of the type `kind`."""
    for own in [op for other, op in loads(module) if other == name]:
        readers = [use.owner.operation for use in own.results[0].uses if is_lookup(use)]
        if readers:
            with ir.InsertionPoint(own), own.location:
                panels = _panels(load(name, kind), own.results[0])
        for op in readers:
            with ir.InsertionPoint(op), op.location:
                if op.name == GATHER:
                    replace(op, _rows(panels, op.operands[1], shape_of(own.results[0])[1]))
                else:
                    replace(op, _element(panels, list(op.operands)[1:]))


def _panels(value: ir.Value, weight: ir.Value) -> ir.Value:
    """Panels of bytes [P, blocks, units, 64] as panels of elements [P, K / E, 16 E]."""
    element, (_, columns) = element_of(weight), shape_of(weight)
    each = _UNIT * 8 // element.width
    *lead, _ = shape_of(value)
    kind = ir.RankedTensorType.get([*lead, PANEL * each], element)
    whole = flow.TensorBitCastOp(kind, value, [], []).result
    flat = ir.RankedTensorType.get([lead[0], columns // each, PANEL * each], element)
    return tensor.collapse_shape(flat, whole, [[0], [1, 2], [3]])


def _element(panels: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
    row, column = at
    size, each = index(PANEL), index(shape_of(panels)[2] // PANEL)
    lane = arith.muli(arith.remui(row, size), each)
    place = arith.addi(lane, arith.remui(column, each))
    return tensor.extract(panels, [arith.divui(row, size), arith.divui(column, each), place])


def _rows(panels: ir.Value, ids: ir.Value, columns: int) -> ir.Value:
    """Rows `ids` [T] of the weight: [T, K]."""

    def element(number: ir.Value) -> ir.Value:
        row = arith.index_cast(ir.IndexType.get(), number)
        return _element(panels, [row, loop_index("m k", "k")])

    return generic([(ids, "m")], "m k", element_of(panels), element, sizes={"k": columns})
