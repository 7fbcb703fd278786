"""How the packed elements of a weight become operands of a dot product, format by format.

A weight is read in panels of 16 rows (columns of the result), unit by unit: unit i of the 16 rows
are 16 dwords side by side (compiler/packing/panels.py); a register takes `lanes` of them. Along K
a kernel goes in blocks of 32 elements, and a block in steps; a step gives, in each lane,

    pairs    2 elements as bf16
    quads    4 elements as unsigned bytes: element / `unit` + `offset`, both integers
    floats   1 element as f32

`order` says which elements (k in the block) each step has; the activations are prepared in this
order, so that no step shuffles anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects.formats import ElementFormat, block_format
from mxc.passes.kernels.isa import Isa, Kind, halves
from mxc.passes.kernels.vectors import bitcast, f32, i8, i16, i32, splat

#: Elements along K of one pass of a kernel's inner loop.
BLOCK = 32

#: Reads unit i of the block: the bytes i8 [4 * lanes] of 16 (or fewer) rows.
Raw = Callable[[int], ir.Value]


@dataclass(frozen=True)
class Elements:
    """A format of weights. `units`: dwords of a block in each row."""

    format: str = ""
    units: int = 0
    kinds: tuple[Kind, ...] = ("pairs", "floats")

    def order(self, kind: Kind) -> list[list[int]]:
        """The elements of each step."""
        raise NotImplementedError

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """The register of every step, built when it is asked for."""
        raise NotImplementedError

    @property
    def offset(self) -> int:
        """What a quad has too much, in every element."""
        return 0

    @property
    def unit(self) -> float:
        """The value of a quad's one."""
        return 1.0


@dataclass(frozen=True)
class Nibbles(Elements):
    """e2m1: nibble t of dword j is k = 8j + t."""

    format: str = "mxfp4"
    units: int = 4
    kinds: tuple[Kind, ...] = ("quads", "pairs", "floats")

    def order(self, kind: Kind) -> list[list[int]]:
        """By bytes and parities, by words and nibbles, by nibbles."""
        if kind == "quads":
            return [[8 * j + 2 * b + p for b in range(4)] for j in range(4) for p in range(2)]
        if kind == "pairs":
            return [[8 * j + 4 * w + t for w in range(2)] for j in range(4) for t in range(4)]
        return [[k] for k in range(BLOCK)]

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """A lookup of shifted dwords: what stands above the four bits is not looked at."""
        values = _values(self.format)
        for j in range(4):
            codes = raw(j)
            if kind == "quads":
                table = quads_of(values, self.unit, self.offset)
                for p in range(2):
                    yield isa.quads(table, _bytes(_right(_words(codes), 4 * p)))
            elif kind == "pairs":
                for t in range(4):
                    yield isa.pairs(values, _right(_words(codes), 4 * t))
            else:
                dwords = bitcast(codes, i32(), isa.lanes)
                for t in range(8):
                    yield isa.floats(values, _right(dwords, 4 * t))

    @property
    def offset(self) -> int:
        """The largest magnitude."""
        return 12

    @property
    def unit(self) -> float:
        """The smallest positive value."""
        return 0.5


@dataclass(frozen=True)
class Bytes(Elements):
    """Elements of 8 bits: byte b of dword j is k = 4j + b."""

    units: int = 8

    def order(self, kind: Kind) -> list[list[int]]:
        """Whole dwords; bytes 0, 2 and 1, 3; bytes in that order."""
        if kind == "quads":
            return [[4 * j + b for b in range(4)] for j in range(8)]
        pairs = [[4 * j + p, 4 * j + 2 + p] for j in range(8) for p in range(2)]
        return pairs if kind == "pairs" else [[k] for pair in pairs for k in pair]

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """Quads: the sign bit turned over adds 128. Else a lookup of 256 codes."""
        for j in range(8):
            if kind == "quads":
                yield arith.xori(raw(j), splat(-128, i8(), 4 * isa.lanes))
                continue
            for pair in isa.pairs_of_bytes(_values(self.format), raw(j)):
                yield from _pair_as(kind, pair, isa)

    @property
    def offset(self) -> int:
        """Of int8 as unsigned."""
        return 128

    @property
    def unit(self) -> float:
        """OCP MX 1.0: int8 counts 64ths."""
        return 2.0**-6


