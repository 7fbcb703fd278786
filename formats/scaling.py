"""Quantize numpy arrays to any scaling of scale_spec.py; scaled_tensor.py computes their values.

    scale e8m0, data float or intK    X by a recipe of recipes.py from the largest of a tile
    scale float, data float           scale = amax / max, data = value / scale
    scale float, data intK            scale = amax / (2^(K-1) - 1), the lowest code is not used
    scale float, data uintK, zero     scale = (high - low) / (2^K - 1), zero is in [low, high];
                                      zero float: low; zero intM: the code of 0.0
    and a tensor scale                as nvfp4.py: tiles' scales fill the range of their type
    no scaling, data float            data = value

All in float32. Scales and zero points are rounded to their types before values are divided by them.
A tile of zeros has the scale 1 (with e8m0 the byte 0; in types of 8 bits and with a tensor scale,
the smallest normal number). Values beyond the largest code saturate.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError
from mxc.formats.array_values import Floats
from mxc.formats.formats import E8M0, ElementFormat
from mxc.formats.nvfp4 import MIN_TENSOR_SCALE
from mxc.formats.recipes import ScaleRecipe, scale_bytes, scale_recipe
from mxc.formats.rounding import Ties, encode, nearest_integers, tie_rule
from mxc.formats.scale_spec import NumberKind, NumberType, ScaleSpec, Scaling, parse
from mxc.formats.scaled_tensor import Array, Scaled, numbers_of, repeat_scales, tile_sizes, unit_of

_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}

#: The largest numbers of 16-bit float data.
_LARGEST = {"float16": 65504.0, "bfloat16": 2.0**128 - 2.0**120}


def quantize_scaled(
    x: npt.ArrayLike,
    spec: ScaleSpec | str,
    *,
    recipe: ScaleRecipe | str = ScaleRecipe.FLOOR,
    ties: Ties | str = Ties.EVEN,
    scale: npt.ArrayLike | None = None,
) -> Scaled:
    """Quantize `x`, of any float type and shape with at least the axes of the tiles.

    `x` may also be a `Scaled` or `Quantized`, whose values are quantized: this casts from one scope
    or format to another. `recipe` applies to e8m0 scales, `ties` to data. `scale` gives static
    scales: numbers of the scale's type, of the shape of the scales or one that broadcasts to it.

    Raises FormatError for a spec that is not computed, axes that `x` lacks, NaN or Inf, and scales
    that are not positive numbers of their type.
    """
    spec = parse(spec) if isinstance(spec, str) else spec
    scaling = spec.scaling
    rule, chosen = tie_rule(ties), scale_recipe(recipe)
    values = np.asarray(x).astype(np.float32)
    if not np.isfinite(values).all():
        raise FormatError(f"{spec} wants finite values, found NaN or Inf; remove them")
    if scaling is None:
        if scale is not None:
            raise FormatError(
                f"{spec} has no scale, found static scales; {spec.data}:float32 has one"
            )
        return Scaled(_stored(values, spec.data, rule), None, spec)
    scaling.require_compiled()
    tiles = tile_sizes(scaling, values.shape)
    if spec.data.kind is NumberKind.UNSIGNED:
        if scale is not None:
            raise FormatError(f"{spec}: static scales for data with zero points are not computed")
        return _unsigned(values, spec, scaling, tiles, rule)
    amax = _over_tiles(np.abs(values), tiles, np.maximum)
    scales, whole = _scales(amax, spec, scaling, chosen)
    if scale is not None:
        scales = _static(np.asarray(scale), amax.shape, spec, scaling)
    # The order of operations of nvfp4.py: the reciprocal with a tensor scale, else the quotient.
    numbers = numbers_of(scales, scaling.scale)
    with np.errstate(over="ignore"):
        if whole is not None:
            steps: Array = values * repeat_scales(
                np.float32(1) / whole / numbers, tiles, values.shape
            )
        elif scaling.scale.kind is NumberKind.EXPONENT:
            steps = values * repeat_scales(_reciprocals(scales), tiles, values.shape)
        else:
            steps = values / repeat_scales(numbers, tiles, values.shape)
        codes = _codes(steps, spec, rule)
    return Scaled(codes, scales, spec, None, None if whole is None else float(whole))


def _over_tiles(values: Floats, tiles: tuple[int, ...], operation: np.ufunc) -> Floats:
    """Reduce each tile to one number with `operation`; all axes are kept."""
    for axis, size in enumerate(tiles):
        count = values.shape[axis]
        if size == count:
            values = operation.reduce(values, axis, keepdims=True, initial=0)
        elif size > 1:
            values = operation.reduceat(values, np.arange(0, count, size), axis)
    return np.ascontiguousarray(values)


def _largest(spec: ScaleSpec) -> float:
    data = spec.data
    if data.kind is NumberKind.FLOAT:
        return data.element.max if data.element is not None else _LARGEST[data.name]
    bits = data.bits - (data.kind is NumberKind.SIGNED)
    return ((1 << bits) - 1) * unit_of(spec)


def _scales(
    extent: Floats, spec: ScaleSpec, scaling: Scaling, recipe: ScaleRecipe
) -> tuple[Array, np.float32 | None]:
    """The scales of tiles, and the tensor scale if there is one, from the `extent` of each tile.

    The extent is the range that codes must cover: the largest magnitude, or for unsigned data the
    difference of the highest and the lowest value.
    """
    largest, number = np.float32(_largest(spec)), scaling.scale
    whole = None
    if scaling.tensor is not None:
        reach = number.element.max if number.element and number.kind is NumberKind.FLOAT else 1.0
        peak = np.float32(extent.max(initial=0))
        whole = max(peak / np.float32(reach * largest), np.float32(MIN_TENSOR_SCALE))
        if number.kind is NumberKind.EXPONENT:
            extent = extent / whole
    if number.kind is NumberKind.EXPONENT:
        return scale_bytes(extent, _element(spec), recipe), whole
    wanted = extent / largest if whole is None else extent / largest / whole
    if number.element is not None:
        wanted = np.maximum(wanted, np.float32(number.element.min_normal))
    scales = _stored(wanted, number, Ties.EVEN)
    scales[scales == 0] = 1
    return scales, whole


def _element(spec: ScaleSpec) -> ElementFormat:
    data = spec.data
    if data.element is not None:
        return data.element
    if data.kind is NumberKind.FLOAT:
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
    if number.kind is NumberKind.EXPONENT:
        bits = np.ascontiguousarray(wide).view(np.uint32)
        scales: Array = (bits >> 23).astype(np.uint8)
    elif number.element is not None:
        scales = encode(np.ascontiguousarray(wide), number.element)
    else:
        scales = wide.astype(_DTYPES[number.name])
    if not (np.array_equal(numbers_of(scales, number), wide) and (wide > 0).all()):
        raise FormatError(f"{spec}: scales must be positive numbers of {number}, found {given}")
    return scales


def _reciprocals(scales: Array) -> Floats:
    """1 / scale of E8M0 bytes, exact: 2^127 is a float32, and so is 2^-127."""
    found: Floats = np.ldexp(np.float32(1), E8M0.bias - scales.astype(np.int32))
    return found


def _stored(values: Floats, number: NumberType, ties: Ties) -> Array:
    """Floats as a `Scaled` stores them, saturating: codes up to 8 bits, else plain floats."""
    if number.element is not None:
        return encode(np.ascontiguousarray(values), number.element, ties)
    limit = np.float32(_LARGEST.get(number.name, np.inf))
    return np.clip(values, -limit, limit).astype(_DTYPES[number.name])


def _codes(steps: Floats, spec: ScaleSpec, ties: Ties) -> Array:
    data = spec.data
    if data.kind is NumberKind.FLOAT:
        return _stored(steps, data, ties)
    limit = (1 << data.bits - 1) - 1
    rounded = nearest_integers(steps * np.float32(1 / unit_of(spec)), ties)
    codes: Array = np.clip(rounded, -limit, limit).astype(np.int8 if data.bits <= 8 else np.int16)
    return codes


def _unsigned(
    values: Floats, spec: ScaleSpec, scaling: Scaling, tiles: tuple[int, ...], ties: Ties
) -> Scaled:
    zero = scaling.zero
    if zero is None:
        raise AssertionError(spec)
    limit = (1 << spec.data.bits) - 1
    if zero.kind is NumberKind.SIGNED and zero.bits <= spec.data.bits:
        raise FormatError(
            f"{spec}: a zero point of {spec.data} data reaches {limit}, which {zero} does not; "
            f"choose int{spec.data.bits + 1} or more, or a float"
        )
    low = _over_tiles(np.minimum(values, 0), tiles, np.minimum)
    high = _over_tiles(np.maximum(values, 0), tiles, np.maximum)
    if zero.kind is NumberKind.FLOAT:
        zeros = _stored(low, zero, Ties.EVEN)
        low = numbers_of(zeros, zero)
    scales, whole = _scales(high - low, spec, scaling, ScaleRecipe.FLOOR)
    numbers = numbers_of(scales, scaling.scale)
    if whole is not None:
        numbers = whole * numbers
    steps = repeat_scales(numbers, tiles, values.shape)
    if zero.kind is NumberKind.SIGNED:
        places = np.clip(nearest_integers(-low / numbers, Ties.EVEN), 0, limit)
        zeros = places.astype(np.int8 if zero.bits <= 8 else np.int16)
        codes = nearest_integers(values / steps, ties) + repeat_scales(places, tiles, values.shape)
    else:
        codes = nearest_integers((values - repeat_scales(low, tiles, values.shape)) / steps, ties)
    dtype = np.uint8 if spec.data.bits <= 8 else np.uint16
    codes = np.clip(codes, 0, limit).astype(dtype)
    return Scaled(codes, scales, spec, zeros, None if whole is None else float(whole))
