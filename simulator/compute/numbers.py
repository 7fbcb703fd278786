"""Small number formats: element codes to float32 and back, E8M0 scales, bfloat16.

numpy only: the tables are made from the fields of the format's record (OCP Microscaling Formats
v1.0, section 5.3). Rounding is to nearest even.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from mxc.simulator.compute.operations import Array

#: Element formats by their code in cbsz and blgp (CDNA4 ISA, matrix instructions).
FORMATS = ("fp8", "bf8", "fp6", "bf6", "fp4")
#: Exponent bits, mantissa bits and bias. fp8z and bf8z are the FNUZ formats of gfx942: they have no
#: infinity and no negative zero, whose code is their only NaN.
_FIELDS = {
    "fp8": (4, 3, 7),
    "bf8": (5, 2, 15),
    "fp8z": (4, 3, 8),
    "bf8z": (5, 2, 16),
    "fp6": (2, 3, 1),
    "bf6": (3, 2, 3),
    "fp4": (2, 1, 1),
    "f16": (5, 10, 15),
    "bf16": (8, 7, 127),
}
#: Mantissa bits of the wide formats of conversions.
MANTISSA = {"f32": 23, "f16": 10, "bf16": 7}
BITS = {"fp8": 8, "bf8": 8, "fp8z": 8, "bf8z": 8, "fp6": 6, "bf6": 6, "fp4": 4}


@cache
def values(name: str) -> Array:
    """Return the float32 value of every code of a format."""
    exponent_bits, mantissa_bits, bias = _FIELDS[name]
    codes = np.arange(1 << BITS[name])
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = codes >> mantissa_bits & ((1 << exponent_bits) - 1)
    hidden = np.where(exponent > 0, 1 << mantissa_bits, 0)
    size = np.ldexp(
        (mantissa + hidden).astype(np.float64), np.maximum(exponent, 1) - bias - mantissa_bits
    )
    if name == "fp8":
        size[codes & 0x7F == 0x7F] = np.nan
    if name == "bf8":
        special = exponent == 31
        size[special] = np.where(mantissa[special] == 0, np.inf, np.nan)
    if name in ("fp8z", "bf8z"):
        size[0x80] = np.nan
    sign = codes >> (exponent_bits + mantissa_bits)
    result: Array = np.where(sign == 1, -size, size).astype(np.float32)
    return result


@cache
def pairs() -> Array:
    """Return float32 [256, 2]: the two fp4 elements of each byte, the low nibble first."""
    low = values("fp4")
    codes = np.arange(256)
    return np.stack([low[codes & 15], low[codes >> 4]], axis=1)


@cache
def _wide_table(name: str) -> Array:
    """Return the elements of every 16-bit pattern as one item: 2 of 8 bits, or 4 of fp4."""
    codes = np.arange(1 << 16)
    if name == "fp4":
        four = np.concatenate([pairs()[codes & 255], pairs()[codes >> 8]], axis=1)
        return np.ascontiguousarray(four).view(np.complex128)[:, 0]
    two = np.stack([values(name)[codes & 255], values(name)[codes >> 8]], axis=1)
    return np.ascontiguousarray(two).view(np.complex64)[:, 0]


def unpack(words: Array, name: str) -> Array:
    """Unpack fp4, fp8 or bf8 in uint32 [..., n] to float32, in order along the last axis.

    One table look-up gives two or four elements, because simulated matrix products spend most time
    here.
    """
    return np.asarray(_wide_table(name).take(words.view(np.uint16)).view(np.float32))


@cache
def _grid(name: str) -> tuple[Array, Array]:
    """Return the finite magnitudes of a format in float64, and the midpoints between them."""
    sizes = values(name)[: 1 << (BITS[name] - 1)].astype(np.float64)
    sizes = sizes[np.isfinite(sizes)]
    return sizes, (sizes[1:] + sizes[:-1]) / 2


def encode(value: Array, name: str, *, clamp: bool) -> Array:
    """Return the codes (uint32) of float64 `value`, rounded to nearest even.

    Overflow becomes NaN in fp8 and infinity in bf8, or the largest number with `clamp`. In fp4 and
    fp6, overflow and NaN become the largest number.
    """
    sizes, middles = _grid(name)
    size = np.abs(value)
    code = np.searchsorted(middles, size, side="left")
    tie = middles[np.minimum(code, len(middles) - 1)] == size
    code = np.where(tie & (code & 1 == 1), code + 1, code)
    if name in ("fp8", "bf8"):
        step = sizes[-1] - sizes[-2]
        # A tie beyond the largest number, whose code is even in fp8 (0x7e) and odd in bf8 (0x7b).
        edge = sizes[-1] + step / 2
        over = size > edge if name == "fp8" else size >= edge
        if not clamp:
            code = np.where(over, 0x7F if name == "fp8" else 0x7C, code)
        code = np.where(np.isnan(value), 0x7F, code)
        if not clamp:
            code = np.where(np.isinf(value), 0x7F if name == "fp8" else 0x7C, code)
    sign = np.signbit(value).astype(np.uint32) << (BITS[name] - 1)
    return code.astype(np.uint32) | sign


def encode_stochastic(value: Array, name: str, seed: Array, source: int, *, clamp: bool) -> Array:
    """Return the codes (uint32) of float64 `value`, rounded stochastically.

    source: mantissa bits of the format that the value comes from. As many upper bits of `seed` as
    are truncated are added to the mantissa before truncation. For a denormal result, mantissa bits
    below the source's last bit are dropped first. f16 and bf16 overflow to infinity (f16 to the
    largest number with `clamp`), other formats as in `encode`. Source: AMD's HIP,
    amd_hip_ocp_host.hpp, which its tests compare with gfx950.
    """
    exponent_bits, mantissa, bias = _FIELDS[name]
    finite = np.where(np.isfinite(value), value, 0)
    lowest = 1 - bias
    exponent = np.where(finite == 0, lowest, np.maximum(np.frexp(finite)[1] - 1, lowest))
    units = np.floor(np.ldexp(np.abs(finite), source - exponent)).astype(np.int64)
    cut = source - mantissa
    kept = (units + (seed >> (32 - cut)).astype(np.int64)) >> cut
    code = ((exponent - lowest).astype(np.int64) << mantissa) + kept
    top = (1 << exponent_bits + mantissa) - 1
    infinity = {"fp8": 0x7F, "bf8": 0x7C, "f16": 0x7C00, "bf16": 0x7F80}.get(name, top)
    saturates = name in ("fp4", "fp6", "bf6")
    largest = top if saturates else infinity - 1
    beyond = largest if saturates or (clamp and name != "bf16") else infinity
    code = np.where(code > largest, beyond, code)
    # Infinities stay infinite in f16: FP16_OVFL affects only finite values that overflow.
    code = np.where(np.isinf(value), infinity if name == "f16" else beyond, code)
    code = np.where(np.isnan(value), top, code)
    sign = np.signbit(value).astype(np.uint32) << (exponent_bits + mantissa)
    return code.astype(np.uint32) | sign


def random_next(state: Array) -> Array:
    """v_prng_b32: return the next state (uint32) of a linear feedback shift register."""
    return (state << 1) ^ ((state >> 31) * np.uint32(197))


def scale_of(byte: Array) -> Array:
    """Return float64 2**(byte - 127) of E8M0 bytes; NaN for 255."""
    return np.asarray(_SCALES[byte])


_SCALES = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)


def to_bfloat(value: Array) -> Array:
    """float32 -> bfloat16 bits in uint32, to nearest even; NaN becomes a quiet NaN."""
    bits = value.view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(value), bits >> 16 | 0x40, rounded).astype(np.uint32)


def from_bfloat(bits: Array) -> Array:
    """bfloat16 bits (the low half of uint32) -> float32."""
    return (bits << 16).view(np.float32)
