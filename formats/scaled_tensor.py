"""A tensor whose elements share scales as a `ScaleSpec` says, in numpy.

    value = tensor scale * scale * code                  floats, intK
    value = tensor scale * scale * code + zero           uintK with a zero point that is a float
    value = tensor scale * scale * (code - zero)         uintK with a zero point that is a code
    value = code                                         unscaled floats

All in float32; scales are multiplied first. Under an e8m0 scale, intK is fixed point with K - 2
bits after the point (MXINT8).

The shape of the scales tells which elements share one: an axis has one entry per tile, where the
last tile may be partial, and 1 entry where a tile is the whole axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError
from mxc.formats.array_values import ArrayOfValues, Floats
from mxc.formats.scale_spec import NumberKind, NumberType, ScaleSpec, Scaling

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Scaled(ArrayOfValues):
    """A tensor quantized as `spec` says, not packed; numpy reads its values (array_values.py).

    `codes` have the tensor's shape: uint8 codes of floats of 8 bits or fewer, integers of 8 or 16
    bits, or plain float32, float16 and bfloat16. `scales` (and `zeros`) have the same number of
    axes: uint8 codes or floats; None for unscaled data. `tensor_scale` is None without one.
    """

    codes: Array
    scales: Array | None
    spec: ScaleSpec
    zeros: Array | None = None
    tensor_scale: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor."""
        return self.codes.shape

    def values(self) -> Floats:
        """The values, float32 of `shape`."""
        data = self.spec.data
        if data.element is not None:
            elements: Floats = data.element.values.take(self.codes)
        else:
            elements = self.codes.astype(np.float32)
        scaling = self.spec.scaling
        if scaling is None or self.scales is None:
            return elements
        tiles = tile_sizes(scaling, self.shape)
        factors = numbers_of(self.scales, scaling.scale)
        if self.tensor_scale is not None:
            factors = np.float32(self.tensor_scale) * factors
        factors = repeat_scales(factors, tiles, self.shape)
        if self.zeros is not None and scaling.zero is not None:
            zeros = repeat_scales(numbers_of(self.zeros, scaling.zero), tiles, self.shape)
            if scaling.zero.kind is NumberKind.FLOAT:
                return elements * factors + zeros
            return (elements - zeros) * factors
        with np.errstate(over="ignore", invalid="ignore"):
            return elements * np.float32(unit_of(self.spec)) * factors

    def describe(self) -> str:
        """The spec and the shape."""
        return f"{self.spec} {list(self.shape)}"


def dequantize_scaled(q: Scaled) -> Floats:
    """The values of `q`: float32 of shape `q.shape`."""
    return q.values()


def tile_sizes(scaling: Scaling, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Number of elements along each axis that share a scale.

    Raises FormatError for tiles on axes that `shape` does not have.
    """
    if not scaling.tiles:
        return shape
    sizes = [1] * len(shape)
    seen = set()
    for tile in scaling.tiles:
        axis = tile.axis + len(shape) if tile.axis < 0 else tile.axis
        if not 0 <= axis < len(shape) or axis in seen:
            raise FormatError(f"scaling {scaling} has no place in a tensor of shape {list(shape)}")
        seen.add(axis)
        sizes[axis] = tile.size or shape[axis]
    return tuple(sizes)


def repeat_scales(scales: Array, tiles: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Repeat scales, one per tile, to an array that broadcasts to `shape`."""
    for axis, (size, count) in enumerate(zip(tiles, shape, strict=True)):
        if size > 1 and scales.shape[axis] > 1:
            scales = np.repeat(scales, size, axis).take(np.arange(count), axis)
    return scales


def unit_of(spec: ScaleSpec) -> float:
    """The value of the integer 1: 2^(2 - K) for intK with exponent scales (fixed point), else 1."""
    exponent = spec.scaling is not None and spec.scaling.scale.kind is NumberKind.EXPONENT
    integer = spec.data.kind is NumberKind.SIGNED
    return 2.0 ** (2 - spec.data.bits) if integer and exponent else 1.0


def numbers_of(stored: Array, number: NumberType) -> Floats:
    """The float32 values of numbers that a `Scaled` stores."""
    if number.element is not None:
        return number.element.values.take(stored)
    return stored.astype(np.float32)
