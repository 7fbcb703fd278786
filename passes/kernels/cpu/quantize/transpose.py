"""Quantize a matrix to MX blocks across its rows, so that columns become contiguous.

    x [M, K], floats or blocks along K    ->    elements [K, M / 32, 32], scales [K, M / 32]

A register holds 16 columns of a row, one per lane. The largest magnitudes of 16 blocks are the
maximum of 32 registers, and the constants of a block are in its lane. The codes of a block are
packed to dwords in its lane. These are interleaved, so that the block of each column is contiguous
when it is stored. If the source is blocks, one block from each of 32 rows is first decoded, to
scratch in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, scf, vector

from mxc.dialects.quantize_scalars import MAGNITUDE, as_bits, like
from mxc.passes.kernels.cpu.quantize.rounding import Rounding
from mxc.passes.kernels.cpu.quantize.sources import BlockSource, SourceReader
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, quotient_up
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import (
    f32,
    i1,
    i8,
    i32,
    index,
    load,
    loop,
    of,
    prefetch,
    scratch,
    splat,
)

#: Columns that are processed at once.
_COLUMNS = 16
#: Columns and blocks of rows of a workgroup. Four blocks of 16 bytes fill a cache line of the
#: result.
_COLUMNS_A_WORKGROUP = 512
_BLOCKS_A_WORKGROUP = 4
#: Prefetch distance in bytes along a row.
_AHEAD = 256


@dataclass(frozen=True)
class CpuTransposeQuantize(Sized):
    """The kernel that transposes `source` [rows, depth] and quantizes it."""

    rounding: Rounding
    source: BlockSource
    rows: int
    depth: int

    @property
    def fits(self) -> bool:
        """Whether the kernel supports the sizes and the source: whole registers and blocks, and
        floats that a shift extends to f32."""
        whole = BLOCK if self.source.format is not None else _COLUMNS
        return self.source.kind != "f16" and not self.depth % whole and not self.rows % BLOCK

    @property
    def name(self) -> str:
        """The symbol of the kernel, equal for kernels that do the same."""
        name = f"mxc_quantize_{self.source.kind}_{self.rounding.name}"
        return f"{name}_transposed_{self.rows}x{self.depth}"

    @property
    def _blocks(self) -> int:
        """Number of blocks along the rows."""
        return self.rows // BLOCK

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along columns and along blocks of rows."""
        return [
            quotient_up(self.depth, _COLUMNS_A_WORKGROUP),
            quotient_up(self._blocks, _BLOCKS_A_WORKGROUP),
        ]

    @property
    def buffers(self) -> list[Buffer]:
        """The floats, or elements and scales; then the packed elements and the scales."""
        read = [Buffer([self.rows, self.depth], self._float)]
        if self.source.format is not None:
            read = self.source.buffers(self.rows * self.depth // BLOCK)
        size = self.rounding.format.block_bytes
        shape: list[Size] = [self.depth, self._blocks]
        return [*read, Buffer([*shape, size // 4], i32()), Buffer(shape, i8())]

    @property
    def _float(self) -> ir.Type:
        """The type of the floats that are quantized; blocks are decoded to f32."""
        return f32() if self.source.format is not None else ir.Type.parse(self.source.kind)

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        *read, elements, scales = buffers
        blocks = self.source.format is not None
        strip = _Strip(
            self.rounding, elements, scales, scratch([BLOCK, BLOCK], f32()) if blocks else read[0]
        )
        reader = self.source.reader(read, 1)
        columns, last_column = self._part(0, _COLUMNS_A_WORKGROUP, self.depth)
        first, last = self._part(1, _BLOCKS_A_WORKGROUP, self._blocks)
        with (
            loop(columns, last_column, index(BLOCK if blocks else _COLUMNS)) as (column, _, _),
            loop(first, last, index(1)) as (block, _, _),
        ):
            row = block * BLOCK
            if blocks:
                self._decode(reader, strip.memory, row, column)
                with loop(index(0), index(BLOCK), index(_COLUMNS)) as (part, _, _):
                    strip.quantize(index(0), part, block, column + part)
            else:
                strip.quantize(row, column, block, column)

    def _part(self, dimension: int, size: int, whole: int) -> tuple[ir.Value, ir.Value]:
        """The first index of a workgroup along a dimension, and the index after its last one."""
        first = workgroup(dimension) * size
        return first, arith.minui(first + size, index(whole))

    def _decode(
        self, reader: SourceReader, memory: ir.Value, row: ir.Value, column: ir.Value
    ) -> None:
        """Decode a block of each of 32 rows, from `row` and `column` on, exactly to `memory`."""
        across = index(self.depth // BLOCK)
        first = row * across + column // BLOCK
        with loop(index(0), index(BLOCK), index(1)) as (number, _, _):
            values = reader.exact(first + number * across)
            vector.store(values, memory, [number, index(0)])


@dataclass(frozen=True)
class _Strip:
    """Quantizes 16 columns of 32 rows of `memory`, f32 or bf16, to one block per column."""

    rounding: Rounding
    elements: ir.Value
    scales: ir.Value
    memory: ir.Value

    def quantize(self, row: ir.Value, column: ir.Value, block: ir.Value, result: ir.Value) -> None:
        """Quantize 16 columns of 32 rows, from `row` and `column` of `memory` on. They become block
        `block` of the columns from `result` on."""
        rounding = self.rounding
        rows = [row + number for number in range(BLOCK)]
        amax = self._magnitude(rows[0], column)
        for number in rows[1:]:
            amax = arith.maxsi(amax, self._magnitude(number, column))
        byte = rounding.scale(amax)
        ordinary, constants = rounding.ordinary(amax, byte, zeros=True)
        found = vector.reduction(i1(), vector.CombiningKind.AND, ordinary)
        count = rounding.format.block_bytes // 4
        either = scf.IfOp(found, [of(i32(), _COLUMNS)] * count, has_else=True)
        with ir.InsertionPoint(either.then_block):
            codes = []
            for number in rows:
                x = self._bits(number, column)
                prefetch(self.memory, [number, column + _AHEAD // 4])
                codes.append(rounding.signed(rounding.quick(x, constants), x))
            scf.YieldOp(self._dwords(codes))
        with ir.InsertionPoint(either.else_block):
            codes = [rounding.exact(self._bits(number, column), byte) for number in rows]
            scf.YieldOp(self._dwords(codes))
        self._store(list(either.results), byte, block, result)

    def _bits(self, row: ir.Value, column: ir.Value) -> ir.Value:
        """Load 16 floats as bits of f32."""
        element = ir.MemRefType(self.memory.type).element_type
        values = load(self.memory, [row, column], element, _COLUMNS)
        if not isinstance(element, ir.F32Type):
            values = arith.extf(of(f32(), _COLUMNS), values)
        return as_bits(values)

    def _magnitude(self, row: ir.Value, column: ir.Value) -> ir.Value:
        """Load 16 floats as bits of f32, without signs."""
        bits = self._bits(row, column)
        return bits & like(bits, MAGNITUDE)

    def _dwords(self, codes: Sequence[ir.Value]) -> list[ir.Value]:
        """Pack the codes of 32 rows: the packed block of each lane as dwords, i32 [16] each."""
        bits = self.rounding.format.element.bits
        found = [splat(0, i32(), _COLUMNS)] * (bits * BLOCK // 32)
        for number, code in enumerate(codes):
            code = code & like(code, (1 << bits) - 1)
            at, shift = divmod(number * bits, 32)
            found[at] = found[at] | code << like(code, shift)
            if shift + bits > 32:
                rest = code >> like(code, 32 - shift)
                found[at + 1] = found[at + 1] | rest
        return found

    def _store(
        self, dwords: Sequence[ir.Value], byte: ir.Value, block: ir.Value, result: ir.Value
    ) -> None:
        """Store the packed block of each lane, and its scale byte."""
        count = len(dwords)
        even = 1 << (count - 1).bit_length()
        padded = [*dwords, *[splat(0, i32(), _COLUMNS)] * (even - count)]
        columns = _interleaved(padded)
        narrow = arith.trunci(of(i8(), _COLUMNS), byte)
        for lane in range(_COLUMNS):
            own = vector.shuffle(columns, columns, range(even * lane, even * lane + count))
            at = result + lane
            vector.store(own, self.elements, [at, block, index(0)])
            scale = vector.shuffle(narrow, narrow, [lane])
            vector.store(scale, self.scales, [at, block])


def _interleaved(vectors: Sequence[ir.Value]) -> ir.Value:
    """Interleave vectors: lane 0 of all, then lane 1 of all, .. The number of vectors is a power of
    two."""
    if len(vectors) == 1:
        return vectors[0]
    return vector.interleave(_interleaved(vectors[0::2]), _interleaved(vectors[1::2]))
