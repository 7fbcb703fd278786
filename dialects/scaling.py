"""Quantise, dequantise and multiply tensors of any scope of scale_spec.py, in numpy.

    scale e8m0, data float or intK    X by a recipe of recipes.py from the largest of a tile;
                                      intK is fixed point, K - 2 bits after the point (MXINT8)
    scale float, data float           scale = amax / max, data = value / scale
    scale float, data intK            scale = amax / (2^(K-1) - 1), the lowest code is not used
    scale float, data uintK, zero     scale = (high - low) / (2^K - 1), zero is in [low, high];
                                      zero float: low, value = scale * code + zero
                                      zero intM: the code of 0.0, value = scale * (code - zero)
    and a tensor scale                as nvfp4.py: tiles' scales fill the range of their type

All in float32. A scale is rounded to its type before values are divided by it; a tile of zeros has
the scale 1 (with e8m0 the byte 0; in types of 8 bits and with a tensor scale, the smallest normal
number). What is beyond the largest code saturates.

The shape of the scales says what they are for: an axis has as many as it has tiles, the last of
them perhaps partial, and 1 where a tile is the whole axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from mxc.dialects.errors import FormatError
from mxc.dialects.formats import E8M0, ElementFormat
from mxc.dialects.nvfp4 import MIN_TENSOR_SCALE
from mxc.dialects.recipes import ScaleRecipe, scale_bytes, scale_recipe
from mxc.dialects.rounding import Ties, encode, nearest_integers, tie_rule
from mxc.dialects.scale_spec import Kind, Number, ScaleSpec, Scaling, parse, parse_scaling

Floats = npt.NDArray[np.float32]
Array = npt.NDArray[Any]

_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

#: The largest numbers of data of 16 bits.
_LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}


@dataclass(frozen=True, eq=False)
class Scaled:
    """A tensor as `spec` says, not packed.

    `codes` have the tensor's shape: uint8 codes of floats of 8 bits or fewer, integers of 8 or 16
    bits, or float16 and bfloat16 themselves. `scales` (and `zeros`) have a shape of as many axes:
    uint8 codes or floats. `tensor_scale` is None without one.
    """

    codes: Array
    scales: Array
    spec: ScaleSpec
    zeros: Array | None = None
    tensor_scale: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the tensor."""
        return self.codes.shape


def quantize_scaled(
    x: npt.ArrayLike,
    spec: ScaleSpec | str,
    *,
    recipe: ScaleRecipe | str = ScaleRecipe.FLOOR,
    ties: Ties | str = Ties.EVEN,
    scale: npt.ArrayLike | None = None,
) -> Scaled:
    """Quantise `x`, of any float type and shape with at least the axes of the tiles.

    `recipe` is for e8m0 scales, `ties` for data. `scale` makes it static: those numbers are the
    scales, of their shape or one that is broadcast to it; they must be numbers of the scale's type.

    Raises FormatError for a spec that is not computed, data without a scaling, axes that `x` lacks,
    NaN or Inf, and scales that are not of their type, or not positive.
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    scaling = _scaling(spec)
    rule, chosen = tie_rule(ties), scale_recipe(recipe)
    values = np.asarray(x).astype(np.float32)
    if not np.isfinite(values).all():
        raise FormatError(f"{spec} wants finite values, found NaN or Inf; remove them")
    tiles = tile_sizes(scaling, values.shape)
    if spec.data.kind is Kind.UNSIGNED:
        if scale is not None:
            raise FormatError(f"{spec}: static scales for data with zero points are not computed")
        return _unsigned(values, spec, scaling, tiles, rule)
    amax = _over_tiles(np.abs(values), tiles, np.maximum)
    scales, whole = _scales(amax, spec, scaling, chosen)
    if scale is not None:
        scales = _static(np.asarray(scale), amax.shape, spec, scaling)
    # The order of nvfp4.py: with a tensor scale the reciprocal, else the quotient.
    numbers = _numbers(scales, scaling.scale)
    with np.errstate(over="ignore"):
        if whole is not None:
            steps: Array = values * spread(np.float32(1) / whole / numbers, tiles, values.shape)
        elif scaling.scale.kind is Kind.EXPONENT:
            steps = values * spread(_reciprocals(scales), tiles, values.shape)
        else:
            steps = values / spread(numbers, tiles, values.shape)
        codes = _codes(steps, spec.data, _unit(spec), rule)
    return Scaled(codes, scales, spec, None, None if whole is None else float(whole))


def dequantize_scaled(q: Scaled) -> Floats:
    """The values of `q`: float32 of its shape."""
    scaling = _scaling(q.spec)
    tiles = tile_sizes(scaling, q.shape)
    factors = _numbers(q.scales, scaling.scale)
    if q.tensor_scale is not None:
        factors = np.float32(q.tensor_scale) * factors
    factors = spread(factors, tiles, q.shape)
    if q.zeros is not None and scaling.zero is not None:
        zeros = spread(q.zeros.astype(np.float32), tiles, q.shape)
        if scaling.zero.kind is Kind.FLOAT:
            return q.codes.astype(np.float32) * factors + zeros
        return (q.codes.astype(np.float32) - zeros) * factors
    data = q.spec.data
    if data.element is not None:
        elements: Floats = data.element.values.take(q.codes)
    else:
        elements = q.codes.astype(np.float32) * np.float32(_unit(q.spec))
    with np.errstate(over="ignore", invalid="ignore"):
        found: Floats = elements * factors
    return found


def matmul(a: Scaled | npt.ArrayLike, b: Scaled | npt.ArrayLike) -> Floats:
    """a [.., M, K] times b [.., K, N]: float32, summed in float64. Scales may have any scope."""
    left, right = (
        dequantize_scaled(side) if isinstance(side, Scaled) else np.asarray(side).astype(np.float32)
        for side in (a, b)
    )
    product: Floats = np.matmul(left.astype(np.float64), right.astype(np.float64)).astype(
        np.float32
    )
    return product


def tile_sizes(scaling: Scaling, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements of each axis that share a scale. Raises FormatError for axes that are not there."""
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


