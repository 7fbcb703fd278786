"""A tensor to MX blocks or back in one kernel: every element is read once and written once.

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

Blocks that a program reads and multiplies nowhere become floats the same way, lane by lane: a load
of 4 to 12 bytes and one of the scale, v_cvt_scalef32_pk_f32_* or pk32, a rounding where the floats
are narrower, and stores of 16 bytes, lanes side by side.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND, no_reordering, thread
from mxc.dialects.amdgpu_narrow import neighbour, widened
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, named, product, quotient_up
from mxc.passes.kernels.gpu.conversions import BlockConversion, largest_of, power_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.parts import rows_of
from mxc.passes.kernels.vectors import equal, f32, i8, i32, index, lanes_of, of

#: Lanes of a workgroup: four waves, and none waits for another.
_THREADS = 256


class InRows(Sized, ABC):
    """A kernel whose buffers are flat, each of as many rows."""

    @property
    @abstractmethod
    def _rows(self) -> Size:
        """How many."""

    @property
    @abstractmethod
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Number and type of the elements of a row, for each buffer."""

    @property
    def buffers(self) -> list[Buffer]:
        """What is read, then the results."""
        return [Buffer([product(self._rows, size)], element) for size, element in self._kinds]

    def _from_row(self, given: Sequence[ir.Value], start: ir.Value, most: int) -> list[ir.Value]:
        """What a workgroup sees of the buffers: `most` rows at most, from one on."""
        return [
            rows_of(buffer, size, start, most, self._rows)
            for buffer, (size, _) in zip(given, self._kinds, strict=True)
        ]


@dataclass(frozen=True)
class OverBlocks(InRows):
    """`blocks`: how many; where it is None, their number is an index scalar of each call."""

    blocks: Size

    @property
    def _rows(self) -> Size:
        return self.blocks

    @property
    @abstractmethod
    def _lanes(self) -> int:
        """That share a block: of 6 bits two, so that each has whole registers of elements."""

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        return _THREADS

    @property
    def workgroups(self) -> list[Size]:
        """Along the blocks."""
        return [quotient_up(self.blocks, self._together)]

    @property
    def _together(self) -> int:
        """Blocks of a workgroup."""
        return _THREADS // self._lanes

    def _views(self, given: Sequence[ir.Value]) -> list[ir.Value]:
        """What the workgroup that runs sees of the buffers."""
        return self._from_row(given, workgroup(0) * self._together, self._together)


def packed_block(format: BlockFormat) -> list[tuple[int, ir.Type]]:
    """Elements of a packed block, as i32, and its scale: number and type."""
    return [(format.block_bytes // 4, i32()), (1, i8())]


@dataclass(frozen=True)
class GpuQuantize(OverBlocks):
    """`blocks` blocks of `source`, "f32", "bf16", "f16" or a format, to `conversion.format`.

    Where `blocks` is None, their number is an index scalar of each call.

    Buffers: the floats, or elements as i32 and scales; then elements as i32, and scales.
    """

    conversion: BlockConversion
    source: str

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        size = named(product(self.blocks, BLOCK))
        return f"mxc_quantize_{self.source}_{self.conversion.name}_{size}"

    @property
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Number and type of the elements of a block, for each buffer."""
        read = [(BLOCK, self._float)] if self._from is None else packed_block(self._from)
        return [*read, *packed_block(self.conversion.format)]

    @property
    def _lanes(self) -> int:
        """That share a block."""
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
        *read, elements, scales = self._views(given)
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
        return [*packed_block(self.format), (BLOCK, floats)]

    @property
    def _lanes(self) -> int:
        """That share a block."""
        return 2 if self.format.element.bits == 6 else 4

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        elements, scales, floats = self._views(given)
        lane, count = thread(), BLOCK // self._lanes
        words = count * self.format.element.bits // 32
        packed = vector.load(of(i32(), words), elements, [lane * words])
        byte = memref.LoadOp(scales, [lane // self._lanes]).result
        values = widened(packed, power_of(arith.extui(i32(), byte)), self.format.element)
        if self.kind != "f32":
            values = arith.truncf(of(ir.Type.parse(self.kind), count), values)
        vector.store(values, floats, [lane * count])
