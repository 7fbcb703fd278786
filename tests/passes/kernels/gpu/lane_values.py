"""Values of lane_interpreter.py: the bits of elements, a row for each lane; memory is bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from iree.compiler import ir
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tests.passes.kernels.gpu.lane_program import Value

Array = NDArray[Any]
#: Element type of a value, bits of an element, and number of elements.
Kind = tuple[str, int, int]

FLOATS = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
}
#: For each float type: the unsigned integer dtype of its size, and its own dtype.
_NUMBERS = {
    name: (np.dtype(f"u{np.dtype(kind).itemsize}"), np.dtype(kind)) for name, kind in FLOATS.items()
}
_INTEGERS = {bits: np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)}


@dataclass
class Memory:
    """The bytes of a memref and the view that it has of them.

    `bits`: those of an element. `start`: offset of the view in elements, one for all lanes or one
    for each. `bounded`: whether accesses outside are allowed, as to a buffer: loads give zero,
    stores do nothing. `base`, `size`: in LDS, first byte and number of bytes of a lane's workgroup.
    """

    data: Array
    bits: int
    strides: tuple[int, ...]
    start: Array
    bounded: bool = False
    base: Array | int = 0
    size: int | None = None

    def places(self, at: Sequence[Array], count: int) -> tuple[Array, Array]:
        """Return the offsets of the bytes of `count` elements, and whether each is in bounds."""
        first = sum((a * s for a, s in zip(at, self.strides, strict=True)), self.start)
        bytes_at = first[:, None] * self.bits // 8 + np.arange(count * self.bits // 8)
        size = self.data.size if self.size is None else self.size
        return bytes_at + self.base, (bytes_at >= 0) & (bytes_at < size)


def kind_of(value: Value) -> Kind:
    """Return element type, bits of an element, and number of elements of a value."""
    return value.kind


def kind_of_type(kind: ir.Type) -> Kind:
    """Return element type, bits of an element, and number of elements of a type."""
    count = 1
    if isinstance(kind, ir.VectorType):
        kind, count = kind.element_type, int(np.prod(kind.shape))
    return str(kind), 64 if isinstance(kind, ir.IndexType) else kind.width, count


def regroup(raw: Array, width: int, wanted: int) -> Array:
    """Bitcast [lanes, n] of `width` bits to [lanes, n * width / wanted] of `wanted` bits, the
    lowest bits first."""
    if width in _INTEGERS and wanted in _INTEGERS:
        own = raw.astype(_INTEGERS[width], order="C")
        return own.view(_INTEGERS[wanted]).astype(np.uint64)
    shifts = np.arange(width, dtype=np.uint64)
    bits = (raw[..., None] >> shifts) & np.uint64(1)
    powers = np.uint64(1) << np.arange(wanted, dtype=np.uint64)
    return (bits.reshape(raw.shape[0], -1, wanted) * powers).sum(axis=-1, dtype=np.uint64)


def floats(raw: Array, kind: str) -> Array:
    """Bitcast integers to the float type `kind`."""
    integers, numbers = _NUMBERS[kind]
    return raw.astype(integers).view(numbers)


def raw_of(numbers: Array) -> Array:
    return numbers.view(f"u{numbers.dtype.itemsize}").astype(np.uint64)


def with_sign(raw: Array, width: int) -> Array:
    """Sign-extend integers of `width` bits to i64."""
    return (raw << np.uint64(64 - width)).astype(np.int64) >> np.int64(64 - width)
