"""The artifact: a folder that is there whole or not at all.

It is written under a hidden name beside its place and renamed when everything is in it. Whatever
stops the writing, that folder goes; one that a killed process left goes with the next compile.
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

    Raises ArtifactError where `output` exists and `force` is not set, or cannot be written.
    """
    output = output.absolute()
    if output.exists() and not force:
        raise ArtifactError(f"{output}: exists; give --force to replace it, or another --output")
    if output.exists() and not (output / MANIFEST).is_file():
        raise ArtifactError(f"{output}: exists and is no artifact of mxc; it is not replaced")
    partial = output.parent / f".{output.name}.partial-{os.getpid()}"
    try:
        _remove_orphans(output)
        partial.mkdir()
    except OSError as error:
        raise ArtifactError(f"{output}: cannot be written ({error.strerror})") from error
    try:
        yield partial
        if output.exists():
            old = partial.with_name(f".{output.name}.replaced-{os.getpid()}")
            output.rename(old)
            partial.rename(output)
            shutil.rmtree(old)
        else:
            partial.rename(output)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ArtifactError(
                f"{output}: no space left on the device; free some or choose another --output"
            ) from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def record(file: Path) -> FileRecord:
    """Size and SHA-256 of a file."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileRecord(bytes=file.stat().st_size, sha256=digest)


def _remove_orphans(output: Path) -> None:
    """Remove what a killed compile of the same output left, but not what a live one writes."""
    for orphan in output.parent.glob(f".{output.name}.partial-*"):
        owner = orphan.name.rpartition("-")[2]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(orphan)
