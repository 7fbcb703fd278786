"""Several tensors stacked along rows as one tensor of the archive: the experts of a layer.

gate 0 [I, K], up 0 [I, K], gate 1 [I, K], ..    ->    [E, 2 I, K]
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical import stored
from mxc.compiler.checkpoints.canonical.stored import Raw
from mxc.compiler.checkpoints.files.tensors import TensorRecord


class RowSource(Protocol):
    """A source of rows: a part of a canonical tensor, or something computed from one."""

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""

    @property
    def row_bytes(self) -> int:
        """Size of a row in bytes."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    def reader(self, raw: Raw) -> stored.Decoded:
        """Return a function that reads bytes of the part; `raw` reads the files."""


@dataclass(frozen=True)
class Stacked:
    """Parts stacked along rows. `shape` is in elements of `dtype`, a safetensors name."""

    parts: tuple[RowSource, ...]
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        """Raise ValueError if rows of the parts differ in size; vectors are not checked."""
        if len(self.shape) > 1 and len({part.row_bytes for part in self.parts}) != 1:
            raise ValueError(f"{self.records[0].name}: rows of different sizes")

    @property
    def records(self) -> tuple[TensorRecord, ...]:
        """The file tensors that are read."""
        return tuple(record for part in self.parts for record in part.records)

    @cached_property
    def _begins(self) -> list[int]:
        """Offset of each part in bytes, and the total."""
        sizes = [part.row_bytes * part.rows for part in self.parts]
        return [0, *np.cumsum(sizes, dtype=np.int64).tolist()]

    def reader(self, raw: Raw) -> stored.Decoded:
        """Return a function that reads bytes of the whole; `raw` reads the files."""
        readers = [part.reader(raw) for part in self.parts]
        begins = self._begins

        def read(start: int, size: int) -> NDArray[np.uint8]:
            found, stop = [], start + size
            while start < stop:
                number = bisect_right(begins, start) - 1
                count = min(stop, begins[number + 1]) - start
                found.append(readers[number](start - begins[number], count))
                start += count
            return found[0] if len(found) == 1 else np.concatenate(found or [np.empty(0, np.uint8)])

        return read
