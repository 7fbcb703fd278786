"""Reading a program at IREE's flow phase: each dispatch, its body, and the bytes that it moves.

    %r = flow.dispatch @exe::@entry(%a, %w) : (..) -> ..
    flow.executable @exe { export @entry, module { func.func @entry(%arg0, %arg1, %arg2) } }

The body's arguments are the operands, then the results that are not tied to an operand. Nothing
is built here: the functions serve passes that verify and the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.locations import names

LOAD, STORE = (f"iree_tensor_ext.dispatch.tensor.{kind}" for kind in ("load", "store"))

#: Operations that give the same bytes another type.
RENAMES = (
    "flow.tensor.bitcast", "flow.tensor.reshape", "iree_tensor_ext.bitcast",
    "tensor.collapse_shape", "tensor.expand_shape", "tensor.cast", "util.optimization_barrier",
    "iree_tensor_ext.compute_barrier.start", "iree_tensor_ext.compute_barrier.end",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """One `flow.dispatch`: `function` encloses it, `entry` is the exported symbol, `body` its code.

    `body` is None where the code is not a function of the flow dialect (given as an object file).
    """

    op: ir.Operation
    function: str
    entry: str
    body: ir.Operation | None

    @property
    def operands(self) -> list[ir.Value]:
        """The values that the body's first arguments stand for (without the workload)."""
        workload, arguments = list(ir.DenseI32ArrayAttr(self.op.attributes["operandSegmentSizes"]))[
            :2
        ]
        return list(self.op.operands)[workload : workload + arguments]

    @property
    def names(self) -> tuple[str, ...]:
        """Names in the location of the dispatch."""
        return names(self.op.location)


def walk(root: ir.Operation) -> Iterator[ir.Operation]:
    """All operations under `root`, in order, `root` first."""
    yield root
    for region in root.regions:
        for block in region.blocks:
            for op in block.operations:
                yield from walk(op.operation)


def dispatches(module: ir.Operation) -> list[Dispatch]:
    """Every `flow.dispatch` of a module at the flow phase, initialisers included, in order."""
    bodies: dict[tuple[str, str], ir.Operation] = {}
    found: list[Dispatch] = []
    top = [op.operation for op in module.regions[0].blocks[0].operations]
    for op in top:
        if op.name == "flow.executable":
            bodies.update({(_symbol(op), _symbol(f)): f for f in walk(op) if f.name == "func.func"})
    for op in top:
        if op.name == "flow.executable":
            continue
        function = _symbol(op) if "sym_name" in op.attributes else "initializer"
        for inner in walk(op):
            if inner.name == "flow.dispatch":
                executable, entry = _entry(inner)
                body = bodies.get((executable, entry))
                found.append(Dispatch(op=inner, function=function, entry=entry, body=body))
    return found


def element_bits(element: ir.Type) -> int:
    """Width of a scalar type in bits; an index counts 64."""
    if isinstance(element, ir.IndexType):
        return 64
    if isinstance(element, ir.FloatType):
        return int(element.width)
    if isinstance(element, ir.ComplexType):
        return 2 * element_bits(ir.ComplexType(element).element_type)
    return int(ir.IntegerType(element).width)


def tensor_bytes(value: ir.Type) -> int | None:
    """Bytes of a tensor when packed, None where a size is dynamic, 0 for what is no tensor."""
    if not isinstance(value, ir.RankedTensorType):
        return 0
    if any(value.is_dynamic_dim(axis) for axis in range(value.rank)):
        return None
    bits: int = math.prod(value.shape) * element_bits(value.element_type)
    return math.ceil(bits / 8)


def moved_bytes(dispatch: Dispatch) -> int | None:
    """Bytes that the dispatch reads and writes, each operand and result once; None if dynamic.

    An operand of which only a part is read counts that part: the rows that a gather takes, the
    slice that a load with offsets takes. A result that is an operand, written where it lies, counts
    what is stored.
    """
    written = [_written_bytes(dispatch, number) for number in range(len(dispatch.op.results))]
    read = [
        _read_bytes(dispatch, index, operand) for index, operand in enumerate(dispatch.operands)
    ]
    total = 0
    for part in (*read, *written):
        if part is None:
            return None
        total += part
    return total


def loads(dispatch: Dispatch, index: int) -> list[ir.Value]:
    """The tensors that the body loads from operand `index`."""
    argument = _argument(dispatch, index)
    if argument is None:
        return []
    return [use.owner.results[0] for use in argument.uses if use.owner.name == LOAD]


