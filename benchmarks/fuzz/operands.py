"""Arguments of a program by pattern, seeded.

random      all finite elements, scales over 16 powers of two, normally distributed floats
exact       values with few bits, so that sums are exact in any order
extremes    scales 0, 1 and 254 among others
zeros       blocks of zeros, with scale 0 and others
nan         a NaN scale in some rows
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from fuzz.bounded import TYPES
from fuzz.description import FLAT, FORMATS, Program, Side
from fuzz.reference import decoded

Pattern = Literal["random", "exact", "extremes", "zeros", "nan"]
PATTERNS: tuple[Pattern, ...] = get_args(Pattern)
Array = npt.NDArray[Any]


def constants(program: Program, seed: int) -> dict[str, npt.NDArray[np.int8]]:
    """Return the weights that a program holds as constants, by name."""
    if not program.rhs.constant:
        return {}
    rng = np.random.default_rng([seed, len(PATTERNS)])
    names = ("rhs", "gate") if program.gated else ("rhs",)
    found: dict[str, npt.NDArray[np.int8]] = {}
    for name in names:
        found |= _side(program, program.rhs, name, program.n, "random", rng)
    return found


def operands(program: Program, pattern: Pattern, seed: int) -> dict[str, Array]:
    """Return all operands, constants included, by their names in mlir.py."""
    rng = np.random.default_rng([seed, PATTERNS.index(pattern)])
    lead = [program.batch] if program.batch else []
    m, n, k = program.m, program.n, program.k
    found: dict[str, Array] = {}
    if program.lhs.packed:
        found |= _side(program, program.lhs, "lhs", m, pattern, rng)
    else:
        found["lhs"] = _floats([*lead, m, k], program.lhs.format, pattern, rng)
        found["first"] = _floats([*lead, m, 16], "f32", pattern, rng)
        found["dense"] = _floats([16, k], "f32", pattern, rng)
    names = ("rhs", "gate") if program.gated else ("rhs",)
    for name in names:
        found |= _side(program, program.rhs, name, n, pattern, rng)
    whole = [*lead, n] if program.contraction in FLAT else [*lead, m, n]
    for suffix in ("", "_gate"):
        found[f"accumulator{suffix}"] = _floats(whole, program.sum, pattern, rng)
        found[f"initial{suffix}"] = _floats([n], program.sum, pattern, rng)
    found["after"] = _floats([n, 12], "f32", pattern, rng)
    for number, name in enumerate(program.epilogue):
        what, _, kind = name.partition("_")
        shapes = {"bias": [n], "residual": [*lead, m, n], "rows": [*lead, m], "factor": [],
                  "captured": []}  # fmt: skip
        if what in shapes:
            found[f"e{number}"] = _floats(shapes[what], kind or "f32", pattern, rng)
    return found | constants(program, seed)


def _floats(shape: list[int], kind: str, pattern: Pattern, rng: np.random.Generator) -> Array:
    if pattern == "exact":
        values = rng.choice([0, 0.5, 1, 1.5, -1, -2], shape)
    else:
        values = rng.normal(size=shape)
    return np.asarray(values.astype(TYPES[kind]))


def _side(
    program: Program, side: Side, name: str, rows: int, pattern: Pattern, rng: np.random.Generator
) -> dict[str, Array]:
    """Return random elements and scales of a side by name: bytes in its layouts, or f32 scales."""
    element, bits, scale, block = FORMATS[side.format]
    lead = [program.batch] if program.batch and (name == "lhs" or not program.shared) else []
    count = program.k // block
    shape = [*lead, rows, count, block]
    values = decoded(np.arange(1 << bits, dtype=np.uint8), element)
    allowed = np.isfinite(values)
    if pattern == "exact":
        allowed &= np.isin(np.abs(values), (0, 0.5, 1, 1.5))
    if pattern == "extremes":
        # 2^127 times two is beyond f32.
        allowed &= np.abs(values) < 2
    codes = rng.choice(np.flatnonzero(allowed), shape).astype(np.uint8)
    bytes_ = _scales(scale, shape[:-1], pattern, rng)
    if pattern == "zeros":
        empty = rng.random(shape[:-1]) < 0.4
        codes[empty] = 0
        if scale == "f8E8M0FNU":
            bytes_[empty] = rng.choice([0, 127, 200], int(empty.sum()))
    codes = _in_bytes(codes.reshape(*lead, rows, program.k), side.elements)
    if side.layout == "kn":
        codes = np.swapaxes(codes, -1, -2)
    if side.scales == "kn":
        bytes_ = np.swapaxes(bytes_, -1, -2)
    return {name: _packed(codes, bits), f"{name}_scale": _stored(bytes_)}


def _stored(scales: Array) -> Array:
    whole = np.ascontiguousarray(scales)
    return whole if whole.dtype == np.float32 else whole.view(np.int8)


def _in_bytes(codes: Array, elements: str) -> Array:
    """Reorder codes along k to the order in which bytes hold them, the low nibble first."""
    if elements == "high":
        return codes.reshape(*codes.shape[:-1], -1, 2)[..., ::-1].reshape(codes.shape)
    if elements == "halves":
        return np.stack(np.split(codes, 2, axis=-1), axis=-1).reshape(codes.shape)
    return codes


def _scales(scale: str, shape: list[int], pattern: Pattern, rng: np.random.Generator) -> Array:
    if scale == "f32":
        return _floats(shape, "f32", pattern, rng)
    if scale != "f8E8M0FNU":
        # e4m3: positive numbers; only 1 (0x38) for exact sums.
        bytes_ = rng.integers(40, 80, shape, np.uint8)
        if pattern == "exact":
            bytes_[...] = 0x38
    elif pattern == "exact":
        bytes_ = rng.integers(126, 129, shape, np.uint8)
    else:
        bytes_ = rng.integers(119, 135, shape, np.uint8)
    if pattern == "extremes" and scale == "f8E8M0FNU":
        odd = rng.random(shape) < 0.3
        bytes_[odd] = rng.choice([0, 1, 254], int(odd.sum()))
    if pattern == "nan":
        bytes_[rng.random(shape) < 0.15] = 255 if scale == "f8E8M0FNU" else 127
    return bytes_


def _packed(codes: Array, bits: int) -> npt.NDArray[np.int8]:
    """Pack codes of `bits` bits along the last dimension to bytes, the lowest bits first."""
    binary = np.unpackbits(np.ascontiguousarray(codes)[..., None], axis=-1, bitorder="little")
    stream = binary[..., :bits].reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view(np.int8)


def chosen(given: Mapping[str, Array], names: tuple[str, ...]) -> list[Array]:
    """Return the arguments of a function in the order of `names`."""
    return [given[name] for name in names]
