"""Bounded views of the part of a buffer that a workgroup uses.

Offsets within a view are small, however large the buffer is.
"""

from __future__ import annotations

from math import prod

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND, bounded
from mxc.passes.kernels.extents import Size, value_of
from mxc.passes.kernels.gpu.lanes import at_most
from mxc.passes.kernels.vectors import i8, index, of


def rows_of(buffer: ir.Value, size: int, start: ir.Value, most: int, total: Size) -> ir.Value:
    """Return a bounded view of the rows from `start` on of a flat buffer, at most `most` rows.

    The buffer has `total` rows of `size` elements. Loads past the end of the view return zero.
    """
    left = value_of(total) - start
    count = at_most(left, most) * size
    kind = ir.MemRefType(buffer.type)
    dynamic = ir.ShapedType.get_dynamic_size()
    part = ir.MemRefType.get([dynamic], kind.element_type, kind.layout, kind.memory_space)
    at = [start * size]
    return bounded(
        memref.SubViewOp(part, buffer, at, [count], [], [dynamic], [dynamic], [1]).result
    )


def flat(buffer: ir.Value) -> ir.Value:
    """Collapse a memref of rank 2 to rank 1. One of rank 1 is returned unchanged."""
    kind = ir.MemRefType(buffer.type)
    if kind.rank == 1:
        return buffer
    dynamic = ir.ShapedType.get_dynamic_size()
    size = dynamic if dynamic in kind.shape else prod(kind.shape)
    layout = ir.StridedLayoutAttr.get(ir.ShapedType.get_dynamic_stride_or_offset(), [1])
    wanted = ir.MemRefType.get([size], kind.element_type, layout, kind.memory_space)
    return memref.collapse_shape(wanted, buffer, [[0, 1]])


def load_bytes(
    buffer: ir.Value, at: ir.Value, count: int, inside: ir.Value | None = None
) -> ir.Value:
    """Load `count` bytes of a bounded buffer of i8 from offset `at` on.

    `inside`, an i1: if it is false, the offset is out of bounds and the bytes are zero.
    """
    if inside is not None:
        at = arith.select(inside, at, index(BEYOND))
    return vector.load(of(i8(), count), buffer, [at])
