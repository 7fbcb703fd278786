"""A part of a weight with every matrix transposed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mxc.compiler.checkpoints.canonical.codecs import Bytes
from mxc.compiler.checkpoints.canonical.stored import Decoded, Raw, RearrangedPart
from mxc.compiler.checkpoints.files.tensors import DTYPES


@dataclass(frozen=True, kw_only=True)
class Transposed(RearrangedPart):
    """A part [.., out, row] with the transposed matrices of `part` [.., row, out].

    `shape` is in elements of `dtype` (a key of DTYPES) after transposition; it has `rows` rows in
    total, and `outputs` in each matrix. `part` has a row for each entry of a row here. One matrix
    is held in memory at a time.
    """

    outputs: int

    def reader(self, raw: Raw) -> Decoded:
        """Return a function that reads transposed bytes; it keeps the last matrix."""
        matrix = self._matrices(raw)
        return self.flat(lambda start, count: self._rows(matrix, start, count))

    def rows_from(self, raw: Raw, start: int, count: int) -> Bytes:
        """Return rows [start, start + count), which `raw` reads from the files."""
        return self._rows(self._matrices(raw), start, count)

    def _rows(self, matrix: Callable[[int], Bytes], start: int, count: int) -> Bytes:
        found = np.empty((count, self.row_bytes), np.uint8)
        done = 0
        while done < count:
            index, row = divmod(start + done, self.outputs)
            step = min(count - done, self.outputs - row)
            found[done : done + step] = matrix(index)[row : row + step]
            done += step
        return found

    def _matrices(self, raw: Raw) -> Callable[[int], Bytes]:
        """Return a function from the number of a matrix to its rows, uint8 [outputs, row_bytes]."""
        kept: tuple[int, Bytes] | None = None
        entry = DTYPES[self.dtype].itemsize
        height = self.row_bytes // entry

        def matrix(index: int) -> Bytes:
            nonlocal kept
            if kept is None or kept[0] != index:
                stored = self.part.rows_from(raw, index * height, height).view(f"V{entry}")
                transposed = np.ascontiguousarray(stored.T)
                kept = index, transposed.view(np.uint8).reshape(self.outputs, self.row_bytes)
            return kept[1]

        return matrix
