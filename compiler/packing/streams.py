"""Reading files front to back while their SHA-256 is computed beside, in bounded memory."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import Executor, Future
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import FileRecord
from mxc.compiler.checkpoints.files.tensors import read_exactly
from mxc.errors import CheckpointError


class Digest:
    """SHA-256 of a stream, computed on a thread of `pool`, at most one chunk behind."""

    def __init__(self, pool: Executor) -> None:
        """Hash on `pool`, which the caller shuts down."""
        self._hash = hashlib.sha256()
        self._pool = pool
        self._pending: Future[None] | None = None

    def update(self, data: NDArray[np.uint8]) -> None:
        """Append `data`, which must not change afterwards."""
        self._wait()
        self._pending = self._pool.submit(self._hash.update, data.data)

    def hexdigest(self) -> str:
        """The digest of all that was appended."""
        self._wait()
        return self._hash.hexdigest()

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None


class Shard:
    """A source file. Whatever part of it is read, its whole content goes into the digest once.

    Parts may be read again and gaps may be left; bytes are hashed in file order when they are
    first passed. Use as a context manager.
    """

    def __init__(self, path: Path, pool: Executor) -> None:
        """Open `path`; hash on `pool`. Raises CheckpointError where it cannot be opened."""
        self.path = path
        try:
            self._handle = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(
                f"{path}: cannot be opened ({error.strerror}); fetch it again"
            ) from error
        self._digest = Digest(pool)
        self._hashed = 0

    def __enter__(self) -> Self:
        """The shard itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        os.close(self._handle)

    def read(self, offset: int, size: int, chunk: int, name: str) -> NDArray[np.uint8]:
        """`size` bytes at `offset`; bytes skipped over are hashed in steps of `chunk` bytes.

        `name` is the tensor, for errors. Raises CheckpointError where the file ends early.
        """
        self._pass_over(offset, chunk)
        data = read_exactly(self._handle, offset, size, f"{self.path}: tensor {name}")
        fresh = offset + size - self._hashed
        if fresh > 0:
            self._digest.update(data[size - fresh :])
            self._hashed = offset + size
        return data

    def finish(self, chunk: int) -> FileRecord:
        """Hash what is left and describe the whole file."""
        size = os.fstat(self._handle).st_size
        self._pass_over(size, chunk)
        return FileRecord(bytes=size, sha256=self._digest.hexdigest())

    def _pass_over(self, offset: int, chunk: int) -> None:
        while self._hashed < offset:
            step = min(chunk, offset - self._hashed)
            self._digest.update(read_exactly(self._handle, self._hashed, step, str(self.path)))
            self._hashed += step
