"""Conversions to and from fp4, fp6, bf6, fp8 and bf8, which read or write a part of a register.

Sources: AMD CDNA4 instruction set architecture, section 7.3 (overflow becomes NaN in fp8 and
infinity in bf8, or the largest number with MODE.FP16_OVFL, for infinities too; fp4 and fp6
saturate; only the exponent of a scale counts) and the sections on VOP1 and VOP3; AMD's HIP,
amd_hip_ocp_host.hpp, which its tests compare with gfx950 (stochastic rounding; a scale with the
exponent 255 gives NaN; NaN becomes the largest number of fp4 and fp6).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.compute.conversions import half_bits, halves
from mxc.simulator.compute.modes import FP16_OVFL, flush_input
from mxc.simulator.compute.numbers import (
    BITS,
    MANTISSA,
    encode,
    encode_stochastic,
    random_next,
    to_bfloat,
    values,
)
from mxc.simulator.compute.operations import Array
from mxc.simulator.compute.small import FNUZ, SMALL, SmallFloatConversion
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.state import Waves

Step = Callable[[Waves], None]
Reader = Callable[[Operand], Callable[[Waves], Array]]
FloatReader = Callable[[Instruction, int], Callable[[Waves], Array]]
#: The first bits of SDWA selectors: bytes, words, the whole register.
_SHIFTS = (0, 8, 16, 24, 0, 16, 0)


def conversion_step(i: Instruction, read: Reader, read_float: FloatReader) -> Step | None:
    """Return the step of one of these conversions; None for any other instruction."""
    form = SMALL.get(i.name) or FNUZ.get(i.name)
    if form is None:
        return None
    return _narrow(i, form, read, read_float) if form.narrows else _widen(i, form, read)


def scale_power(scale: Array) -> tuple[Array, Array]:
    """Return the exponent of a float32 scale (uint32 bits), and where the scale is NaN.

    Sign and mantissa of the scale are ignored.
    """
    field = (scale >> 23 & 0xFF).astype(np.int32)
    return field - 127, field == 255


def _group(w: Waves, operand: Operand) -> Array:
    """Return an operand as uint32 [waves, 64, registers]; without a copy for one register."""
    if operand.count == 1:
        return w.bank(operand.bank)[operand.index][..., None]
    return w.group(operand.bank, operand.index, operand.count)


def unpack6(words: Array) -> Array:
    """Unpack 32 elements of 6 bits from uint32 [..., 6] to codes uint8 [..., 32]."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    bits = np.unpackbits(raw, axis=-1, bitorder="little")
    return np.asarray(bits.reshape(*words.shape[:-1], 32, 6) @ (1 << np.arange(6, dtype=np.uint8)))


def pack6(codes: Array) -> Array:
    """Pack codes [..., 32] of 6 bits to uint32 [..., 6]."""
    bits = codes[..., None] >> np.arange(6, dtype=np.uint32) & 1
    flat = bits.astype(np.uint8).reshape(*codes.shape[:-1], 192)
    return np.packbits(flat, axis=-1, bitorder="little").view(np.uint32)


def _widen(i: Instruction, form: SmallFloatConversion, read: Reader) -> Step:
    """Return the step of a widening conversion.

    op_sel[1:0] selects the byte of an fp4 or a single source, op_sel[0] the half of an fp8 pair.
    """
    source = i.operands[0]
    one = read(source) if source.count == 1 else None
    scale = read(i.operands[1]) if form.scaled else None
    select = i.has("op_sel")
    halved = form.small != "fp4" and form.count == 2
    shift = 16 * (select & 1) if halved else 8 * (select & 3)
    if i.has("sdwa"):
        shift = _SHIFTS[i.has("src0_sel") ^ 6]
    upper = form.count == 1 and form.wide == "f16" and bool(select & 8)
    width = BITS[form.small]
    target = i.results[0].index

    def step(w: Waves) -> None:
        if one is None:
            codes = unpack6(_group(w, source))
        else:
            word = one(w) >> shift
            codes = np.stack(
                [word >> width * n & ((1 << width) - 1) for n in range(form.count)], axis=-1
            )
        numbers = values(form.small)[codes]
        if scale is not None:
            power, bad = scale_power(scale(w))
            numbers = np.ldexp(numbers, power[..., None])
            numbers = np.where(bad[..., None], np.copysign(np.float32(np.nan), numbers), numbers)
        for n, part in enumerate(_wide_words(form.wide, numbers)):
            old = w.v[target + n]
            if form.count == 1 and form.wide == "f16":
                part = (old & 0xFFFF) | part << 16 if upper else part
            w.v[target + n] = w.put(old, part)

    return step


