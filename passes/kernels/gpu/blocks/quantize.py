"""Kernels that quantize a tensor to MX blocks, or dequantize it: each element is read once and
written once.

The 32 elements of a block are consecutive in memory, and no block is in two rows. So the tensor is
one sequence of blocks. A lane has 8 consecutive elements of a block, or 16 where elements have 6
bits:

    from 16 bits   a load of 16 bytes, adjacent lanes side by side; with 6 bits two loads
    from f32       two (with 6 bits four) such loads, which share cache lines
    from blocks    a load of 4 to 16 bytes, and one of the scale; floats are only in registers
    to fp4         a store of 4 bytes, lanes side by side; to fp8 and bf8 of 8, fp6 and bf6 of 12

With fewer elements a lane would store less than a register. With more elements a load would touch
more cache lines: with a whole block of f32 a lane, 64 of them, and an eighth of each would be used.
So four (two) lanes share a block. They find its largest magnitude by exchanges within four lanes
(DPP), which cost no more than the maximum itself. One of them stores the scale. LDS is not used.

The conversion to 6 bits takes 32 floats of a lane; here 16 of them are zeros, whose results are not
used.

Blocks that a program reads but does not multiply become floats in the same way: a load of 4 to 12
bytes and one of the scale, v_cvt_scalef32_pk_f32_* or pk32, a rounding if the floats have 16 bits,
and stores of 16 bytes, lanes side by side.
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
from mxc.passes.kernels.gpu.bounded_views import rows_of
from mxc.passes.kernels.gpu.conversions import BlockConversion, largest_of, power_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.vectors import equal, f32, i8, i32, index, lanes_of, of

#: Lanes of a workgroup: four waves, which do not wait for each other.
_THREADS = 256


class InRows(Sized, ABC):
    """Base of kernels with flat buffers that all have the same number of rows."""

    @property
    @abstractmethod
    def _rows(self) -> Size:
        """Number of rows."""

    @property
    @abstractmethod
    def _kinds(self) -> list[tuple[int, ir.Type]]:
        """Number and type of the elements of a row, for each buffer."""

    @property
    def buffers(self) -> list[Buffer]:
        """What is read, then the results."""
        return [Buffer([product(self._rows, size)], element) for size, element in self._kinds]

    def _from_row(self, given: Sequence[ir.Value], start: ir.Value, most: int) -> list[ir.Value]:
        """Return bounded parts of the buffers: from row `start` on, at most `most` rows."""
        return [
            rows_of(buffer, size, start, most, self._rows)
            for buffer, (size, _) in zip(given, self._kinds, strict=True)
        ]


@dataclass(frozen=True)
class OverBlocks(InRows):
    """Base of kernels over `blocks` blocks of 32; if None, the number is an index scalar of each
    call. A row of a buffer is what it has of a block."""

    blocks: Size

    @property
    def _rows(self) -> Size:
        return self.blocks

    @property
    @abstractmethod
    def _lanes(self) -> int:
        """Lanes that share a block: two where elements have 6 bits, so that each lane has whole
        registers of them; else four."""

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        return _THREADS

    @property
    def workgroups(self) -> list[Size]:
        """Workgroups along the blocks."""
        return [quotient_up(self.blocks, self._together)]

    @property
    def _together(self) -> int:
        """Blocks that a workgroup converts."""
        return _THREADS // self._lanes

    def _views(self, given: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the bounded parts of the buffers for the workgroup that runs."""
        return self._from_row(given, workgroup(0) * self._together, self._together)


def packed_block(format: BlockFormat) -> list[tuple[int, ir.Type]]:
    """Return the number and type of the elements of a packed block, as i32, and of its scale."""
    return [(format.block_bytes // 4, i32()), (1, i8())]


@dataclass(frozen=True)
class GpuQuantize(OverBlocks):
    """The kernel that converts `blocks` blocks of `source` to `conversion.format`. `source`: "f32",
    "bf16", "f16", or the name of a format.

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
        """Lanes that share a block."""
        return 2 if 6 in (self._bits, self.conversion.format.element.bits) else 4

    @property
    def _from(self) -> BlockFormat | None:
        """The format of `source`; None where it is floats."""
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
        """Load this lane's elements of the block, as f32."""
        count = BLOCK // self._lanes
        if self._from is not None:
            words = count * self._bits // 32
            packed = vector.load(of(i32(), words), read[0], [lane * words])
            byte = arith.extui(i32(), memref.LoadOp(read[1], [block]).result)
            return widened(packed, power_of(byte), self._from.element)
        values = vector.load(of(self._float, count), read[0], [lane * count])
        # All loads are issued before the wait for the first of them.
        no_reordering()
        return values if self.source == "f32" else arith.extf(of(f32(), count), values)


@dataclass(frozen=True)
class Dequantize(OverBlocks):
    """The kernel that converts `blocks` blocks of `format` to floats of the type `kind`: "f32",
    "bf16" or "f16".

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
        """Lanes that share a block."""
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
