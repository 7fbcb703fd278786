"""The share of one of several devices in a tensor: some rows, or some columns of each row."""

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

#: Tensors that can be divided between devices.
Whole = TensorRecord | StoredPart | Stacked

#: (first row or column, count).
Run = tuple[int, int]


@dataclass(frozen=True)
class DeviceShare:
    """Some rows of `whole`, of `row_bytes` each, and the bytes `columns` of each of them.

    `shape` is that of the share in elements. `rows` are runs of row numbers, with leading
    dimensions flattened.
    """

    whole: Whole
    shape: tuple[int, ...]
    rows: tuple[Run, ...]
    row_bytes: int
    columns: Run

    @property
    def dtype(self) -> str:
        """The safetensors dtype of the source."""
        return self.whole.dtype

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""
        return (self.whole,) if isinstance(self.whole, TensorRecord) else self.whole.records

    @cached_property
    def _begins(self) -> list[int]:
        """The number of rows before each run, and the total."""
        return [0, *np.cumsum([count for _, count in self.rows]).tolist()]

    def reader(self, raw: Raw) -> Decoded:
        """Return a function that reads bytes of the share by offset and size."""
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
