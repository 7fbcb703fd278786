"""One part of a weight, elements or scales, as it lies in files, and its rows as they are meant."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.codecs import PLAIN, Bytes, Codec
from mxc.compiler.checkpoints.files.tensors import DTYPES, TensorRecord, read_bytes
from mxc.dialects.errors import CheckpointError

#: Reads of a tensor of a file: the tensor, offset and size in its bytes.
Raw = Callable[[TensorRecord, int, int], NDArray[np.uint8]]

#: Reads of what is decoded: offset and size.
Decoded = Callable[[int, int], NDArray[np.uint8]]


def count_rows(shape: tuple[int, ...]) -> int:
    """Rows of a tensor, all leading dimensions counted; a vector is one row, nothing is none.

    Of a tensor without elements there is no row, whatever the other dimensions claim.
    """
    return 0 if 0 in shape else math.prod(shape[:-1])


class Rows(Protocol):
    """What has a name and rows."""

    @property
    def name(self) -> str:
        """The tensors in the file."""

    @property
    def rows(self) -> int:
        """The number of rows."""


def check_rows(part: Rows, start: int, count: int) -> None:
    """Raise IndexError where rows [start, start + count) are not all there."""
    if start < 0 or count < 0 or start + count > part.rows:
        raise IndexError(f"{part.name}: rows {start}+{count} of {part.rows}")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """One part of a weight, elements or scales: what it is once decoded, and where it lies.

    `shape` is in elements of `dtype` (a key of DTYPES) after decoding; `rows` of them are decoded
    one by one. `order`, if given, is applied to each len(order) rows after `codec`: row i is
    stored row order[i]. Raises CheckpointError where the record has another size.
    """

    record: TensorRecord
    shape: tuple[int, ...]
    dtype: str
    rows: int
    codec: Codec = PLAIN
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check that the stored bytes are as many as the shape asks for."""
        wanted = self._groups(self.rows) * self.codec.stored_bytes(self.row_bytes)
        if wanted != self.record.bytes or (self.order and self.rows % len(self.order)):
            raise CheckpointError(
                f"{self.record.file}: tensor {self.record.name} is {self.record.describe()}, "
                f"{self.record.bytes} bytes; wanted {wanted} for {self.dtype} "
                f"{list(self.shape)} stored as {self.codec.name}; fetch the files again, or the "
                "config that belongs to them"
            )

    @property
    def name(self) -> str:
        """The tensor in the file."""
        return self.record.name

    @property
    def bytes(self) -> int:
        """Size after decoding."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """Size of one row after decoding."""
        return self.bytes // self.rows if self.rows else 0

    @property
    def direct(self) -> bool:
        """Whether the bytes of the file are those of the canonical tensor, in this order."""
        return self.codec is PLAIN and not self.order

    def read(self, start: int = 0, count: int | None = None) -> Bytes:
        """Rows [start, start + count), uint8 [count, row_bytes].

        Raises CheckpointError where the file was cut, IndexError for rows outside.
        """
        count = self.rows - start if count is None else count
        check_rows(self, start, count)
        return self.rows_from(read_bytes, start, count)

    def reader(self, raw: Raw) -> Decoded:
        """Reads of the decoded bytes, made of reads of the file."""
        if self.direct:
            return lambda start, size: raw(self.record, start, size)
        return _reader(self, raw)

    def _groups(self, rows: int) -> int:
        return -(-rows // self.codec.group)

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Rows [start, start + count) of what `raw` reads."""
        row_bytes = self.row_bytes
        if not count or not row_bytes:
            return np.empty((count, row_bytes), np.uint8)
        unit = math.lcm(self.codec.group, len(self.order) or 1)
        first = start // unit * unit
        last = min(-(-(start + count) // unit) * unit, self.rows)
        group_bytes = self.codec.stored_bytes(row_bytes)
        groups = self._groups(last - first)
        data = raw(self.record, first // self.codec.group * group_bytes, groups * group_bytes)
        try:
            rows = self.codec.decode(data.reshape(groups, group_bytes), row_bytes)
        except ValueError as error:
            raise CheckpointError(
                f"{self.record.file}: tensor {self.record.name}, rows from {first} on: {error}; "
                "fetch the file again"
            ) from error
        rows = rows[: last - first]
        if self.order:
            rows = rows.reshape(-1, len(self.order), row_bytes)[:, list(self.order)]
            rows = rows.reshape(-1, row_bytes)
        return np.ascontiguousarray(rows[start - first : start - first + count])


@dataclass(frozen=True, kw_only=True)
class Woven:
    """A part whose rows lie in turn in several tensors: row r in part r % n, its row r // n.

    `shape` is that of the whole; all parts have the same number of rows of the same size.
    """

    parts: tuple[Stored, ...]
    shape: tuple[int, ...]

    @property
    def record(self) -> TensorRecord:
        """The first tensor in the file."""
        return self.parts[0].record

    @property
    def name(self) -> str:
        """The tensors in the file."""
        return " and ".join(part.name for part in self.parts)

    @property
    def dtype(self) -> str:
        """A key of DTYPES."""
        return self.parts[0].dtype

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(part.rows for part in self.parts)

    @property
    def row_bytes(self) -> int:
        """Size of one row after decoding."""
        return self.parts[0].row_bytes

    @property
    def bytes(self) -> int:
        """Size after decoding."""
        return sum(part.bytes for part in self.parts)

    @property
    def direct(self) -> bool:
        """No file holds the rows in this order."""
        return False

    def read(self, start: int = 0, count: int | None = None) -> Bytes:
        """Rows [start, start + count), uint8 [count, row_bytes]; raises as Stored.read."""
        count = self.rows - start if count is None else count
        check_rows(self, start, count)
        return self.rows_from(read_bytes, start, count)

    def reader(self, raw: Raw) -> Decoded:
        """Reads of the decoded bytes, made of reads of the files."""
        return _reader(self, raw)

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Rows [start, start + count) of what `raw` reads."""
        rows = np.empty((count, self.row_bytes), np.uint8)
        step = len(self.parts)
        for index, part in enumerate(self.parts):
            first = -(-(start - index) // step)
            last = -(-(start + count - index) // step)
            begin = first * step + index - start
            rows[begin::step] = part.rows_from(raw, first, last - first)
        return rows


def _reader(part: Stored | Woven, raw: Raw) -> Decoded:
    def read(start: int, size: int) -> NDArray[np.uint8]:
        first, last = start // part.row_bytes, -(-(start + size) // part.row_bytes)
        flat = part.rows_from(raw, first, last - first).reshape(-1)
        begin = start - first * part.row_bytes
        return flat[begin : begin + size]

    return read
