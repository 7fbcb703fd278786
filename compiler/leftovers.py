"""Hidden folders for output that is not complete yet, and removal of those of killed processes.

A process holds a lock (flock) on the folder that it writes, so that no other process removes it.
The system releases the lock when the process ends, for whatever reason.

A folder with a journal (pieces/journal.py) can be resumed. Its name has the digest of its request.
The next run of the same request resumes it, the next run of another request for the same output
removes it, and no other run touches it.
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

#: Part of the name of every such folder beside an output; eight hexadecimal digits follow.
_PARTIAL = ".mxc-partial-"
_DIGITS = "[0-9a-f]" * 8

#: Name of the file that makes a folder resumable.
JOURNAL = "journal.jsonl"


@contextmanager
def partial_folder(output: Path) -> Iterator[Path]:
    """Yield a new hidden folder beside `output`; the caller renames it, else it is removed.

    The parent folder of `output` is created if needed. Folders that killed processes left in it,
    for any output, are removed first. Raises ArtifactError if a folder cannot be created.
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
    """Yield the hidden folder of one request beside `output`, resumed from a killed run or new.

    `digest` identifies everything that the content depends on. The folder is removed at the end
    unless the caller renamed it or a WorkerError was raised. Raises ArtifactError if the folder
    cannot be created or another process is writing it.
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
    """Lock a folder, which is created if needed, and return its handle. Raises BlockingIOError."""
    while True:
        folder.mkdir(exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have removed or renamed the folder before the lock was taken.
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
    """Yield a new locked folder; it is removed at the end unless it was renamed."""
    while True:
        folder = parent / f"{prefix}{secrets.token_hex(4)}"
        folder.mkdir(mode=mode)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue  # another process removed it as a leftover
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if folder.exists():  # else another process removed it as a leftover before the lock
                yield folder
                return
        finally:
            os.close(handle)
            remove_folder(folder)


def remove_folder(folder: Path, seconds: float = 5.0) -> None:
    """Remove `folder` if it exists; another process may still be creating files in it.

    Removal is retried for `seconds`. A folder that remains then is left without an error.
    """
    until = time.monotonic() + seconds
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.05)
        shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(
    parent: Path, pattern: str, *, journals: bool = False, but: Path | None = None
) -> None:
    """Remove the folders that match `pattern` and are not locked, except the folder `but`.

    Folders with a journal are kept unless `journals` is set.
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
