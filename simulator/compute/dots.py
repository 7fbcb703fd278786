"""Dot products of the parts of two registers, added to a third operand or to the result.

Source: AMD CDNA4 instruction set architecture, sections on VOP2 and VOP3P; section 6.4: dot
products of floats flush denormals whatever MODE says, and round to nearest even.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxc.simulator.compute.modes import flush
from mxc.simulator.compute.operations import Array, Operation, operation


def _halves(value: Array) -> tuple[Array, Array]:
    """Return the two bfloat16 of each uint32 as float32, denormals flushed."""
    low, high = (value << 16).view(np.float32), (value & 0xFFFF0000).view(np.float32)
    return flush(low), flush(high)


def _float_halves(value: Array) -> tuple[Array, Array]:
    low, high = ((value >> shift & 0xFFFF).astype(np.uint16) for shift in (0, 16))
    first, second = flush(low.view(np.float16)), flush(high.view(np.float16))
    return first.astype(np.float32), second.astype(np.float32)


def _sum_of(*terms: Array) -> Array:
    total = terms[0]
    for term in terms[1:]:
        total = flush(total + term)
    return total


def _bfloats(a: Array, b: Array, c: Array) -> Array:
    (a0, a1), (b0, b1) = _halves(a), _halves(b)
    return _sum_of(flush(a0 * b0), flush(a1 * b1), flush(c))


def _bfloats_onto(a: Array, b: Array, c: Array) -> Array:
    (a0, a1), (b0, b1) = _halves(a), _halves(b)
    return _sum_of(flush(c), flush(a0 * b0), flush(a1 * b1))


def _floats(a: Array, b: Array, c: Array) -> Array:
    (a0, a1), (b0, b1) = _float_halves(a), _float_halves(b)
    return _sum_of(flush(c), a0 * b0, a1 * b1)


def _integers(width: int, *, signed: bool) -> Any:
    def field(value: Array, shift: int) -> Array:
        if signed:
            return value << (32 - width - shift) >> (32 - width)
        return value >> shift & ((1 << width) - 1)

    def run(a: Array, b: Array, c: Array) -> Array:
        total = c
        for shift in range(0, 32, width):
            total = total + field(a, shift) * field(b, shift)
        return total

    return run


DOTS: dict[str, Operation] = {
    "v_dot2_f32_bf16": operation("f", "uuf", _bfloats),
    "v_dot2_f32_f16": operation("f", "uuf", _floats),
    "v_dot2c_f32_bf16": operation("f", "uu", _bfloats_onto, tied=True),
    "v_dot2c_f32_f16": operation("f", "uu", _floats, tied=True),
    "v_dot2_i32_i16": operation("i", "iii", _integers(16, signed=True)),
    "v_dot2_u32_u16": operation("u", "uuu", _integers(16, signed=False)),
    "v_dot4_i32_i8": operation("i", "iii", _integers(8, signed=True)),
    "v_dot4_u32_u8": operation("u", "uuu", _integers(8, signed=False)),
    "v_dot8_i32_i4": operation("i", "iii", _integers(4, signed=True)),
    "v_dot8_u32_u4": operation("u", "uuu", _integers(4, signed=False)),
    "v_dot2c_i32_i16": operation("i", "ii", _integers(16, signed=True), tied=True),
    "v_dot4c_i32_i8": operation("i", "ii", _integers(8, signed=True), tied=True),
    "v_dot8c_i32_i4": operation("i", "ii", _integers(4, signed=True), tied=True),
}
#: Dot products of floats, whose operands may have sign modifiers.
FLOAT_DOTS = frozenset(name for name, entry in DOTS.items() if entry.outs == "f")
