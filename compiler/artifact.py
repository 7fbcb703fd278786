"""The artifact: a folder that is there whole or not at all.

It is written under a hidden name beside its place and renamed when everything is in it. Whatever
stops the writing, that folder goes; one that a killed process left goes with the next compile. A
process holds a lock on the folder it writes, so that no other takes it for a leftover.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mxc.dialects.errors import ArtifactError
from mxc.dialects.manifest import MANIFEST, FileRecord, Manifest


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: its folder and what it says of itself."""

    path: Path
    manifest: Manifest


@contextmanager
def writing(output: Path, *, force: bool) -> Iterator[Path]:
    """A fresh folder that becomes `output` when the block ends well, and disappears otherwise.

    Raises ArtifactError where `output` exists and `force` is not set or it is no artifact, where
    it cannot be written, and for every OSError of the block.
    """
    output = Path(os.path.abspath(output))
    try:
        _check(output, force=force)
        _remove_leftovers(output)
        with _locked_folder(output) as partial:
            try:
                yield partial
                _check(output, force=force)  # it may have come meanwhile
                _put(partial, output)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise _refusal(output, error) from error


def record(file: Path) -> FileRecord:
    """Size and SHA-256 of a file."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileRecord(bytes=os.fstat(stream.fileno()).st_size, sha256=digest)


def _check(output: Path, *, force: bool) -> None:
    if not output.parent.is_dir():
        what = "is no folder" if output.parent.exists() else "does not exist"
        raise ArtifactError(f"{output}: {output.parent} {what}; choose another --output")
    if not os.path.lexists(output):
        return
    if not (output / MANIFEST).is_file() or output.is_symlink():
        raise ArtifactError(
            f"{output}: exists and is no artifact of mxc, so it is not replaced; choose another "
            "--output, or remove it yourself"
        )
    if not force:
        raise ArtifactError(f"{output}: exists; give --force to replace it, or another --output")


@contextmanager
def _locked_folder(output: Path) -> Iterator[Path]:
    """A new folder beside `output` with a lock that the system releases when this process ends."""
    while True:
        partial = output.with_name(f".{output.name}.partial-{secrets.token_hex(4)}")
        try:
            partial.mkdir()
        except OSError as error:
            raise ArtifactError(
                f"{output}: cannot be written ({error.strerror}); choose another --output"
            ) from error
        handle = os.open(partial, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if partial.exists():  # else another compile took it for a leftover before the lock
                yield partial
                return
        finally:
            os.close(handle)


def _remove_leftovers(output: Path) -> None:
    """Remove what killed compiles of the same output left, but not what a live one writes."""
    for leftover in output.parent.glob(f".{glob.escape(output.name)}.partial-*"):
        try:
            handle = os.open(leftover, os.O_RDONLY)
        except FileNotFoundError:
            continue  # its compile has just ended
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(leftover, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(handle)


def _put(partial: Path, output: Path) -> None:
    """Rename `partial` to `output`; an artifact that is there makes way, or comes back."""
    if not output.exists():
        partial.rename(output)
        return
    # Under the name of a leftover: if this process is killed now, the next compile removes it.
    old = partial.with_name(f"{partial.name}-old")
    output.rename(old)
    try:
        partial.rename(output)
    except BaseException:
        old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _refusal(output: Path, error: OSError) -> ArtifactError:
    place = output if error.filename is None else error.filename
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ArtifactError(
            f"{place}: no space left on the device; free some or choose another --output"
        )
    return ArtifactError(f"{place}: {error.strerror or error}; {output} was not written")
