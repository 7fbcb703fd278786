"""Folders that are hidden until they are whole, and what killed processes left of them.

A process holds a lock on the folder that it writes, so that no other takes it for a leftover; the
system releases the lock when the process ends, however it does.

A leftover with a journal (pieces/journal.py) can be resumed. It is named by the digest of its
request. The next run of the same request takes it, the next run of another request for the same
output removes it, and no other run touches it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mxc.errors import ArtifactError, WorkerError

#: Stands in the name of every such folder beside an output, with eight digits after it.
_PARTIAL = ".mxc-partial-"
_DIGITS = "[0-9a-f]" * 8

#: The file of a folder that can be resumed.
JOURNAL = "journal.jsonl"


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
            raise _unwritable(output, error) from error
        yield folder


@contextmanager
def resumable_folder(output: Path, digest: str) -> Iterator[Path]:
    """The hidden folder of one request beside `output`: what a killed run of it left, or a new one.

    `digest` is of all that the content depends on. The folder is gone at the end unless it was
    renamed, or a WorkerError ends it. Raises ArtifactError where it cannot be made, or another
    process is writing it.
    """
    folder = output.parent / f".{output.name}{_PARTIAL}{digest[:8]}"
    own = glob.escape(f".{output.name}{_PARTIAL}")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(output.parent, f".*{_PARTIAL}{_DIGITS}*")
        remove_leftovers(output.parent, f"{own}{_DIGITS}", journals=True, but=folder)
        handle = _claimed(folder)
    except BlockingIOError as error:
        raise ArtifactError(
            f"{output}: another process is writing it, with the same options; wait for it"
        ) from error
    except OSError as error:
        raise _unwritable(output, error) from error
    lost = False
    try:
        yield folder
    except WorkerError:
        lost = True
        raise
    finally:
        os.close(handle)
        if not lost:
            remove_folder(folder)


def _claimed(folder: Path) -> int:
    """A handle with the lock on a folder, made where it is not there. Raises BlockingIOError."""
    while True:
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have removed or renamed it before the lock.
            if folder.exists() and os.path.samestat(os.fstat(handle), folder.stat()):
                return handle
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _unwritable(output: Path, error: OSError) -> ArtifactError:
    return ArtifactError(f"{output}: cannot be written ({error.strerror}); choose another --output")


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


def remove_leftovers(
    parent: Path, pattern: str, *, journals: bool = False, but: Path | None = None
) -> None:
    """Remove the folders of a pattern that no process has a lock on, but not the folder `but`.

    Those with a journal stay unless `journals`.
    """
    for leftover in parent.glob(pattern):
        if leftover == but or ((leftover / JOURNAL).exists() and not journals):
            continue
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
