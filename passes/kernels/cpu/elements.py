"""How the packed elements of a weight become operands of a dot product, format by format.

A weight is read in panels of 16 rows (columns of the result), unit by unit: unit i of the 16 rows
are 16 dwords side by side (compiler/packing/panels.py); a register takes `lanes` of them. Along K
a kernel goes in blocks of 32 elements, or 16 where they have a scale of their own, and a block in
steps; a step gives, in each lane,

    pairs    2 elements as bf16
    quads    4 elements as bytes: element / `unit` + `offset`, both integers; the offset is 0 where
             the instruction set takes them as signed
    floats   1 element as f32

The layout of a product's registers (kernels/registers.py) says which elements (k in the block) each
step has; the activations are prepared in this order, so that no step shuffles anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
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

#: The nibbles of a word, low and high byte in turn, as a lookup of bytes gives them.
_TURNS = (0, 2, 1, 3)

#: Reads unit i of the block: the bytes i8 [4 * lanes] of 16 (or fewer) rows.
Raw = Callable[[int], ir.Value]


@dataclass(frozen=True)
class Elements(ABC):
    """A type of weights. `block`: elements along K that a kernel takes at once."""

    kinds: tuple[Kind, ...] = ("pairs", "floats")
    block: int = BLOCK

    @property
    @abstractmethod
    def type(self) -> str:
        """The name of the MLIR type."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Bits of an element."""

    @property
    def units(self) -> int:
        """Dwords of a block in each row."""
        return self.block * self.bits // 32

    def order(self, kind: Kind) -> tuple[tuple[int, ...], ...]:
        """The elements of each step, as the layout of the registers has them."""
        steps = weights_of(self.code_bits, kind, 1, self.block).coordinates()["k"]
        return tuple(map(tuple, steps[:, 0].tolist()))

    @property
    def code_bits(self) -> int:
        """Bits of an element as it is looked up."""
        return self.bits

    @abstractmethod
    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """The register of every step, built when it is asked for."""

    @property
    def in_rows(self) -> Elements:
        """The same elements where they lie as a checkpoint or a caller has them."""
        return self

    def offset(self, isa: Isa) -> int:
        """What a quad has too much, in every element."""
        return 0 if isa.signed else self.excess

    @property
    def excess(self) -> int:
        """What makes every element of a quad an unsigned number."""
        return 0

    @property
    def unit(self) -> float:
        """The value of a quad's one."""
        return 1.0


@dataclass(frozen=True)
class Codes(Elements):
    """Elements that are codes of a small format."""

    element: ElementFormat = E2M1

    @property
    def type(self) -> str:
        """The name of the MLIR type."""
        return self.element.mlir

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.element.bits


