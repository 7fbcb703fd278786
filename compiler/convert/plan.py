"""The plan of a conversion: the tensors to write, and readers of their bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import (
    CanonicalTensor,
    Convention,
    StoredPart,
    TensorScale,
)
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.errors import CheckpointError
from mxc.formats.formats import E4M3
from mxc.formats.packing import decode_scales

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ConvertedTensor:
    """A tensor of the output: `dtype` and `shape` as in the container, and a reader.

    It has `rows` of equal size, and `read(start, count)` returns the bytes of some of them.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    rows: int
    read: Callable[[int, int], Bytes]


@dataclass(frozen=True, kw_only=True)
class ConversionPlan:
    """Everything to write: tensors, config, and notes on what the output cannot express.

    `metadata` is that of the tensor files; `files` are other JSON files beside config.json, by
    name.
    """

    tensors: Sequence[ConvertedTensor]
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)


def refuse(tensor: CanonicalTensor, dialect: str, why: str) -> CheckpointError:
    """Return the error for a tensor that the dialect cannot hold exactly."""
    return CheckpointError(
        f"{tensor.place}: {tensor.name} is {tensor.format} {list(tensor.shape)}, which {dialect} "
        f"cannot hold without changing a value: {why}; choose another dialect with --to"
    )


def part_of(part: StoredPart, name: str, dtype: str, shape: tuple[int, ...]) -> ConvertedTensor:
    """Return a part of a weight as a tensor of its own."""
    if prod(shape) * DTYPES[dtype].itemsize != part.bytes:
        raise AssertionError(f"{name}: {dtype} {list(shape)} is not {part.bytes} bytes")
    return ConvertedTensor(
        name=name, dtype=dtype, shape=shape, bytes=part.bytes, rows=part.rows, read=part.read
    )


def factors(
    scale: TensorScale, convention: Convention, tensor: CanonicalTensor, dialect: str
) -> NDArray[np.float32]:
    """Return the tensor scale in a convention. Raises CheckpointError if that changes a value.

    A reciprocal is exact if every block scale, multiplied by one number or divided by the other,
    gives the same float32. This holds for powers of two, and for other numbers if a neighbour of
    the rounded reciprocal achieves it.
    """
    values = scale.read()
    if scale.convention is convention:
        return values
    # All finite positive E4M3 values; the sign makes no difference.
    codes = decode_scales(np.arange(1, E4M3.nan_codes[0], dtype=np.uint8), "nvfp4")
    found = np.empty_like(values)
    for index, value in enumerate(values):
        found[index], error = _inverse(value, codes, scale.convention)
        if error:
            raise refuse(
                tensor,
                dialect,
                f"it stores what {convention}s the scales; with the reciprocal of {value!r}, which "
                f"is no float32, values change by up to {error:.1e} of themselves",
            )
    return found


def _inverse(
    value: np.float32, codes: NDArray[np.float32], convention: Convention
) -> tuple[np.float32, float]:
    """Return the equivalent of `value` in the other convention, and the largest relative error."""
    with np.errstate(all="ignore"):
        nearest = np.float32(1) / value
        best = nearest, np.inf
        if not (np.isfinite(nearest) and nearest and np.isfinite(value)):
            return best
        down, up = (np.nextafter(nearest, np.float32(end)) for end in (-np.inf, np.inf))
        for other in (nearest, down, up):
            if convention is Convention.MULTIPLY:
                wanted, made = codes * value, codes / other
            else:
                wanted, made = codes / value, codes * other
            if np.array_equal(wanted, made):
                return other, 0.0
            error = float(np.nanmax(np.abs(made.astype(np.float64) / wanted - 1)))
            best = min(best, (other, error), key=lambda pair: pair[1])
    return best


def number(name: str, values: NDArray[np.float32], shape: tuple[int, ...]) -> ConvertedTensor:
    """Return computed float32 values as a tensor to write."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return ConvertedTensor(
        name=name,
        dtype="F32",
        shape=shape,
        bytes=raw.size,
        rows=1,
        read=lambda start, count: raw[: count * raw.size],
    )
