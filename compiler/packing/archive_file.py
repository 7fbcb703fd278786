"""The archive as a file: written beside its place, and moved there when it is whole."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxc.errors import ArtifactError


class ArchiveFile:
    """The file being written; turns errors of the system into what was needed and is free."""

    def __init__(self, handle: int, path: Path, total: int) -> None:
        """Write `total` bytes to `handle`, which will be `path`."""
        self.handle, self.path, self.total, self.position = handle, path, total, 0

    def write(self, data: NDArray[np.uint8]) -> None:
        """Append `data`. Raises ArtifactError where the disk is full or refuses it."""
        view = data.data
        while view.nbytes:
            try:
                count = os.write(self.handle, view)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise _no_room(self.path, self.total, self.position) from error
                raise ArtifactError(
                    f"{self.path}: cannot be written after {self.position} of {self.total} bytes "
                    f"({error.strerror}); choose another output"
                ) from error
            view = view[count:]
            self.position += count


@contextmanager
def archive_file(path: Path, total: int) -> Iterator[ArchiveFile]:
    """The file that becomes `path` where the block ends, and is gone where it raises.

    Raises ArtifactError where `path` exists, has no folder or no room for `total` bytes, or cannot
    be written.
    """
    _check_room(path, total)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise ArtifactError(
                f"{path}: cannot be written ({error.strerror}); choose another output"
            ) from error
        try:
            yield ArchiveFile(handle, path, total)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:  # KeyboardInterrupt too: a half-written archive is of use to nobody
        temporary.unlink(missing_ok=True)
        raise


def _check_room(path: Path, needed: int) -> None:
    if path.exists():
        raise ArtifactError(f"{path}: exists; remove it or choose another output")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArtifactError(
            f"{path.parent}: cannot be made ({error.strerror}); choose another output"
        ) from error
    if shutil.disk_usage(path.parent).free < needed:
        raise _no_room(path, needed, 0)


def _no_room(path: Path, needed: int, written: int) -> ArtifactError:
    # What is written already is removed with the error, so it counts as free.
    free = shutil.disk_usage(path.parent).free + written
    return ArtifactError(
        f"{path}: disk full: packing needs {needed} bytes, {free} are free in {path.parent}; "
        "free some space or choose another output"
    )
