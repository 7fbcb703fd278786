"""The canonical tensor: the common form of weights from every checkpoint dialect.

It has the meaning of a weight (format, block, axis, recipe, tensor scale) and the location of its
bytes. Bytes are read on request only, a few rows at a time. Value of an element:

  scale of its block * element * tensor scale         (MULTIPLY)
  (scale of its block / tensor scale) * element       (DIVIDE)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.codecs import PLAIN, Bytes, Codec
from mxc.compiler.checkpoints.canonical.numbers import MatrixValues
from mxc.compiler.checkpoints.canonical.stored import (
    Concatenated,
    FileTensor,
    Interleaved,
    RegroupedRows,
    SelectedRows,
    count_rows,
)
from mxc.compiler.checkpoints.canonical.transposed import Transposed
from mxc.compiler.checkpoints.files.tensors import DTYPES, TensorRecord, read_bytes
from mxc.errors import CheckpointError
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.formats.packing import decode_elements, decode_scales

#: The recipe of a tensor whose files do not state one.
UNSTATED = "unstated"

#: Storage of elements or of scales in files.
StoredPart = (
    FileTensor
    | Interleaved
    | Concatenated
    | SelectedRows
    | RegroupedRows
    | Transposed
    | MatrixValues
)

#: Default number of bytes of elements that are read together.
CHUNK = 8 << 20


class Convention(StrEnum):
    """How a tensor scale applies to the scales of the blocks."""

    MULTIPLY = "multiply"
    DIVIDE = "divide"


@dataclass(frozen=True, kw_only=True)
class TensorScale:
    """A float factor in a file, of a whole tensor or of each of its leading slices (experts)."""

    record: TensorRecord
    convention: Convention = Convention.MULTIPLY

    def read(self) -> NDArray[np.float32]:
        """Return float32 [slices] as stored: see `convention`."""
        raw = read_bytes(self.record, 0, self.record.bytes)
        return raw.view(DTYPES[self.record.dtype]).astype(np.float32).reshape(-1)

    def factors(self) -> NDArray[np.float32]:
        """Return float32 [slices] to multiply by; for DIVIDE these are rounded reciprocals."""
        values = self.read()
        return values if self.convention is Convention.MULTIPLY else np.float32(1) / values

    def of_slice(self, index: int, count: int) -> TensorScale:
        """Return the factor of one of `count` leading slices."""
        if prod(self.record.shape) == 1:
            return self
        size = self.record.bytes // count
        at = self.record.offset + index * size
        return replace(self, record=replace(self.record, shape=(1,), offset=at, bytes=size))


@dataclass(frozen=True)
class TensorRows:
    """Rows of a tensor from `start` on: elements uint8 [n, bytes], scales uint8 [m, bytes]."""

    start: int
    elements: Bytes
    scales: Bytes | None


@dataclass(frozen=True, kw_only=True)
class CanonicalTensor:
    """A weight [.., out, in] (or a plain tensor of any rank), from any dialect.

    - `name`: that of transformers' parameter.
    - `format`: a name of FORMATS; "bf16", "f16", "f32" or another dtype of DTYPES in lower case; or
      "q8_0" or "int4", which are I8 elements with float scales.
    - `block`: (rows, elements of the last axis) that share a scale; None without.
    - `elements`, `scales`: for MX and nvfp4 U8 [.., out, in / b, bytes of a block] and U8 [.., out,
      in / b]; otherwise elements have the tensor's shape and scales that of the blocks.
    - `recipe`: name of a ScaleRecipe or UNSTATED.
    - `stated_in`: where recipe and format are declared, for messages.
    - `input_scale`: static scale of the activations that this weight is multiplied by.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    elements: StoredPart
    scales: StoredPart | None = None
    block: tuple[int, int] | None = None
    tensor_scale: TensorScale | None = None
    recipe: str = UNSTATED
    stated_in: str = ""
    input_scale: TensorScale | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the elements are the values: no scale multiplies them."""
        return self.scales is None and self.tensor_scale is None

    @property
    def block_format(self) -> BlockFormat | None:
        """The record of an MX or nvfp4 format; None for others."""
        return FORMATS.get(self.format)

    @property
    def dtype(self) -> str:
        """The safetensors dtype of the decoded elements: "U8" for MX and nvfp4."""
        return self.elements.dtype

    @property
    def rows(self) -> int:
        """Number of rows of the matrix, leading dimensions flattened; a vector is one row."""
        return count_rows(self.shape)

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that this tensor consists of."""
        parts = [p for p in (self.elements, self.scales) if p is not None]
        factors = [s.record for s in (self.tensor_scale, self.input_scale) if s is not None]
        return tuple(dict.fromkeys([*(r for p in parts for r in p.records), *factors]))

    @property
    def place(self) -> str:
        """File and tensor, for messages."""
        return f"{self.elements.record.file}: tensor {self.elements.record.name}"

    def renamed(self, name: str) -> CanonicalTensor:
        """Return the same weight under another name."""
        return replace(self, name=name)

    def pieces(self, chunk: int = CHUNK) -> Iterator[TensorRows]:
        """Yield all rows, about `chunk` bytes of elements at a time, with their scales."""
        row_bytes = self.elements.bytes // max(1, self.rows)
        step = max(1, chunk // max(1, row_bytes))
        height = 1 if self.block is None else self.block[0]
        step = max(height, step // height * height)
        for start in range(0, self.rows, step):
            yield self.piece(start, min(step, self.rows - start))

    def piece(self, start: int, count: int) -> TensorRows:
        """Return rows [start, start + count) and the rows of scales that they need."""
        scales = None
        if self.scales is not None and self.block is not None:
            first, last = self.scale_rows(start, count)
            scales = self.scales.read(first, last - first)
        # A vector whose entries are permuted has one stored row per entry.
        each = self.elements.rows // self.rows if self.rows else 1
        elements = self.elements.read(start * each, count * each)
        return TensorRows(start, elements.reshape(count, each * elements.shape[1]), scales)

    def scale_rows(self, start: int, count: int) -> tuple[int, int]:
        """Return the range [first, end) of rows of scales for rows [start, start + count)."""
        first = self._scale_row(start)
        return first, self._scale_row(start + count - 1) + 1 if count else first

    def factors(self, start: int, count: int, stored: Bytes | None) -> NDArray[np.float32]:
        """Return the factors of the elements in rows [start, start + count), by block.

        float32 [count, blocks]; [count, 1] without blocks. `stored` holds the rows of the scales in
        the range `scale_rows`.
        """
        scales = np.ones((count, 1), np.float32)
        if stored is not None:
            first, _ = self.scale_rows(start, count)
            rows = [self._scale_row(row) - first for row in range(start, start + count)]
            scales = self._scale_numbers(stored)[rows]
        if self.tensor_scale is None:
            return scales
        with np.errstate(over="ignore", invalid="ignore"):
            return self._factors(scales, self._tensor_scales(start, count))

    def values(self, start: int = 0, count: int | None = None) -> NDArray[np.float32]:
        """Return the values of rows [start, start + count): float32 [count, in], each product
        rounded once.

        Plain tensors are converted to float32.
        """
        count = self.rows - start if count is None else count
        return self.decode(self.piece(start, count))

    def decode(self, piece: TensorRows) -> NDArray[np.float32]:
        """Return the values of a piece: float32 [n, in]."""
        numbers = self._element_numbers(piece.elements)
        start, count = piece.start, len(numbers)
        whole = None if self.tensor_scale is None else self._tensor_scales(start, count)
        with np.errstate(over="ignore", invalid="ignore"):
            if piece.scales is None or self.scales is None or self.block is None:
                if whole is None:
                    return numbers
                return self._scaled(numbers, np.ones_like(whole), whole)
            scales = self._scale_numbers(piece.scales)
            if self.block[0] > 1:
                rows = range(piece.start, piece.start + len(numbers))
                scales = scales[[self._scale_row(r) - self._scale_row(rows[0]) for r in rows]]
            if self.block[0] == 1 and self.shape[-1] % self.block[1] == 0:
                blocks = numbers.reshape(*scales.shape, self.block[1])
                factors = scales[..., None]
                if whole is not None:
                    factors = self._factors(factors, whole[..., None])
                return (blocks * factors).reshape(numbers.shape)
            wide = np.repeat(scales, self.block[1], axis=1)[:, : self.shape[-1]]
            return self._scaled(numbers, wide, whole)

    def _scaled(
        self,
        numbers: NDArray[np.float32],
        scales: NDArray[np.float32],
        whole: NDArray[np.float32] | None,
    ) -> NDArray[np.float32]:
        return numbers * (scales if whole is None else self._factors(scales, whole))

    def _factors(
        self, scales: NDArray[np.float32], whole: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        scale = self.tensor_scale
        if scale is not None and scale.convention is Convention.DIVIDE:
            return scales / whole
        return scales * whole

    def _tensor_scales(self, start: int, count: int) -> NDArray[np.float32]:
        """Return float32 [count, 1]: the tensor scale of each of rows [start, start + count)."""
        if self.tensor_scale is None:
            raise AssertionError(f"{self.name} has no tensor scale")
        values = self.tensor_scale.read()
        each = max(1, self.rows // max(1, values.size))
        index = (start + np.arange(count)) // each
        return values[index][:, None]

    def _scale_row(self, row: int) -> int:
        """Return the row of scales for a row: tiles start anew in every leading slice."""
        height = 1 if self.block is None else self.block[0]
        if height == 1:
            return row
        out = self.shape[-2]
        lead, inside = divmod(row, out)
        return lead * -(-out // height) + inside // height

    def _element_numbers(self, raw: Bytes) -> NDArray[np.float32]:
        format = self.block_format
        if format is not None:
            return decode_elements(raw, format)
        return _numbers(raw, DTYPES[self.elements.dtype])

    def _scale_numbers(self, raw: Bytes) -> NDArray[np.float32]:
        format = self.block_format
        if format is not None:
            return decode_scales(raw, format)
        if self.scales is None:
            raise AssertionError(f"{self.name} has no scales")
        return _numbers(raw, DTYPES[self.scales.dtype])


def _numbers(raw: Bytes, dtype: np.dtype[Any]) -> NDArray[np.float32]:
    wide: NDArray[np.float32] = raw.view(dtype).astype(np.float32)
    return wide


def plain(record: TensorRecord, name: str | None = None) -> CanonicalTensor:
    """Return a tensor without scales, as stored in its file."""
    return CanonicalTensor(
        name=record.name if name is None else name,
        shape=record.shape,
        format=record.dtype.lower(),
        elements=FileTensor(
            record=record,
            shape=record.shape,
            dtype=record.dtype,
            rows=count_rows(record.shape),
        ),
        stated_in="the dtype of the tensor",
    )


def blocked(
    name: str,
    shape: tuple[int, ...],
    format: BlockFormat,
    elements: TensorRecord,
    scales: TensorRecord,
    *,
    element_codec: Codec = PLAIN,
    scale_codec: Codec = PLAIN,
    tensor_scale: TensorScale | None = None,
    recipe: str = UNSTATED,
    stated_in: str = "",
    input_scale: TensorScale | None = None,
) -> CanonicalTensor:
    """Return a weight [.., out, in] in blocks of `format` along its last axis.

    Raises CheckpointError if the files have another number of bytes, or a block is partial.
    """
    if shape[-1] % format.block:
        raise CheckpointError(
            f"{elements.file}: tensor {elements.name} has rows of {shape[-1]} elements, wanted a "
            f"multiple of the {format.block} of {format}; the file or its config is damaged"
        )
    rows, blocks = count_rows(shape), shape[-1] // format.block
    lead = shape[:-1]
    return CanonicalTensor(
        name=name,
        shape=shape,
        format=format.name,
        elements=FileTensor(
            record=elements,
            shape=(*lead, blocks, format.block_bytes),
            dtype="U8",
            rows=rows,
            codec=element_codec,
        ),
        scales=FileTensor(
            record=scales,
            shape=(*lead, blocks),
            dtype="U8",
            rows=rows,
            codec=scale_codec,
        ),
        block=(1, format.block),
        tensor_scale=tensor_scale,
        recipe=recipe,
        stated_in=stated_in,
        input_scale=input_scale,
    )
