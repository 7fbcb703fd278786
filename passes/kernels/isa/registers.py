"""Registers of bf16 and f32, taken apart and put together with integer operations: any target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith
from numpy.typing import NDArray

from mxc.passes.kernels.isa.protocol import Kind
from mxc.passes.kernels.vectors import bitcast, f32, i32, of, splat


def bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """The bits of values that bf16 holds exactly (NaN keeps its upper half)."""
    bits = values.view(np.uint32)
    if (bits & 0xFFFF)[~np.isnan(values)].any():
        raise ValueError("bf16 does not hold every value of the format")
    return (bits >> 16).astype(np.uint16).view(np.int16)


def halves(pair: ir.Value, lanes: int) -> Sequence[ir.Value]:
    """The two f32 [lanes] of a register of pairs of bf16: element 0 and element 1 of each lane."""
    bits = bitcast(pair, i32(), lanes)
    first = arith.shli(bits, splat(16, i32(), lanes))
    second = arith.andi(bits, splat(-65536, i32(), lanes))
    return [bitcast(value, f32(), lanes) for value in (first, second)]


def pair(first: ir.Value, second: ir.Value, lanes: int) -> ir.Value:
    """The register of pairs of bf16 whose halves are two f32 [lanes] that bf16 holds exactly."""
    low, high = (bitcast(value, i32(), lanes) for value in (first, second))
    low = arith.shrui(low, splat(16, i32(), lanes))
    high = arith.andi(high, splat(-65536, i32(), lanes))
    return bitcast(arith.ori(low, high), ir.BF16Type.get(), 2 * lanes)


def zero(kind: Kind, lanes: int) -> ir.Value:
    """The sum of no products."""
    return splat(0, i32(), lanes) if kind == "quads" else splat(0.0, f32(), lanes)


def accumulator(kind: Kind, lanes: int) -> ir.Type:
    """The type of a sum."""
    return of(i32() if kind == "quads" else f32(), lanes)
