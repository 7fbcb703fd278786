"""Decode packed elements of weights to operands of a dot product, format by format.

A weight is read in panels of 16 rows (columns of the result), unit by unit: unit i of the 16 rows
is 16 adjacent dwords (compiler/packing/panels.py), of which a register takes `lanes`. Along K, a
kernel processes blocks of 32 elements, or 16 if these have their own scale, in steps. A step gives,
in each lane,

    pairs    2 elements as bf16
    quads    4 elements as bytes: element / `unit` + `offset`, both integers; the offset is 0 if the
             instruction set takes signed weights
    floats   1 element as f32

The layout of the registers (kernels/registers.py) determines which elements (k in the block) each
step has. Activations are prepared in the same order, so that no step shuffles.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.formats.formats import (
    E2M1,
    E2M3,
    E3M2,
    E4M3,
    E4M3FNUZ,
    E5M2,
    E5M2FNUZ,
    INT4,
    INT8,
    ElementFormat,
)
from mxc.kernels.registers import weights_of
from mxc.passes.kernels.cpu.isa import Isa, Kind, halves, pair
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import as_integers, bitcast, f32, i8, i16, i32, shifted, splat

#: Order in which the nibbles of a word are decoded. A lookup of bytes yields nibbles 0 and 2, then
#: 1 and 3; the other lookups take the same order.
_TURNS = (0, 2, 1, 3)

#: Mantissa bits of f32.
_MANTISSA = 23

#: Loads unit i of the block: the bytes i8 [4 * lanes] of 16 (or fewer) rows.
Raw = Callable[[int], ir.Value]


@dataclass(frozen=True)
class Elements(ABC):
    """A type of weights. `block`: elements along K that a kernel processes at once."""

    kinds: tuple[Kind, ...] = ("pairs", "floats")
    block: int = BLOCK

    @property
    @abstractmethod
    def type(self) -> str:
        """The name of the MLIR type."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Number of bits of an element."""

    @property
    def units(self) -> int:
        """Number of dwords of a block per row."""
        return self.block * self.bits // 32

    def order(self, kind: Kind) -> tuple[tuple[int, ...], ...]:
        """The elements k of each step, as determined by the layout of the registers."""
        steps = weights_of(self.code_bits, kind, 1, self.block).coordinates()["k"]
        return tuple(map(tuple, steps[:, 0].tolist()))

    @property
    def code_bits(self) -> int:
        """Number of bits of an element when it is looked up."""
        return self.bits

    @abstractmethod
    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Yield the register of every step. Each is emitted when it is requested."""

    @property
    def in_rows(self) -> Elements:
        """The same elements stored in rows, as a checkpoint or a caller has them."""
        return self

    def offset(self, isa: Isa) -> int:
        """The number that is added to every element of a quad."""
        return 0 if isa.signed else self.excess

    @property
    def excess(self) -> int:
        """The offset that makes every element of a quad unsigned."""
        return 0

    @property
    def unit(self) -> float:
        """The value of an integer 1 in a quad."""
        return 1.0


@dataclass(frozen=True)
class CodeElements(Elements):
    """Elements that are codes of a small format."""

    element: ElementFormat = E2M1

    @property
    def type(self) -> str:
        """The name of the MLIR type."""
        return self.element.mlir

    @property
    def bits(self) -> int:
        """Number of bits of a code."""
        return self.element.bits


@dataclass(frozen=True)
class E2M1Elements(CodeElements):
    """Elements e2m1: nibble t of dword j is k = 8j + t."""

    kinds: tuple[Kind, ...] = ("quads", "pairs", "floats")

    @property
    def _dwords(self) -> range:
        """The dwords that hold nibbles."""
        return range(self.block // 8)

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Yield the registers: lookups of shifted units, which ignore the bits above a code."""
        element = self.element
        for j in self._dwords:
            if kind == "quads":
                table = quads_of(element.values, self.unit, self.offset(isa))
                for p in range(2):
                    yield isa.quads(table, as_integers(i8(), self._codes(isa, raw, j, p, i16())))
                continue
            grain = isa.grain(kind, element)
            if grain == "bytes":
                for p in range(2):
                    codes = as_integers(i8(), self._codes(isa, raw, j, p, i16()))
                    for both in isa.pairs_of_bytes(element, codes):
                        yield from _pair_as(kind, both, isa)
                continue
            for t in _TURNS:
                if grain == "words":
                    found = isa.pairs_of_words(element, self._codes(isa, raw, j, t, i16()))
                    yield from _pair_as(kind, found, isa)
                    continue
                two = [
                    isa.floats_of_dwords(element, self._codes(isa, raw, j, t + 4 * w, i32()))
                    for w in range(2)
                ]
                yield from _floats_as(kind, two, isa)

    def _codes(self, isa: Isa, raw: Raw, j: int, t: int, width: ir.Type) -> ir.Value:
        """Dword j as i16 or i32, each shifted so that its nibble t is lowest."""
        return isa.shifted_codes(as_integers(width, raw(j)), 4 * t)

    @property
    def excess(self) -> int:
        """The largest magnitude, 6, in units of 0.5."""
        return 12

    @property
    def unit(self) -> float:
        """The smallest positive value."""
        return 0.5


