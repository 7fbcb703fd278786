"""Writing of an artifact folder: `output` is either complete or absent.

The folder is written under a hidden name beside `output` and renamed once it is complete. If
writing fails or is interrupted, the hidden folder is removed. A hidden folder that a killed process
left behind is removed by the next compilation (leftovers.py).
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
    """A finished artifact: its folder and its manifest."""

    path: Path
    manifest: Manifest


@contextmanager
def writing(output: Path, *, force: bool) -> Iterator[Path]:
    """Yield a new hidden folder that is renamed to `output` when the block ends without an
    exception, and removed otherwise.

    Raises ArtifactError if `output` exists and either `force` is not set or `output` is no artifact
    of mxc, if it cannot be written, and for every OSError raised in the block.
    """
    output = Path(os.path.abspath(output))
    try:
        require_free(output, force=force)
        with partial_folder(output) as partial:
            yield partial
            require_free(output, force=force)  # another process may have created it meanwhile
            _put(partial, output)
    except OSError as error:
        raise _refusal(output, error) from error


def record(file: Path) -> FileRecord:
    """Return the size and the SHA-256 digest of `file`."""
    with file.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return FileRecord(bytes=os.fstat(stream.fileno()).st_size, sha256=digest)


def require_free(output: Path, *, force: bool) -> None:
    """Raise ArtifactError if `output` exists and either `force` is not set or it is no artifact."""
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
    """Rename `partial` to `output`. An existing artifact is replaced, and restored on failure."""
    if not output.exists():
        partial.rename(output)
        return
    # The name is that of a leftover: if this process is killed now, the next compile removes it.
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
