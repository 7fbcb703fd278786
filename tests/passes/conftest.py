"""Operands of contractions in the formats that kernels read: packed, random, and in float64.

The values of elements and scales are those of ml_dtypes; how they are packed is written out here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

BLOCK = 32
FLOATS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "bf16r": np.float32}
#: Types of scaled elements; those of int8 and mxint8, which are not here, are integers.
ELEMENTS = {
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "nvfp4": ml_dtypes.float4_e2m1fn,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "mxfp6e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp6e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp8e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8e5m2": ml_dtypes.float8_e5m2,
    "int4": ml_dtypes.int4,
}
BITS = {"mxfp4": 4, "nvfp4": 4, "int4": 4, "mxfp6e2m3": 6, "mxfp6e3m2": 6}
#: Types of scales of one byte; scales of other formats are f32.
SCALES = {name: ml_dtypes.float8_e8m0fnu for name in (*ELEMENTS, "mxint8") if name[:2] == "mx"}
SCALES["nvfp4"] = ml_dtypes.float8_e4m3fn


def bits(format: str) -> int:
    return BITS.get(format, 8)


def elements_of(format: str) -> Floats:
    """Return the value of every code of a format."""
    codes = np.arange(1 << bits(format), dtype=np.uint8)
    if format in ELEMENTS:
        return codes.view(ELEMENTS[format]).astype(np.float64)
    return codes.view(np.int8) * np.float64(1.0 if format == "int8" else 2.0**-6)


@dataclass(frozen=True)
class Side:
    """Weights or activations of a contraction.

    `codes`: codes of elements as uint8, or floats if there are no scales; [.., blocks, 32].
    `scales`: bytes of the type in SCALES, or f32; [.., blocks].
    """

    format: str
    codes: Array
    scales: Array | None = None

    @property
    def values(self) -> Floats:
        """The scaled elements in float64, [.., depth]."""
        if self.scales is None:
            rounded = self.format == "bf16r"
            found = self.codes.astype(ml_dtypes.bfloat16) if rounded else self.codes
            found = found.astype(np.float64)
        else:
            with np.errstate(invalid="ignore"):
                found = elements_of(self.format)[self.codes] * self.factors[..., None]
        return found.reshape(*found.shape[:-2], -1)

    @property
    def factors(self) -> Floats:
        """The scales in float64."""
        assert self.scales is not None
        kind = SCALES.get(self.format)
        return (self.scales if kind is None else self.scales.view(kind)).astype(np.float64)

    @property
    def arrays(self) -> list[Array]:
        """The arrays of a checkpoint or call: floats, or packed elements as bytes, then scales."""
        if self.scales is None:
            return [self.codes]
        width = bits(self.format)
        flags = np.unpackbits(self.codes[..., None], axis=-1, bitorder="little", count=width)
        stream = flags.reshape(*self.codes.shape[:-1], -1)
        packed = np.packbits(stream, axis=-1, bitorder="little")
        return [
            packed.view(np.int8),
            self.scales.view(np.int8) if self.format in SCALES else self.scales,
        ]

    def with_scale(self, at: tuple[Any, ...], scale: Any) -> "Side":
        """Return the same side with another scale (a byte of SCALES or f32) at some blocks."""
        scales = np.array(self.scales)
        scales[at] = scale
        return Side(self.format, self.codes, scales)


class Formats:
    """Makes sides of contractions. Tests get it as the fixture `formats`."""

    def elements(self, format: str) -> Floats:
        """Return the value of every code of a format."""
        return elements_of(format)

    def codes(self, format: str) -> int:
        """Return the number of codes of a format."""
        return 1 << bits(format)

    def mx(self, format: str, codes: Array, scales: Array) -> Side:
        """Make a side of codes [.., blocks, 32] and scales [.., blocks]."""
        return Side(format, codes, scales)

    def side(self, format: str, values: Array) -> Side:
        """Encode values [.., blocks, 32] under scales of 1; the format must hold them exactly."""
        if format in FLOATS:
            return Side(format, values.astype(FLOATS[format]))
        table = elements_of(format)
        codes = np.array(
            [int(np.flatnonzero(table == value)[0]) for value in values.flat], np.uint8
        )
        one = np.ones(1, SCALES[format]).view(np.uint8)[0] if format in SCALES else np.float32(1)
        return Side(format, codes.reshape(values.shape), np.full(values.shape[:-1], one))

    def floats(self, format: str, values: Array) -> Side:
        """Make a side of floats: values [.., blocks, 32], rounded to the type of the format."""
        return Side(format, values.astype(FLOATS[format]))

    def draw(
        self,
        rng: np.random.Generator,
        format: str,
        shape: list[int],
        *,
        exact: bool,
        size: int = BLOCK,
    ) -> Side:
        """Draw a side [*shape, size] of a format, with scales [*shape] if the format has scales.

        `exact`: only multiples of a quarter up to 4, and scales of 1 and 2; floats are integers up
        to 8. Else all finite codes, and scales from 2^-12 to 2^12 (f32 scales times a random
        factor); for nvfp4 all finite scales.
        """
        if format in FLOATS:
            kind = FLOATS[format]
            whole = rng.integers(-8, 9, [*shape, size])
            return Side(format, (whole if exact else rng.normal(size=whole.shape)).astype(kind))
        values = elements_of(format)
        allowed = np.isfinite(values)
        if exact:
            quarters = np.where(allowed, values * 4, 0.5)
            allowed &= (quarters == np.rint(quarters)) & (np.abs(values) <= 4)
        codes = rng.choice(np.flatnonzero(allowed), [*shape, size]).astype(np.uint8)
        if format == "nvfp4":
            every = np.arange(256, dtype=np.uint8)
            numbers = every.view(SCALES[format]).astype(np.float64)
            usual = np.isin(numbers, (1, 2)) if exact else np.isfinite(numbers)
            return Side(format, codes, rng.choice(every[usual], shape))
        scales = rng.integers(*((127, 129) if exact else (115, 140)), shape, dtype=np.uint8)
        if format not in SCALES:
            wide = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
            return Side(format, codes, wide if exact else wide * np.float32(rng.normal()))
        return Side(format, codes, scales)

    def not_finite(self, x: Side, row: int) -> Iterator[Side]:
        """Yield copies of `x` in which a scale or element of one row is NaN or infinite."""
        at = row, -1, 5
        if x.scales is None:
            for value in (np.inf, -np.inf, np.nan):
                codes = x.codes.copy()
                codes[at] = value
                yield Side(x.format, codes)
            return
        yield x.with_scale(at[:2], 255 if x.format in SCALES else np.nan)
        for code in np.flatnonzero(~np.isfinite(elements_of(x.format))):
            codes = x.codes.copy()
            codes[at] = code
            yield Side(x.format, codes, x.scales)


@pytest.fixture(scope="session")
def formats() -> Formats:
    return Formats()
