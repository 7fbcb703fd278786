"""Dense matrix instructions: the product of fragments, scaled or not, plus an accumulator.

Sources: AMD CDNA4 instruction set architecture, chapter 7 (layouts of fragments: see
`fragments`); AMD's article "Matrix Core Programming on AMD CDNA3 and CDNA4 architecture"
(fragments with worked kernels); composable_kernel's hardware test test/mx_mfma_op/mx_mfma_op.hpp
(commit 045a71bc14e9).

Products are exact and sums are in float32 in an order that AMD does not document, so results
agree with hardware exactly where every partial sum is exact, else within float32 rounding.
Instructions on float64 sum in float64, instructions on int8 in integers that wrap. EXEC is ignored,
and so are the rounding and denormal modes, except for float32 operands (section 7.4). With
MODE.FP16_OVFL, results that overflow are limited to the largest number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.fragments import (
    arrange,
    broadcast_first,
    broadcast_second,
    held_rows,
    two_runs,
)
from mxc.simulator.compute.modes import FP16_OVFL, flush_input
from mxc.simulator.compute.narrow import unpack6
from mxc.simulator.compute.numbers import FORMATS, scale_of, unpack, values
from mxc.simulator.compute.operations import Array
from mxc.simulator.compute.signatures import matrix_shape
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.state import Waves

Step = Callable[[Waves], None]
Constant = Callable[[Operand], Array]
#: Range of scale bytes in which no product of scaled elements leaves float32's normal range.
_SAFE_LOW, _SAFE_HIGH = 80, 170


def mfma_step(i: Instruction, constant: Constant) -> Step | None:
    """Return the step of a dense matrix instruction; None where it is not modelled.

    constant: returns the value of a constant operand as uint32 bits. Raises SimulationError for
    undefined broadcasts.
    """
    shape = matrix_shape(i.name)
    if shape is None:
        return None
    rows, columns, depth, blocks, element = shape
    if element == "xf32":
        raise SimulationError("gfx950 has no xf32, and how gfx942 rounds to it is not documented")
    if element == "f8f6f4":
        return _scaled(i, rows, depth, constant)
    decode = DECODERS.get(element)
    if decode is None or rows != columns:
        return None
    left, right = decode
    doubles = element == "f64"
    first = None if doubles else broadcast_first(i.has("cbsz"), i.has("abid"), blocks)
    second = None if doubles else broadcast_second(i.has("blgp"))
    signs = i.has("blgp") if doubles else 0

    def step(w: Waves) -> None:
        raw_a, raw_b = _raw(w, i.operands[0]), _raw(w, i.operands[1])
        if first is not None:
            raw_a = np.ascontiguousarray(raw_a[:, first])
        if second is not None:
            raw_b = np.ascontiguousarray(raw_b[:, second])
        a = left(held_rows(raw_a, rows, blocks))
        b = right(held_rows(raw_b, rows, blocks))
        if element == "f32":
            a, b = flush_input(w, a), flush_input(w, b)
        if signs & 3:
            a, b = -a if signs & 1 else a, -b if signs & 2 else b
        accumulate(w, i, i.operands[2], a, b, constant, negative=bool(signs & 4))

    return step


def _raw(w: Waves, operand: Operand) -> Array:
    return w.group(operand.bank, operand.index, operand.count)


def _halves(raw: Array) -> Array:
    return raw.view(np.float16).astype(np.float32)


def _bfloats(raw: Array) -> Array:
    wide: Array = raw.view(np.uint16).astype(np.uint32)
    return (wide << 16).view(np.float32)


def _bytes(name: str) -> Callable[[Array], Array]:
    return lambda raw: unpack(raw, name)


def _integers(raw: Array) -> Array:
    # int8 products are exact in float64, and so are their sums.
    return np.asarray(raw.view(np.int8).astype(np.float64))


def _floats(raw: Array) -> Array:
    return np.asarray(raw.view(np.float32))


def _doubles(raw: Array) -> Array:
    return np.asarray(raw.view(np.float64))


DECODERS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "f32": (_floats, _floats),
    "f16": (_halves, _halves),
    "bf16": (_bfloats, _bfloats),
    "i8": (_integers, _integers),
    "f64": (_doubles, _doubles),
    **{
        f"{a}_{b}": (_bytes(a), _bytes(b))
        for pair in (("fp8", "bf8"), ("fp8z", "bf8z"))
        for a in pair
        for b in pair
    },
}


def fragment(w: Waves, operand: Operand, form: str, rows: int) -> Array:
    """Return the elements of an operand of an f8f6f4 form: float32 [waves, rows, K]."""
    raw = _raw(w, operand)
    if form == "fp4":
        return unpack(held_rows(raw, rows, 1)[:, 0], form)
    if form in ("fp8", "bf8"):
        return unpack(two_runs(raw, rows), form)
    words = held_rows(raw, rows, 1)[:, 0]
    codes = unpack6(words.reshape(w.count, rows, -1, 6)).reshape(w.count, rows, -1)
    return np.asarray(values(form)[codes])


def _scaled(i: Instruction, rows: int, depth: int, constant: Constant) -> Step:
    forms = (FORMATS[i.has("cbsz")], FORMATS[i.has("blgp")])
    # With ABID[0] clear all scales are 1 (section 7.1.5).
    scales = () if i.has("unscaled") else i.operands[3:5]
    select = [i.has("op_sel") >> n & 1 | (i.has("op_sel_hi") >> n & 1) << 1 for n in (0, 1)]

    if any(not s.is_register and s.bank != "float" for s in scales):
        raise SimulationError("a scale that is an integer constant is not modelled")

    def bytes_of(w: Waves, side: int) -> Array:
        operand = scales[side]
        if not operand.is_register:
            # The scale is the exponent of a constant (section 7.2.1).
            return w.wide(constant(operand) >> 23 & 0xFF)
        return w.wide(w.bank(operand.bank)[operand.index]) >> 8 * select[side] & 0xFF

    def side(w: Waves, number: int) -> tuple[Array, bool]:
        operand, form = i.operands[number], forms[number]
        registers = w.bank(operand.bank)
        held = tuple(registers[operand.index : operand.index + operand.count])
        scale = (
            w.bank(scales[number].bank)[scales[number].index]
            if scales and scales[number].is_register
            else None
        )
        key: Any = (tuple(map(id, held)), id(scale), select[number], form, rows)
        known = w.fragments.get(key)
        if known is not None:
            return known[0], known[1]
        numbers = fragment(w, operand, form, rows)
        safe = True
        if scales:
            codes = bytes_of(w, number)
            safe = bool(codes.min() >= _SAFE_LOW and codes.max() <= _SAFE_HIGH)
            blocks = codes.reshape(w.count, 64 // rows, rows).transpose(0, 2, 1)
            factor = scale_of(blocks)
            if safe:
                factor = factor.astype(np.float32)
            blocked = numbers.reshape(w.count, rows, depth // 32, 32)
            numbers = np.multiply(blocked, factor[..., None], out=blocked if safe else None)
            numbers = numbers.reshape(w.count, rows, depth)
        # Reading registers as a group replaces their objects, so the key is made again.
        held = tuple(registers[operand.index : operand.index + operand.count])
        key = (tuple(map(id, held)), id(scale), select[number], form, rows)
        w.fragments[key] = (numbers, safe, held, scale)
        return numbers, safe

    def step(w: Waves) -> None:
        (a, _), (b, _) = side(w, 0), side(w, 1)
        accumulate(w, i, i.operands[2], a[:, None], b[:, None], constant)

    return step


def accumulate(
    w: Waves,
    i: Instruction,
    operand: Operand,
    a: Array,
    b: Array,
    constant: Constant,
    *,
    negative: bool = False,
) -> None:
    """Add A @ B^T of [waves, blocks, rows, K] to an operand and write the result's registers.

    negative: negate the operand first.
    """
    target = i.results[0]
    integer = "_i32_" in i.name
    kind: Any = np.int32 if integer else np.float64 if "_f64_" in i.name else np.float32
    product = np.matmul(a, b.transpose(0, 1, 3, 2))
    height = 1 if kind == np.float64 else 4
    result = arrange(product, height)
    if integer:
        result = result.astype(np.int64)
    start: Array | None = None
    if operand.is_register:
        held = w.group(operand.bank, operand.index, operand.count)
        start = (np.ascontiguousarray(held) if kind is np.float64 else held).view(kind)
    elif operand.bank != "int" or operand.index:
        start = _constant(constant(operand), operand, kind)
    if start is not None:
        result = result + (-start if negative else start)
    if w.mode & FP16_OVFL:
        result = _limited(result, a, b, start, kind, height)
    bits = np.ascontiguousarray(result, kind).view(np.uint32)
    # Matrix instructions ignore EXEC.
    if w.active is None:
        _write(w, target, bits)
    else:
        registers = w.bank(target.bank)
        for r in range(target.count):
            registers[target.index + r] = np.where(
                w.active, bits[..., r], registers[target.index + r]
            )


def _constant(bits: Array, operand: Operand, kind: Any) -> Array:
    """Convert an inline constant to the accumulator's type."""
    number = bits.view(np.float32) if operand.bank == "float" else bits.view(np.int32)
    if kind == np.float64:
        return number.astype(np.float64)
    return np.asarray(bits.view(kind))


def _limited(
    result: Array, a: Array, b: Array, start: Array | None, kind: Any, height: int
) -> Array:
    """Limit results that overflow to the largest number of their sign; infinities stay."""
    if kind == np.int32:
        return np.clip(result, -(2**31), 2**31 - 1)
    largest = np.finfo(kind).max
    rows, columns = (np.asarray(np.isfinite(x).all(axis=-1, keepdims=True)) for x in (a, b))
    finite = arrange(rows & columns.swapaxes(-1, -2), height)
    if start is not None:
        finite = finite & np.isfinite(start)
    over = np.abs(result) > largest
    return np.where(finite & over, np.copysign(largest, result), result)


def _write(w: Waves, target: Operand, bits: Array) -> None:
    registers = w.bank(target.bank)
    views = tuple(bits[..., r] for r in range(bits.shape[-1]))
    registers[target.index : target.index + len(views)] = views
    w.groups[target.bank, target.index] = (bits, views)
