"""A piece of an output: some rows of one tensor, computed by any process and written in place.

Files have their final size before the first piece is computed, and no two pieces write the same
bytes. So pieces may be computed in any order, by any process with access to the files, and
repeatedly.
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from mxc.errors import ArtifactError

#: Bytes of the source tensor per piece: a few seconds of work at most.
PIECE = 64 << 20

#: Number of bytes that are read, computed and written at a time.
CHUNK = 8 << 20


@dataclass(frozen=True)
class Piece:
    """Entries [start, start + count) of tensor number `tensor`; a piece may have a `size` in bytes.

    `kind` selects the operation, and `given` is a result of earlier pieces. Both are interpreted by
    the Work that made the piece.
    """

    kind: str
    tensor: int
    start: int
    count: int
    size: int = 0
    given: float | None = None


class PieceWork(Protocol):
    """Computes pieces. Called from several threads."""

    def compute(self, piece: Piece, output: PieceOutput) -> Any:
        """Write the bytes of a piece and return its result, which must fit in JSON."""


class PieceJob(Protocol):
    """Makes a Work in another process. It is pickled and should be small."""

    def open(self) -> PieceWork:
        """Return an equal Work in every process: it depends only on fields and input files."""


class PieceOutput:
    """Writes the bytes of one piece to files in `folder`; a context manager.

    `ranges` are (file, offset, bytes) in the order of the writes; `crc` is the CRC-32 of all of
    them.
    """

    def __init__(self, folder: Path) -> None:
        """Start without open files."""
        self._folder = folder
        self._handles: dict[str, int] = {}
        self.ranges: list[tuple[str, int, int]] = []
        self.crc = 0

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files. Bytes that the disk loses later are found by their CRC (journal.py)."""
        for name, handle in self._handles.items():
            self._checked(name, os.close, handle)

    def put(self, name: str, offset: int, data: NDArray[np.uint8]) -> None:
        """Write bytes to a file. Raises ArtifactError if the disk is full or the write fails."""
        view = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        if name not in self._handles:
            flags = os.O_WRONLY | os.O_CLOEXEC
            self._handles[name] = self._checked(name, os.open, self._folder / name, flags)
        self.ranges.append((name, offset, len(view)))
        self.crc = zlib.crc32(view, self.crc)
        while len(view):
            count = self._checked(name, os.pwrite, self._handles[name], view, offset)
            view, offset = view[count:], offset + count

    def _checked(self, name: str, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except OSError as error:
            place = self._folder / name
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise ArtifactError(
                    f"{place}: disk full; free some space or choose another output"
                ) from error
            raise ArtifactError(
                f"{place}: cannot be written ({error.strerror}); all workers need this folder, of "
                "a cluster through a shared file system"
            ) from error


def ranges(total: int, entry: int, limit: int = 0) -> Iterator[tuple[int, int]]:
    """Yield (start, count) that cover `total` entries of `entry` bytes, about `limit` bytes each.

    `limit` is PIECE by default. For no entries there is one empty range.
    """
    step = max(1, (limit or PIECE) // max(1, entry))
    for start in range(0, max(1, total), step):
        yield start, min(step, total - start)


def chunks(piece: Piece, entry: int, *, whole: bool = False) -> Iterator[tuple[int, int]]:
    """Yield (start, count) of entries of a piece that are read together, of `entry` bytes each.

    They have about CHUNK bytes together; with `whole` there is one range.
    """
    step = max(1, piece.count) if whole else max(1, CHUNK // max(1, entry))
    for start in range(piece.start, piece.start + piece.count, step):
        yield start, min(step, piece.start + piece.count - start)
