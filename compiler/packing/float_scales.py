"""Weights with float scales in the form that kernels read: f32 scales per row, 4-bit codes.

scales bf16 [N / 128, K / 128]     ->   f32 [N, K / 128]: a square's scale for each of its rows;
                                        or f32 [N / 128, K / 128], for kernels that repeat it
scales f32 [N] or [1]              ->   f32 [N, 1], one factor per row
codes int8 [N, K], from -8 to 7    ->   two per byte [N, K / 2], the even code in the low nibble
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.stored import Decoded, Raw, WeightPart
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor
from mxc.compiler.checkpoints.files.tensors import TensorRecord

_F32_BYTES = 4


@dataclass(frozen=True)
class FloatRowScales:
    """The scales of a weight as f32 [rows, K / block], multiplied by the tensor scale.

    `block`: number of elements per scale along K, a divisor of the weight's own. `unit`: a power of
    two that all scales are multiplied by. `height`: consecutive rows of the weight that have one
    row here; a matrix has a multiple of them, or there is one.
    """

    tensor: CanonicalTensor
    block: int
    unit: float = 1.0
    height: int = 1

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """File tensors of the scales and the tensor scale; without any, of the elements."""
        tensor = self.tensor
        scales = () if tensor.scales is None else tensor.scales.records
        whole = () if tensor.tensor_scale is None else (tensor.tensor_scale.record,)
        return (*scales, *whole) or tensor.elements.records

    @property
    def row_bytes(self) -> int:
        """Size of a row of f32 scales in bytes."""
        return _F32_BYTES * (self.tensor.shape[-1] // self.block)

    @property
    def rows(self) -> int:
        """Number of rows of scales."""
        return -(-self.tensor.rows // self.height)

    def reader(self, raw: Raw) -> Decoded:
        """Return a function that reads bytes of the scales. `raw` does not read a tensor scale."""
        tensor = self.tensor
        stored = None if tensor.scales is None else tensor.scales.reader(raw)

        def read(start: int, size: int) -> NDArray[np.uint8]:
            first, last = start // self.row_bytes, -(-(start + size) // self.row_bytes)
            # The rows of the weight that have these, or where rows share them, the first of each.
            first, last = first * self.height, min(last * self.height, tensor.rows)
            found = None
            if stored is not None and tensor.scales is not None:
                row = tensor.scales.row_bytes
                begin, end = tensor.scale_rows(first, last - first)
                found = stored(begin * row, (end - begin) * row).reshape(end - begin, row)
            scales = tensor.factors(first, last - first, found) * np.float32(self.unit)
            wide = self._by_block(scales[:: self.height])
            begin = start - first // self.height * self.row_bytes
            return np.ascontiguousarray(wide).reshape(-1).view(np.uint8)[begin : begin + size]

        return read

    def _by_block(self, scales: NDArray[np.float32]) -> NDArray[np.float32]:
        """Repeat float32 [rows, blocks of the weight] to [rows, K / block]."""
        width = self.tensor.shape[-1]
        if scales.shape[-1] == width // self.block:
            return scales
        own = width if self.tensor.block is None else self.tensor.block[1]
        return np.repeat(scales, own // self.block, axis=1)[:, : width // self.block]


@dataclass(frozen=True)
class PackedNibbles:
    """4-bit integers that `part` has one per byte, packed two per byte: rows of K / 2 bytes."""

    part: WeightPart

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""
        return self.part.records

    @property
    def row_bytes(self) -> int:
        """Size of a packed row in bytes."""
        return self.part.row_bytes // 2

    @property
    def rows(self) -> int:
        """Number of rows of the matrix."""
        return self.part.rows

    def reader(self, raw: Raw) -> Decoded:
        """Return a function that reads the packed bytes by offset and size."""
        codes = self.part.reader(raw)

        def read(start: int, size: int) -> NDArray[np.uint8]:
            pairs = codes(2 * start, 2 * size).reshape(-1, 2)
            return pairs[:, 0] & np.uint8(15) | pairs[:, 1] << np.uint8(4)

        return read
