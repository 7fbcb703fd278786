"""Parts of a weight (its elements or its scales), and how their canonical rows are read.

FileTensor        one tensor of a file, decoded row by row
Interleaved   the rows of several parts alternately
Concatenated  the rows of several parts one after the other
SelectedRows      some rows of a part
RegroupedRows       the bytes of a part, divided into other rows
Transposed    the columns of a part (transposed.py)
Numbers       the values of a weight in blocks (numbers.py)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.codecs import PLAIN, Bytes, Codec
from mxc.compiler.checkpoints.files.tensors import DTYPES, TensorRecord, read_bytes
from mxc.errors import CheckpointError

#: Function that reads a tensor of a file, given the tensor, offset and size in its bytes.
Raw = Callable[[TensorRecord, int, int], NDArray[np.uint8]]

#: Function that reads decoded bytes, given offset and size.
Decoded = Callable[[int, int], NDArray[np.uint8]]


def count_rows(shape: tuple[int, ...]) -> int:
    """Return the number of rows, leading dimensions flattened; a vector has one row.

    A tensor without elements has no rows, whatever its other dimensions are.
    """
    return 0 if 0 in shape else math.prod(shape[:-1])


@dataclass(frozen=True, kw_only=True)
class WeightPart(ABC):
    """Base of all parts of a weight: `shape` in elements of the decoded `dtype`, and `rows`."""

    shape: tuple[int, ...]
    dtype: str
    rows: int

    @property
    @abstractmethod
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""

    @abstractmethod
    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count), which `raw` reads from the files."""

    @property
    def name(self) -> str:
        """Names of the file tensors."""
        return " and ".join(record.name for record in self.records)

    @property
    def bytes(self) -> int:
        """Size in bytes after decoding."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes after decoding."""
        return self.bytes // self.rows if self.rows else 0

    @property
    def direct(self) -> bool:
        """Whether the bytes of a file are those of the canonical tensor, in the same order."""
        return False

    def read(self, start: int = 0, count: int | None = None) -> Bytes:
        """Return rows [start, start + count), uint8 [count, row_bytes].

        Raises CheckpointError if the file was truncated, IndexError for rows outside the part.
        """
        count = self.rows - start if count is None else count
        if start < 0 or count < 0 or start + count > self.rows:
            raise IndexError(f"{self.name}: rows {start}+{count} of {self.rows}")
        return self.rows_from(read_bytes, start, count)

    def reader(self, raw: Raw) -> Decoded:
        """Return a function that reads decoded bytes; `raw` reads the files."""
        return self.flat(lambda start, count: self.rows_from(raw, start, count))

    def flat(self, rows: Callable[[int, int], Bytes]) -> Decoded:
        """Return a function that reads bytes by offset and size from one that reads rows."""

        def read(start: int, size: int) -> NDArray[np.uint8]:
            first, last = start // self.row_bytes, -(-(start + size) // self.row_bytes)
            begin = start - first * self.row_bytes
            return rows(first, last - first).reshape(-1)[begin : begin + size]

        return read


@dataclass(frozen=True, kw_only=True)
class FileTensor(WeightPart):
    """One tensor of a file: its decoded shape, and the codec that decodes it.

    `shape` is in elements of `dtype` (a key of DTYPES) after decoding into `rows` rows. `order`, if
    given, permutes each len(order) rows after `codec`: row i is stored row order[i]. Raises
    CheckpointError if the record has another size.
    """

    record: TensorRecord
    codec: Codec = PLAIN
    order: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Check that the record has as many bytes as the shape needs."""
        wanted = self._groups(self.rows) * self.codec.stored_bytes(self.row_bytes)
        if wanted != self.record.bytes or (self.order and self.rows % len(self.order)):
            raise CheckpointError(
                f"{self.record.file}: tensor {self.record.name} is {self.record.describe()}, "
                f"{self.record.bytes} bytes; wanted {wanted} for {self.dtype} "
                f"{list(self.shape)} stored as {self.codec.name}; fetch the files again, or the "
                "config that belongs to them"
            )

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensor that is read."""
        return (self.record,)

    @property
    def direct(self) -> bool:
        """Whether the bytes of the file are those of the canonical tensor, in the same order."""
        return self.codec == PLAIN and not self.order

    def reader(self, raw: Raw) -> Decoded:
        """Return a function that reads decoded bytes; `raw` reads the file."""
        if self.direct:
            return lambda start, size: raw(self.record, start, size)
        return super().reader(raw)

    def _groups(self, rows: int) -> int:
        return -(-rows // self.codec.group)

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count), which `raw` reads from the file."""
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


class DerivedPart(WeightPart):
    """A part that is composed of others."""

    @property
    def record(self) -> TensorRecord:
        """The first file tensor."""
        return self.records[0]


@dataclass(frozen=True, kw_only=True)
class CompositePart(DerivedPart):
    """A part that is composed of several."""

    parts: tuple[WeightPart, ...]

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""
        return tuple(record for part in self.parts for record in part.records)


@dataclass(frozen=True, kw_only=True)
class Interleaved(CompositePart):
    """The rows of several parts alternately: row r is row r // n of part r % n.

    All parts have the same number of rows of the same size.
    """

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count), which `raw` reads from the files."""
        rows = np.empty((count, self.row_bytes), np.uint8)
        step = len(self.parts)
        for index, part in enumerate(self.parts):
            first = -(-(start - index) // step)
            last = -(-(start + count - index) // step)
            begin = first * step + index - start
            rows[begin::step] = part.rows_from(raw, first, last - first)
        return rows


@dataclass(frozen=True, kw_only=True)
class Concatenated(CompositePart):
    """The rows of several parts, one part after the other."""

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count), which `raw` reads from the files."""
        found, begin = [np.empty((0, self.row_bytes), np.uint8)], 0
        for part in self.parts:
            first, last = max(start - begin, 0), min(start + count - begin, part.rows)
            if first < last:
                found.append(part.rows_from(raw, first, last - first))
            begin += part.rows
        return np.concatenate(found)


@dataclass(frozen=True, kw_only=True)
class RearrangedPart(DerivedPart):
    """A part that has bytes of another one, `part`, in other places."""

    part: WeightPart

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""
        return self.part.records


@dataclass(frozen=True, kw_only=True)
class SelectedRows(RearrangedPart):
    """Every `step`-th row of a part from row `first` on."""

    first: int
    step: int

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count), which `raw` reads from the files."""
        if not count:
            return np.empty((0, self.row_bytes), np.uint8)
        whole = self.part.rows_from(
            raw, self.first + start * self.step, (count - 1) * self.step + 1
        )
        return np.ascontiguousarray(whole[:: self.step])


@dataclass(frozen=True, kw_only=True)
class RegroupedRows(RearrangedPart):
    """The bytes of a part, divided into other rows: for instance each entry of a vector."""

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count), which `raw` reads from the files."""
        found = self.part.reader(raw)(start * self.row_bytes, count * self.row_bytes)
        return found.reshape(count, self.row_bytes)