def _wide_words(wide: str, numbers: Array) -> list[Array]:
    """Convert float32 [..., n] to registers of format `wide`: one per element, or per two."""
    count = numbers.shape[-1]
    if wide == "f32":
        words = np.ascontiguousarray(numbers).view(np.uint32)
        return [words[..., n] for n in range(count)]
    bits = (to_bfloat if wide == "bf16" else half_bits)(np.ascontiguousarray(numbers))
    if count == 1:
        return [bits[..., 0]]
    return [bits[..., n] | bits[..., n + 1] << 16 for n in range(0, count, 2)]


def _wide_reader(
    i: Instruction, form: SmallFloatConversion, read: Reader, read_float: FloatReader
) -> Callable[[Waves], Array]:
    """Return a function that reads the elements to narrow, as float32 [..., count]."""
    signs = i.has("abs") | i.has("neg")
    if form.separate or (form.wide == "f32" and form.count == 1):
        parts = [read_float(i, n) for n in range(form.count)]
        return lambda w: np.stack(np.broadcast_arrays(*(p(w) for p in parts)), axis=-1)
    sources = i.operands[: 2 if form.interleaved else 1]
    if signs & ((1 << len(sources)) - 1) and form.count != 1:
        raise SimulationError("signs of packed operands are not modelled")
    first = read(sources[0])

    def elements(w: Waves) -> Array:
        if form.wide != "f32":
            if form.count == 1:
                value = halves(form.wide, first(w))[0]
                value = np.abs(value) if i.has("abs") & 1 else value
                return (-value if i.has("neg") & 1 else value)[..., None]
            low, high = halves(form.wide, _group(w, sources[0]))
            return np.stack([low, high], axis=-1).reshape(*low.shape[:-1], -1)
        groups = [_group(w, s).view(np.float32) for s in sources]
        if form.interleaved:
            return np.stack(groups, axis=-1).reshape(*groups[0].shape[:-1], -1)
        return groups[0]

    return elements


def _narrow(
    i: Instruction, form: SmallFloatConversion, read: Reader, read_float: FloatReader
) -> Step:
    """Return the step of a narrowing conversion.

    op_sel[3:2] selects the byte of an fp4 or a single result, op_sel[3] the half of an fp8 pair.
    The other bits of the register keep their values.
    """
    elements = _wide_reader(i, form, read, read_float)
    rest = list(i.operands[len(i.operands) - form.stochastic - form.scaled :])
    seed = read(rest.pop(0)) if form.stochastic else None
    scale = read(rest.pop(0)) if form.scaled else None
    select = i.has("op_sel")
    width = 16 if form.small in ("f16", "bf16") else BITS[form.small]
    whole = width * form.count
    shift = 16 * (select >> 3 & 1) if whole == 16 else 8 * (select >> 2 & 3)
    keep = np.uint32(~(((1 << whole) - 1) << shift) & 0xFFFFFFFF) if whole < 32 else np.uint32(0)
    target = i.results[0]

    def step(w: Waves) -> None:
        value = elements(w)
        if form.wide == "f32":
            value = flush_input(w, value)
        exact = value.astype(np.float64)
        if scale is not None:
            power, bad = scale_power(scale(w))
            scaled = np.ldexp(exact, -power[..., None])
            exact = np.where(bad[..., None], np.copysign(np.nan, exact), scaled)
        clamp = bool(w.mode & FP16_OVFL)
        if seed is None:
            codes = encode(exact, form.small, clamp=clamp)
        else:
            codes = _random(form, exact, seed(w), clamp=clamp)
        if target.count > 1:
            w.put_group("v", target.index, np.broadcast_to(pack6(codes), (*w.shape, 6)))
            return
        word = codes[..., 0]
        for n in range(1, form.count):
            word = word | codes[..., n] << width * n
        old = w.v[target.index]
        w.v[target.index] = w.put(old, (old & keep) | word << shift)

    return step


def _random(form: SmallFloatConversion, exact: Array, state: Array, *, clamp: bool) -> Array:
    """Round each element stochastically; the random state advances from element to element."""
    codes = []
    for n in range(form.count):
        part = exact[..., n]
        codes.append(encode_stochastic(part, form.small, state, MANTISSA[form.wide], clamp=clamp))
        state = random_next(state)
    return np.stack(np.broadcast_arrays(*codes), axis=-1)
