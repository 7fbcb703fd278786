"""Vector instructions that operate on the bytes of registers.

Source: AMD CDNA4 instruction set architecture, sections on VOP1 and VOP3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxc.simulator.compute.operations import Array, Operation, operation


def _differences(width: int, *, masked: bool = False) -> Any:
    """Sum of |a - b| of unsigned fields and c; masked: fields of b that are 0 do not count."""

    def run(a: Array, b: Array, c: Array) -> Array:
        total = c
        for shift in range(0, 32, width):
            x, y = (value >> shift & ((1 << width) - 1) for value in (a, b))
            far = np.maximum(x, y) - np.minimum(x, y)
            total = total + (np.where(y == 0, np.uint32(0), far) if masked else far)
        return total

    return run


def _sum_in_high_half(a: Array, b: Array, c: Array) -> Array:
    result: Array = (_differences(8)(a, b, np.uint32(0)) << 16) + c
    return result


def _averages(a: Array, b: Array, c: Array) -> Array:
    """v_lerp_u8: the mean of two bytes, rounded up where the lowest bit of c's byte is set."""
    result = np.zeros((1, 1), np.uint32)
    for shift in (0, 8, 16, 24):
        total = (a >> shift & 0xFF) + (b >> shift & 0xFF) + (c >> shift & 1)
        result = result | total >> 1 << shift
    return result


def _shifted_bytes(low: int, high: int) -> Any:
    """v_ashr_pk: two shifted words, each saturated to a byte."""

    def run(a: Array, b: Array, count: Array) -> Array:
        parts = [
            np.clip(x.view(np.int32) >> (count & 31).view(np.int32), low, high) for x in (a, b)
        ]
        result: Array = (parts[0] & 0xFF | (parts[1] & 0xFF) << 8).view(np.uint32)
        return result

    return run


def _limited_halves(a: Array) -> Array:
    """v_sat_pk_u8_i16: both signed halves, saturated to unsigned bytes."""
    low, high = ((a << shift).view(np.int32) >> 16 for shift in (16, 0))
    result: Array = (np.clip(low, 0, 255) | np.clip(high, 0, 255) << 8).view(np.uint32)
    return result


def _byte_of_float(value: Array, place: Array, old: Array) -> Array:
    """v_cvt_pk_u8_f32: a float, saturated to 0 .. 255, inserted in a byte of the third operand."""
    wide = np.clip(np.where(np.isnan(value), 0, np.trunc(value.astype(np.float64))), 0, 255)
    shift = (place & 3) * 8
    result: Array = (old & ~(np.uint32(0xFF) << shift)) | wide.astype(np.uint32) << shift
    return result


BYTEWISE: dict[str, Operation] = {
    "v_sad_u8": operation("u", "uuu", _differences(8)),
    "v_sad_u16": operation("u", "uuu", _differences(16)),
    "v_sad_u32": operation("u", "uuu", lambda a, b, c: np.maximum(a, b) - np.minimum(a, b) + c),
    "v_msad_u8": operation("u", "uuu", _differences(8, masked=True)),
    "v_sad_hi_u8": operation("u", "uuu", _sum_in_high_half),
    "v_lerp_u8": operation("u", "uuu", _averages),
    "v_sat_pk_u8_i16": operation("w", "u", _limited_halves),
    "v_cvt_pk_u8_f32": operation("u", "fuu", _byte_of_float),
    "v_ashr_pk_i8_i32": operation("w", "uuu", _shifted_bytes(-128, 127)),
    "v_ashr_pk_u8_i32": operation("w", "uuu", _shifted_bytes(0, 255)),
}
