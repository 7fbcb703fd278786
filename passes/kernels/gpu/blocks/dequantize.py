"""MX blocks to a tensor of floats in one kernel: what a program reads, and multiplies nowhere.

A block lies in a row of memory, wherever rows end; so the tensor is a row of blocks. A lane has 8
consecutive elements of one, 16 of 6 bits, as in quantize.py: a load of 4 to 12 bytes and one of the
scale, v_cvt_scalef32_pk_f32_* or pk32, a rounding where the floats are narrower, and stores of 16
bytes, lanes side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import thread
from mxc.dialects.amdgpu_narrow import widened
from mxc.formats.formats import BlockFormat
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import named, product
from mxc.passes.kernels.gpu.blocks.over_blocks import OverBlocks
from mxc.passes.kernels.gpu.conversions import power_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.parts import rows_of
from mxc.passes.kernels.vectors import i8, i32, of


@dataclass(frozen=True)
class Dequantize(OverBlocks):
    """`blocks` blocks of `format` to `kind`: "f32", "bf16" or "f16".

    Where `blocks` is None, their number is an index scalar of each call.

    Buffers: elements as i32, scales, and the floats.
    """

    format: BlockFormat
    kind: str

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        size = named(product(self.blocks, BLOCK))
        return f"mxc_dequantize_{self.format.name}_{self.kind}_{size}"

    @property
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Number and type of the elements of a block, for each buffer."""
        floats = ir.Type.parse(self.kind)
        return [(self.format.block_bytes // 4, i32()), (1, i8()), (BLOCK, floats)]

    @property
    def _lanes(self) -> int:
        """That share a block: of 6 bits two, so that each has whole registers of elements."""
        return 2 if self.format.element.bits == 6 else 4

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        most, start = self._together, workgroup(0) * self._together
        elements, scales, floats = (
            rows_of(buffer, size, start, most, self.blocks)
            for buffer, (size, _) in zip(given, self._kinds, strict=True)
        )
        lane, count = thread(), BLOCK // self._lanes
        words = count * self.format.element.bits // 32
        packed = vector.load(of(i32(), words), elements, [lane * words])
        byte = memref.LoadOp(scales, [lane // self._lanes]).result
        values = widened(packed, power_of(arith.extui(i32(), byte)), self.format.element)
        if self.kind != "f32":
            values = arith.truncf(of(ir.Type.parse(self.kind), count), values)
        vector.store(values, floats, [lane * count])
