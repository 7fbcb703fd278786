"""Is the artifact whole, and is it ours? Answered before anything of it is mapped or run.

Imports neither IREE nor numpy: `mxc report` asks the same questions.
"""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path, PurePosixPath

from mxc.artifact.manifest import (
    ARCHIVE,
    MANIFEST,
    FileRecord,
    Function,
    Manifest,
    ModelRecord,
    TensorType,
    batch_function,
    iree_version,
    mxc_version,
)
from mxc.errors import ArtifactError

#: Of a cache [entries, positions, heads, head size].
_CACHE_RANK = 4

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
    """Raise ArtifactError where what the manifest says of the model is not what its functions take.

    A sequence feeds them by that record: a larger one would write behind the end of the cache.
    """
    model = manifest.model
    if model is None:
        return
    # Inputs of linear layers are results beside those that a sequence needs.
    functions = {name: each.unobserved for name, each in manifest.functions.items()}
    number = TensorType(shape=(), dtype="i32")
    counts = (number,) if model.states else ()
    for name, tokens, numbers in (
        ("prefill", model.prefill_chunk, (number, *counts)),
        ("decode", 1, (number,)),
    ):
        ids = TensorType(shape=(tokens,), dtype="i32")
        function = functions.get(name)
        if function is None or function.inputs != (ids, *numbers, *model.memory):
            raise _contradiction(place, f"model and function {name} disagree")
        if function.outputs[1:] != model.memory:
            what = "cache and states" if model.states else "cache"
            raise _contradiction(place, f"function {name} does not return the {what}")
    for size in model.batches:
        name, memory = batch_function(size), model.memory * size
        function = functions.get(name)
        ids = TensorType(shape=(size,), dtype="i32")
        if function is None or function.inputs != (ids, *(number,) * size, *memory):
            raise _contradiction(place, f"model and function {name} disagree")
        if function.outputs != (_logits(size, model), *memory):
            raise _contradiction(place, f"function {name} does not return what the model says")
    if functions["decode"].outputs[0] != _logits(1, model):
        raise _contradiction(place, f"vocab_size {model.vocab_size} is not that of decode")
    hidden = functions["prefill"].outputs[0]
    chunk = _logits(model.prefill_chunk, model)
    for name, wanted in (
        ("logits", Function(inputs=(hidden,), outputs=(chunk,))),
        ("logits_row", Function(inputs=(hidden, number), outputs=(_logits(1, model),))),
    ):
        if functions.get(name) != wanted:
            raise _contradiction(place, f"model and function {name} disagree")
    needed = model.max_sequence_length + model.prefill_chunk - 1
    if len(model.cache.shape) == _CACHE_RANK and model.cache.shape[1] < needed:
        raise _contradiction(
            place, f"the cache holds {model.cache.shape[1]} positions, sequences need {needed}"
        )


def _logits(rows: int, model: ModelRecord) -> TensorType:
    return TensorType(shape=(rows, model.vocab_size), dtype="f32")


def _contradiction(place: str, what: str) -> ArtifactError:
    return ArtifactError(f"{place}: {what}: the manifest was altered; compile the artifact again")


def check_files(path: Path, manifest: Manifest, *, verify: bool) -> None:
    """Raise ArtifactError where a file of the artifact is missing or altered.

    Sizes of all files are compared, then SHA-256 of all files but archives of weights; of these
    too where one is small (SMALL_WEIGHTS) or `verify` is set.
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
