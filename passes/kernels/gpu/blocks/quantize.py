"""A tensor to MX blocks in one kernel: every element is read once and written once.

A block of 32 lies in a row of memory, wherever rows end; so the tensor is a row of blocks. A lane
has 8 consecutive elements of one, 16 of 6 bits:

    16 bits   a load of 16 bytes a lane, lanes side by side
    f32       two (four), which share cache lines
    blocks    a load of 4 to 16 bytes, and one of the scale; they are floats in registers alone
    fp4       a store of 4 bytes a lane, lanes side by side; fp8, bf8: of 8; fp6, bf6: of 12

Fewer elements a lane would store less than a register, more would spread one load over more cache
lines: a whole block a lane reads 64 of them at once, and uses an eighth of each (f32). So four
(two) lanes share a block, and find its largest magnitude by exchanges inside of a quad (DPP), which
cost no more than the maximum itself. One lane of them stores the scale. Nothing goes through shared
memory.

The conversion to 6 bits takes 32 floats of a lane; here 16 of them are zeros that nobody reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND, no_reordering, thread
from mxc.dialects.amdgpu_narrow import neighbour, widened
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import named, product
from mxc.passes.kernels.gpu.blocks.over_blocks import OverBlocks
from mxc.passes.kernels.gpu.conversions import Conversion, largest_of, power_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.parts import rows_of
from mxc.passes.kernels.vectors import equal, f32, i8, i32, index, lanes_of, of


@dataclass(frozen=True)
class Quantize(OverBlocks):
    """`blocks` blocks of `source`, "f32", "bf16", "f16" or a format, to `conversion.format`.

    Where `blocks` is None, their number is an index scalar of each call.

    Buffers: the floats, or elements as i32 and scales; then elements as i32, and scales.
    """

    conversion: Conversion
    source: str

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        size = named(product(self.blocks, BLOCK))
        return f"mxc_quantize_{self.source}_{self.conversion.name}_{size}"

    @property
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Number and type of the elements of a block, for each buffer."""
        made = self._packed(self.conversion.format)
        return [
            *([(BLOCK, self._float)] if self._from is None else self._packed(self._from)),
            *made,
        ]

    def _packed(self, format: BlockFormat) -> list[tuple[int, ir.Type]]:
        return [(format.block_bytes // 4, i32()), (1, i8())]

    @property
    def _lanes(self) -> int:
        """That share a block: of 6 bits two, so that each has whole registers of elements."""
        return 2 if 6 in (self._bits, self.conversion.format.element.bits) else 4

    @property
    def _from(self) -> BlockFormat | None:
        return FORMATS.get(self.source)

    @property
    def _bits(self) -> int:
        """Bits of an element that is read."""
        return int(self._float.width) if self._from is None else self._from.element.bits

    @property
    def _float(self) -> ir.Type:
        return ir.Type.parse(self.source)

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        most, start = self._together, workgroup(0) * self._together
        *read, elements, scales = (
            rows_of(buffer, size, start, most, self.blocks)
            for buffer, (size, _) in zip(given, self._kinds, strict=True)
        )
        self.conversion.prepare()
        lane = thread()
        block = lane // self._lanes
        values = self._values(read, lane, block)
        exchanges = [
            lambda value, distance=distance: neighbour(value, distance)
            for distance in (1, 2)[: self._lanes // 2]
        ]
        byte = self.conversion.scale(values, largest_of(*exchanges))
        packed = self.conversion.elements(values, byte)
        words = lanes_of(packed)
        vector.store(packed, elements, [lane * words])
        first = equal(lane % self._lanes, 0)
        at = arith.select(first, block, index(BEYOND))
        memref.StoreOp(arith.trunci(i8(), byte), scales, [at])

    def _values(self, read: list[ir.Value], lane: ir.Value, block: ir.Value) -> ir.Value:
        """This lane's elements of the block, f32."""
        count = BLOCK // self._lanes
        if self._from is not None:
            words = count * self._bits // 32
            packed = vector.load(of(i32(), words), read[0], [lane * words])
            byte = arith.extui(i32(), memref.LoadOp(read[1], [block]).result)
            return widened(packed, power_of(byte), self._from.element)
        values = vector.load(of(self._float, count), read[0], [lane * count])
        # All loads are on their way before the first of them is waited for.
        no_reordering()
        return values if self.source == "f32" else arith.extf(of(f32(), count), values)
