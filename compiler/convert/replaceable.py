"""Decides what `mxc convert --force` may replace: checkpoints that mxc wrote, and nothing else.

Every file of weights that mxc writes says so: safetensors in their metadata, GGUF with the
config.json that it keeps. A folder is one of mxc if all its weights are.
"""

from __future__ import annotations

import os
from pathlib import Path

from mxc.compiler.checkpoints.dialects import MADE
from mxc.compiler.checkpoints.files.gguf import read_gguf
from mxc.compiler.checkpoints.files.safetensors import CONFIG, read_file
from mxc.compiler.convert.gguf import CONFIG_KEY
from mxc.compiler.convert.writing import CONVERTED
from mxc.errors import CheckpointError, RequestError


def require_replaceable(output: Path, *, gguf: bool, force: bool) -> None:
    """Raise RequestError if `output` exists, unless `force` is set and it is what mxc writes there.

    gguf: a file is written, else a folder; one does not replace the other.
    """
    if not os.path.lexists(output):
        return
    kind = ".gguf file" if gguf else "checkpoint folder"
    if output.is_symlink() or not (_is_file(output) if gguf else _is_folder(output)):
        raise RequestError(
            f"{output}: exists and is no {kind} of mxc, so it is not replaced; choose another "
            "--output, or remove it yourself"
        )
    if not force:
        raise RequestError(f"{output}: exists; choose another output, or pass --force")


def _is_file(place: Path) -> bool:
    try:
        return place.is_file() and CONFIG_KEY in read_gguf(place).metadata
    except CheckpointError:
        return False


def _is_folder(place: Path) -> bool:
    if not (place / CONFIG).is_file():
        return False
    weights = [path for path in place.iterdir() if path.suffix == ".safetensors"]
    try:
        found = [read_file(path)[1] for path in weights]
    except CheckpointError:
        return False
    return bool(found) and all(MADE in said or CONVERTED in said for said in found)
