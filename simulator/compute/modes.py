"""Effects of a wave's MODE register: denormals, clamping, output modifiers, overflow.

Source: AMD CDNA4 instruction set architecture, sections 3.5 and 6.4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mxc.simulator.compute.operations import Array

if TYPE_CHECKING:
    from mxc.simulator.run.state import Waves

#: First bits of the fields: rounding of f32, of f16 and f64; denormals of f32, of f16 and f64.
ROUND32, ROUND16, DENORM32, DENORM16 = 0, 2, 4, 6
DX10_CLAMP, IEEE, FP16_OVFL = 1 << 8, 1 << 9, 1 << 23

_TINY = {np.dtype(np.float32): 2.0**-126, np.dtype(np.float16): 2.0**-14}
_TINY[np.dtype(np.float64)] = 2.0**-1022


def flush(value: Array) -> Array:
    """Flush denormals to zeros of their sign."""
    tiny = value.dtype.type(_TINY[value.dtype])
    return np.where(np.abs(value) < tiny, np.copysign(value.dtype.type(0), value), value)


def flush_input(w: Waves, value: Array) -> Array:
    """Flush denormal operands if the denormal mode of their type says so."""
    shift = DENORM32 if value.dtype == np.float32 else DENORM16
    return value if w.mode >> shift & 1 else flush(value)


def flush_output(w: Waves, value: Array) -> Array:
    """Flush denormal results if the denormal mode of their type says so."""
    shift = DENORM32 if value.dtype == np.float32 else DENORM16
    return value if w.mode >> shift & 2 else flush(value)


def clamp(w: Waves, value: Array) -> Array:
    """Clamp a float to 0 .. 1; NaN becomes 0 where DX10_CLAMP is set."""
    limited = np.clip(value, 0, 1)
    return (
        np.where(np.isnan(value), value.dtype.type(0), limited) if w.mode & DX10_CLAMP else limited
    )


def omod(w: Waves, value: Array, code: int) -> Array:
    """Apply the output modifier, times 2, 4 or 1/2; ignored in IEEE mode or with denormals on."""
    shift = DENORM32 if value.dtype == np.float32 else DENORM16
    if w.mode & IEEE or w.mode >> shift & 2:
        return value
    result = flush(value * value.dtype.type((1.0, 2.0, 4.0, 0.5)[code]))
    return np.where(result == 0, value.dtype.type(0), result)
