"""Runs the pieces of a job in order, except those that an earlier run has finished."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np

from mxc.artifact.versions import mxc_version
from mxc.compiler.cache import sources
from mxc.compiler.pieces.journal import Journal
from mxc.compiler.pieces.piece import Piece, PieceJob, PieceOutput, PieceWork
from mxc.compiler.pieces.workers import Workers
from mxc.errors import ArtifactError, WorkerError

#: The open Work of a worker process, by the key of its run.
_OPEN: dict[str, PieceWork] = {}


class Runner:
    """Computes the pieces of `job` into files of `folder`; a context manager that ends the workers.

    `work` is an open `job`, for threads of this process. `digest` is that of the request.
    """

    def __init__(
        self,
        job: PieceJob,
        work: PieceWork,
        folder: Path,
        digest: str,
        workers: Workers,
        output: Path,
    ) -> None:
        """Store the arguments; `output` is for messages."""
        self._job, self._work, self._folder = job, work, folder
        self._digest, self._workers, self._output = digest, workers, output
        self._key = secrets.token_hex(8)
        self._stack = ExitStack()
        self.computed = 0

    def __enter__(self) -> Self:
        """Start the workers, and tell the user if a run is resumed."""
        self._pool, self._count = self._stack.enter_context(self._workers.executor())
        self._journal = Journal(self._folder, self._digest)
        if len(self._journal):
            self._workers.say(
                f"{self._output}: an interrupted run of the same request is resumed; "
                f"{len(self._journal)} pieces are done"
            )
        return self

    def __exit__(self, *error: object) -> None:
        """End the workers. The journal stays in the folder."""
        try:
            self._stack.close()
        finally:
            self._journal.close()

    def create(self, name: str, size: int, head: bytes = b"") -> None:
        """Create a file of `size` bytes that starts with `head`. ArtifactError if there is
        no room."""
        path = self._folder / name
        handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
        try:
            free = shutil.disk_usage(self._folder).free + os.fstat(handle).st_blocks * 512
            if free < size:
                raise ArtifactError(
                    f"{self._output}: disk full: {name} needs {size} bytes, {free} are free; free "
                    "some space or choose another output"
                )
            if os.fstat(handle).st_size != size:  # else an earlier run made it
                with PieceOutput(self._folder) as output:
                    output.put(name, 0, np.frombuffer(head, np.uint8))
                os.truncate(handle, size)
        finally:
            os.close(handle)

    def run(self, pieces: Iterable[Piece], *, here: bool = False) -> Iterator[tuple[Piece, Any]]:
        """Yield the pieces in order, each with the result of `compute` in this or an earlier run.

        `here`: compute the pieces in this process for any kind of workers. Raises the first error,
        and WorkerError if a worker is lost.
        """
        waiting: deque[tuple[Piece, Future[dict[str, Any]] | dict[str, Any]]] = deque()
        try:
            for piece in pieces:
                waiting.append((piece, self._journal.take(piece) or self._submit(piece, here)))
                while len(waiting) > 2 * self._count:
                    yield self._done(*waiting.popleft())
            while waiting:
                yield self._done(*waiting.popleft())
        finally:
            for _, each in waiting:
                if isinstance(each, Future):
                    each.cancel()

    def _submit(self, piece: Piece, here: bool) -> Future[dict[str, Any]]:
        if here and self._workers.remote:
            done: Future[dict[str, Any]] = Future()
            done.set_result(_compute(self._work, self._folder, piece))
            return done
        try:
            if not self._workers.remote:
                return self._pool.submit(_compute, self._work, self._folder, piece)
            folder = self._folder.absolute()
            return self._pool.submit(_elsewhere, self._key, self._job, sources(), folder, piece)
        except BrokenExecutor as error:
            raise self._lost(error) from error

    def _done(
        self, piece: Piece, found: Future[dict[str, Any]] | dict[str, Any]
    ) -> tuple[Piece, Any]:
        if isinstance(found, dict):
            return piece, found["value"]
        try:
            entry = found.result()
        except Exception as error:
            if isinstance(error, BrokenExecutor) or type(error).__module__.startswith(
                "distributed"
            ):
                raise self._lost(error) from error
            raise
        self._journal.add(piece, entry)
        self.computed += 1
        return piece, entry["value"]

    def _lost(self, error: Exception) -> WorkerError:
        done = len(self._journal) + self.computed
        return WorkerError(
            f"{self._output}: a worker was lost ({type(error).__name__}), perhaps for want of "
            f"memory; {done} pieces are done and kept: run the same command again, and it resumes"
        )


def _compute(work: PieceWork, folder: Path, piece: Piece) -> dict[str, Any]:
    """Compute a piece, write its bytes and return its journal entry."""
    with PieceOutput(folder) as output:
        value = work.compute(piece, output)
    return {"value": value, "ranges": output.ranges, "crc": output.crc}


def _elsewhere(key: str, job: PieceJob, wanted: str, folder: Path, piece: Piece) -> dict[str, Any]:
    """Do the same in a worker process, which opens the job of each run once."""
    if key not in _OPEN:
        if sources() != wanted:
            raise ArtifactError(
                f"a worker runs another mxc ({mxc_version()} or a change of it); install the same "
                "on all machines of the cluster"
            )
        work = job.open()
        _OPEN.clear()
        _OPEN[key] = work
    return _compute(_OPEN[key], folder, piece)


def digest_of(*parts: object) -> str:
    """Return the digest of a request: its options, its input files and the source code of mxc."""
    text = "\n".join(repr(part) for part in (mxc_version(), sources(), *parts))
    return hashlib.sha256(text.encode()).hexdigest()


def files_of(source: Path) -> tuple[tuple[str, int, int], ...]:
    """Return (name, size, time of change in ns) of each file of a checkpoint folder or file.

    A split file includes all its parts.
    """
    if source.is_dir():
        found = [path for path in source.iterdir() if path.is_file()]
    else:
        stem = _stem(source)
        found = [path for path in source.parent.glob(f"*{source.suffix}") if _stem(path) == stem]
    return tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(found))


def _stem(path: Path) -> str:
    return re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
