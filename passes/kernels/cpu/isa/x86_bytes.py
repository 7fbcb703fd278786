"""The common part of AVX2 and AVX-512, at both widths: lookups by vpshufb, and dot products of
bytes without VNNI."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, math
from numpy.typing import NDArray

from mxc.dialects import x86
from mxc.kernels.layout import Kind
from mxc.passes.kernels.cpu.isa.protocol import Isa
from mxc.passes.kernels.vectors import bitcast, i8, i16, lanes_of, signed_below, splat, table

#: Bytes of a part of a register within which vpshufb looks up.
_PART = 16


def look_up(values: NDArray[np.int8], codes: ir.Value) -> ir.Value:
    """values[codes]: vpshufb with tables of 16, repeated in every part of a register.

    vpshufb uses the low 4 bits, and gives zero where bit 7 is set. A table of 64 is four tables of
    16, selected by bits 4 and 5.
    """
    size = lanes_of(codes)
    low = codes & 15
    found = [
        x86.shuffle_bytes(table(np.tile(part, size // _PART), i8()), low)
        for part in values.reshape(-1, _PART)
    ]
    words = bitcast(codes, i16(), size // 2)
    for bit in (4, 5)[: len(found) // 2]:
        # The bit moves to the sign of its byte; bits that come from the byte below end lower.
        moved = bitcast(words << 7 - bit, i8(), size)
        chosen = signed_below(moved, splat(0, i8(), size))
        found = [
            arith.select(chosen, second, first)
            for first, second in zip(found[0::2], found[1::2], strict=True)
        ]
    return found[0]


def dot(total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
    """Add the products of quads to total, in three steps: vpmaddubsw, vpmaddwd by ones, vpaddd.

    The first saturates at 16 bits, which weights up to 127 never reach (2 * 127 * 128 = 32512).
    """
    lanes = lanes_of(total)
    pairs = x86.multiply_pairs_u8i8(weight, one)
    return total + x86.multiply_pairs_i16(pairs, splat(1, i16(), 2 * lanes))


@dataclass(frozen=True, kw_only=True)
class X86(Isa):
    """The common part of AVX2 and AVX-512. `vnni`: whether vpdpbusd is available."""

    vnni: bool
    signed: bool = False

    def decodes(self, bits: int, kind: Kind) -> bool:
        """True but for quads of int8 without VNNI, whose products overflow vpmaddubsw."""
        return kind != "quads" or self.vnni or bits < 8

    def chains(self, kind: Kind) -> int:
        """The latency of a dot product times its throughput, and some more. Where vpdpbusd is
        replaced, only an addition depends on the sum."""
        return 4 if kind == "quads" and not self.vnni else 12

    def multiply_add(self, a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        """vfmadd."""
        return math.fma(a, b, total)

    def dot_quads(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        """vpdpbusd, or its replacement by three instructions."""
        return (x86.dot_u8i8 if self.vnni else dot)(total, weight, one)
