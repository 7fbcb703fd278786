"""A piece of an output: some rows of one tensor, computed anywhere and written in place.

Files have their final size before the first piece is computed, and every piece writes bytes of its
own. So pieces may be computed in any order, by any process that sees the files, and again.
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

#: Bytes of a tensor that one piece is made of: a few seconds of work at most.
PIECE = 64 << 20

#: Bytes that are read, computed and written together.
CHUNK = 8 << 20


@dataclass(frozen=True)
class Piece:
    """Entries [start, start + count) of tensor number `tensor`, of `size` bytes.

    `kind` says what is done with them and `given` what earlier pieces found; both are for the Work
    that made the piece.
    """

    kind: str
    tensor: int
    start: int
    count: int
    size: int = 0
    given: float | None = None


class Work(Protocol):
    """Something that computes pieces. Threads share it."""

    def compute(self, piece: Piece, output: Output) -> Any:
        """Write the bytes of a piece. Returns what JSON holds: what is known of it."""


class Job(Protocol):
    """What makes a Work in another process. Pickled; small."""

    def open(self) -> Work:
        """The same Work in every process: it depends on fields and input files alone."""


class Output:
    """Writes of one piece to files in `folder`; a context.

    `spans` are (file, offset, bytes) in the order of the writes, `crc` is of all their bytes.
    """

    def __init__(self, folder: Path) -> None:
        """Nothing is open yet."""
        self._folder = folder
        self._handles: dict[str, int] = {}
        self.spans: list[tuple[str, int, int]] = []
        self.crc = 0

    def __enter__(self) -> Self:
        """The output itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files. What the disk loses after all, the CRC finds (journal.py)."""
        for name, handle in self._handles.items():
            self._checked(name, os.close, handle)

    def put(self, name: str, offset: int, data: NDArray[np.uint8]) -> None:
        """Write bytes to a file. Raises ArtifactError where the disk is full or refuses them."""
        view = np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        if name not in self._handles:
            flags = os.O_WRONLY | os.O_CLOEXEC
            self._handles[name] = self._checked(name, os.open, self._folder / name, flags)
        self.spans.append((name, offset, len(view)))
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


def ranges(total: int, unit: int, unit_bytes: int, limit: int = 0) -> Iterator[tuple[int, int]]:
    """(start, count) of `total` entries, in whole units of entries of about `limit` bytes.

    PIECE by default. Of nothing there is one range, which is empty.
    """
    step = max(1, (limit or PIECE) // max(1, unit_bytes)) * unit
    for start in range(0, max(1, total), step):
        yield start, min(step, total - start)


def chunks(piece: Piece, entry: int, *, whole: bool = False) -> Iterator[tuple[int, int]]:
    """(start, count) of the entries of a piece, of `entry` bytes each, that are read together.

    Those of about CHUNK bytes; all with `whole`.
    """
    step = max(1, piece.count) if whole else max(1, CHUNK // max(1, entry))
    for start in range(piece.start, piece.start + piece.count, step):
        yield start, min(step, piece.start + piece.count - start)
