"""Split and join registers of bf16 and f32 with integer operations: any target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.passes.kernels.vectors import bitcast, f32, i1, i8, i16, i32, splat, table


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """The bits of values that bf16 holds exactly; a NaN keeps its upper half. Raises ValueError for
    other values."""
    bits = values.view(np.uint32)
    if (bits & 0xFFFF)[~np.isnan(values)].any():
        raise ValueError("bf16 does not hold every value of the format")
    return (bits >> 16).astype(np.uint16).view(np.int16)


def halves(pair: ir.Value, lanes: int) -> Sequence[ir.Value]:
    """Split a register of bf16 pairs into two f32 [lanes]: elements 0 and elements 1 of lanes."""
    bits = bitcast(pair, i32(), lanes)
    first = bits << 16
    second = bits & -65536
    return [bitcast(value, f32(), lanes) for value in (first, second)]


def pair(first: ir.Value, second: ir.Value, lanes: int) -> ir.Value:
    """Join two f32 [lanes], which bf16 holds exactly, to a register of bf16 pairs."""
    low, high = (bitcast(value, i32(), lanes) for value in (first, second))
    low = low >> 16
    high = high & -65536
    return bitcast(low | high, ir.BF16Type.get(), 2 * lanes)


def pairs_of_halves(lows: ir.Value, highs: ir.Value, lanes: int) -> tuple[ir.Value, ir.Value]:
    """Join low and high bytes, i8 [4 * lanes] each, to two bf16 [2 * lanes]: the first has bytes 0
    and 2 of each lane, the second bytes 1 and 3.

    One side is shifted by a byte, and the bytes are blended. LLVM would lower a shuffle of bytes to
    two more lookups, which run on half as many ports.
    """
    size = 4 * lanes
    eight = splat(8, i16(), 2 * lanes)
    up, down = (
        bitcast(shift(bitcast(side, i16(), 2 * lanes), eight), i8(), size)
        for shift, side in ((arith.shli, highs), (arith.shrui, lows))
    )
    upper = table(np.tile(np.array([False, True]), 2 * lanes), i1())
    kind = ir.BF16Type.get()
    return (
        bitcast(arith.select(upper, up, lows), kind, 2 * lanes),
        bitcast(arith.select(upper, highs, down), kind, 2 * lanes),
    )
