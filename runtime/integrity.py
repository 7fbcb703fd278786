"""Checks of an artifact before it is mapped or run: versions, manifest, file sizes, checksums.

Imports neither IREE nor numpy, because `mxc report` makes the same checks.
"""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path, PurePosixPath

from mxc.artifact.manifest import (
    ARCHIVE,
    MANIFEST,
    STEP,
    FileRecord,
    Function,
    Manifest,
    ModelRecord,
    TensorType,
)
from mxc.artifact.versions import iree_version, mxc_version
from mxc.errors import ArtifactError

#: Weights up to this size (bytes) are always checksummed at load, larger ones only on request.
SMALL_WEIGHTS = 64 << 20


def check_version(manifest: Manifest, place: str) -> None:
    """Raise ArtifactError unless the artifact was written by this mxc with this IREE."""
    for what, wrote, here in (
        ("mxc", manifest.mxc_version, mxc_version()),
        ("IREE", manifest.iree_version, iree_version()),
    ):
        if wrote != here:
            raise ArtifactError(
                f"{place}: compiled with {what} {wrote}, installed is {what} {here}; "
                "compile the model again, or install that version"
            )


def check_model(manifest: Manifest, place: str) -> None:
    """Raise ArtifactError where the manifest's model record contradicts the types of `step`.

    The runtime sizes the arguments of `step` by that record: with wrong pages, the program would
    write past the end of a pool.
    """
    model = manifest.model
    if model is None:
        return
    found = manifest.functions.get(STEP)
    # The observed inputs of linear layers are extra results, which are left out here.
    found = None if found is None else found.unobserved
    wanted = step_types(model)
    if found is None or found.inputs != wanted.inputs:
        raise _contradiction(place, f"model and function {STEP} disagree")
    if found.outputs[: model.devices] != wanted.outputs[: model.devices]:
        raise _contradiction(place, f"vocab_size {model.vocab_size} is not that of {STEP}")
    if found.outputs != wanted.outputs:
        raise _contradiction(place, f"function {STEP} does not return its pages and states")


def step_types(model: ModelRecord) -> Function:
    """Return the types of the arguments and results of `step`; see ModelRecord."""
    kinds = len(model.pages)
    rows, lists = _integers(-1), _integers(-1, -1)
    memory = [
        TensorType(shape=(-1, *each.shape), dtype=each.dtype)
        for each in (*(kind.stored for kind in model.pages), *model.states.values())
    ] * model.devices
    places = [rows] * bool(model.states)
    logits = TensorType(shape=(-1, model.vocab_size // model.devices), dtype="f32")
    return Function(
        inputs=(rows, rows, _integers(-1, 3), rows, *(rows, lists) * kinds, *places, *memory),
        outputs=(*[logits] * model.devices, *memory),
    )


def _integers(*shape: int) -> TensorType:
    return TensorType(shape=shape, dtype="i32")


def _contradiction(place: str, what: str) -> ArtifactError:
    return ArtifactError(f"{place}: {what}: the manifest was altered; compile the artifact again")


def check_files(path: Path, manifest: Manifest, *, verify: bool) -> None:
    """Raise ArtifactError where a file of the artifact is missing or altered.

    The sizes of all files are compared, then the SHA-256 of all files. An archive of weights larger
    than SMALL_WEIGHTS is checksummed only with `verify`.
    """
    for level in manifest.every_level.values():
        for name in (level.module, *level.archives):
            if name not in manifest.files:
                raise ArtifactError(
                    f"{path / MANIFEST}: lists no {name}; compile the artifact again"
                )
    for name, record in manifest.files.items():
        _check_size(path, name, record)
    for name, record in manifest.files.items():
        if name.endswith(ARCHIVE) and not verify and record.bytes > SMALL_WEIGHTS:
            continue
        found = _sha256(path / name)
        if found != record.sha256:
            raise ArtifactError(
                f"{path / name}: altered after it was written (SHA-256 {found[:16]}..., the "
                f"manifest says {record.sha256[:16]}...); compile the artifact again"
            )


def _check_size(path: Path, name: str, record: FileRecord) -> None:
    plain = PurePosixPath(name)
    if plain.is_absolute() or ".." in plain.parts:
        raise ArtifactError(f"{path / MANIFEST}: lists {name!r}, which is outside the artifact")
    file = path / name
    try:
        found = file.stat()
    except (OSError, ValueError):  # ValueError: a name with a NUL
        found = None
    if found is None or not stat.S_ISREG(found.st_mode):
        raise ArtifactError(f"{file}: missing; copy the whole artifact or compile it again")
    size = found.st_size
    if size != record.bytes:
        raise ArtifactError(
            f"{file}: {size} bytes, the manifest says {record.bytes}; "
            "copy the whole artifact or compile it again"
        )


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error})") from error
