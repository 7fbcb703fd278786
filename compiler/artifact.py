"""The artifact: a folder that is there whole or not at all.

It is written under a hidden name beside its place and renamed when everything is in it. Whatever
stops the writing, that folder goes; one that a killed process left goes with the next compile
(leftovers.py).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mxc.artifact.manifest import MANIFEST, FileRecord, Manifest
from mxc.compiler.leftovers import partial_folder
from mxc.errors import ArtifactError


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
        require_free(output, force=force)
        with partial_folder(output) as partial:
            yield partial
            require_free(output, force=force)  # it may have come meanwhile
            _put(partial, output)
    except OSError as error:
        raise _refusal(output, error) from error


def record(file: Path) -> FileRecord:
    """Size and SHA-256 of a file."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileRecord(bytes=os.fstat(stream.fileno()).st_size, sha256=digest)


def require_free(output: Path, *, force: bool) -> None:
    """Raise ArtifactError where `output` exists and `force` is not set or it is no artifact."""
    if not os.path.lexists(output):
        return
    if not (output / MANIFEST).is_file() or output.is_symlink():
        raise ArtifactError(
            f"{output}: exists and is no artifact of mxc, so it is not replaced; choose another "
            "--output, or remove it yourself"
        )
    if not force:
        raise ArtifactError(f"{output}: exists; give --force to replace it, or another --output")


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
