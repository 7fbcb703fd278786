"""What one of several devices has of a tensor: some of its rows, or some columns of each row."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.stored import Decoded, Raw
from mxc.compiler.checkpoints.canonical.tensor import StoredPart
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.compiler.packing.stacked import Stacked

#: What is divided.
Whole = TensorRecord | StoredPart | Stacked

#: The first of some rows, or columns, and how many.
Run = tuple[int, int]


@dataclass(frozen=True)
class DeviceShare:
    """Rows of `whole`, of `row_bytes` each, and of each the bytes `columns`: `shape` in elements.

    `rows` are runs of all rows, leading dimensions counted.
    """

    whole: Whole
    shape: tuple[int, ...]
    rows: tuple[Run, ...]
    row_bytes: int
    columns: Run

    @property
    def dtype(self) -> str:
        """The safetensors dtype of what is read."""
        return self.whole.dtype

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The tensors of files that are read."""
        return (self.whole,) if isinstance(self.whole, TensorRecord) else self.whole.records

    @cached_property
    def _begins(self) -> list[int]:
        """The number of rows before each run, and of all."""
        return [0, *np.cumsum([count for _, count in self.rows]).tolist()]

    def reader(self, raw: Raw) -> Decoded:
        """Reads of the bytes, made of reads of the files."""
        if isinstance(self.whole, TensorRecord):
            whole: Decoded = partial(raw, self.whole)
        else:
            whole = self.whole.reader(raw)
        start_of, width = self.columns

        def row_range(start: int, stop: int) -> NDArray[np.uint8]:
            found = []
            while start < stop:
                number = bisect_right(self._begins, start) - 1
                first = self.rows[number][0] + start - self._begins[number]
                count = min(stop, self._begins[number + 1]) - start
                data = whole(first * self.row_bytes, count * self.row_bytes)
                found.append(data.reshape(count, self.row_bytes)[:, start_of : start_of + width])
                start += count
            return np.concatenate(found or [np.empty((0, width), np.uint8)])

        def read(start: int, size: int) -> NDArray[np.uint8]:
            first, begin = divmod(start, width)
            rows = row_range(first, -(-(start + size) // width))
            return rows.reshape(-1)[begin : begin + size]

        return read
