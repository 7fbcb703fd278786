"""Contents of a checkpoint, a tensor file, an archive or an artifact, and statistics of a tensor.

Everything is counted in chunks: a tensor of any size needs a few MiB of memory.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import BLOCKS, MANIFEST, SCALES, WEIGHTS, read_manifest
from mxc.artifact.parameter_archive import read_archive
from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, blocked, plain
from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.checkpoints.files.safetensors import CONFIG, found_instead
from mxc.compiler.checkpoints.files.tensors import DTYPES, TensorRecord
from mxc.compiler.inspect.compare import compare
from mxc.compiler.inspect.statistics import recipe_of, statistics
from mxc.errors import CheckpointError, RequestError
from mxc.formats.formats import FORMATS


@dataclass(frozen=True, kw_only=True)
class _Note:
    """The note of packing on a tensor: its layout, and the format of blocks and scales."""

    layout: str = "identity"
    format: str = "mxfp4"


_UNSTATED = _Note()


@dataclass(frozen=True, kw_only=True)
class _Contents:
    """An opened path: its kind, its tensors with their notes, and what it declares.

    `parts` are the stored tensors by their own names.
    """

    kind: str
    tensors: dict[str, CanonicalTensor]
    parts: dict[str, CanonicalTensor]
    notes: dict[str, _Note] = dataclasses.field(default_factory=dict)
    said: dict[str, Any] = dataclasses.field(default_factory=dict)

    def row(self, tensor: CanonicalTensor) -> dict[str, Any]:
        """Return the row of one tensor in the list of `inspect`."""
        stored = self.notes.get(f"{tensor.name}{BLOCKS}", self.notes.get(tensor.name, _UNSTATED))
        return {
            "name": tensor.name,
            "format": tensor.format,
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "bytes": sum(record.bytes for record in tensor.records),
            "layout": stored.layout,
            "file": tensor.elements.record.file.name,
        }


def inspect(path: Path, tensor: str | None = None, level: str | None = None) -> dict[str, Any]:
    """Describe `path`, or one tensor of it; the result can be written as JSON.

    `path`: a checkpoint of any dialect, a .safetensors, .gguf or .irpa file, or an artifact folder.
    The result has `path`, `kind`, and for a checkpoint `dialect` and `quantization`. It lists
    `tensors` (one row each: name, format, dtype, shape, bytes, layout, file, and for weights with
    E8M0 scales recipe and recipe_source) and their total `bytes`; or it has `tensor`: its row with
    the first values and counts, see statistics.py. An artifact adds `manifest`; if it has several
    levels of CPU features, the tensors are those of `level`, by default the first. Raises
    CheckpointError or ArtifactError for another kind of path, bad content, or an unknown tensor;
    RequestError for an unknown level.
    """
    opened = _open(path, level)
    result: dict[str, Any] = {"path": str(path), "kind": opened.kind, **opened.said}
    if tensor is not None:
        # The parts of a weight can be requested by their own names too.
        found = opened.tensors.get(tensor) or opened.parts.get(tensor)
        if found is None:
            near = difflib.get_close_matches(tensor, [*opened.tensors, *opened.parts], n=3)
            hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
            raise CheckpointError(
                f"{path}: no tensor {tensor} among {len(opened.tensors)}{hint} "
                "(`mxc inspect` without a name lists them)"
            )
        result.pop("manifest", None)
        stated = {"stated_in": found.stated_in} if opened.kind != "artifact" else {}
        return result | {"tensor": opened.row(found) | statistics(found) | stated}
    rows = [opened.row(found) | recipe_of(found) for found in opened.tensors.values()]
    return result | {"bytes": sum(row["bytes"] for row in rows), "tensors": rows}


def inspect_against(path: Path, other: Path, tensor: str | None = None) -> dict[str, Any]:
    """Compare two checkpoints, or one tensor of both: see compare.py.

    Raises CheckpointError for a path that is no checkpoint, and for a tensor that one of them
    lacks.
    """
    return compare(open_checkpoint(path), open_checkpoint(other), tensor)


def _open(path: Path, level: str | None) -> _Contents:
    if path.is_dir() and (path / MANIFEST).is_file():
        return _artifact(path, level)
    if path.suffix == ".irpa":
        records, notes = _archive(path)
        return _contents("archive", records, notes)
    if path.is_dir() or path.suffix in (".safetensors", ".gguf"):
        source = open_checkpoint(path)
        declared = source.quantization
        default = declared.default
        activations = None if default is None else default.activations
        said = {
            "dialect": source.dialect,
            "quantization": {
                "method": declared.method,
                "excluded": list(declared.excluded),
                "activations": None if activations is None else dataclasses.asdict(activations),
            },
        }
        tensors = dict(sorted(source.tensors.items(), key=lambda item: _natural(item[0])))
        parts = {r.name: plain(r) for t in tensors.values() for r in t.records}
        kind = "checkpoint" if path.is_dir() else path.suffix.removeprefix(".")
        return _Contents(kind=kind, tensors=tensors, parts=parts, said=said)
    raise CheckpointError(
        f"{path}: wanted a checkpoint folder (with {CONFIG}), an artifact folder (with "
        f"{MANIFEST}), a .safetensors, .gguf or .irpa file; found "
        f"{found_instead(path)}"
    )


def _artifact(path: Path, level: str | None) -> _Contents:
    manifest = read_manifest(path)
    summary = dataclasses.asdict(manifest)
    for long in ("weights", "source"):
        summary[long] = len(summary[long])
    said = {"manifest": summary}
    if level is not None and level not in manifest.every_level:
        known = ", ".join(manifest.every_level)
        raise RequestError(f"{path}: no level {level!r}; it has: {known}")
    records: dict[str, TensorRecord] = {}
    notes: dict[str, _Note] = {}
    if manifest.weights_present:
        chosen = manifest.every_level[level or next(iter(manifest.every_level))]
        for name in chosen.archives if manifest.levels else (WEIGHTS,):
            of_records, of_notes = _archive(path / name)
            records |= of_records
            notes |= of_notes
    return _contents("artifact", records, notes, said)


def _archive(path: Path) -> tuple[dict[str, TensorRecord], dict[str, _Note]]:
    records, notes = {}, {}
    for key, entry in read_archive(path).items():
        dtype, shape = "U8", (entry.bytes,)
        try:  # the note of packing; archives of other tools have none, or another
            note = json.loads(entry.metadata)
            notes[key] = _Note(
                layout=str(note["layout"]), format=str(note.get("format", _UNSTATED.format))
            )
            dtype, shape = str(note["dtype"]), tuple(note["shape"])
        except (json.JSONDecodeError, KeyError, TypeError):
            pass
        if dtype not in DTYPES or math.prod(shape) * DTYPES[dtype].itemsize != entry.bytes:
            dtype, shape = "U8", (entry.bytes,)
        records[key] = TensorRecord(
            name=key, dtype=dtype, shape=shape, file=path, offset=entry.offset, bytes=entry.bytes
        )
    return records, notes


def _contents(
    kind: str,
    records: dict[str, TensorRecord],
    notes: dict[str, _Note],
    said: dict[str, Any] | None = None,
) -> _Contents:
    """Return tensors sorted by name; blocks and their scales become one tensor."""
    parts = {name: plain(record) for name, record in records.items()}
    tensors: dict[str, CanonicalTensor] = {}
    for name in records:
        stem = name.removesuffix(BLOCKS).removesuffix(SCALES)
        weight = _pair(stem, records, notes) if stem != name else None
        if weight is None:
            tensors[name] = parts[name]
        else:
            tensors[stem] = weight
    tensors = dict(sorted(tensors.items(), key=lambda item: _natural(item[0])))
    return _Contents(kind=kind, tensors=tensors, parts=parts, notes=notes, said=said or {})


def _pair(
    stem: str, records: dict[str, TensorRecord], notes: dict[str, _Note]
) -> CanonicalTensor | None:
    data, scales = records.get(f"{stem}{BLOCKS}"), records.get(f"{stem}{SCALES}")
    format = FORMATS.get(notes.get(f"{stem}{BLOCKS}", _UNSTATED).format)
    if data is None or scales is None or format is None:
        return None
    if data.shape != (*scales.shape, format.block_bytes) or not data.dtype == scales.dtype == "U8":
        return None
    shape = (*scales.shape[:-1], scales.shape[-1] * format.block)
    return blocked(stem, shape, format, data, scales)


def _natural(name: str) -> list[tuple[int, str]]:
    # Numbers sort by value: layer 10 follows layer 9.
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
