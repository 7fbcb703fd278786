"""Conversions between number formats, with and without a scale.

Source: AMD CDNA4 instruction set architecture, sections on VOP1 and VOP3. Integers saturate and
NaN becomes 0. Conversions of fp4, fp6 and fp8 that read or write a part of a register are in
`narrow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.simulator.compute.numbers import from_bfloat, to_bfloat, values
from mxc.simulator.compute.operations import Array, Operation, operation


def _saturate(low: int, high: int, kind: Any) -> Callable[[Array], Array]:
    def run(value: Array) -> Array:
        wide = np.clip(np.trunc(value.astype(np.float64)), low, high)
        return np.where(np.isnan(wide), 0.0, wide).astype(np.int64).astype(kind)

    return run


_TO_I32 = _saturate(-(2**31), 2**31 - 1, np.int32)
_TO_U32 = _saturate(0, 2**32 - 1, np.uint32)


def _byte(place: int) -> Callable[[Array], Array]:
    return lambda a: (a >> 8 * place & 0xFF).astype(np.float32)


def _sixteenths(value: Array) -> Array:
    """The signed integer in the lowest four bits, / 16."""
    return ((value & 15 ^ 8).astype(np.int32) - 8).astype(np.float32) / np.float32(16)


def half_bits(value: Array) -> Array:
    """float32 -> float16 bits in uint32, to nearest even."""
    return value.astype(np.float16).view(np.uint16).astype(np.uint32)


def half_toward_zero(value: Array) -> Array:
    """float32 -> float16 bits in uint32, toward zero; no finite number becomes infinite."""
    nearest = value.astype(np.float16)
    bits = nearest.view(np.uint16).astype(np.uint32)
    away = np.abs(nearest.astype(np.float64)) > np.abs(value.astype(np.float64))
    return np.where(away & np.isfinite(value), bits - 1, bits).astype(np.uint32)


CONVERSIONS: dict[str, Operation] = {
    "v_cvt_f32_i32": operation("f", "i", lambda a: a.astype(np.float32)),
    "v_cvt_f32_u32": operation("f", "u", lambda a: a.astype(np.float32)),
    "v_cvt_i32_f32": operation("i", "f", _TO_I32),
    "v_cvt_u32_f32": operation("u", "f", _TO_U32),
    "v_cvt_i32_f64": operation("i", "d", _TO_I32),
    "v_cvt_u32_f64": operation("u", "d", _TO_U32),
    "v_cvt_f64_i32": operation("d", "i", lambda a: a.astype(np.float64)),
    "v_cvt_f64_u32": operation("d", "u", lambda a: a.astype(np.float64)),
    "v_cvt_f64_f32": operation("d", "f", lambda a: a.astype(np.float64)),
    "v_cvt_f32_f64": operation("f", "d", lambda a: a.astype(np.float32)),
    "v_cvt_f32_f16": operation("f", "h", lambda a: a.astype(np.float32)),
    "v_cvt_f16_f32": operation("h", "f", lambda a: a.astype(np.float16)),
    "v_cvt_f16_u16": operation("h", "w", lambda a: a.astype(np.float16)),
    "v_cvt_f16_i16": operation("h", "s", lambda a: a.astype(np.float16)),
    "v_cvt_u16_f16": operation("w", "h", _saturate(0, 65535, np.uint32)),
    "v_cvt_i16_f16": operation("s", "h", _saturate(-32768, 32767, np.int32)),
    "v_cvt_rpi_i32_f32": operation(
        "i", "f", lambda a: _TO_I32(np.floor(a.astype(np.float64) + 0.5))
    ),
    "v_cvt_flr_i32_f32": operation("i", "f", lambda a: _TO_I32(np.floor(a))),
    "v_cvt_f32_ubyte0": operation("f", "u", _byte(0)),
    "v_cvt_f32_ubyte1": operation("f", "u", _byte(1)),
    "v_cvt_f32_ubyte2": operation("f", "u", _byte(2)),
    "v_cvt_f32_ubyte3": operation("f", "u", _byte(3)),
    "v_cvt_off_f32_i4": operation("f", "u", _sixteenths),
    "v_cvt_f32_bf16": operation("f", "b", lambda a: a),
    "v_cvt_pk_bf16_f32": operation("u", "ff", lambda a, b: to_bfloat(a) | to_bfloat(b) << 16),
    "v_cvt_pk_f16_f32": operation("u", "ff", lambda a, b: half_bits(a) | half_bits(b) << 16),
    "v_cvt_pkrtz_f16_f32": operation(
        "u", "ff", lambda a, b: half_toward_zero(a) | half_toward_zero(b) << 16
    ),
    "v_pack_b32_f16": operation("u", "ww", lambda a, b: a | b << 16),
    "v_cvt_f32_fp8": operation("f", "u", lambda a: values("fp8")[a & 0xFF]),
    "v_cvt_f32_bf8": operation("f", "u", lambda a: values("bf8")[a & 0xFF]),
    "v_cvt_f32_fp8z": operation("f", "u", lambda a: values("fp8z")[a & 0xFF]),
    "v_cvt_f32_bf8z": operation("f", "u", lambda a: values("bf8z")[a & 0xFF]),
}


def halves(wide: str, source: Array) -> tuple[Array, Array]:
    """Return the two elements of a packed register of f16 or bf16, as float32."""
    if wide == "bf16":
        return from_bfloat(source & 0xFFFF), from_bfloat(source >> 16)
    return (
        (source & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32),
        (source >> 16).astype(np.uint16).view(np.float16).astype(np.float32),
    )
