"""Scalar integer instructions, and the SCC bit that they set.

Source: AMD CDNA4 instruction set architecture, sections on SOP1, SOP2, SOPC and SOPK. A shift
uses only the low bits of its count; SOPK immediates are sign-extended.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.simulator.compute.operations import (
    Array,
    Operation,
    high32,
    i64,
    low32,
    operation,
    u64,
)

Pair = tuple[Array, Array]
_ONE64 = np.uint64(1)


def _nonzero(run: Callable[..., Array]) -> Callable[..., Pair]:
    """Return `run` with SCC set where the result is not zero."""

    def both(*operands: Array) -> Pair:
        result = run(*operands)
        return result, result != 0

    return both


def _add(a: Array, b: Array, carry: Array | int = 0) -> Pair:
    total = i64(a) + i64(b) + carry
    return low32(total), total > 0xFFFFFFFF


def _subtract(a: Array, b: Array, borrow: Array | int = 0) -> Pair:
    rest = i64(a) - i64(b) - borrow
    return low32(rest), rest < 0


def _signed(run: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Pair]:
    """Return `run` with SCC set where the signed result does not fit into 32 bits."""

    def both(a: Array, b: Array) -> Pair:
        wide = run(i64(a), i64(b))
        result = wide.astype(np.int32)
        return result, result != wide

    return both


def _least(a: Array, b: Array) -> Pair:
    return np.minimum(a, b), a < b


def _most(a: Array, b: Array) -> Pair:
    return np.maximum(a, b), a >= b


def reverse32(value: Array) -> Array:
    """Reverse the order of 32 bits."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF)):
        value = (value >> shift & mask) | ((value & mask) << shift)
    return (value >> 16) | (value << 16)


def highest_bit(value: Array) -> Array:
    """Count zeros above the highest set bit of uint32; 2**32-1 for zero."""
    width = np.frexp(value.astype(np.float64))[1]
    return np.where(value == 0, -1, 32 - width).astype(np.int32).view(np.uint32)


def lowest_bit(value: Array) -> Array:
    """Count zeros below the lowest set bit of uint32; 2**32-1 for zero."""
    lowest = value & (~value + np.uint32(1))
    place = np.frexp(lowest.astype(np.float64))[1] - 1
    return np.where(value == 0, -1, place).astype(np.int32).view(np.uint32)


def sign_bits(value: Array) -> Array:
    """Count bits above the highest that differs from the sign of int32; 2**32-1 for none."""
    return highest_bit((value ^ (value >> 31)).view(np.uint32))


def reverse64(value: Array) -> Array:
    """Reverse the order of 64 bits."""
    low, high = reverse32(high32(value)), reverse32(low32(value))
    result: Array = u64(low) | u64(high) << np.uint64(32)
    return result


def highest_bit64(value: Array) -> Array:
    """Count zeros above the highest set bit of uint64; 2**32-1 for zero."""
    high, low = high32(value), low32(value)
    below = np.where(low == 0, np.uint32(0xFFFFFFFF), highest_bit(low) + np.uint32(32))
    return np.where(high != 0, highest_bit(high), below).astype(np.uint32)


def lowest_bit64(value: Array) -> Array:
    """Count zeros below the lowest set bit of uint64; 2**32-1 for zero."""
    high, low = high32(value), low32(value)
    above = np.where(high == 0, np.uint32(0xFFFFFFFF), lowest_bit(high) + np.uint32(32))
    return np.where(low != 0, lowest_bit(low), above).astype(np.uint32)


def _signs64(value: Array) -> Array:
    return highest_bit64((value ^ (value >> 63)).view(np.uint64))


def _quads(value: Array) -> Array:
    """Set bit 4 n of the result where one of the bits 4 n .. 4 n + 3 is set."""
    pairs = value | value >> value.dtype.type(1)
    both = pairs | pairs >> value.dtype.type(2)
    mask: Array = both & value.dtype.type(0x1111111111111111 & (1 << 8 * value.itemsize) - 1)
    return mask


