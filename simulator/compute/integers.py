"""Vector integer instructions and integer compares.

Source: AMD CDNA4 instruction set architecture, sections on VOP1, VOP2, VOP3 and VOPC. A 16-bit
result is zero-extended; shift counts are taken modulo the width; "rev" swaps the operands.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.simulator.compute.numbers import random_next
from mxc.simulator.compute.operations import (
    Array,
    Operation,
    high32,
    i64,
    low32,
    operation,
    u64,
)
from mxc.simulator.compute.salu import (
    field,
    highest_bit,
    lowest_bit,
    ones,
    reverse32,
    sign_bits,
    signed_field,
)

_LANES = np.arange(64, dtype=np.uint64)


def _u24(value: Array) -> Array:
    return value & 0xFFFFFF


def _i24(value: Array) -> Array:
    return value << 8 >> 8


def _carry(a: Array, b: Array, carry: Array | int = 0) -> tuple[Array, Array]:
    total = i64(a) + i64(b) + carry
    return low32(total), total > 0xFFFFFFFF


def _borrow(a: Array, b: Array, borrow: Array | int = 0) -> tuple[Array, Array]:
    rest = i64(a) - i64(b) - borrow
    return low32(rest), rest < 0


def _multiply_add_u64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = u64(a) * u64(b) + c
    return total, total < c


def _multiply_add_i64(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    product = i64(a) * i64(b)
    total = product + c
    # The mask is bit 64 of the sum: its sign.
    return total, (((product ^ total) & (c ^ total)) ^ total) < 0


def permute_bytes(a: Array, b: Array, select: Array) -> Array:
    """v_perm_b32: each byte of `select` picks one of the 8 bytes of a:b, a sign or a constant."""
    first = int(select.flat[0])
    if (select == first).all():
        return _permute_by(a, b, first)
    both = u64(b) | (u64(a) << np.uint64(32))
    result: Any = np.uint32(0)
    for place in range(4):
        code = select >> 8 * place & 0xFF
        byte = low32(both >> u64((code & 7) << 3)) & 0xFF
        if code.max() > 7:
            sign = low32(both >> u64(((code & 3) << 4) + 15) & np.uint64(1)) * np.uint32(0xFF)
            byte = np.where(code > 7, np.where(code > 11, 0, sign), byte)
            byte = np.where(code > 12, 0xFF, byte).astype(np.uint32)
        result = result | (byte << 8 * place)
    return np.asarray(result, np.uint32)


def _permute_by(a: Array, b: Array, select: int) -> Array:
    """The same for one selector: bytes that move as far in their register move together."""
    result: Any = np.zeros((1, 1), np.uint32)
    moved: dict[tuple[int, int], int] = {}
    for place in range(4):
        code, byte = select >> 8 * place & 0xFF, 0xFF << 8 * place
        if code < 8:
            way = code >> 2, 8 * ((code & 3) - place)
            moved[way] = moved.get(way, 0) | byte
        elif code < 12:
            sign = (b, a)[code >> 1 & 1] >> (15 + 16 * (code & 1)) & 1
            result = result | sign * np.uint32(byte)
        elif code > 12:
            result = result | np.uint32(byte)
    for (side, right), mask in moved.items():
        source = (b, a)[side]
        result = result | (source >> right if right > 0 else source << -right) & np.uint32(mask)
    return np.asarray(result, np.uint32)


def bit_operation(table: int) -> Callable[[Array, Array, Array], Array]:
    """v_bitop3: bit a<<2|b<<1|c of `table` is the result for those three bits."""

    def run(a: Array, b: Array, c: Array) -> Array:
        known = _KNOWN.get(table)
        if known:
            return known(a, b, c)
        result = np.zeros((1, 1), np.uint32)
        for row in range(8):
            if table >> row & 1:
                term = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
                result = result | term
        return result

    return run


#: Shorter forms of the truth tables that compilers emit.
_KNOWN: dict[int, Callable[[Array, Array, Array], Array]] = {
    0x36: lambda a, b, c: (a | c) ^ b,
    0x78: lambda a, b, c: a ^ (b & c),
    0x80: lambda a, b, c: a & b & c,
    0x96: lambda a, b, c: a ^ b ^ c,
    0xC8: lambda a, b, c: (a | c) & b,
    0xEC: lambda a, b, c: (a & c) | b,
    0xFE: lambda a, b, c: a | b | c,
}


def _middle(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _count_below(mask: Array, lanes: Array) -> Array:
    return np.bitwise_count(mask & lanes).astype(np.uint32)


_BELOW_LOW = ((np.uint64(1) << np.minimum(_LANES, 32)) - np.uint64(1)).astype(np.uint32)[None]
_BELOW_HIGH = (((np.uint64(1) << _LANES) - np.uint64(1)) >> np.uint64(32)).astype(np.uint32)[None]


def _compares() -> dict[str, Operation]:
    tests: dict[str, Callable[[Any, Any], Any]] = {
        "f": lambda a, b: np.zeros(np.broadcast(a, b).shape, bool),
        "lt": operator.lt,
        "eq": operator.eq,
        "le": operator.le,
        "gt": operator.gt,
        "ne": operator.ne,
        "ge": operator.ge,
        "t": lambda a, b: np.ones(np.broadcast(a, b).shape, bool),
    }
    kinds = {"i16": "s", "u16": "w", "i32": "i", "u32": "u", "i64": "I", "u64": "U"}
    return {
        f"v_cmp{x}_{name}_{width}": operation("m", kind * 2, test)
        for x in ("", "x")
        for name, test in tests.items()
        for width, kind in kinds.items()
    }


def _min_max() -> dict[str, Operation]:
    table = {}
    for name, two in (("min", np.minimum), ("max", np.maximum)):
        for width, kind in {"i32": "i", "u32": "u", "i16": "s", "u16": "w"}.items():
            table[f"v_{name}_{width}"] = operation(kind, kind * 2, two)
            table[f"v_{name}3_{width}"] = operation(
                kind, kind * 3, lambda a, b, c, two=two: two(two(a, b), c)
            )
    for width, kind in {"i32": "i", "u32": "u", "i16": "s", "u16": "w"}.items():
        table[f"v_med3_{width}"] = operation(kind, kind * 3, _middle)
    return table


def _carries() -> dict[str, Operation]:
    def swap(run: Callable[..., Any]) -> Callable[..., Any]:
        return lambda a, b, *rest: run(b, a, *rest)

    return {
        "v_add_co_u32": operation("um", "uu", _carry),
        "v_sub_co_u32": operation("um", "uu", _borrow),
        "v_subrev_co_u32": operation("um", "uu", swap(_borrow)),
        "v_addc_co_u32": operation("um", "uum", _carry),
        "v_subb_co_u32": operation("um", "uum", _borrow),
        "v_subbrev_co_u32": operation("um", "uum", swap(_borrow)),
        "v_mad_u64_u32": operation("Um", "uuU", _multiply_add_u64),
        "v_mad_i64_i32": operation("Im", "iiI", _multiply_add_i64),
    }


def _words() -> dict[str, Operation]:
    """Return the operations on 16 bits."""
    return {
        "v_add_u16": operation("w", "ww", lambda a, b: a + b),
        "v_sub_u16": operation("w", "ww", lambda a, b: a - b),
        "v_subrev_u16": operation("w", "ww", lambda a, b: b - a),
        "v_add_i16": operation("s", "ss", lambda a, b: a + b),
        "v_sub_i16": operation("s", "ss", lambda a, b: a - b),
        "v_mul_lo_u16": operation("w", "ww", lambda a, b: a * b),
        "v_mad_u16": operation("w", "www", lambda a, b, c: a * b + c),
        "v_mad_i16": operation("s", "sss", lambda a, b, c: a * b + c),
        "v_mad_legacy_u16": operation("w", "www", lambda a, b, c: a * b + c),
        "v_mad_legacy_i16": operation("s", "sss", lambda a, b, c: a * b + c),
        "v_lshlrev_b16": operation("w", "ww", lambda n, a: a << (n & 15)),
        "v_lshrrev_b16": operation("w", "ww", lambda n, a: a >> (n & 15)),
        "v_ashrrev_i16": operation("s", "ss", lambda n, a: a >> (n & 15)),
        "v_mad_u32_u16": operation("u", "wwu", lambda a, b, c: a * b + c),
        "v_mad_i32_i16": operation("i", "ssi", lambda a, b, c: a * b + c),
        "v_cvt_pk_u16_u32": operation(
            "u", "uu", lambda a, b: np.minimum(a, 0xFFFF) | (np.minimum(b, 0xFFFF) << 16)
        ),
        "v_cvt_pk_i16_i32": operation(
            "i",
            "ii",
            lambda a, b: (np.clip(a, -32768, 32767) & 0xFFFF) | (np.clip(b, -32768, 32767) << 16),
        ),
    }


INTEGERS: dict[str, Operation] = {
    **_compares(),
    **_min_max(),
    **_carries(),
    **_words(),
    "v_mov_b32": operation("u", "u", lambda a: a),
    "v_mov_b64": operation("U", "U", lambda a: a),
    "v_accvgpr_read_b32": operation("u", "u", lambda a: a),
    "v_accvgpr_write_b32": operation("u", "u", lambda a: a),
    "v_accvgpr_mov_b32": operation("u", "u", lambda a: a),
    "v_not_b32": operation("u", "u", lambda a: ~a),
    "v_and_b32": operation("u", "uu", lambda a, b: a & b),
    "v_or_b32": operation("u", "uu", lambda a, b: a | b),
    "v_xor_b32": operation("u", "uu", lambda a, b: a ^ b),
    "v_xnor_b32": operation("u", "uu", lambda a, b: ~(a ^ b)),
    "v_or3_b32": operation("u", "uuu", lambda a, b, c: a | b | c),
    "v_and_or_b32": operation("u", "uuu", lambda a, b, c: (a & b) | c),
    "v_bfi_b32": operation("u", "uuu", lambda a, b, c: (a & b) | (~a & c)),
    "v_bfrev_b32": operation("u", "u", reverse32),
    "v_ffbh_u32": operation("u", "u", highest_bit),
    "v_ffbl_b32": operation("u", "u", lowest_bit),
    "v_ffbh_i32": operation("u", "i", sign_bits),
    "v_bcnt_u32_b32": operation("u", "uu", lambda a, b: ones(a) + b),
    "v_bfm_b32": operation(
        "u", "uu", lambda n, at: ((np.uint32(1) << (n & 31)) - np.uint32(1)) << (at & 31)
    ),
    "v_bfe_u32": operation("u", "uuu", field),
    "v_bfe_i32": operation("u", "uuu", signed_field),
    "v_perm_b32": operation("u", "uuu", permute_bytes),
    "v_alignbit_b32": operation(
        "u", "uuu", lambda a, b, n: low32((u64(b) | (u64(a) << np.uint64(32))) >> u64(n & 31))
    ),
    "v_alignbyte_b32": operation(
        "u", "uuu", lambda a, b, n: low32((u64(b) | (u64(a) << np.uint64(32))) >> u64((n & 3) * 8))
    ),
    "v_lshlrev_b32": operation("u", "uu", lambda n, a: a << (n & 31)),
    "v_lshrrev_b32": operation("u", "uu", lambda n, a: a >> (n & 31)),
    "v_ashrrev_i32": operation("i", "ii", lambda n, a: a >> (n & 31)),
    "v_lshlrev_b64": operation("U", "uU", lambda n, a: a << u64(n & 63)),
    "v_lshrrev_b64": operation("U", "uU", lambda n, a: a >> u64(n & 63)),
    "v_ashrrev_i64": operation("I", "uI", lambda n, a: a >> i64(n & 63)),
    "v_lshl_or_b32": operation("u", "uuu", lambda a, n, c: (a << (n & 31)) | c),
    "v_lshl_add_u32": operation("u", "uuu", lambda a, n, c: (a << (n & 31)) + c),
    "v_add_lshl_u32": operation("u", "uuu", lambda a, b, n: (a + b) << (n & 31)),
    # Only shifts of 0 to 4 are defined.
    "v_lshl_add_u64": operation("U", "UuU", lambda a, n, c: (a << u64(n & 7)) + c),
    "v_xad_u32": operation("u", "uuu", lambda a, b, c: (a ^ b) + c),
    "v_add_u32": operation("u", "uu", lambda a, b: a + b),
    "v_sub_u32": operation("u", "uu", lambda a, b: a - b),
    "v_subrev_u32": operation("u", "uu", lambda a, b: b - a),
    "v_add3_u32": operation("u", "uuu", lambda a, b, c: a + b + c),
    "v_add_i32": operation("i", "ii", lambda a, b: a + b),
    "v_sub_i32": operation("i", "ii", lambda a, b: a - b),
    "v_mul_lo_u32": operation("u", "uu", lambda a, b: a * b),
    "v_mul_hi_u32": operation("u", "uu", lambda a, b: high32(u64(a) * u64(b))),
    "v_mul_hi_i32": operation("i", "ii", lambda a, b: (i64(a) * i64(b) >> 32).astype(np.int32)),
    "v_mul_u32_u24": operation("u", "uu", lambda a, b: _u24(a) * _u24(b)),
    "v_mul_i32_i24": operation("i", "ii", lambda a, b: _i24(a) * _i24(b)),
    "v_mul_hi_i32_i24": operation(
        "i", "ii", lambda a, b: (i64(_i24(a)) * i64(_i24(b)) >> 32).astype(np.int32)
    ),
    "v_mul_hi_u32_u24": operation("u", "uu", lambda a, b: high32(u64(_u24(a)) * u64(_u24(b)))),
    "v_mad_u32_u24": operation("u", "uuu", lambda a, b, c: _u24(a) * _u24(b) + c),
    "v_mad_i32_i24": operation("i", "iii", lambda a, b, c: _i24(a) * _i24(b) + c),
    "v_prng_b32": operation("u", "u", random_next),
    "v_cndmask_b32": operation("u", "uum", lambda a, b, mask: np.where(mask, b, a)),
    "v_mbcnt_lo_u32_b32": operation("u", "uu", lambda m, b: _count_below(m, _BELOW_LOW) + b),
    "v_mbcnt_hi_u32_b32": operation("u", "uu", lambda m, b: _count_below(m, _BELOW_HIGH) + b),
}
