"""Operands of a case by pattern, and their reference results.

    random      scales over 20 powers of two, all finite elements
    nan         a NaN scale in the first block of a row, and in the last block of another
    extremes    scales 0 and 254 against each other, and against themselves
    specials    infinities and NaN among elements of 8 bits, and among floats
    subnormals  only subnormal elements
    exact       values with few bits: all sums are exact in any order

The reference is formats/reference.py, whose values are f32, with numpy's product in float64. For
scaled instructions the product of exact values is accepted too: it is finite where an f32 value is
infinite. The section "What is computed" of docs/gpu.md states what is left open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
import numpy.typing as npt
from agreement_cases import FLOATS, Case
from agreement_programs import OUT, RECIPE, shapes

from mxc.formats.formats import E8M0, BlockFormat
from mxc.formats.packing import pack_elements
from mxc.formats.reference import Quantized, dequantize, quantize

Pattern = Literal["random", "nan", "extremes", "specials", "subnormals", "exact"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

_TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


def patterns(case: Case) -> tuple[Pattern, ...]:
    """Return the patterns for a case.

    With an epilogue "exact", and "nan" if it quantizes the result. Without an epilogue all others,
    "specials" only if a side has special values.
    """
    if case.epilogue == "quantize":
        return ("exact", "nan")
    if case.epilogue:
        return ("exact",)
    scaled = [f for f in map(case.format, (case.lhs, case.rhs)) if f is not None]
    special = case.lhs in FLOATS or any(f.element.nan_codes for f in scaled)
    return tuple(p for p in PATTERNS if p != "exact" and (special or p != "specials"))


@dataclass(frozen=True)
class Side:
    """The arguments of a side, and its values, float64 [.., rows, k].

    values: those of the reference, in f32 or rounded to `Case.register`. exact: element times scale
    in float64, beyond the range of f32 too.
    """

    arguments: list[Array]
    values: Floats
    exact: Floats


def side(case: Case, which: str, pattern: Pattern, rng: np.random.Generator) -> Side:
    """Return random arguments for `which` side, "lhs" or "rhs", and their values."""
    name = case.lhs if which == "lhs" else case.rhs
    format = case.format(name)
    given = shapes(case)
    if format is None:
        return _floats(given[which][0], name, pattern, rng)
    blocks = given[f"{which}_scale"][0]
    codes = _codes((*blocks, format.block), format, pattern, rng)
    scales = _scales(tuple(blocks), format, pattern, rng, odd=which == "rhs")
    rows = (*blocks[:-1], case.k)
    elements = pack_elements(codes.reshape(rows), format)
    tensor = 1.0 if format.tensor_scale else None
    value = dequantize(Quantized(elements, scales, format, None, len(rows) - 1, rows, tensor))
    exact = format.element.values[codes].astype(np.float64)
    if case.register:
        kind = _TYPES[case.register]
        with np.errstate(over="ignore", invalid="ignore"):
            value = value.astype(kind).astype(np.float32)
    numbers = format.scale.values[scales].astype(np.float64)
    with np.errstate(invalid="ignore"):
        exact = exact * numbers[..., None]
    arguments = [elements.reshape(given[which][0]).view(np.int8), scales.view(np.int8)]
    return Side(arguments, value.astype(np.float64), exact.reshape(rows))


def _codes(
    shape: tuple[int, ...], format: BlockFormat, pattern: Pattern, rng: np.random.Generator
) -> Array:
    values = format.element.values
    if pattern == "exact":
        allowed = np.isin(np.abs(values), (0, 0.5, 1, 1.5))
    elif pattern == "subnormals" and format.element.exponent:
        allowed = np.abs(values) < format.element.min_normal
    else:
        # 2^127 times two is beyond f32.
        allowed = np.abs(values) < (2 if pattern == "extremes" else np.inf)
    codes = rng.choice(np.flatnonzero(allowed), shape).astype(np.uint8)
    if pattern == "extremes":
        codes[..., 1, 0, 0] = format.element.max_code
    if pattern == "specials" and not np.isfinite(values).all():
        # In the first block of rows 1 and 3, where a read past the end of rows 0 and 2, which have
        # none, would meet it; and in the last block of row 4.
        odd = np.flatnonzero(~np.isfinite(values))
        for (row, block), code in zip(((1, 0), (3, 0), (4, -1)), rng.choice(odd, 3), strict=True):
            codes[..., row, block, -1] = code
    return codes


def _scales(
    shape: tuple[int, ...], format: BlockFormat, pattern: Pattern, rng: np.random.Generator,
    *, odd: bool,
) -> Array:  # fmt: skip
    if format.scale != E8M0:
        # E4M3: positive, and NaN.
        scales = rng.integers(40, 120, shape, np.uint8)
        if pattern == "exact":
            scales[...] = 0x38
        if pattern == "nan":
            scales[..., 1, 0] = scales[..., 2, -1] = 0x7F
        return scales
    if pattern == "exact":
        return rng.integers(126, 129, shape, np.uint8)
    scales = rng.integers(117, 138, shape, np.uint8)
    if pattern == "nan":
        scales[..., 1, 0] = scales[..., 2, -1] = 255
    if pattern == "extremes":
        # A half of the rows has 0 and the other 254: each meets the other and itself.
        half = shape[-2] // 2
        scales[..., :half, :], scales[..., half:, :] = (0, 254) if odd else (254, 0)
        scales[..., 0, :] = rng.choice([0, 1, 2, 9, 253, 254], shape[-1])
        scales[..., 1, 0] = 254
    return scales


def _floats(shape: list[int], name: str, pattern: Pattern, rng: np.random.Generator) -> Side:
    values = rng.normal(size=shape).astype(np.float32)
    if pattern == "exact":
        values = rng.choice([0, 0.5, 1, 1.5, -1, -2], shape).astype(np.float32)
    if pattern == "extremes" and name != "f16":
        values *= np.ldexp(np.float32(1), rng.choice([-100, 100], (*shape[:-1], 1)))
    if pattern == "subnormals":
        values = np.ldexp(values, -20 if name == "f16" else -130)
    found = values.astype(_TYPES[name])
    if pattern == "specials":
        found[..., 1, 3], found[..., 3, 0], found[..., 4, -1] = np.nan, -np.inf, np.inf
    return Side([found], found.astype(np.float64), found.astype(np.float64))


@dataclass(frozen=True)
class Wanted:
    """Wanted results as the program gives them, and the error that each number may have.

    exact: other numbers that are right for the first result. settled: where an infinity or NaN in
    place of the number is wrong.
    """

    results: list[Array]
    exact: Array
    error: Array
    settled: npt.NDArray[np.bool_]


def operands(case: Case, pattern: Pattern, seed: int = 0) -> tuple[list[Array], Wanted]:
    """Return random arguments for a case, and the wanted results of its function."""
    rng = np.random.default_rng([seed, PATTERNS.index(pattern), case.m, case.n, case.k])
    lhs, rhs = (side(case, which, pattern, rng) for which in ("lhs", "rhs"))
    arguments = [*lhs.arguments, *rhs.arguments]
    right, exact = rhs.values, rhs.exact
    if case.experts:
        ids = rng.integers(0, case.experts, case.groups, np.int32)
        # An id beyond the last expert means the last one.
        ids[0], ids[-1] = case.experts - 1, case.experts + 7
        arguments.append(ids)
        chosen = np.minimum(ids, case.experts - 1)
        right, exact = right[chosen], exact[chosen]
    if case.register:
        lhs, exact = Side([], lhs.values, lhs.values), right
    with np.errstate(over="ignore", invalid="ignore"):
        y = (lhs.values @ np.swapaxes(right, -1, -2)).astype(np.float32)
        alone = (lhs.exact @ np.swapaxes(exact, -1, -2)).astype(np.float32)
        size = _sizes(lhs.exact) @ np.swapaxes(_sizes(exact), -1, -2)
    # Beyond f32, partial sums may be infinite: no document states their order.
    settled = size < np.finfo(np.float32).max
    # Sums of subnormal numbers are rounded to multiples of 2^-149.
    error = size * 2.0**-20 + case.k * 2.0**-149
    if case.lhs == "f32":
        # Bits of f32 activations that the last of their bf16 parts does not hold.
        error = error + 2.0**-133 * np.swapaxes(np.abs(right), -1, -2).sum(-2, keepdims=True)
    if case.lhs in FLOATS and case.lhs != case.register:
        # Some bf16 parts of an activation are zero, which times an infinite weight is NaN.
        settled &= ~np.swapaxes(np.isinf(right).any(-1, keepdims=True), -1, -2)
    other = _other(case, rng)
    if other is not None:
        arguments.append(other)
        y = _finished(case, y, other)
        # Sums are exact, and the epilogue is within some units in the last place.
        error = np.full(y.shape, np.abs(y).max() * 2.0**-20)
        alone, settled = y, np.ones(y.shape, bool)
    if case.epilogue == "quantize":
        blocks = quantize(y, OUT, recipe=RECIPE)
        return arguments, Wanted([blocks.elements, blocks.scales], y, error, settled)
    return arguments, Wanted([y], alone, error, settled)


def _sizes(values: Floats) -> Floats:
    """Return magnitudes; zero for infinities and NaN, which have no rounding error."""
    return np.abs(np.where(np.isfinite(values), values, 0))


def _other(case: Case, rng: np.random.Generator) -> Array | None:
    given = shapes(case)
    if "other" not in given:
        return None
    return rng.normal(size=given["other"][0]).astype(np.float32)


def _finished(case: Case, y: Array, other: Array) -> Array:
    if case.epilogue == "rows":
        return y * other[:, None]
    y = y + other
    if case.epilogue == "bias_silu":
        with np.errstate(over="ignore"):
            divisor: Array = 1 + np.exp(-y)
        return y / divisor
    if case.epilogue == "gate":
        return y[:, : case.n // 2] * y[:, case.n // 2 :]
    return y