def _whole_quads(value: Array) -> Array:
    result: Array = _quads(value) * value.dtype.type(15)
    return result


def _quad_mask(value: Array) -> Array:
    quads = _quads(value)
    result = np.zeros_like(quads)
    for n in range(2 * value.itemsize):
        result |= (quads >> value.dtype.type(4 * n) & value.dtype.type(1)) << value.dtype.type(n)
    return result


def _twice(value: Array) -> Array:
    """Repeat each of 32 bits twice."""
    wide = u64(value)
    for shift, mask in (
        (16, 0x0000FFFF0000FFFF),
        (8, 0x00FF00FF00FF00FF),
        (4, 0x0F0F0F0F0F0F0F0F),
        (2, 0x3333333333333333),
        (1, 0x5555555555555555),
    ):
        wide = (wide | wide << np.uint64(shift)) & np.uint64(mask)
    result: Array = wide | wide << _ONE64
    return result


def _wide_signed_field(value: Array, spec: Array) -> Array:
    width = np.minimum(spec >> 16 & 127, 64)
    cut = value >> i64(spec & 63)
    rest = i64(64 - width) & 63
    return np.where(width == 0, np.int64(0), cut << rest >> rest)


def ones(value: Array) -> Array:
    """Count the set bits, as uint32."""
    return np.bitwise_count(value).astype(np.uint32)


def field(value: Array, offset: Array, width: Array) -> Array:
    """Unsigned bit field of uint32; offset and width modulo 32."""
    result: Array = value >> (offset & 31) & ((np.uint32(1) << (width & 31)) - np.uint32(1))
    return result


def signed_field(value: Array, offset: Array, width: Array) -> Array:
    """Sign-extended bit field of uint32, as uint32; offset and width modulo 32.

    The value is shifted as signed, so that a field that reaches beyond bit 31 is sign-extended.
    """
    width = width & 31
    rest = ((np.uint32(32) - width) & 31).view(np.int32)
    cut = (value.view(np.int32) >> (offset & 31).view(np.int32)) << rest >> rest
    return np.where(width == 0, 0, cut).astype(np.int32).view(np.uint32)


def _packed_field(value: Array, spec: Array) -> Array:
    width = np.minimum(spec >> 16 & 127, 32)
    cut = u64(value) >> u64(spec & 31) & ((_ONE64 << u64(width)) - _ONE64)
    return low32(cut)


def _packed_signed_field(value: Array, spec: Array) -> Array:
    width = np.minimum(spec >> 16 & 127, 32)
    cut = i64(value) >> i64(spec & 31)
    rest = 64 - i64(width)
    # numpy does not define a shift by 64.
    return np.where(width == 0, 0, cut << (rest & 63) >> (rest & 63)).astype(np.int32)


def _wide_field(value: Array, spec: Array) -> Array:
    width = np.minimum(spec >> 16 & 127, 64)
    mask = np.where(width >= 64, ~np.uint64(0), (_ONE64 << u64(width & 63)) - _ONE64)
    return value >> u64(spec & 63) & mask