def source(value: ir.Value) -> ir.Value:
    """`value` seen through operations that only rename bytes."""
    while (op := owner(value)) is not None and op.name in RENAMES:
        value = op.operands[0]
    return value


def owner(value: ir.Value) -> ir.Operation | None:
    """The operation that defines `value`; None for an argument of a block."""
    return None if isinstance(value.owner, ir.Block) else value.owner


def _read_bytes(dispatch: Dispatch, index: int, operand: ir.Value) -> int | None:
    whole = tensor_bytes(operand.type)
    parts = loads(dispatch, index)
    if whole is None or not parts:
        return whole
    total = 0
    for part in parts:
        taken = _taken_bytes(part)
        if taken is None:
            return whole
        total += taken
    return min(total, whole)


def _written_bytes(dispatch: Dispatch, number: int) -> int | None:
    whole = tensor_bytes(dispatch.op.results[number].type)
    if "tied_operands" not in dispatch.op.attributes or whole is None:
        return whole
    tied = ir.IntegerAttr(ir.ArrayAttr(dispatch.op.attributes["tied_operands"])[number]).value
    argument = None if tied < 0 else _argument(dispatch, tied)
    if argument is None:
        return whole
    stores = [use.owner for use in argument.uses if use.owner.name == STORE]
    parts = [tensor_bytes(store.operands[0].type) for store in stores]
    return min(whole, sum(whole if part is None else part for part in parts)) if parts else whole


def _taken_bytes(value: ir.Value) -> int | None:
    """Bytes that are read of a loaded tensor: all, unless every use takes rows or elements."""
    total = 0
    for use in value.uses:
        op, taken = use.owner, tensor_bytes(value.type)
        if op.name in RENAMES:
            taken = _taken_bytes(op.results[0])
        elif (op.name == GATHER and use.operand_number == 0) or op.name == "tensor.extract_slice":
            taken = tensor_bytes(op.results[0].type)
        elif op.name == "tensor.extract":
            taken = _extracted_bytes(op)
        if taken is None:
            return None
        total += taken
    whole = tensor_bytes(value.type)
    return whole if whole is None else min(total, whole)


def _extracted_bytes(extract: ir.Operation) -> int | None:
    """Elements that `tensor.extract` reads: one for each value of the loops that index it."""
    source_type = ir.RankedTensorType(extract.operands[0].type)
    loop = extract.parent
    if loop is None or not loop.name.startswith("linalg."):
        return tensor_bytes(source_type)
    maps = [ir.AffineMapAttr(attr).value for attr in loop.attributes["indexing_maps"]]
    extents: dict[int, int] = {}
    for operand, indexing in zip(loop.operands, maps, strict=True):
        for axis, expression in enumerate(indexing.results):
            if isinstance(expression, ir.AffineDimExpr):
                size = ir.RankedTensorType(operand.type).shape[axis]
                extents[ir.AffineDimExpr(expression).position] = size
    dims: set[int] = set()
    pending = list(extract.operands)[1:]
    while pending:
        value = pending.pop()
        op = owner(value)
        if op is None:
            number = ir.BlockArgument(value).arg_number
            if value.owner == loop.regions[0].blocks[0]:
                dims |= {
                    ir.AffineDimExpr(e).position
                    for e in maps[number].results
                    if isinstance(e, ir.AffineDimExpr)
                }
        elif op.name == "linalg.index":
            dims.add(ir.IntegerAttr(op.attributes["dim"]).value)
        else:
            pending += op.operands
    sizes = [extents.get(dim, -1) for dim in dims]
    if any(size < 0 for size in sizes):
        return tensor_bytes(source_type)
    return math.ceil(math.prod(sizes) * element_bits(source_type.element_type) / 8)


def _argument(dispatch: Dispatch, index: int) -> ir.Value | None:
    if dispatch.body is None:
        return None
    arguments = dispatch.body.regions[0].blocks[0].arguments
    return arguments[index] if index < len(arguments) else None


def _symbol(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes["sym_name"]).value)


def _entry(op: ir.Operation) -> tuple[str, str]:
    """Executable and export that a dispatch names: `entry_points = [@exe::@entry]`."""
    path = ir.SymbolRefAttr(ir.ArrayAttr(op.attributes["entry_points"])[0]).value
    return str(path[0]), str(path[-1])
