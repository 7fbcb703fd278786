"""Reading a program at IREE's flow phase: each dispatch, its body, and the bytes that it moves.

    %r = flow.dispatch @exe::@entry(%a, %w) : (..) -> ..
    flow.executable @exe { export @entry, module { func.func @entry(%arg0, %arg1, %arg2) } }

The arguments of the body are the operands, then the results that are not tied to an operand. This
module builds nothing: it serves verification passes and the report.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.locations import names
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.pool_reads import read_pool
from mxc.dialects.samples import STATED, Shape, Sizes

LOAD, STORE = (f"iree_tensor_ext.dispatch.tensor.{kind}" for kind in ("load", "store"))
_TIE, _SCATTER = "flow.dispatch.tie_shape", "iree_linalg_ext.scatter"

#: Operation with a kernel of mxc before IREE's stream phase; after it, with any kernel.
KERNEL = "stream.executable"

#: Operations that reinterpret the same bytes as another type.
RENAMES = (
    "flow.tensor.bitcast", "flow.tensor.reshape", "iree_tensor_ext.bitcast",
    "tensor.collapse_shape", "tensor.expand_shape", "tensor.cast", "util.optimization_barrier",
    "iree_tensor_ext.compute_barrier.start", "iree_tensor_ext.compute_barrier.end",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """One `flow.dispatch`: `function` encloses it, `entry` is the exported symbol, `body` its code.

    `body` is None where the code is not a function of the flow dialect (it is an object file).
    """

    op: ir.Operation
    function: str
    entry: str
    body: ir.Operation | None

    @property
    def workload(self) -> list[ir.Value]:
        """The operands that determine the number of workgroups."""
        count = list(ir.DenseI32ArrayAttr(self.op.attributes["operandSegmentSizes"]))
        return list(self.op.operands)[: count[0]]

    @property
    def operands(self) -> list[ir.Value]:
        """The operands that correspond to the first arguments of the body, without the workload."""
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
            for view in block.operations:
                op = view.operation
                if len(op.regions):
                    yield from walk(op)
                else:  # most operations
                    yield op


def walk_outside_kernels(module: ir.Operation) -> Iterator[ir.Operation]:
    """Yield all operations of a module, in order, except those in executables."""
    for top in module.regions[0].blocks[0].operations:
        if not top.operation.name.endswith(".executable"):
            yield from walk(top.operation)


def dispatches(module: ir.Operation) -> list[Dispatch]:
    """Every `flow.dispatch` of a module at the flow phase, initialisers included, in order."""
    bodies: dict[tuple[str, str], ir.Operation] = {}
    found: list[Dispatch] = []
    top = [op.operation for op in module.regions[0].blocks[0].operations]
    for op in top:
        if op.name == "flow.executable":
            bodies.update(
                {(symbol_of(op), symbol_of(f)): f for f in walk(op) if f.name == "func.func"}
            )
    for op in top:
        if op.name == "flow.executable":
            continue
        function = symbol_of(op) if "sym_name" in op.attributes else "initializer"
        for inner in walk(op):
            if inner.name == "flow.dispatch":
                executable, entry = _entry(inner)
                body = bodies.get((executable, entry))
                found.append(Dispatch(op=inner, function=function, entry=entry, body=body))
    return found


def element_bits(element: ir.Type) -> int:
    """Width of a scalar type in bits; 64 for an index."""
    if isinstance(element, ir.IndexType):
        return 64
    if isinstance(element, ir.FloatType):
        return int(element.width)
    if isinstance(element, ir.ComplexType):
        return 2 * element_bits(ir.ComplexType(element).element_type)
    return int(ir.IntegerType(element).width)


def tensor_bytes(value: ir.Type) -> int | None:
    """Bytes of a packed tensor; None where a size is dynamic, 0 for other types."""
    if not isinstance(value, ir.RankedTensorType):
        return 0
    if any(value.is_dynamic_dim(axis) for axis in range(value.rank)):
        return None
    bits: int = math.prod(value.shape) * element_bits(value.element_type)
    return math.ceil(bits / 8)


def shaped_bytes(value: ir.Type, shape: Shape) -> int | None:
    """Bytes of a tensor of this type with this shape; None where the shape is not known."""
    if shape is None:
        return None
    bits: int = math.prod(shape) * element_bits(ir.RankedTensorType(value).element_type)
    return math.ceil(bits / 8)


def operand_bytes(dispatch: Dispatch, index: int, sizes: Sizes = STATED) -> int | None:
    """Bytes of a whole operand, 0 if it is not a tensor; None where a size is not known."""
    kind = dispatch.operands[index].type
    if not isinstance(kind, ir.RankedTensorType):
        return 0
    return shaped_bytes(kind, sizes.operand(dispatch.op, index))


def result_bytes(dispatch: Dispatch, number: int, sizes: Sizes = STATED) -> int | None:
    """Bytes of a whole result; None where a size is not known."""
    return shaped_bytes(dispatch.op.results[number].type, sizes.result(dispatch.op, number))


def moved_bytes(dispatch: Dispatch, sizes: Sizes = STATED) -> int | None:
    """Bytes that the dispatch reads and writes, each operand and result once; None if dynamic.

    An operand of which only a part is read counts that part: the rows that a gather reads, the
    slice that a load with offsets reads, the pages that attention reads. A result that is written
    in place to an operand counts the bytes stored. A tensor passed as several operands counts at
    most once.
    """
    written = [
        _written_bytes(dispatch, number, sizes) for number in range(len(dispatch.op.results))
    ]
    read: dict[ir.Value, int | None] = {}
    for index, value in enumerate(dispatch.operands):
        found = _read_bytes(dispatch, index, sizes)
        before, whole = read.get(value, 0), operand_bytes(dispatch, index, sizes)
        if value in read and found is not None and before is not None and whole is not None:
            found = min(before + found, whole)
        read[value] = found
    total = 0
    for part in (*read.values(), *written):
        if part is None:
            return None
        total += part
    return total


def loads(dispatch: Dispatch, index: int) -> list[ir.Value]:
    """The tensors that the body loads from operand `index`."""
    return [use.owner.results[0] for use in _uses(dispatch, index) if use.owner.name == LOAD]


def source(value: ir.Value) -> ir.Value:
    """The tensor that `value` is reinterpreted from, through any chain of RENAMES."""
    while (op := owner(value)) is not None and op.name in RENAMES:
        value = op.operands[0]
    return value


def owner(value: ir.Value) -> ir.Operation | None:
    """The operation that defines `value`; None for an argument of a block."""
    return None if isinstance(value.owner, ir.Block) else value.owner


def _read_bytes(dispatch: Dispatch, index: int, sizes: Sizes) -> int | None:
    pool = read_pool(dispatch.op)
    if pool is not None and pool.operand == index:
        return pool.bytes(dispatch.op, sizes)
    whole = operand_bytes(dispatch, index, sizes)
    parts = loads(dispatch, index)
    if whole is None or not parts:
        return whole
    total = 0
    for part in parts:
        taken = _taken_bytes(part, dispatch, sizes)
        if taken is None:
            return whole
        total += taken
    return min(total, whole)


def _written_bytes(dispatch: Dispatch, number: int, sizes: Sizes) -> int | None:
    whole = result_bytes(dispatch, number, sizes)
    if "tied_operands" not in dispatch.op.attributes or whole is None:
        return whole
    tied = ir.IntegerAttr(ir.ArrayAttr(dispatch.op.attributes["tied_operands"])[number]).value
    if tied < 0:
        return whole
    pool = read_pool(dispatch.op)
    if pool is not None and pool.operand == tied:
        return pool.bytes(dispatch.op, sizes)
    stores = [use.owner for use in _uses(dispatch, tied) if use.owner.name == STORE]
    parts = [_stored_bytes(store.operands[0], dispatch, sizes) for store in stores]
    return min(whole, sum(whole if part is None else part for part in parts)) if parts else whole


def _stored_bytes(value: ir.Value, dispatch: Dispatch, sizes: Sizes) -> int | None:
    """Bytes that a store writes; for rows scattered over a tensor, the bytes of these rows."""
    op = owner(value)
    written = value if op is None or op.name != _SCATTER else op.operands[0]
    return _inside_bytes(written, dispatch, sizes)


def _inside_bytes(value: ir.Value, dispatch: Dispatch, sizes: Sizes) -> int | None:
    """Bytes of a tensor in the body of a dispatch."""
    return shaped_bytes(value.type, sizes.inside(value, dispatch.op))


def _taken_bytes(value: ir.Value, dispatch: Dispatch, sizes: Sizes) -> int | None:
    """Bytes that are read of a loaded tensor: all, unless every use reads rows or elements of it,
    or writes rows to it."""
    whole = _inside_bytes(value, dispatch, sizes)
    total = 0
    for use in value.uses:
        op, taken = use.owner, whole
        if op.name in RENAMES:
            taken = _taken_bytes(op.results[0], dispatch, sizes)
        elif (op.name == GATHER and use.operand_number == 0) or op.name == "tensor.extract_slice":
            taken = _inside_bytes(op.results[0], dispatch, sizes)
        elif op.name == "tensor.extract":
            taken = _extracted_bytes(op, dispatch, sizes)
        elif op.name == _SCATTER and use.operand_number == len(op.operands) - 1:
            taken = 0
        if taken is None:
            return None
        total += taken
    return whole if whole is None else min(total, whole)


def _extracted_bytes(extract: ir.Operation, dispatch: Dispatch, sizes: Sizes) -> int | None:
    """Bytes that `tensor.extract` reads: an element per combination of the loops that index it."""
    source_type = ir.RankedTensorType(extract.operands[0].type)
    loop = extract.parent
    if loop is None or not loop.name.startswith("linalg."):
        return _inside_bytes(extract.operands[0], dispatch, sizes)
    maps = [ir.AffineMapAttr(attr).value for attr in loop.attributes["indexing_maps"]]
    extents: dict[int, int] = {}
    for operand, indexing in zip(loop.operands, maps, strict=True):
        shape = sizes.inside(operand, dispatch.op)
        for axis, expression in enumerate(indexing.results):
            if isinstance(expression, ir.AffineDimExpr) and shape is not None:
                extents[ir.AffineDimExpr(expression).position] = shape[axis]
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
    counts = [extents.get(dim, -1) for dim in dims]
    if any(count < 0 for count in counts):
        return _inside_bytes(extract.operands[0], dispatch, sizes)
    return math.ceil(math.prod(counts) * element_bits(source_type.element_type) / 8)


def _uses(dispatch: Dispatch, index: int) -> list[ir.OpOperand]:
    """The uses of operand `index` in the body, also through an operation that ties its sizes."""
    if dispatch.body is None:
        return []
    arguments = dispatch.body.regions[0].blocks[0].arguments
    if index >= len(arguments):
        return []
    found: list[ir.OpOperand] = []
    for use in arguments[index].uses:
        found += use.owner.results[0].uses if use.owner.name == _TIE else [use]
    return found


def erase_uncalled(module: ir.Operation) -> None:
    """Erase the private executables that no dispatch of the module names."""
    called = {
        _entry(op)[0]
        for op in walk_outside_kernels(module)
        if op.name == "flow.dispatch" and "entry_points" in op.attributes
    }
    for each in list(module.regions[0].blocks[0].operations):
        op = each.operation
        if op.name == KERNEL and "sym_visibility" in op.attributes:
            private = ir.StringAttr(op.attributes["sym_visibility"]).value == "private"
            if private and symbol_of(op) not in called:
                op.erase()


def _entry(op: ir.Operation) -> tuple[str, str]:
    """Executable and export that a dispatch refers to: `entry_points = [@exe::@entry]`."""
    path = ir.SymbolRefAttr(ir.ArrayAttr(op.attributes["entry_points"])[0]).value
    return str(path[0]), str(path[-1])