def _pack(low_shift: int, high_shift: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: (a >> low_shift & 0xFFFF) | ((b >> high_shift & 0xFFFF) << 16)


def _bits(both: str, kind: str) -> dict[str, Operation]:
    """Return the bitwise instructions of one width."""
    logic: dict[str, Callable[..., Array]] = {
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "andn2": lambda a, b: a & ~b,
        "orn2": lambda a, b: a | ~b,
        "nand": lambda a, b: ~(a & b),
        "nor": lambda a, b: ~(a | b),
        "xnor": lambda a, b: ~(a ^ b),
    }
    table = {
        f"s_{name}_{both}": operation(f"{kind}c", kind * 2, _nonzero(run))
        for name, run in logic.items()
    }
    table[f"s_not_{both}"] = operation(f"{kind}c", kind, _nonzero(lambda a: ~a))
    table[f"s_mov_{both}"] = operation(kind, kind, lambda a: a)
    table[f"s_cmov_{both}"] = operation(
        kind, f"{kind}c", lambda a, scc, old: np.where(scc, a, old), tied=True
    )
    table[f"s_cselect_{both}"] = operation(
        kind, f"{kind}{kind}c", lambda a, b, scc: np.where(scc, a, b)
    )
    return table


def _shifts() -> dict[str, Operation]:
    return {
        "s_lshl_b32": operation("uc", "uu", _nonzero(lambda a, n: a << (n & 31))),
        "s_lshr_b32": operation("uc", "uu", _nonzero(lambda a, n: a >> (n & 31))),
        "s_ashr_i32": operation("ic", "ii", _nonzero(lambda a, n: a >> (n & 31))),
        "s_lshl_b64": operation("Uc", "Uu", _nonzero(lambda a, n: a << u64(n & 63))),
        "s_lshr_b64": operation("Uc", "Uu", _nonzero(lambda a, n: a >> u64(n & 63))),
        "s_ashr_i64": operation("Ic", "Iu", _nonzero(lambda a, n: a >> i64(n & 63))),
        "s_bfm_b32": operation(
            "u", "uu", lambda n, at: ((np.uint32(1) << (n & 31)) - np.uint32(1)) << (at & 31)
        ),
        "s_bfm_b64": operation(
            "U", "uu", lambda n, at: ((_ONE64 << u64(n & 63)) - _ONE64) << u64(at & 63)
        ),
        "s_bfe_u32": operation("uc", "uu", _nonzero(_packed_field)),
        "s_bfe_i32": operation("ic", "iu", _nonzero(_packed_signed_field)),
        "s_bfe_u64": operation("Uc", "Uu", _nonzero(_wide_field)),
        "s_bfe_i64": operation("Ic", "Iu", _nonzero(_wide_signed_field)),
    }


def _shift_adds() -> dict[str, Operation]:
    def run(shift: int) -> Callable[[Array, Array], Pair]:
        def both(a: Array, b: Array) -> Pair:
            total = (u64(a) << np.uint64(shift)) + u64(b)
            return low32(total), total > np.uint64(0xFFFFFFFF)

        return both

    return {f"s_lshl{n}_add_u32": operation("uc", "uu", run(n)) for n in (1, 2, 3, 4)}


def _compares() -> dict[str, Operation]:
    tests: dict[str, Callable[[Any, Any], Any]] = {
        "eq": operator.eq,
        "lg": operator.ne,
        "gt": operator.gt,
        "ge": operator.ge,
        "lt": operator.lt,
        "le": operator.le,
    }
    table: dict[str, Operation] = {}
    for name, test in tests.items():
        for kind, width in (("i", "i32"), ("u", "u32")):
            table[f"s_cmp_{name}_{width}"] = operation("c", kind * 2, test)
            table[f"s_cmpk_{name}_{width}"] = operation("c", kind * 2, test)
    table["s_cmp_eq_u64"] = operation("c", "UU", operator.eq)
    table["s_cmp_lg_u64"] = operation("c", "UU", operator.ne)
    for width, wide, mask in (("b32", "u", 31), ("b64", "U", 63)):
        for wanted in (0, 1):
            table[f"s_bitcmp{wanted}_{width}"] = operation(
                "c",
                f"{wide}u",
                lambda a, n, m=mask, v=wanted: (a >> (n & m).astype(a.dtype) & 1) == v,
            )
    return table


def _set_bit(value: int) -> Callable[[Array, Array], Array]:
    def run(n: Array, old: Array) -> Array:
        width = 8 * old.itemsize
        bit = old.dtype.type(1) << (n & (width - 1)).astype(old.dtype)
        result: Array = old | bit if value else old & ~bit
        return result

    return run


SALU: dict[str, Operation] = {
    **_bits("b32", "u"),
    **_bits("b64", "U"),
    **_shifts(),
    **_shift_adds(),
    **_compares(),
    "s_add_u32": operation("uc", "uu", _add),
    "s_addc_u32": operation("uc", "uuc", _add),
    "s_sub_u32": operation("uc", "uu", _subtract),
    "s_subb_u32": operation("uc", "uuc", _subtract),
    "s_add_i32": operation("ic", "ii", _signed(operator.add)),
    "s_sub_i32": operation("ic", "ii", _signed(operator.sub)),
    "s_mul_i32": operation("u", "uu", lambda a, b: a * b),
    "s_mul_hi_u32": operation("u", "uu", lambda a, b: high32(u64(a) * u64(b))),
    "s_mul_hi_i32": operation("i", "ii", lambda a, b: (i64(a) * i64(b) >> 32).astype(np.int32)),
    "s_min_u32": operation("uc", "uu", _least),
    "s_max_u32": operation("uc", "uu", _most),
    "s_min_i32": operation("ic", "ii", _least),
    "s_max_i32": operation("ic", "ii", _most),
    "s_abs_i32": operation("ic", "i", _nonzero(np.abs)),
    "s_absdiff_i32": operation("ic", "ii", _nonzero(lambda a, b: np.abs(a - b))),
    "s_brev_b32": operation("u", "u", reverse32),
    "s_brev_b64": operation("U", "U", reverse64),
    "s_wqm_b32": operation("uc", "u", _nonzero(_whole_quads)),
    "s_wqm_b64": operation("Uc", "U", _nonzero(_whole_quads)),
    "s_quadmask_b32": operation("uc", "u", _nonzero(_quad_mask)),
    "s_quadmask_b64": operation("Uc", "U", _nonzero(_quad_mask)),
    "s_bitreplicate_b64_b32": operation("U", "u", _twice),
    "s_bcnt0_i32_b32": operation("uc", "u", _nonzero(lambda a: ones(~a))),
    "s_bcnt0_i32_b64": operation("uc", "U", _nonzero(lambda a: ones(~a))),
    "s_ff0_i32_b32": operation("u", "u", lambda a: lowest_bit(~a)),
    "s_ff0_i32_b64": operation("u", "U", lambda a: lowest_bit64(~a)),
    "s_ff1_i32_b64": operation("u", "U", lowest_bit64),
    "s_flbit_i32_b64": operation("u", "U", highest_bit64),
    "s_flbit_i32_i64": operation("u", "I", _signs64),
    "s_bcnt1_i32_b32": operation("uc", "u", _nonzero(ones)),
    "s_bcnt1_i32_b64": operation("uc", "U", _nonzero(ones)),
    "s_ff1_i32_b32": operation("u", "u", lowest_bit),
    "s_flbit_i32_b32": operation("u", "u", highest_bit),
    "s_flbit_i32": operation("u", "i", sign_bits),
    "s_sext_i32_i8": operation("i", "i", lambda a: a << 24 >> 24),
    "s_sext_i32_i16": operation("i", "i", lambda a: a << 16 >> 16),
    "s_bitset0_b32": operation("u", "u", _set_bit(0), tied=True),
    "s_bitset1_b32": operation("u", "u", _set_bit(1), tied=True),
    "s_bitset0_b64": operation("U", "u", _set_bit(0), tied=True),
    "s_bitset1_b64": operation("U", "u", _set_bit(1), tied=True),
    "s_pack_ll_b32_b16": operation("u", "uu", _pack(0, 0)),
    "s_pack_lh_b32_b16": operation("u", "uu", _pack(0, 16)),
    "s_pack_hh_b32_b16": operation("u", "uu", _pack(16, 16)),
    "s_movk_i32": operation("u", "u", lambda a: a),
    "s_cmovk_i32": operation("u", "uc", lambda a, scc, old: np.where(scc, a, old), tied=True),
    "s_addk_i32": operation("ic", "i", lambda k, old: _signed(operator.add)(old, k), tied=True),
    "s_mulk_i32": operation("i", "i", lambda k, old: old * k, tied=True),
}