@dataclass(frozen=True)
class Int4Elements(E2M1Elements):
    """Integers from -8 to 7, in two's complement, stored like `E2M1Elements`."""

    element: ElementFormat = INT4

    @property
    def excess(self) -> int:
        """The largest magnitude."""
        return 8

    @property
    def unit(self) -> float:
        """The value of 1 in the format. Under f32 scales, `RegisterWeights` corrects it to one."""
        return self.element.min_positive


@dataclass(frozen=True)
class SixBitElements(E2M1Elements):
    """6-bit elements in two planes: dwords 0 to 3 hold the low nibbles like `E2M1Elements`,
    dwords 4 and 5 the two high bits. Those for nibble p of byte b in dword j begin at bit
    4 (j % 2) + 2p of byte b in dword 4 + j / 2. Only in blocks of 32."""

    element: ElementFormat = E2M3

    def _codes(self, isa: Isa, raw: Raw, j: int, t: int, width: ir.Type) -> ir.Value:
        """The codes for nibble t of dword j, joined from the two planes."""
        low, high = (as_integers(width, raw(unit)) for unit in (j, 4 + j // 2))
        place = 8 * (t // 2) + 4 * (j % 2) + 2 * (t % 2)
        return _join(shifted(low, 4 * t), shifted(high, place - 4))

    @property
    def in_rows(self) -> Elements:
        """6-bit elements as a stream of bits."""
        return SixBitRows(self.kinds, self.block, self.element)

    @property
    def excess(self) -> int:
        """The largest magnitude of e2m3 in units: 7.5 * 8."""
        return 60

    @property
    def unit(self) -> float:
        """The smallest positive value of e2m3."""
        return 0.125


@dataclass(frozen=True)
class SixBitRows(SixBitElements):
    """6-bit elements as a little-endian stream: element k has bits 6k to 6k + 5. Each 24 bits
    become a dword with one element per byte."""

    @property
    def code_bits(self) -> int:
        """Number of bits of a byte, in which a code is looked up."""
        return 8

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Yield lookups of the bytes."""
        units = cache(raw)
        for j in range(self.block // 4):
            codes = self._spread(units, j)
            if kind == "quads":
                table = quads_of(self.element.values, self.unit, self.offset(isa))
                yield isa.quads(table, codes)
            else:
                yield from _of_bytes(isa, kind, self.element, codes)

    def _spread(self, raw: Raw, j: int) -> ir.Value:
        """Codes 4j to 4j + 3, one per byte."""
        unit, start = divmod(24 * j, 32)
        bits = shifted(as_integers(i32(), raw(unit)), start)
        if start + 24 > 32:
            bits = bits | shifted(as_integers(i32(), raw(unit + 1)), start - 32)
        parts = [shifted(bits, -2 * b) & 0x3F << 8 * b for b in range(4)]
        return as_integers(i8(), parts[0] | parts[1] | (parts[2] | parts[3]))


@dataclass(frozen=True)
class ByteElements(CodeElements):
    """8-bit elements: byte b of dword j is k = 4j + b."""

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Yield quads, with the sign bit flipped to add 128; or lookups of 256 codes; or
        arithmetic."""
        for j in range(self.units):
            if kind == "quads":
                flip = splat(-128, i8(), 4 * isa.lanes)
                yield raw(j) if isa.signed else raw(j) ^ flip
            else:
                yield from _of_bytes(isa, kind, self.element, raw(j))

    @property
    def excess(self) -> int:
        """The number that makes int8 unsigned."""
        return 128

    @property
    def unit(self) -> float:
        """The value of the integer 1: 1 / 64 for int8 (OCP MX 1.0)."""
        return self.element.min_positive


@dataclass(frozen=True)
class FloatElements(Elements):
    """Floats without scales: two bf16 per dword, or one f32."""

    type: str = "bf16"

    @property
    def bits(self) -> int:
        """Number of bits of a float."""
        return 32 if self.type == "f32" else 16

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Yield pairs of bf16, or f32; a bf16 is the upper half of an f32."""
        for unit in range(self.units):
            if self.type == "f32":
                yield bitcast(raw(unit), f32(), isa.lanes)
            else:
                both = bitcast(raw(unit), ir.BF16Type.get(), 2 * isa.lanes)
                yield from _pair_as(kind, both, isa)


_FLOATS: tuple[Kind, ...] = ("pairs", "floats")

#: Types of weights, by the name of the MLIR type.
ELEMENTS: dict[str, Elements] = {
    found.type: found
    for found in (
        E2M1Elements(),
        Int4Elements(),
        SixBitElements(),
        SixBitElements(element=E3M2, kinds=_FLOATS),
        ByteElements(element=E4M3),
        ByteElements(element=E5M2),
        ByteElements(element=E4M3FNUZ),
        ByteElements(element=E5M2FNUZ),
        ByteElements(element=INT8, kinds=("quads", *_FLOATS)),
        FloatElements(),
        FloatElements(type="f32", kinds=("floats",)),
    )
}


def quads_of(values: NDArray[np.float32], unit: float, offset: int) -> NDArray[np.int8]:
    """The bytes for `values`: unsigned with an offset, else signed. Raises ValueError for
    others."""
    found = values / unit + offset
    low, high = (0, 255) if offset else (-128, 127)
    if (found != np.clip(np.rint(found), low, high)).any():
        raise ValueError("bytes do not hold every value of the format")
    return found.astype(np.int16).astype(np.int8)


def _of_bytes(isa: Isa, kind: Kind, element: ElementFormat, codes: ir.Value) -> Iterator[ir.Value]:
    """Yield the registers of codes i8 [4 * lanes] in this order, as pairs or floats."""
    grain = isa.grain(kind, element)
    if grain == "bytes":
        if kind == "floats" and element == INT8:
            yield from _floats_of_int8(isa, codes)
            return
        for both in isa.pairs_of_bytes(element, codes):
            yield from _pair_as(kind, both, isa)
        return
    for p in range(2):
        if grain == "words":
            both = isa.pairs_of_words(element, shifted(as_integers(i16(), codes), 8 * p))
            yield from _pair_as(kind, both, isa)
            continue
        dwords = as_integers(i32(), codes)
        two = [isa.floats_of_dwords(element, shifted(dwords, 8 * p + 16 * w)) for w in range(2)]
        yield from _floats_as(kind, two, isa)


def _floats_of_int8(isa: Isa, codes: ir.Value) -> Iterator[ir.Value]:
    """Yield f32 of int8 [4 * lanes]: of byte 0 of each lane, then of bytes 2, 1 and 3. A byte, made
    unsigned, becomes the last bits of an f32 whose last place is one unit; then that f32 without
    the byte is subtracted, with 128 units. This takes three instructions, fewer than a lookup by
    eight bits."""
    unit = np.float32(INT8.min_positive)
    base = unit * np.float32(2**_MANTISSA)
    flipped = as_integers(i32(), codes ^ splat(-128, i8(), 4 * isa.lanes))
    for byte in (0, 2, 1, 3):
        bits = shifted(flipped, 8 * byte) & 0xFF | int(base.view(np.int32))
        yield bitcast(bits, f32(), isa.lanes) - float(base + 128 * unit)


def _pair_as(kind: Kind, both: ir.Value, isa: Isa) -> Iterator[ir.Value]:
    """Yield a register of bf16 pairs as it is, or as two registers of f32 if `kind` is floats."""
    yield from [both] if kind == "pairs" else halves(both, isa.lanes)


def _floats_as(kind: Kind, two: Sequence[ir.Value], isa: Isa) -> Iterator[ir.Value]:
    """Yield two registers of f32 as they are, or as one register of pairs if `kind` is pairs."""
    yield from [pair(two[0], two[1], isa.lanes)] if kind == "pairs" else two


def _join(low: ir.Value, high: ir.Value) -> ir.Value:
    """Join planes: integers whose bytes have bits 0 to 3 of `low` and bits 4 and 5 of `high`."""
    kind = ir.VectorType(low.type)
    width, lanes = ir.IntegerType(kind.element_type).width, kind.shape[0]

    def mask(byte: int) -> ir.Value:
        every = int.from_bytes(bytes([byte]) * (width // 8), "little")
        return splat(every, kind.element_type, lanes)

    return low & mask(0x0F) | high & mask(0x30)
