"""Memory during lowering: scratch, pointers, and tiles loaded from and stored to memory."""

from __future__ import annotations

from collections.abc import Mapping

from iree.compiler import ir
from iree.compiler.dialects import arith, llvm, memref

from mxc.dialects import x86
from mxc.dialects.generic import constant
from mxc.kernels.language import Array, Kernel
from mxc.kernels.layout import Layout
from mxc.kernels.lowering.index import Number, value_of

#: Bytes of a cache line, to which scratch is aligned; also bytes of a row of a tile.
LINE = 64
#: Marks the dynamic index among the constant indices of a GEP.
_DYNAMIC = -(2**31)


def scratch(array: Array, tile: Mapping[str, int]) -> ir.Value:
    """Allocate scratch of a workgroup for a tile of an array, as a memref of bytes."""
    count = array.count(tile) * array.element.bits // 8
    kind = ir.MemRefType.get([count], ir.IntegerType.get_signless(8))
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), LINE)
    return memref.AllocaOp(kind, [], [], alignment=alignment).result


def pointer(memory: ir.Value) -> ir.Value:
    """The start of a memref as !llvm.ptr."""
    place = memref.ExtractAlignedPointerAsIndexOp(memory).result
    number = arith.index_cast(ir.IntegerType.get_signless(64), place)
    return llvm.IntToPtrOp(_pointer(), number).result


def _moved(start: ir.Value, offset: Number) -> ir.Value:
    """`start` plus `offset` bytes."""
    i64, i8 = ir.IntegerType.get_signless(64), ir.IntegerType.get_signless(8)
    number = arith.index_cast(i64, value_of(offset))
    places = ir.DenseI32ArrayAttr.get([_DYNAMIC])
    return llvm.GEPOp(_pointer(), start, [number], places, i8, 0).result


def _pointer() -> ir.Type:
    return ir.Type.parse("!llvm.ptr")


def load_tile(
    start: ir.Value, offset: Number, stride: int, *, streamed: bool, rows: ir.Value | None = None
) -> ir.Value:
    """Load a tile of `rows` (None: 16) rows that are `stride` bytes apart, `offset` bytes after a
    pointer. `streamed`: the data is read once, and need not stay in the nearest cache."""
    apart = constant(stride, ir.IntegerType.get_signless(64))
    return x86.tile_load(_moved(start, offset), apart, streamed=streamed, rows=rows)


def store_tile(
    value: ir.Value, start: ir.Value, offset: Number, stride: int, rows: ir.Value | None = None
) -> None:
    """Store a tile as `rows` (None: 16) rows that are `stride` bytes apart, `offset` bytes after a
    pointer."""
    apart = constant(stride, ir.IntegerType.get_signless(64))
    x86.tile_store(value, _moved(start, offset), apart, rows)


def row_stride(kernel: Kernel, array: Array, tile: Mapping[str, int], how: Layout) -> int:
    """Bytes between the rows of a tile in an array whose rows are each 64 contiguous bytes. `tile`:
    sizes of the region of the array. `how`: layout of the tile.

    Raises ValueError if rows are not contiguous, or not equally far apart.
    """
    sizes = {**dict.fromkeys(array.axes, 1), **tile}

    def apart(axis: str, bit: int) -> int:
        """Bytes between elements that differ only in this bit of the coordinate along an axis."""
        own = [a for a in array.axes if a == axis or _counts(kernel, a, axis)]
        at = {a: (1 << bit) * (a in own) for a in array.axes}
        return int(array.address(at, sizes)) * array.element.bits // 8

    row = [apart(*bit) for bit in how.item + how.lane]
    rows = [apart(*bit) for bit in how.register]
    size = array.element.bits // 8
    if row != [size << i for i in range(len(row))] or size << len(row) != LINE:
        raise ValueError(f"{array.name}: rows of tiles {how} are not side by side in memory")
    if rows != [rows[0] << i for i in range(len(rows))]:
        raise ValueError(f"{array.name}: rows of tiles {how} are not equally far apart in memory")
    return rows[0]


def _counts(kernel: Kernel, derived: str, axis: str) -> bool:
    """Whether the axis `derived` is a derived coordinate that adds the coordinate `axis`."""
    found = kernel.derived.get(derived)
    return found is not None and found.plus == axis
