"""Matrix instructions: which element each lane holds, and the product.

Sources: AMD CDNA4 instruction set architecture, chapter on matrix instructions; AMD's article
"Matrix Core Programming on AMD CDNA3 and CDNA4 architecture" (fragments with worked kernels);
composable_kernel's hardware test test/mx_mfma_op/mx_mfma_op.hpp (commit 045a71bc14e9).

For a tile of I rows (16 or 32) lane l holds row l % I of A (column of B). Its group g = l // I
holds these of the K elements:

* 16-bit, 32-bit and the 8-bit types of 16x16x32 and 32x32x16: the g-th run of K / groups.
* f4 and f6 of the f8f6f4 forms: the g-th run of 32.
* f8 of the f8f6f4 forms: two runs of 16, g * 16 and K / 2 + g * 16.

The scale that lane l gives belongs to the 32 elements g * 32 .. g * 32 + 31 in each case: for f8
these are not the ones that the lane itself holds. Results: lane l holds column l % I, and
register r holds row 4 * (l // 16) + r, or 8 * (r // 4) + 4 * (l // 32) + r % 4.

Products are exact and sums are in float32 in an order that AMD does not document, so results
agree with hardware exactly where every partial sum is exact, else within float32 rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.runtime.simulator.instruction import Instruction, Operand
from mxc.runtime.simulator.numbers import FORMATS, scale_of, unpack, values
from mxc.runtime.simulator.operations import Array
from mxc.runtime.simulator.signatures import matrix_shape
from mxc.runtime.simulator.state import Waves

Step = Callable[[Waves], None]
#: Scale bytes between which no product of a scaled element leaves float32's normal range.
_SAFE_LOW, _SAFE_HIGH = 80, 170


def mfma_step(i: Instruction, constant: Callable[[Operand], Array]) -> Step | None:
    """What a dense matrix instruction of one block does; None where it is not modelled.

    constant: the value of an operand that is no vector register, as float32 or bits.
    """
    shape = matrix_shape(i.name)
    if shape is None:
        return None
    rows, columns, depth, blocks, element = shape
    if rows != columns or blocks != 1 or rows not in (16, 32):
        return None
    if element == "f8f6f4":
        return _scaled(i, rows, depth, constant)
    decode = _DECODERS.get(element)
    if decode is None or i.has("cbsz") or i.has("abid") or i.has("blgp"):
        return None
    left, right = decode

    def step(w: Waves) -> None:
        a = left(_natural(_raw(w, i.operands[0]), rows))
        b = right(_natural(_raw(w, i.operands[1]), rows))
        _accumulate(w, i, np.matmul(a, b.transpose(0, 2, 1)), rows, constant)

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


_DECODERS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array]]] = {
    "f32": (_floats, _floats),
    "f16": (_halves, _halves),
    "bf16": (_bfloats, _bfloats),
    "i8": (_integers, _integers),
    **{f"{a}_{b}": (_bytes(a), _bytes(b)) for a in ("fp8", "bf8") for b in ("fp8", "bf8")},
}


def _natural(lanes: Array, rows: int) -> Array:
    """uint32 [waves, 64, words of a lane] -> [waves, rows, words]: runs of consecutive K."""
    waves, _, words = lanes.shape
    by_group = lanes.reshape(waves, 64 // rows, rows, words)
    return np.ascontiguousarray(by_group.transpose(0, 2, 1, 3)).reshape(waves, rows, -1)


def _two_runs(lanes: Array, rows: int) -> Array:
    """The same for f8 of the f8f6f4 forms: two runs of 16 elements."""
    waves = len(lanes)
    by_run = lanes.reshape(waves, 64 // rows, rows, 2, 4)
    return np.ascontiguousarray(by_run.transpose(0, 2, 3, 1, 4)).reshape(waves, rows, -1)


def fragment(w: Waves, operand: Operand, form: str, rows: int) -> Array:
    """The elements of an operand of an f8f6f4 form: float32 [waves, rows, K]."""
    raw = _raw(w, operand)
    if form == "fp4":
        return unpack(_natural(raw, rows), form)
    if form in ("fp8", "bf8"):
        return unpack(_two_runs(raw, rows), form)
    words = _natural(raw, rows)
    bits = np.unpackbits(words.view(np.uint8), axis=2, bitorder="little")
    codes = bits.reshape(w.count, rows, -1, 6) @ (1 << np.arange(6, dtype=np.uint8))
    return np.asarray(values(form)[codes])


def _scaled(i: Instruction, rows: int, depth: int, constant: Callable[[Operand], Array]) -> Step:
    forms = (FORMATS[i.has("cbsz")], FORMATS[i.has("blgp")])
    scales = i.operands[3:5]
    select = [i.has("op_sel") >> n & 1 | (i.has("op_sel_hi") >> n & 1) << 1 for n in (0, 1)]

    def bytes_of(w: Waves, side: int) -> Array:
        operand = scales[side]
        held = w.bank(operand.bank)[operand.index] if operand.is_register else constant(operand)
        return w.wide(held) >> 8 * select[side] & 0xFF

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
        # Registers read into a group are other objects afterwards.
        held = tuple(registers[operand.index : operand.index + operand.count])
        key = (tuple(map(id, held)), id(scale), select[number], form, rows)
        w.fragments[key] = (numbers, safe, held, scale)
        return numbers, safe

    def step(w: Waves) -> None:
        (a, _), (b, _) = side(w, 0), side(w, 1)
        _accumulate(w, i, np.matmul(a, b.transpose(0, 2, 1)), rows, constant)

    return step


def _accumulate(
    w: Waves,
    i: Instruction,
    product: Array,
    rows: int,
    constant: Callable[[Operand], Array],
) -> None:
    """Add [waves, rows, rows] to the accumulator and write the result's registers."""
    count = i.results[0].count
    result: Array
    if rows == 16:
        # [waves, row group, r, column] -> [waves, lane = group * 16 + column, r]
        result = product.reshape(w.count, 4, 4, 16).transpose(0, 1, 3, 2)
    else:
        result = product.reshape(w.count, 4, 2, 4, 32).transpose(0, 2, 4, 1, 3)
    result = result.reshape(w.count, 64, count)
    operand = i.operands[2]
    integer = i.name.startswith("v_mfma_i32")
    if integer:
        # Sums wrap to 32 bits: the accumulator is added as an integer.
        result = result.astype(np.int64).astype(np.uint32)
    if operand.is_register:
        held = w.group(operand.bank, operand.index, operand.count)
        total = result + (held if integer else held.view(np.float32))
    elif operand.bank == "int" and operand.index == 0:
        total = result
    else:
        start = constant(operand)
        total = result + (start if integer else start.view(np.float32))
    bits = total if integer else np.ascontiguousarray(total, np.float32).view(np.uint32)
    target = i.results[0]
    # Matrix instructions ignore EXEC.
    if w.active is None:
        _write(w, target, bits)
    else:
        registers = w.bank(target.bank)
        for r in range(count):
            registers[target.index + r] = np.where(
                w.active, bits[..., r], registers[target.index + r]
            )


def _write(w: Waves, target: Operand, bits: Array) -> None:
    registers = w.bank(target.bank)
    views = tuple(bits[..., r] for r in range(bits.shape[-1]))
    registers[target.index : target.index + len(views)] = views
    w.groups[target.bank, target.index] = (bits, views)
