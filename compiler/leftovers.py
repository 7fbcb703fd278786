"""Folders that are hidden until they are whole, and what killed processes left of them.

A process holds a lock on the folder that it writes, so that no other takes it for a leftover; the
system releases the lock when the process ends, however it does.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mxc.errors import ArtifactError

#: Stands in the name of every such folder beside an output, with eight digits behind it.
_PARTIAL = ".mxc-partial-"
_DIGITS = "[0-9a-f]" * 8


@contextmanager
def partial_folder(output: Path) -> Iterator[Path]:
    """A new hidden folder beside `output`, to be renamed to it; else it is gone at the end.

    The parent folder of `output` is made where it is not there. What killed processes left in it,
    of whatever output, is removed first. Raises ArtifactError where a folder cannot be made.
    """
    with ExitStack() as stack:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(output.parent, f".*{_PARTIAL}{_DIGITS}*")
            made = locked_folder(output.parent, f".{output.name}{_PARTIAL}")
            folder = stack.enter_context(made)
        except OSError as error:
            raise ArtifactError(
                f"{output}: cannot be written ({error.strerror}); choose another --output"
            ) from error
        yield folder


@contextmanager
def locked_folder(parent: Path, prefix: str, mode: int = 0o777) -> Iterator[Path]:
    """A new folder with a lock on it, which is gone at the end unless it was renamed."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}"
        folder.mkdir(mode=mode)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process took it for a leftover
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():  # else another process took it for a leftover before the lock
                yield folder
                return
        finally:
            os.close(handle)
            remove_folder(folder)


def remove_folder(folder: Path, seconds: float = 5.0) -> None:
    """Remove a folder that may be gone, and of which a file may still appear while it goes.

    Tried again for a while, then left: what uses it has ended or been told why it did not.
    """
    until = time.monotonic() + seconds
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(parent: Path, pattern: str) -> None:
    """Remove the folders of a pattern that no process has a lock on."""
    for leftover in parent.glob(pattern):
        try:
            handle = os.open(leftover, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # its process has just ended, or it is another user's
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)
