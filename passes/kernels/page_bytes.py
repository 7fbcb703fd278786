"""Access a pool of pages as bytes inside a kernel, to read the scales of an MX format."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import memref

from mxc.passes.kernels.vectors import i8


def bytes_of_entries(pool: ir.Value) -> ir.Value:
    """Return the memref i8 [N, E, .., V, D] of a pool as [N * E, bytes of an entry]."""
    kind = ir.MemRefType(pool.type)
    count, (_, _, rows, heads, depth) = ir.ShapedType.get_dynamic_size(), kind.shape
    size, layout = rows * heads * depth, None
    if isinstance(kind.layout, ir.StridedLayoutAttr):
        _, offset = kind.get_strides_and_offset()
        unknown = ir.ShapedType.get_dynamic_stride_or_offset()
        layout = ir.StridedLayoutAttr.get(offset if offset == 0 else unknown, [size, 1])
    wanted = ir.MemRefType.get([count, size], i8(), layout, kind.memory_space)
    return memref.collapse_shape(wanted, pool, [[0, 1], [2, 3, 4]])
