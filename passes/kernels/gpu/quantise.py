"""A tensor of floats to MX blocks in one kernel: every element is read once and written once.

A block of 32 lies in a row of memory, wherever rows end; so the tensor is a row of blocks. A lane
has 8 consecutive elements of one, 16 of 6 bits:

    bf16      a load of 16 bytes a lane, lanes side by side
    f32       two (four), which share cache lines
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

from mxc.dialects.amdgpu import BEYOND, GLOBAL, bounded, no_reordering, thread
from mxc.dialects.amdgpu_narrow import neighbour
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.gpu.conversions import Conversion, largest_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.lanes import divided, plus, rest, times
from mxc.passes.kernels.vectors import f32, i8, i32, index, of

#: Lanes of a workgroup: four waves, and none waits for another.
_THREADS = 256
#: Bytes that a bounded buffer may have.
_BYTES = BEYOND


@dataclass(frozen=True)
class Quantise:
    """`blocks` blocks of floats, f32 or bf16 (`narrow`), to `conversion.format`.

    Buffers: the floats, the elements as i32, the scales.
    """

    conversion: Conversion
    blocks: int
    narrow: bool

    @property
    def fits(self) -> bool:
        """Whether offsets fit: floats of less than 2 GiB."""
        return self.blocks * BLOCK * (2 if self.narrow else 4) < _BYTES

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        source = "bf16" if self.narrow else "f32"
        return f"mxc_quantise_{source}_{self.conversion.name}_{self.blocks * BLOCK}"

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        return _THREADS

    @property
    def workgroups(self) -> list[int]:
        """Along the blocks."""
        return [-(-self.blocks * self._lanes // _THREADS)]

    @property
    def buffers(self) -> list[ir.Type]:
        """Memref types: the floats, then the results."""
        words = self.blocks * self.conversion.format.block_bytes // 4
        space = ir.Attribute.parse(GLOBAL)
        shapes = [(self.blocks * BLOCK, self._source), (words, i32()), (self.blocks, i8())]
        return [ir.MemRefType.get([size], kind, memory_space=space) for size, kind in shapes]

    @property
    def _lanes(self) -> int:
        """That share a block: of 6 bits two, so that each has whole registers of elements."""
        return 2 if self.conversion.format.element.bits == 6 else 4

    @property
    def _source(self) -> ir.Type:
        return ir.BF16Type.get() if self.narrow else f32()

    def body(self, floats: ir.Value, elements: ir.Value, scales: ir.Value) -> None:
        """Build the body at the insertion point."""
        self.conversion.prepare()
        count = BLOCK // self._lanes
        lane = plus(times(workgroup(0), _THREADS), thread())
        values = vector.load(of(self._source, count), bounded(floats), [times(lane, count)])
        # All loads are on their way before the first of them is waited for.
        no_reordering()
        if self.narrow:
            values = arith.extf(of(f32(), count), values)
        exchanges = [
            lambda value, distance=distance: neighbour(value, distance)
            for distance in (1, 2)[: self._lanes // 2]
        ]
        byte = self.conversion.scale(values, largest_of(*exchanges))
        packed = self.conversion.elements(values, byte)
        words = ir.VectorType(packed.type).shape[0]
        vector.store(packed, bounded(elements), [times(lane, words)])
        first = arith.cmpi(arith.CmpIPredicate.eq, rest(lane, self._lanes), index(0))
        at = arith.select(first, divided(lane, self._lanes), index(BEYOND))
        memref.StoreOp(arith.trunci(i8(), byte), bounded(scales), [at])