@dataclass(frozen=True)
class Sixes(Elements):
    """Elements of 6 bits in two planes: dwords 0 to 3 hold the low nibbles as `Nibbles` does,
    dwords 4 and 5 the two high bits: those of nibble p of byte b in dword j are bits 4 (j % 2) +
    2p of byte b in dword 4 + j / 2."""

    units: int = 6

    def order(self, kind: Kind) -> list[list[int]]:
        """As the nibbles; f32 by the pairs that they are taken from."""
        if kind == "floats":
            return [[k] for pair in Nibbles().order("pairs") for k in pair]
        return Nibbles().order(kind)

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """The two planes joined, then a lookup of 64 codes."""
        values = _values(self.format)
        for j in range(4):
            low, high = _words(raw(j)), _words(raw(4 + j // 2))
            if kind == "quads":
                table = quads_of(values, self.unit, self.offset)
                for p in range(2):
                    codes = _join(_right(low, 4 * p), _right(high, 4 * (j % 2) + 2 * p - 4))
                    yield isa.quads(table, _bytes(codes))
                continue
            for t in range(4):
                place = 8 * (t // 2) + 4 * (j % 2) + 2 * (t % 2)
                codes = _join(_right(low, 4 * t), _right(high, place - 4))
                yield from _pair_as(kind, isa.pairs(values, codes), isa)

    @property
    def offset(self) -> int:
        """The largest magnitude of e2m3 in units: 7.5 * 8."""
        return 60

    @property
    def unit(self) -> float:
        """The smallest positive value of e2m3."""
        return 0.125


@dataclass(frozen=True)
class Dense(Elements):
    """Floats without scale: bf16 two a dword, f32 one a dword."""

    format: str = "bf16"
    units: int = 16

    def order(self, kind: Kind) -> list[list[int]]:
        """In their order."""
        if kind == "pairs":
            return [[2 * p, 2 * p + 1] for p in range(BLOCK // 2)]
        return [[k] for k in range(BLOCK)]

    def decode(self, isa: Isa, kind: Kind, raw: Raw) -> Iterator[ir.Value]:
        """bf16 are upper halves of f32."""
        for unit in range(self.units):
            if self.format == "f32":
                yield bitcast(raw(unit), f32(), isa.lanes)
            else:
                pair = bitcast(raw(unit), ir.BF16Type.get(), 2 * isa.lanes)
                yield from _pair_as(kind, pair, isa)


FORMATS: dict[str, Elements] = {
    found.format: found
    for found in (
        Nibbles(),
        Sixes("mxfp6e2m3", kinds=("quads", "pairs", "floats")),
        Sixes("mxfp6e3m2", kinds=("pairs", "floats")),
        Bytes("mxfp8e4m3", 8, ("pairs", "floats")),
        Bytes("mxfp8e5m2", 8, ("pairs", "floats")),
        Bytes("mxint8", 8, ("quads", "pairs", "floats")),
        Dense(),
        Dense("f32", 32, ("floats",)),
    )
}


def quads_of(values: NDArray[np.float32], unit: float, offset: int) -> NDArray[np.uint8]:
    """The unsigned bytes that stand for `values`."""
    found = values / unit + offset
    if (found != np.clip(np.rint(found), 0, 255)).any():
        raise ValueError("bytes do not hold every value of the format")
    return found.astype(np.uint8)


def _values(format: str) -> NDArray[np.float32]:
    element: ElementFormat = block_format(format).element
    return element.values


def _pair_as(kind: Kind, pair: ir.Value, isa: Isa) -> Iterator[ir.Value]:
    """A register of pairs, or the two of f32 that it holds."""
    yield from [pair] if kind == "pairs" else halves(pair, isa.lanes)


def _words(codes: ir.Value) -> ir.Value:
    """i8 as i16."""
    return bitcast(codes, i16(), ir.VectorType(codes.type).shape[0] // 2)


def _bytes(words: ir.Value) -> ir.Value:
    """i16 as i8."""
    return bitcast(words, i8(), 2 * ir.VectorType(words.type).shape[0])


def _right(value: ir.Value, bits: int) -> ir.Value:
    """Shifted right by `bits`, to the left where they are negative."""
    if not bits:
        return value
    kind = ir.VectorType(value.type)
    by = splat(abs(bits), kind.element_type, kind.shape[0])
    return arith.shrui(value, by) if bits > 0 else arith.shli(value, by)


def _join(low: ir.Value, high: ir.Value) -> ir.Value:
    """i16 whose bytes have the bits 0 to 3 of `low` and the bits 4 and 5 of `high`."""
    lanes = ir.VectorType(low.type).shape[0]
    nibbles = arith.andi(low, splat(0x0F0F, i16(), lanes))
    return arith.ori(nibbles, arith.andi(high, splat(0x3030, i16(), lanes)))
