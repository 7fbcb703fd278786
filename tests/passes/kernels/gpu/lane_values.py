"""What values are for lane_interpreter.py: rows of bits, one a lane, and memory in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

Array = NDArray[Any]

FLOATS = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}


@dataclass
class Memory:
    """Bytes, and what a memref sees of them: `start` in elements, one for all lanes or each."""

    data: Array
    bits: int
    strides: tuple[int, ...]
    start: Array
    bounded: bool = False

    def places(self, at: Sequence[Array], count: int) -> tuple[Array, Array]:
        """Offsets of the bytes of `count` elements, and whether each is inside."""
        first = sum((a * s for a, s in zip(at, self.strides, strict=True)), self.start)
        bytes_at = first[:, None] * self.bits // 8 + np.arange(count * self.bits // 8)
        return bytes_at, (bytes_at >= 0) & (bytes_at < self.data.size)


def kind_of(value: ir.Value) -> tuple[ir.Type, int, int]:
    """Element type, its bits, and elements of a value."""
    kind, count = value.type, 1
    if isinstance(kind, ir.VectorType):
        kind, count = kind.element_type, int(np.prod(kind.shape))
    return kind, 64 if isinstance(kind, ir.IndexType) else kind.width, count


def as_bits(raw: Array, width: int) -> Array:
    """[lanes, n] of so many bits -> [lanes, n * width] of 0 and 1, the lowest first."""
    shifts = np.arange(width, dtype=np.uint64)
    return ((raw[..., None] >> shifts) & np.uint64(1)).reshape(raw.shape[0], -1)


def from_bits(bits: Array, width: int) -> Array:
    powers = np.uint64(1) << np.arange(width, dtype=np.uint64)
    return (bits.reshape(bits.shape[0], -1, width) * powers).sum(axis=-1, dtype=np.uint64)


def floats(raw: Array, kind: ir.Type) -> Array:
    """Bits of a float type as numbers of it."""
    found = np.dtype(FLOATS[str(kind)])
    return raw.astype(f"u{found.itemsize}").view(found)


def raw_of(numbers: Array) -> Array:
    return numbers.view(f"u{numbers.dtype.itemsize}").astype(np.uint64)