def scale_shape(scaling: Scaling | str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the scales of a tensor of `shape`. Raises FormatError as `tile_sizes`."""
    scaling = parse_scaling(scaling) if isinstance(scaling, str) else scaling
    tiles = tile_sizes(scaling, shape)
    return tuple(-(-n // size) if size else 1 for n, size in zip(shape, tiles, strict=True))


def spread(scales: Array, tiles: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Scales, one a tile, to something that broadcasts to `shape`."""
    for axis, (size, count) in enumerate(zip(tiles, shape, strict=True)):
        if size > 1 and scales.shape[axis] > 1:
            scales = np.repeat(scales, size, axis).take(np.arange(count), axis)
    return scales


def _scaling(spec: ScaleSpec) -> Scaling:
    if spec.scaling is None:
        raise FormatError(f"{spec} says no scaling; {spec.data}:float32 has one for the tensor")
    spec.scaling.require_compiled()
    return spec.scaling


def _over_tiles(values: Floats, tiles: tuple[int, ...], operation: np.ufunc) -> Floats:
    """What `operation` makes of each tile: one number each, all axes kept."""
    for axis, size in enumerate(tiles):
        count = values.shape[axis]
        if size == count:
            values = operation.reduce(values, axis, keepdims=True, initial=0)
        elif size > 1:
            values = operation.reduceat(values, np.arange(0, count, size), axis)
    return np.ascontiguousarray(values)


def _unit(spec: ScaleSpec) -> float:
    """What the code 1 of integers means: fixed point under an exponent, else 1."""
    exponent = spec.scaling is not None and spec.scaling.scale.kind is Kind.EXPONENT
    integer = spec.data.kind is Kind.SIGNED
    return 2.0 ** (2 - spec.data.bits) if integer and exponent else 1.0


def _largest(spec: ScaleSpec) -> float:
    data = spec.data
    if data.element is not None:
        return data.element.max
    if data.kind is Kind.FLOAT:
        return _LARGEST[data.name]
    return ((1 << data.bits - 1) - 1) * _unit(spec)


def _scales(
    amax: Floats, spec: ScaleSpec, scaling: Scaling, recipe: ScaleRecipe
) -> tuple[Array, np.float32 | None]:
    """Scales from the largest magnitudes of the tiles, and the scale of the tensor."""
    largest, number = np.float32(_largest(spec)), scaling.scale
    whole = None
    if scaling.tensor is not None:
        span = number.element.max if number.element and number.kind is Kind.FLOAT else 1.0
        peak = np.float32(amax.max(initial=0))
        whole = max(peak / np.float32(span * largest), np.float32(MIN_TENSOR_SCALE))
        if number.kind is Kind.EXPONENT:
            amax = amax / whole
    if number.kind is Kind.EXPONENT:
        return scale_bytes(amax, _element(spec), recipe), whole
    wanted = amax / largest if whole is None else amax / largest / whole
    if number.element is not None:
        limits = np.float32(number.element.min_normal), np.float32(number.element.max)
        return encode(np.clip(wanted, *limits), number.element), whole
    scales = wanted.astype(_DTYPES[number.name])
    scales[scales == 0] = 1
    return scales, whole


def _element(spec: ScaleSpec) -> ElementFormat:
    data = spec.data
    if data.element is not None:
        return data.element
    if data.kind is Kind.FLOAT:
        raise FormatError(f"{spec}: {data} data is not under e8m0 scales; choose a float scale")
    return ElementFormat(data.name, 0, data.bits - 2)


def _static(given: Array, shape: tuple[int, ...], spec: ScaleSpec, scaling: Scaling) -> Array:
    number = scaling.scale
    wide = given.astype(np.float32)
    try:
        wide = np.broadcast_to(wide, shape)
    except ValueError as error:
        raise FormatError(
            f"{spec}: scales of shape {list(given.shape)} do not broadcast to {list(shape)}"
        ) from error
    if scaling.tensor is not None:
        raise FormatError(f"{spec}: static scales beside a tensor scale are not computed")
    if number.kind is Kind.EXPONENT:
        bits = np.ascontiguousarray(wide).view(np.uint32)
        scales: Array = (bits >> 23).astype(np.uint8)
    elif number.element is not None:
        scales = encode(np.ascontiguousarray(wide), number.element)
    else:
        scales = wide.astype(_DTYPES[number.name])
    if not (np.array_equal(_numbers(scales, number), wide) and (wide > 0).all()):
        raise FormatError(f"{spec}: scales must be positive numbers of {number}, found {given}")
    return scales


def _numbers(scales: Array, number: Number) -> Floats:
    if number.element is not None:
        return number.element.values.take(scales)
    return scales.astype(np.float32)


def _reciprocals(scales: Array) -> Floats:
    """1 / scale of E8M0 bytes, exact: 2^127 is a float32, and so is 2^-127."""
    found: Floats = np.ldexp(np.float32(1), E8M0.bias - scales.astype(np.int32))
    return found


def _codes(steps: Floats, data: Number, unit: float, ties: Ties) -> Array:
    if data.element is not None:
        return encode(np.ascontiguousarray(steps), data.element, ties)
    if data.kind is Kind.FLOAT:
        return steps.astype(_DTYPES[data.name])
    limit = (1 << data.bits - 1) - 1
    rounded = nearest_integers(steps * np.float32(1 / unit), ties)
    codes: Array = np.clip(rounded, -limit, limit).astype(np.int8 if data.bits <= 8 else np.int16)
    return codes


def _unsigned(
    values: Floats, spec: ScaleSpec, scaling: Scaling, tiles: tuple[int, ...], ties: Ties
) -> Scaled:
    zero = scaling.zero
    if zero is None:
        raise AssertionError(spec)
    if scaling.tensor is not None:
        raise FormatError(
            f"{spec}: a tensor scale beside zero points is not computed; leave it out"
        )
    limit = (1 << spec.data.bits) - 1
    if zero.kind is Kind.SIGNED and zero.bits <= spec.data.bits:
        raise FormatError(
            f"{spec}: a zero point of {spec.data} data reaches {limit}, which {zero} does not; "
            f"choose int{spec.data.bits + 1} or more, or a float"
        )
    low = _over_tiles(np.minimum(values, 0), tiles, np.minimum)
    high = _over_tiles(np.maximum(values, 0), tiles, np.maximum)
    kind = _DTYPES[scaling.scale.name]
    dtype = np.uint8 if spec.data.bits <= 8 else np.uint16
    if zero.kind is Kind.FLOAT:
        stored = low.astype(_DTYPES[zero.name])
        zeros: Array = stored
        low = stored.astype(np.float32)
    scales = ((high - low) / np.float32(limit)).astype(kind)
    scales[scales == 0] = 1
    numbers = scales.astype(np.float32)
    if zero.kind is Kind.SIGNED:
        places = np.clip(nearest_integers(-low / numbers, Ties.EVEN), 0, limit)
        zeros = places.astype(np.int8 if zero.bits <= 8 else np.int16)
        steps = values / spread(numbers, tiles, values.shape)
        codes = nearest_integers(steps, ties) + spread(places, tiles, values.shape)
    else:
        offsets = values - spread(low, tiles, values.shape)
        codes = nearest_integers(offsets / spread(numbers, tiles, values.shape), ties)
    return Scaled(np.clip(codes, 0, limit).astype(dtype), scales, spec, zeros)
