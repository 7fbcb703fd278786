"""Reference functions of instructions on the bits of operands, by integers and exact fractions."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np

from tests.simulator.instructions.exact import (
    ALL,
    bits_of,
    fused,
    limited,
    number,
    parts,
    rounded,
    signed,
)


def permuted(a: int, b: int, select: int) -> int:
    data = b.to_bytes(4, "little") + a.to_bytes(4, "little")
    signs = {8: 1, 9: 3, 10: 5, 11: 7}
    result = []
    for code in select.to_bytes(4, "little"):
        if code < 8:
            result.append(data[code])
        elif code in signs:
            result.append(255 * (data[signs[code]] >> 7))
        else:
            result.append(0 if code == 12 else 255)
    return int.from_bytes(bytes(result), "little")


def far(width: int, masked: bool = False) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        pairs = zip(parts(a, width), parts(b, width), strict=True)
        return c + sum(abs(x - y) for x, y in pairs if y or not masked)

    return run


def lerp(a: int, b: int, c: int) -> int:
    three = zip(parts(a, 8), parts(b, 8), parts(c, 8), strict=True)
    return sum((x + y + (z & 1) >> 1) << 8 * n for n, (x, y, z) in enumerate(three))


def ashr(low: int, high: int) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        one, two = (limited(signed(x) >> (c & 31), low, high) & 0xFF for x in (a, b))
        return one | two << 8

    return run


def byte_of_float(a: int, b: int, c: int) -> int:
    value = float(number(a))
    byte = 0 if np.isnan(value) else int(limited(np.clip(value, -1e9, 1e9), 0, 255))
    shift = 8 * (b & 3)
    return c & ~(0xFF << shift) & ALL | byte << shift


def extreme3(largest: bool) -> Callable[[int, int, int], int]:
    def run(*operands: int) -> int:
        values = [number(x) for x in operands]
        if any(np.isnan(v) for v in values):
            return 0x7FC00000
        key = [(float(v), not np.signbit(v)) for v in values]
        order = sorted(range(3), key=lambda n: key[n])
        return operands[order[-1 if largest else 0]]

    return run


def scaled(width: int) -> Callable[[int, int], int]:
    def run(a: int, n: int) -> int:
        value = number(a, width)
        count = signed(n, 16 if width == 16 else 32)
        if not np.isfinite(value) or value == 0:
            return a
        return rounded(Fraction(float(value)) * Fraction(2) ** limited(count, -3000, 3000), width)

    return run


def toward_zero(a: int, b: int) -> int:
    """v_cvt_pkrtz_f16_f32: round toward zero; no finite number becomes infinite."""
    halves = []
    for bits in (a, b):
        value = number(bits)
        if np.isnan(value) or np.isinf(value):
            halves.append(bits_of(value, 16))
            continue
        size = abs(Fraction(float(value)))
        codes = range(0x7C00)
        low, high = 0, len(codes) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if Fraction(float(number(middle, 16))) <= size:
                low = middle
            else:
                high = middle - 1
        halves.append(low | 0x8000 * int(np.signbit(value)))
    return halves[0] | halves[1] << 16


def wave_of(run: Callable[[Any], Any]) -> Callable[[int], int]:
    return lambda a: bits_of(run(np.float64(number(a)) * 2 * np.pi))


def small(dtype: Any) -> Callable[[int], int]:
    return lambda a: bits_of(float(np.array([a & 255], np.uint8).view(dtype)[0]))


def dot(width: int, is_signed: bool) -> Callable[[int, int, int], int]:
    def run(a: int, b: int, c: int) -> int:
        total = c
        for x, y in zip(parts(a, width), parts(b, width), strict=True):
            total += signed(x, width) * signed(y, width) if is_signed else x * y
        return total

    return run


def float_dot(dtype: Any, last: bool) -> Callable[[int, int, int], int]:
    """Return a dot product of two pairs of 16-bit floats and an f32, which is added last or first.

    Products are exact in float32; denormals are flushed everywhere (section 6.4).
    """

    def near(x: Any) -> Any:
        return np.float32(np.copysign(0, x)) if abs(x) < 2.0**-126 else np.float32(x)

    def run(a: int, b: int, c: int) -> int:
        tiny = 2.0**-14 if dtype == np.float16 else 2.0**-126
        terms = []
        for x, y in zip(parts(a, 16), parts(b, 16), strict=True):
            both = [np.float32(np.array([v], np.uint16).view(dtype)[0]) for v in (x, y)]
            both = [np.float32(np.copysign(0, v)) if abs(v) < tiny else v for v in both]
            terms.append(near(both[0] * both[1]))
        start = near(number(c))
        order = [*terms, start] if last else [start, *terms]
        total = order[0]
        for term in order[1:]:
            total = near(np.float32(total + term))
        return bits_of(total)

    return run


def quads(width: int) -> Callable[[int], list[int]]:
    return lambda a: [int(a >> n & 15 != 0) for n in range(0, width, 4)]


#: Results of v_cvt_off_f32_i4 by the lowest four bits, in sixteenths, as LLVM folds constants.
OFFSETS = (0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1)
#: Functions from the bits of the operands (the old result last, if it is read) to those of the
#: result.
ORACLES: dict[str, Callable[..., int]] = {
    "v_accvgpr_read_b32": lambda a: a,
    "v_accvgpr_write_b32": lambda a: a,
    "v_accvgpr_mov_b32": lambda a: a,
    "v_perm_b32": permuted,
    **{f"v_sad_u{w}": far(w) for w in (8, 16, 32)},
    "v_msad_u8": far(8, masked=True),
    "v_sad_hi_u8": lambda a, b, c: (far(8)(a, b, 0) << 16) + c,
    "v_lerp_u8": lerp,
    "v_sat_pk_u8_i16": lambda a: (
        limited(signed(a, 16), 0, 255) | limited(signed(a >> 16, 16), 0, 255) << 8
    ),
    "v_cvt_pk_u8_f32": byte_of_float,
    "v_ashr_pk_i8_i32": ashr(-128, 127),
    "v_ashr_pk_u8_i32": ashr(0, 255),
    "v_minimum3_f32": extreme3(largest=False),
    "v_maximum3_f32": extreme3(largest=True),
    "v_cvt_pkrtz_f16_f32": toward_zero,
    "v_sin_f32": wave_of(np.sin),
    "v_cos_f32": wave_of(np.cos),
    **{f"v_ldexp_f{w}": scaled(w) for w in (16, 32, 64)},
    "v_fmac_f64": fused(64),
    "v_fma_f16": fused(16),
    "v_cvt_off_f32_i4": lambda a: bits_of(OFFSETS[a & 15] / 16),
    "v_cvt_f32_fp8": small(ml_dtypes.float8_e4m3fn),
    "v_cvt_f32_bf8": small(ml_dtypes.float8_e5m2),
    **{f"v_dot{32 // w}_{k}": dot(w, k[0] == "i") for w, k in ((16, "i32_i16"), (16, "u32_u16"))},
    **{f"v_dot{32 // w}_{k}": dot(w, k[0] == "i") for w, k in ((8, "i32_i8"), (8, "u32_u8"))},
    **{f"v_dot{32 // w}_{k}": dot(w, k[0] == "i") for w, k in ((4, "i32_i4"), (4, "u32_u4"))},
    "v_dot2c_i32_i16": dot(16, True),
    "v_dot4c_i32_i8": dot(8, True),
    "v_dot8c_i32_i4": dot(4, True),
    "v_dot2_f32_f16": float_dot(np.float16, last=False),
    "v_dot2c_f32_f16": float_dot(np.float16, last=False),
    "v_dot2_f32_bf16": float_dot(ml_dtypes.bfloat16, last=True),
    "v_dot2c_f32_bf16": float_dot(ml_dtypes.bfloat16, last=False),
    "s_bitset0_b32": lambda n, old: old & ~(1 << (n & 31)),
    "s_bitset1_b32": lambda n, old: old | 1 << (n & 31),
    "s_bitset0_b64": lambda n, old: old & ~(1 << (n & 63)),
    "s_bitset1_b64": lambda n, old: old | 1 << (n & 63),
    **{f"s_wqm_b{w}": lambda a, w=w: sum(15 * q << 4 * n for n, q in enumerate(quads(w)(a)))
       for w in (32, 64)},
    **{f"s_quadmask_b{w}": lambda a, w=w: sum(q << n for n, q in enumerate(quads(w)(a)))
       for w in (32, 64)},
    "s_bitreplicate_b64_b32": lambda a: sum((3 * (a >> n & 1)) << 2 * n for n in range(32)),
}  # fmt: skip
