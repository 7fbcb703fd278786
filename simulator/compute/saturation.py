"""Integer instructions with the clamp bit: the exact result, saturated to the type's range.

Source: AMD CDNA4 instruction set architecture, section 6.5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.simulator.compute.operations import Array, i64

Run = Callable[..., Any]
#: Smallest and largest value, and the dtype, of each kind of result.
_LIMITS: dict[str, tuple[int, int, Any]] = {
    "u": (0, 2**32 - 1, np.uint32),
    "i": (-(2**31), 2**31 - 1, np.int32),
    "w": (0, 2**16 - 1, np.uint32),
    "s": (-(2**15), 2**15 - 1, np.int32),
}


def _low24(value: Array) -> Array:
    return value & 0xFFFFFF


def _signed24(value: Array) -> Array:
    return value << 40 >> 40


def _parts(value: Array, width: int, *, signed: bool) -> list[Array]:
    fields = [value >> at & ((1 << width) - 1) for at in range(0, 32, width)]
    return [f << 64 - width >> 64 - width for f in fields] if signed else fields


def _dot(width: int, *, signed: bool) -> Run:
    def run(a: Array, b: Array, c: Array) -> Array:
        total = c
        for x, y in zip(
            _parts(a, width, signed=signed), _parts(b, width, signed=signed), strict=True
        ):
            total = total + x * y
        return total

    return run


def _far(width: int, *, masked: bool = False) -> Run:
    def run(a: Array, b: Array, c: Array) -> Array:
        total = c
        for x, y in zip(
            _parts(a, width, signed=False), _parts(b, width, signed=False), strict=True
        ):
            total = total + np.where((y == 0) & masked, 0, abs(x - y))
        return total

    return run


def _add(a: Array, b: Array) -> Array:
    return a + b


def _sub(a: Array, b: Array) -> Array:
    return a - b


def _mad(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


_SIXTEEN: dict[str, Run] = {
    **{
        f"{op}_{kind}": run for op, run in (("add", _add), ("sub", _sub)) for kind in ("u16", "i16")
    },
    "mad_u16": _mad,
    "mad_i16": _mad,
}
#: Functions of int64 operands with the exact int64 result, by instruction name.
_EXACT: dict[str, Run] = {
    **{f"v_{op}_{k}": run for op, run in (("add", _add), ("sub", _sub)) for k in ("u32", "i32")},
    "v_subrev_u32": lambda a, b: b - a,
    "v_subrev_u16": lambda a, b: b - a,
    **{f"v_{name}": run for name, run in _SIXTEEN.items()},
    **{f"v_pk_{name}": run for name, run in _SIXTEEN.items()},
    "v_mad_u32_u16": _mad,
    "v_mad_i32_i16": _mad,
    "v_mad_u32_u24": lambda a, b, c: _low24(a) * _low24(b) + c,
    "v_mad_i32_i24": lambda a, b, c: _signed24(a) * _signed24(b) + c,
    "v_sad_u8": _far(8),
    "v_sad_u16": _far(16),
    "v_sad_u32": _far(32),
    "v_msad_u8": _far(8, masked=True),
    "v_sad_hi_u8": lambda a, b, c: (_far(8)(a, b, 0) << 16) + c,
    "v_dot2_i32_i16": _dot(16, signed=True),
    "v_dot2_u32_u16": _dot(16, signed=False),
    "v_dot4_i32_i8": _dot(8, signed=True),
    "v_dot4_u32_u8": _dot(8, signed=False),
    "v_dot8_i32_i4": _dot(4, signed=True),
    "v_dot8_u32_u4": _dot(4, signed=False),
}
SATURATING = frozenset(_EXACT)


def saturating(name: str, kind: str) -> Run:
    """Return the saturating operation of an instruction; kind: the kind of its result."""
    low, high, dtype = _LIMITS[kind]
    run = _EXACT[name]
    return lambda *operands: np.clip(run(*map(i64, operands)), low, high).astype(dtype)
