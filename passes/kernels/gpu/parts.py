"""What a workgroup sees of a buffer, so that its offsets are small however large that is."""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import memref

from mxc.dialects.amdgpu import bounded
from mxc.passes.kernels.extents import Size, value_of
from mxc.passes.kernels.gpu.lanes import at_most


def rows_of(buffer: ir.Value, size: int, start: ir.Value, most: int, total: Size) -> ir.Value:
    """The rows from `start` on of a flat buffer of `total` rows of `size` elements, `most` of them
    at most: bounded. What is read after them is zero.
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
