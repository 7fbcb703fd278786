"""Computes a described program in numpy and ml_dtypes: values with error bounds."""

from __future__ import annotations

from collections.abc import Mapping
from math import erf
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from fuzz.bounded import (
    Bounded,
    Floats,
    either,
    exact,
    plus,
    product,
    rounded,
    through,
    times,
)
from fuzz.description import FORMATS, Program, Side
from fuzz.endings import EMAX, LARGEST

Array = npt.NDArray[Any]

_CODES = {
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
    "f6E2M3FN": ml_dtypes.float6_e2m3fn,
    "f6E3M2FN": ml_dtypes.float6_e3m2fn,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
}
#: Kernels may take blocks with a smaller E8M0 byte for zeros: where sums are integers, the units of
#: the elements of both sides are part of the scale, which must be a normal f32 (docs/numerics.md).
_LEAST_SCALE = 13


def decoded(codes: Array, element: str) -> Floats:
    """Decode elements or scales, one code per byte, or f32 scales as they are."""
    if element == "f32":
        return codes.astype(np.float64)
    if element == "i8":
        return codes.view(np.int8).astype(np.float64) / 64
    return np.asarray(codes.view(np.uint8).view(_CODES[element]), np.float64)


def unpacked(data: Array, bits: int) -> Array:
    """Unpack the last dimension of bytes to codes of `bits` bits, the lowest bits first."""
    if bits == 8:
        return data.view(np.uint8)
    binary = np.unpackbits(data.view(np.uint8), axis=-1, bitorder="little")
    parts = binary.reshape(*data.shape[:-1], -1, bits)
    found = np.packbits(parts, axis=-1, bitorder="little")[..., 0]
    return np.asarray(found)


def _in_order(codes: Array, elements: str) -> Array:
    """Reorder codes, which were unpacked with the low nibble first, to the order of k."""
    if elements == "high":
        return codes.reshape(*codes.shape[:-1], -1, 2)[..., ::-1].reshape(codes.shape)
    if elements == "halves":
        return np.concatenate([codes[..., 0::2], codes[..., 1::2]], axis=-1)
    return codes


def dequantized(side: Side, data: Array, scales: Array) -> Bounded:
    """Return the values of a packed operand [.., rows, k] in the float type that the contraction
    reads (`Side.register`)."""
    element, bits, scale, block = FORMATS[side.format]
    values = decoded(_in_order(unpacked(data, bits), side.elements), element)
    factors = decoded(scales, scale)
    if side.layout == "kn":
        values = np.swapaxes(values, -1, -2)
    if side.scales == "kn":
        factors, scales = (np.swapaxes(x, -1, -2) for x in (factors, scales))
    whole = scales if scale == "f32" else scales.view(np.uint8)
    factors, codes = (np.repeat(x, block, axis=-1) for x in (factors, whole))
    wide, _, narrow = side.kind.partition(">")
    # An element times an 8-bit scale has few digits: only the range of the type can change it.
    with np.errstate(over="ignore", invalid="ignore"):
        found = rounded(exact(values * factors), wide)
    error = found.error
    if scale == "f8E8M0FNU":
        size = np.where(np.isfinite(found.value), np.abs(found.value), 0.0)
        error = np.where(codes < _LEAST_SCALE, size, error)
        if side.factor in ("exp2", "fpowi"):
            error = error + size * 2.0**-20
        if side.factor == "powf":
            # exp(x log 2), with the error of an exponent of up to 127.
            error = error + size * 2.0**-14
    found = Bounded(found.value, error)
    if side.factor in ("exp2", "powf", "fpowi", "shift"):
        # Computed so, the byte 255 is 2^128, which is infinite; as an E8M0 scale it is NaN.
        found = either(found, codes == 255)
    return rounded(found, narrow) if narrow else found


def computed(program: Program, given: Mapping[str, Array]) -> list[Bounded]:
    """Compute the results of a program from its operands, by their names in mlir.py."""
    left = _left(program, given)
    if program.lhs.packed:
        left = _in_range(program.lhs, left, given["lhs_scale"])
    y = _contracted(program, given, left, "rhs", "")
    for number, name in enumerate(program.epilogue):
        added = given.get(f"e{number}")
        after = _finished(y, name, added)
        if number == 0 and name.startswith(("bias", "residual")) and program.sum == "f32":
            # A kernel may start the sum with the bias or residual, which rounds otherwise.
            moved = _contracted(program, given, left, "rhs", "", addend=added)
            after = Bounded(after.value, np.maximum(after.error, moved.error))
        y = after
    if program.ending in ("bf16", "f16"):
        return [rounded(y, program.ending)]
    if program.ending == "twice":
        return [y, _silu(y)]
    if program.gated:
        other = _contracted(program, given, left, "gate", "_gate")
        gate = _silu(y) if program.ending == "gate" else through(y, _gelu_tanh, 1.2)
        return [times(gate, other)]
    if program.ending == "after":
        dense = exact(given["after"])
        return [product(y, dense, exact(np.zeros(dense.value.shape[-1])), "f32")]
    return [y]