@dataclass(frozen=True)
class Nibbles(Codes):
    """e2m1: nibble t of dword j is k = 8j + t."""

    kinds: tuple[Kind, ...] = ("quads", "pairs", "floats")

    @property
    def _dwords(self) -> range:
        """Those of nibbles."""
        return range(self.block // 8)

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Lookups of shifted units: what stands above the bits of a code is not looked at."""
        element = self.element
        for j in self._dwords:
            if kind == "quads":
                table = quads_of(element.values, self.unit, self.offset(isa))
                for p in range(2):
                    yield isa.quads(table, as_integers(i8(), self._codes(raw, j, p, i16())))
                continue
            grain = isa.grain(kind, element)
            if grain == "bytes":
                for p in range(2):
                    codes = as_integers(i8(), self._codes(raw, j, p, i16()))
                    for both in isa.pairs_of_bytes(element, codes):
                        yield from _pair_as(kind, both, isa)
                continue
            for t in _TURNS:
                if grain == "words":
                    found = isa.pairs_of_words(element, self._codes(raw, j, t, i16()))
                    yield from _pair_as(kind, found, isa)
                    continue
                two = [
                    isa.floats_of_dwords(element, self._codes(raw, j, t + 4 * w, i32()))
                    for w in range(2)
                ]
                yield from _floats_as(kind, two, isa)

    def _codes(self, raw: Raw, j: int, t: int, width: ir.Type) -> ir.Value:
        """Nibble t and those above it of each i16 or i32 of dword j."""
        return shifted(as_integers(width, raw(j)), 4 * t)

    @property
    def excess(self) -> int:
        """The largest magnitude."""
        return 12

    @property
    def unit(self) -> float:
        """The smallest positive value."""
        return 0.5


@dataclass(frozen=True)
class Int4(Nibbles):
    """Integers from -8 to 7, in two's complement, which lie as `Nibbles` do."""

    element: ElementFormat = INT4

    @property
    def excess(self) -> int:
        """The largest magnitude."""
        return 8

    @property
    def unit(self) -> float:
        """What its format says; a scale of floats counts ones."""
        return self.element.min_positive


@dataclass(frozen=True)
class Sixes(Nibbles):
    """Elements of 6 bits in two planes: dwords 0 to 3 hold the low nibbles as `Nibbles` does,
    dwords 4 and 5 the two high bits: those of nibble p of byte b in dword j are bits 4 (j % 2) +
    2p of byte b in dword 4 + j / 2. Only in blocks of 32."""

    element: ElementFormat = E2M3

    def _codes(self, raw: Raw, j: int, t: int, width: ir.Type) -> ir.Value:
        """The two planes joined."""
        low, high = (as_integers(width, raw(unit)) for unit in (j, 4 + j // 2))
        place = 8 * (t // 2) + 4 * (j % 2) + 2 * (t % 2)
        return _join(shifted(low, 4 * t), shifted(high, place - 4))

    @property
    def in_rows(self) -> Elements:
        """A stream of bits."""
        return SixesInRows(self.kinds, self.block, self.element)

    @property
    def excess(self) -> int:
        """The largest magnitude of e2m3 in units: 7.5 * 8."""
        return 60

    @property
    def unit(self) -> float:
        """The smallest positive value of e2m3."""
        return 0.125


@dataclass(frozen=True)
class SixesInRows(Sixes):
    """Elements of 6 bits, a little-endian stream: element k has bits 6k to 6k + 5. Each 24 bits
    become a dword, with an element in each byte."""

    @property
    def code_bits(self) -> int:
        """Bits of a byte."""
        return 8

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Lookups of the bytes."""
        units = cache(raw)
        for j in range(self.block // 4):
            codes = self._spread(units, j)
            if kind == "quads":
                table = quads_of(self.element.values, self.unit, self.offset(isa))
                yield isa.quads(table, codes)
            else:
                yield from _of_bytes(isa, kind, self.element, codes)

    def _spread(self, raw: Raw, j: int) -> ir.Value:
        """Codes 4j to 4j + 3 as bytes."""
        unit, start = divmod(24 * j, 32)
        bits = shifted(as_integers(i32(), raw(unit)), start)
        if start + 24 > 32:
            bits = arith.ori(bits, shifted(as_integers(i32(), raw(unit + 1)), start - 32))
        (lanes,) = ir.VectorType(bits.type).shape
        parts = [
            arith.andi(shifted(bits, -2 * b), splat(0x3F << 8 * b, i32(), lanes)) for b in range(4)
        ]
        return as_integers(
            i8(), arith.ori(arith.ori(parts[0], parts[1]), arith.ori(parts[2], parts[3]))
        )


@dataclass(frozen=True)
class Bytes(Codes):
    """Elements of 8 bits: byte b of dword j is k = 4j + b."""

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Quads: the sign bit turned over adds 128. Else a lookup of 256 codes, or arithmetic."""
        for j in range(self.units):
            if kind == "quads":
                flip = splat(-128, i8(), 4 * isa.lanes)
                yield raw(j) if isa.signed else arith.xori(raw(j), flip)
            else:
                yield from _of_bytes(isa, kind, self.element, raw(j))

    @property
    def excess(self) -> int:
        """What is added to int8 to make it unsigned."""
        return 128

    @property
    def unit(self) -> float:
        """OCP MX 1.0: int8 counts 64ths."""
        return self.element.min_positive


@dataclass(frozen=True)
class Dense(Elements):
    """Floats without scale: bf16 two a dword, f32 one a dword."""

    type: str = "bf16"

    @property
    def bits(self) -> int:
        """Bits of a float."""
        return 32 if self.type == "f32" else 16

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """bf16 are upper halves of f32."""
        for unit in range(self.units):
            if self.type == "f32":
                yield bitcast(raw(unit), f32(), isa.lanes)
            else:
                both = bitcast(raw(unit), ir.BF16Type.get(), 2 * isa.lanes)
                yield from _pair_as(kind, both, isa)


_FLOATS: tuple[Kind, ...] = ("pairs", "floats")

#: What weights may be made of, by the name of the MLIR type.
ELEMENTS: dict[str, Elements] = {
    found.type: found
    for found in (
        Nibbles(),
        Int4(),
        Sixes(),
        Sixes(element=E3M2, kinds=_FLOATS),
        Bytes(element=E4M3),
        Bytes(element=E5M2),
        Bytes(element=E4M3FNUZ),
        Bytes(element=E5M2FNUZ),
        Bytes(element=INT8, kinds=("quads", *_FLOATS)),
        Dense(),
        Dense(type="f32", kinds=("floats",)),
    )
}


def quads_of(values: NDArray[np.float32], unit: float, offset: int) -> NDArray[np.int8]:
    """The bytes that stand for `values`: unsigned, or signed where there is no offset."""
    found = values / unit + offset
    low, high = (0, 255) if offset else (-128, 127)
    if (found != np.clip(np.rint(found), low, high)).any():
        raise ValueError("bytes do not hold every value of the format")
    return found.astype(np.int16).astype(np.int8)


def _of_bytes(isa: Isa, kind: Kind, element: ElementFormat, codes: ir.Value) -> Iterator[ir.Value]:
    """The registers of codes i8 [4 * lanes] in that order, as pairs or floats."""
    grain = isa.grain(kind, element)
    if grain == "bytes":
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


def _pair_as(kind: Kind, both: ir.Value, isa: Isa) -> Iterator[ir.Value]:
    """A register of pairs, or the two of f32 that it holds."""
    yield from [both] if kind == "pairs" else halves(both, isa.lanes)


def _floats_as(kind: Kind, two: Sequence[ir.Value], isa: Isa) -> Iterator[ir.Value]:
    """Two registers of f32, or the one of pairs that they make."""
    yield from [pair(two[0], two[1], isa.lanes)] if kind == "pairs" else two


def _join(low: ir.Value, high: ir.Value) -> ir.Value:
    """Integers whose bytes have the bits 0 to 3 of `low` and the bits 4 and 5 of `high`."""
    kind = ir.VectorType(low.type)
    width, lanes = ir.IntegerType(kind.element_type).width, kind.shape[0]

    def mask(byte: int) -> ir.Value:
        every = int.from_bytes(bytes([byte]) * (width // 8), "little")
        return splat(every, kind.element_type, lanes)

    return arith.ori(arith.andi(low, mask(0x0F)), arith.andi(high, mask(0x30)))
