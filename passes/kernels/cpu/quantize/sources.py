"""The sources of blocks: floats of 32 or 16 bits in memory, or the elements of other blocks.

Floats are read from memory directly. Blocks of other formats are decoded to f32, a group of blocks
at a time, in scratch in the nearest cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.quantize_scalars import INFINITY, MAGNITUDE, NAN, as_bits, as_float, like
from mxc.formats.formats import FORMATS, BlockFormat, ElementFormat, Specials
from mxc.formats.recipes import MANTISSA, NAN_BYTE
from mxc.passes.kernels.cpu.codes import codes_of, floats_of_codes
from mxc.passes.kernels.cpu.quantize.blocks import power_of
from mxc.passes.kernels.cpu.quantize.halves import HALF, Halves, of_floats
from mxc.passes.kernels.cpu.quantize.largest import Greater, of_dwords, of_words
from mxc.passes.kernels.cpu.weights import CACHE_LINE
from mxc.passes.kernels.extents import Buffer, Size
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import (
    bitcast,
    f32,
    i8,
    i32,
    index,
    lanes_of,
    load,
    loop,
    of,
    prefetch,
    scratch,
)

_F16 = ElementFormat("float16", exponent=5, mantissa=10, specials=Specials.IEEE)
_BIAS = 127
_UPPER = -(1 << 16)


@dataclass(frozen=True)
class FloatSource:
    """Blocks of floats in memory: a memref [.., 32] of f32, bf16 or f16."""

    memory: ir.Value

    @property
    def _element(self) -> ir.Type:
        return ir.MemRefType(self.memory.type).element_type

    @property
    def _wide(self) -> bool:
        return isinstance(self._element, ir.F32Type)

    @property
    def greater(self) -> Greater:
        """The lane-wise maximum of two results of `part`."""
        return of_dwords if self._wide else of_words

    def part(self, block: ir.Value, lanes: int) -> ir.Value:
        """Partial maxima of a block: a register i32 [lanes] of magnitudes that include the largest
        one of the block, two per lane for floats of 16 bits."""
        each = lanes if self._wide else 2 * lanes
        mask = MAGNITUDE if self._wide else MAGNITUDE & ~(1 << 15)
        found: ir.Value | None = None
        for start in range(0, BLOCK, each):
            raw = load(self.memory, [block, index(start)], self._element, each)
            sizes = bitcast(raw, i32(), lanes) & mask
            found = sizes if found is None else self.greater(found, sizes)
        assert found is not None
        return found

    def magnitudes(self, merged: ir.Value) -> ir.Value:
        """The f32 bits of the largest magnitudes, one per lane, of merged parts."""
        if self._wide:
            return merged
        lower = merged & like(merged, 0xFFFF)
        word = arith.maxsi(lower, merged >> like(merged, 16))
        return self._widened(word)

    def halves(self, block: ir.Value) -> Halves:
        """The floats of a block as halves."""
        raw = load(self.memory, [block, index(0)], self._element, BLOCK)
        if self._wide:
            return of_floats(raw)
        pairs = bitcast(raw, i32(), HALF)
        if isinstance(self._element, ir.BF16Type):
            return self._widened(pairs), pairs & like(pairs, _UPPER)
        return self._widened(pairs), self._widened(pairs >> like(pairs, 16))

    def _widened(self, words: ir.Value) -> ir.Value:
        """The f32 bits of the 16-bit floats in the low halves of lanes."""
        if isinstance(self._element, ir.BF16Type):
            return words << like(words, 16)
        lanes = lanes_of(words)
        return as_bits(floats_of_codes(words, _F16, lanes))


@dataclass(frozen=True)
class BlockSource:
    """The kind of the blocks that are quantized: "f32", "bf16", "f16", or an MX format."""

    kind: str

    @property
    def format(self) -> BlockFormat | None:
        """The format of the blocks; None for floats."""
        return FORMATS.get(self.kind)

    @property
    def block_bytes(self) -> int:
        """Bytes of the floats, or of the packed elements, of a block."""
        if self.format is not None:
            return self.format.block_bytes
        width: int = ir.Type.parse(self.kind).width
        return BLOCK * width // 8

    def buffers(self, count: Size) -> list[Buffer]:
        """The buffers that are read: `count` blocks, and their scales if any."""
        if self.format is not None:
            return [Buffer([count, self.block_bytes], i8()), Buffer([count], i8())]
        return [Buffer([count, BLOCK], ir.Type.parse(self.kind))]

    def reader(self, read: Sequence[ir.Value], lanes: int) -> SourceReader:
        """Return a reader of the buffers, for groups of `lanes` blocks."""
        if self.format is None:
            return SourceReader(self, tuple(read), lanes, None)
        return SourceReader(self, tuple(read), lanes, scratch([lanes, BLOCK], f32()))


@dataclass(frozen=True)
class SourceReader:
    """Reads blocks of a source. `read`: its buffers. `scratch`: scratch for a group of decoded
    blocks; None for floats."""

    source: BlockSource
    read: tuple[ir.Value, ...]
    lanes: int
    scratch: ir.Value | None

    def group(self, block: ir.Value) -> tuple[FloatSource, ir.Value]:
        """Return the floats of a group of blocks, which begins at `block`, and the index of its
        first block in them. Blocks of other formats are decoded to scratch, by a product that may
        be flushed to zero."""
        if self.scratch is None:
            return FloatSource(self.read[0]), block
        with loop(index(0), index(self.lanes), index(1)) as (lane, _, _):
            one = block + lane
            factor = as_float(_broadcast(power_of(self._byte(one)), BLOCK))
            values = self._values(one) * factor
            vector.store(values, self.scratch, [lane, index(0)])
        return FloatSource(self.scratch), index(0)

    def one(self, block: ir.Value) -> Halves:
        """The floats of one block, exact for any values."""
        if self.scratch is None:
            return FloatSource(self.read[0]).halves(block)
        return of_floats(self.exact(block))

    def exact(self, block: ir.Value) -> ir.Value:
        """Decode a block of another format exactly: f32 [32], in order."""
        bits = _scaled(as_bits(self._values(block)), _broadcast(self._byte(block), BLOCK))
        return as_float(bits)

    def ask_for(self, block: ir.Value) -> None:
        """Prefetch the cache lines of a block, which may be past the end."""
        elements = ir.MemRefType(self.read[0].type).shape[1]
        lines = -(-self.source.block_bytes // CACHE_LINE)
        for start in range(0, elements, elements // lines):
            prefetch(self.read[0], [block, index(start)])

    def _byte(self, block: ir.Value) -> ir.Value:
        """Load the scale byte of a block, i32."""
        return arith.extui(i32(), memref.LoadOp(self.read[1], [block]).result)

    def _values(self, block: ir.Value) -> ir.Value:
        """The elements of a block without its scale, f32 [32]."""
        format = self.source.format
        assert format is not None
        raw = load(self.read[0], [block, index(0)], i8(), format.block_bytes)
        return floats_of_codes(codes_of(raw, format.element), format.element, BLOCK)


def _scaled(bits: ir.Value, byte: ir.Value) -> ir.Value:
    """Multiply a float with few significant bits by 2^(byte - 127), exact for subnormal results and
    Inf too. Floats are given and returned as bits."""
    size = bits & like(bits, MAGNITUDE)
    sign = bits ^ size
    field = size >> like(size, MANTISSA)
    moved = field + (byte - like(byte, _BIAS))
    fraction = size & like(size, (1 << MANTISSA) - 1)
    normal = fraction | moved << like(moved, MANTISSA)
    whole = fraction | like(fraction, 1 << MANTISSA)
    shift = arith.maxsi(like(moved, 1) - moved, like(moved, 0))
    small = whole >> arith.minsi(shift, like(shift, 31))

    def where(predicate: arith.CmpIPredicate, value: ir.Value, limit: int) -> ir.Value:
        return arith.cmpi(predicate, value, like(value, limit))

    found = arith.select(where(arith.CmpIPredicate.slt, moved, 1), small, normal)
    infinite = where(arith.CmpIPredicate.sge, moved, 0xFF)
    found = arith.select(infinite, like(found, INFINITY), found)
    # Zero, Inf and NaN do not change under any scale but NaN.
    kept = where(arith.CmpIPredicate.eq, size, 0) | where(arith.CmpIPredicate.sge, size, INFINITY)
    found = arith.select(kept, size, found) | sign
    return arith.select(where(arith.CmpIPredicate.eq, byte, NAN_BYTE), like(found, NAN), found)


def _broadcast(value: ir.Value, lanes: int) -> ir.Value:
    return vector.broadcast(of(value.type, lanes), value)
