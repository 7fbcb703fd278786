"""Lookups and dot products of bytes for AVX2 and AVX-512 without newer instructions, at both
widths."""

from __future__ import annotations

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.dialects import x86
from mxc.passes.kernels.vectors import bitcast, i8, i16, lanes_of, signed_below, splat, table

#: Bytes of the parts of a register that vpshufb does not cross.
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
    """total + the products of quads, in three steps: vpmaddubsw, vpmaddwd by ones, vpaddd.

    The first saturates at 16 bits, which weights up to 127 never reach (2 * 127 * 128 = 32512).
    """
    lanes = lanes_of(total)
    pairs = x86.multiply_pairs_u8i8(weight, one)
    return total + x86.multiply_pairs_i16(pairs, splat(1, i16(), 2 * lanes))
