"""A kernel that transposes a matrix and quantizes it to MX blocks: blocks are along the columns of
the source, which are rows of the result.

    x [M, K], floats or blocks along K    ->    elements [K, M / 32, 32], scales [K, M / 32]

A lane loads one i32 of each of 32 rows, beside those of its adjacent lanes. That is one to eight
columns, of which it has whole blocks. So it finds their largest magnitudes without other lanes, and
stores each block at once, 16 to 32 bytes. LDS is not used, and each element is read once.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import BEYOND, bounded, no_reordering, thread
from mxc.dialects.amdgpu_narrow import widened_pair
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized
from mxc.passes.kernels.gpu.conversions import BlockConversion, power_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.lanes import LANES
from mxc.passes.kernels.vectors import bitcast, f32, i8, i32, lanes_of, of

#: Type of a source of floats -> bits of an element.
_FLOATS = {"f32": 32, "bf16": 16, "f16": 16}


@dataclass(frozen=True)
class GpuTransposeQuantize(Sized):
    """The kernel that transposes a matrix [rows, depth] of `source` and quantizes it to
    `conversion.format`. `source`: a type of floats, or the name of a format with blocks along rows.

    Buffers: the floats, or the elements, as i32, and the scales; then elements as i32, and scales.
    """

    conversion: BlockConversion
    rows: int
    depth: int
    source: str

    @property
    def fits(self) -> bool:
        """Whether each i32 of a row has whole elements, all blocks are whole, and offsets have 32
        bits."""
        return (
            min(self.rows, self.depth) > 0
            and 32 % self._bits == 0
            and self.rows % BLOCK == 0
            and self.depth * self._bits % 32 == 0
            and self.rows * self.depth * self._bits // 8 < BEYOND
        )

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        name = f"mxc_quantize_{self.source}_{self.conversion.name}"
        return f"{name}_transposed_{self.rows}x{self.depth}"

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        return LANES

    @property
    def workgroups(self) -> list[Size]:
        """Workgroups along the columns, and along the blocks of 32 rows."""
        return [-(-self._words // LANES), self.rows // BLOCK]

    @property
    def buffers(self) -> list[Buffer]:
        """Buffers that are read, then the results."""
        count = self.rows * self.depth
        blocks = [Buffer([count // BLOCK], i8())]
        made = count * self.conversion.format.element.bits // 32
        return [
            Buffer([self.rows * self._words], i32()),
            *(blocks if self._from is not None else []),
            Buffer([made], i32()),
            *blocks,
        ]

    @property
    def _from(self) -> BlockFormat | None:
        """The format of `source`; None where it is floats."""
        return FORMATS.get(self.source)

    @property
    def _bits(self) -> int:
        """Bits of an element of `source`."""
        return _FLOATS[self.source] if self._from is None else self._from.element.bits

    @property
    def _words(self) -> int:
        """Number of i32 in a row of `source`."""
        return self.depth * self._bits // 32

    def body(self, *given: ir.Value) -> None:
        """Build the body at the insertion point."""
        *read, elements, scales = (bounded(buffer) for buffer in given)
        self.conversion.prepare()
        own = workgroup(0) * LANES + thread()
        columns = 32 // self._bits
        first = own * columns
        across = workgroup(1)
        rows = [across * BLOCK + row for row in range(BLOCK)]
        words = [vector.load(of(i32(), 1), read[0], [row * self._words + own]) for row in rows]
        powers: list[ir.Value | None] = [None] * BLOCK
        if self._from is not None:
            block = first // BLOCK
            places = [row * (self.depth // BLOCK) + block for row in rows]
            found = [memref.LoadOp(read[1], [place]).result for place in places]
            no_reordering()
            powers = [power_of(arith.extui(i32(), byte)) for byte in found]
        no_reordering()
        for pair in range(0, columns, 2):
            parts = [self._pair(*both, pair) for both in zip(words, powers, strict=True)]
            for column in range(len(parts[0])):
                values = vector.from_elements(of(f32(), BLOCK), [part[column] for part in parts])
                place = (first + (pair + column)) * (self.rows // BLOCK) + across
                self._store(values, place, elements, scales)

    def _pair(self, word: ir.Value, power: ir.Value | None, first: int) -> list[ir.Value]:
        """Return two columns of a row as f32, from column `first` of those in `word` on, or the
        only one that it has. `power`: the scale, if elements have one."""
        if self._from is not None:
            assert power is not None
            two = widened_pair(word, power, self._from.element, first // 2)
        elif self.source != "f32":
            two = arith.extf(of(f32(), 2), bitcast(word, ir.Type.parse(self.source), 2))
        else:
            return [vector.extract(bitcast(word, f32(), 1), [], [0])]
        return [vector.extract(two, [], [at]) for at in range(2)]

    def _store(
        self, values: ir.Value, block: ir.Value, elements: ir.Value, scales: ir.Value
    ) -> None:
        """Convert a block and store it. Blocks of columns past the last one lie past the end of the
        buffers, which drop them."""
        byte = self.conversion.scale(values, lambda largest: largest)
        packed = self.conversion.elements(values, byte)
        words = lanes_of(packed)
        vector.store(packed, elements, [block * words])
        memref.StoreOp(arith.trunci(i8(), byte), scales, [block])
        # Blocks are not interleaved: that would take the registers of other waves.
        no_reordering()
