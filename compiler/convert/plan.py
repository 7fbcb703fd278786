"""What converting shares: the tensors that will be written, and where their bytes come from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from mxc.compiler.checkpoints.files.tensors import DTYPES, read_bytes
from mxc.dialects.errors import CheckpointError

Bytes = NDArray[np.uint8]

#: Bytes that are read, converted and written at a time.
CHUNK = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Written:
    """A tensor of the output: `dtype` and `shape` as the container has them, and its bytes.

    `data()` gives them in order, a piece at a time.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    data: Callable[[], Iterator[Bytes]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that will be written: tensors, the config, and what cannot be said there.

    `metadata` of the files of tensors; `files`: other JSON beside config.json, by name.
    """

    tensors: Sequence[Written]
    config: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, Any] = field(default_factory=dict)


def refuse(tensor: CanonicalTensor, dialect: str, why: str) -> CheckpointError:
    """The refusal of one tensor by name."""
    return CheckpointError(
        f"{tensor.place}: {tensor.name} is {tensor.format} {list(tensor.shape)}, which {dialect} "
        f"cannot hold without changing a value: {why}; choose another dialect with --to"
    )


def rows_of(part: StoredPart) -> Iterator[Bytes]:
    """The canonical bytes of a part."""
    read = part.reader(read_bytes)
    step = max(1, CHUNK // max(1, part.row_bytes)) * part.row_bytes
    for start in range(0, part.bytes, step or 1):
        yield read(start, min(step, part.bytes - start))


def part_of(part: StoredPart, name: str, dtype: str, shape: tuple[int, ...]) -> Written:
    """A part of a weight as a tensor of its own."""
    if prod(shape) * DTYPES[dtype].itemsize != part.bytes:
        raise AssertionError(f"{name}: {dtype} {list(shape)} is not {part.bytes} bytes")
    return Written(
        name=name, dtype=dtype, shape=shape, bytes=part.bytes, data=lambda: rows_of(part)
    )


def factors(
    scale: TensorScale, convention: Convention, tensor: CanonicalTensor, dialect: str
) -> NDArray[np.float32]:
    """The tensor scale in a convention. Raises CheckpointError where that would round it.

    Its reciprocal is a number of float32 only for powers of two.
    """
    values = scale.read()
    if scale.convention is convention:
        return values
    with np.errstate(divide="ignore"):
        other = (np.float32(1) / values).astype(np.float32)
    exact = np.isfinite(other) & (np.frexp(values)[0] == 0.5) & (np.abs(other) >= 2.0**-126)
    if not exact.all():
        raise refuse(
            tensor,
            dialect,
            f"it stores what {convention}s the scales, and the reciprocal of {values[0]!r} is no "
            "float32",
        )
    return other


def number(name: str, values: NDArray[np.float32], shape: tuple[int, ...]) -> Written:
    """Some float32 that were computed."""
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return Written(name=name, dtype="F32", shape=shape, bytes=raw.size, data=lambda: iter([raw]))
