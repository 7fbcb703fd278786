"""Look up rows of a weight in panels, such as an embedding that is also the output head.

The elements in a panel have the bits that they have in rows (compiler/packing/panels.py), so a
lookup can read them in the panel. With E elements per unit, element [n, k] of a weight [N, K] is in
panels [P, K / E, 16 E]

    at [n / 16, k / E, E (n % 16) + k % E]

and a scale likewise. A row is spread over as many cache lines as it has units. That is a small part
of the bytes that a model reads per token. A copy of the table in rows would double its memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, flow, tensor

from mxc.dialects.generic import element_of, generic, loop_index, shape_of
from mxc.dialects.linalg_ext import GATHER
from mxc.formats.panels import PANEL
from mxc.passes.gather_packed import chooses_rows
from mxc.passes.kernels.parameters import load, loads
from mxc.passes.kernels.vectors import index
from mxc.passes.rewriting.rebuild import replace

_EXTRACT = "tensor.extract"
#: Names of the loops over the dimensions of a row, one letter each.
_LETTERS = "abc"


def is_lookup(use: ir.OpOperand) -> bool:
    """Whether an operation looks up elements or rows of a weight [N, ..]."""
    op = use.owner.operation
    rows = op.name == _EXTRACT or (op.name == GATHER and chooses_rows(op))
    return rows and use.operand_number == 0 and 2 <= op.operands[0].type.rank <= 1 + len(_LETTERS)


def look_up_in_panels(module: ir.Operation, kinds: Mapping[str, ir.Type]) -> None:
    """Make all lookups in parameters read the panels of these. `kinds`: by name of a parameter, the
    type of its panels."""
    for name, own in loads(module):
        if name not in kinds:
            continue
        weight = own.results[0]
        readers = [use.owner.operation for use in weight.uses if is_lookup(use)]
        if readers:
            with ir.InsertionPoint(own), own.location:
                panels = _panels(load(name, kinds[name]), element_of(weight))
        for op in readers:
            with ir.InsertionPoint(op), op.location:
                if op.name == GATHER:
                    replace(op, _rows(panels, op.operands[1], shape_of(weight)[1:]))
                else:
                    replace(op, _element(panels, list(op.operands)[1:], shape_of(weight)[1:]))


def _panels(value: ir.Value, element: ir.Type) -> ir.Value:
    """Bitcast panels [P, .., 16 units] to panels of elements [P, K / E, 16 E]."""
    *lead, last = shape_of(value)
    last = last * element_of(value).width // element.width
    kind = ir.RankedTensorType.get([*lead, last], element)
    if kind != value.type:
        value = flow.TensorBitCastOp(kind, value, [], []).result
    if len(lead) == 2:
        return value
    flat = ir.RankedTensorType.get([lead[0], lead[1] * lead[2], last], element)
    return tensor.collapse_shape(flat, value, [[0], [1, 2], [3]])


def _element(panels: ir.Value, at: Sequence[ir.Value], sizes: Sequence[int]) -> ir.Value:
    """The element [n, ..] of a weight with rows of `sizes`."""
    row, column, *others = at
    for place, size in zip(others, sizes[1:], strict=True):
        column = column * size + place
    rows, each = index(PANEL), index(shape_of(panels)[2] // PANEL)
    lane = row % rows * each
    last = lane + column % each
    return tensor.extract(panels, [row // rows, column // each, last])


def _rows(panels: ir.Value, ids: ir.Value, sizes: Sequence[int]) -> ir.Value:
    """Rows `ids` [T] of the weight: [T, ..]."""
    letters = _LETTERS[: len(sizes)]
    loops = " ".join("m" + letters)

    def element(number: ir.Value) -> ir.Value:
        row = arith.index_cast(ir.IndexType.get(), number)
        return _element(panels, [row, *(loop_index(loops, each) for each in letters)], sizes)

    given = dict(zip(letters, sizes, strict=True))
    return generic([(ids, "m")], loops, element_of(panels), element, sizes=given)