def quantized_wrongly(y: Bounded, codes: Array, scales: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements of mxfp8e4m3 blocks that the recipe "floor" does not give
    for any values within the error of y."""
    shape = (*y.value.shape[:-1], y.value.shape[-1] // 32, 32)
    y, found = y.reshaped(*shape), decoded(codes, "f8E4M3FN").reshape(shape)
    byte = scales.view(np.uint8).astype(np.int64)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        most, least = ((np.abs(y.value) + s * y.error).max(-1) for s in (1, -1))
        top, bottom = (np.frexp(np.maximum(x, 0))[1] - 1 - EMAX + 127 for x in (most, least))
        # Blocks of very small values, and of values with an infinite error, are not checked.
        known = np.isfinite(most) & (least > 2.0**-100)
        settled = (byte <= np.maximum(top, 0)) & (byte >= np.maximum(bottom, 0))
        scale = np.ldexp(1.0, byte - 127)[..., None]
        wanted, error = np.clip(y.value / scale, -LARGEST, LARGEST), y.error / scale
        reach = np.maximum(np.abs(wanted) + error, 2.0**-6)
        unit = np.exp2(np.floor(np.log2(reach)) - 3)
        near = np.abs(found - wanted) <= error + unit / 2
    wrong: npt.NDArray[np.bool_] = ~(near & settled[..., None]) & known[..., None]
    return wrong.reshape(*shape[:-2], -1)


def _left(program: Program, given: Mapping[str, Array]) -> Bounded:
    side = program.lhs
    if side.packed:
        return dequantized(side, given["lhs"], given["lhs_scale"])
    if not program.before:
        return exact(given["lhs"])
    dense = exact(given["dense"])
    x = product(exact(given["first"]), dense, exact(np.zeros(program.k)), "f32")
    return rounded(x, side.format)


def _in_range(side: Side, values: Bounded, scales: Array) -> Bounded:
    """Return the first operand with an infinite error in blocks with a scale of 2^107 or more. CPU
    kernels apply the scale of the other side last, and sums may overflow (docs/numerics.md)."""
    _, _, scale, block = FORMATS.get(side.format, ("", 0, "", 1))
    if scale != "f8E8M0FNU":
        return values
    large = scales.view(np.uint8) >= 127 + 107
    large = np.swapaxes(large, -1, -2) if side.scales == "kn" else large
    size = np.abs(values.value).reshape(*large.shape, block)
    beyond = large & np.isfinite(size).all(-1) & (size > 0).any(-1)
    return either(values, np.repeat(beyond, block, axis=-1))


def _contracted(
    program: Program,
    given: Mapping[str, Array],
    left: Bounded,
    name: str,
    suffix: str,
    addend: Array | None = None,
) -> Bounded:
    """Compute the contraction of `left` with the weight `name`. suffix: of its accumulator in
    `given`. addend: what a kernel may add to the accumulator before the sum."""
    right = dequantized(program.rhs, given[name], given[f"{name}_scale"])
    if program.contraction == "first":
        right = _in_range(program.rhs, right, given[f"{name}_scale"])
    right = right.transposed()
    start = np.zeros(program.n)
    if program.accumulator == "splat":
        start = start + 1.5
    if program.accumulator == "argument":
        lead = [program.batch] if program.batch else []
        start = given[f"accumulator{suffix}"].reshape(*lead, program.m, program.n)
    if program.accumulator == "bias":
        start = given[f"initial{suffix}"]
    if addend is not None:
        start = start + addend.astype(np.float64)
    return product(left, right, exact(start), program.sum)


def _finished(y: Bounded, name: str, other: Array | None) -> Bounded:
    what = name.partition("_")[0]
    if what in ("bias", "residual"):
        assert other is not None
        return plus(y, exact(other))
    if what == "rows":
        assert other is not None
        return times(y, exact(other[..., None]))
    if name in ("factor", "captured"):
        assert other is not None
        return times(y, exact(other))
    if name == "scalar":
        return times(y, exact(np.float32(0.7071067690849304)))
    if name == "relu_maxnumf":
        return Bounded(np.fmax(y.value, 0.0), y.error)
    if name == "relu_maximumf":
        return Bounded(np.maximum(y.value, 0.0), y.error)
    if name == "relu_select":
        return Bounded(np.where(y.value > 0, y.value, 0.0), y.error)
    if name == "clamp":
        return Bounded(np.maximum(np.minimum(y.value, 1.5), -1.0), y.error)
    if name == "square":
        return times(y, y)
    if name == "gelu_tanh":
        return through(y, _gelu_tanh, 1.2)
    if name == "gelu_erf":
        return through(y, _gelu_erf, 1.2)
    return _silu(y)


def _silu(y: Bounded) -> Bounded:
    return through(y, lambda v: v / (1 + np.exp(-v)), 1.2)


def _gelu_tanh(v: Floats) -> Floats:
    tanh: Floats = np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))
    return v / 2 * (1 + tanh)


def _gelu_erf(v: Floats) -> Floats:
    found = np.vectorize(erf, otypes=[np.float64])(v / np.sqrt(2))
    return np.asarray(v / 2 * (1 + found))
