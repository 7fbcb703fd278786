"""What a checkpoint, a tensor file, an archive or an artifact holds, and what one tensor is like.

Everything is counted in chunks; a tensor of any size takes a few MiB of memory.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.safetensors_files import CONFIG, read_checkpoint, read_header
from mxc.compiler.checkpoints.tensors import DTYPES, Checkpoint, TensorRecord
from mxc.compiler.packing.archive import read_archive
from mxc.dialects.errors import CheckpointError, RequestError
from mxc.dialects.formats import FORMATS, BlockFormat, block_format
from mxc.dialects.manifest import BLOCKS, MANIFEST, SCALES, WEIGHTS, Manifest
from mxc.dialects.packing import unpack_elements
from mxc.dialects.reference import Quantized, dequantize

#: Elements of dense tensors that are looked at together.
_CHUNK = 1 << 20

#: How many numbers of a tensor are shown: one block.
_SHOWN = 32


@dataclass(frozen=True, kw_only=True)
class _Note:
    """What packing said of a tensor: how its bytes lie, and what blocks and scales are together."""

    layout: str = "identity"
    format: str = "mxfp4"


_UNSAID = _Note()


@dataclass(frozen=True, kw_only=True)
class _Tensor:
    """A tensor as one means it: a dense one, or blocks and scales together."""

    name: str
    format: str
    shape: tuple[int, ...]
    layout: str
    data: TensorRecord
    scales: TensorRecord | None = None

    def row(self) -> dict[str, Any]:
        parts = [self.data] + ([self.scales] if self.scales else [])
        return {
            "name": self.name,
            "format": self.format,
            "dtype": self.data.dtype,
            "shape": list(self.shape),
            "bytes": sum(part.bytes for part in parts),
            "layout": self.layout,
            "file": self.data.file.name,
        }


def inspect(path: Path, tensor: str | None = None, level: str | None = None) -> dict[str, Any]:
    """Describe `path`, or one tensor of it, in values that JSON can hold.

    `path`: a checkpoint folder, a .safetensors or .irpa file, or an artifact folder. The result
    has `path`, `kind` and either `tensors` (one row each: name, format, dtype, shape, bytes,
    layout, file) and their `bytes`, or `tensor`: its row with the first numbers and counts.
    An artifact adds `manifest`; of one with several levels of CPU features the tensors are those
    that `level`, the first by default, reads. Raises CheckpointError or ArtifactError: not one of
    these, bad content, or no such tensor; RequestError: no such level.
    """
    kind, records, notes, manifest = _open(path, level)
    tensors = _pair(records, notes)
    result: dict[str, Any] = {"path": str(path), "kind": kind}
    if tensor is not None:
        # The parts of a pair can be asked for by their own names too.
        parts = {name: _dense(record, notes.get(name, _UNSAID)) for name, record in records.items()}
        found = tensors.get(tensor) or parts.get(tensor)
        if found is None:
            near = difflib.get_close_matches(tensor, [*tensors, *parts], n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise CheckpointError(
                f"{path}: no tensor {tensor} among {len(tensors)}{hint} "
                "(`mxc inspect` without a name lists them)"
            )
        return result | {"tensor": found.row() | _statistics(path, found)}
    rows = [found.row() for found in tensors.values()]
    if manifest is not None:
        result["manifest"] = manifest
    return result | {"bytes": sum(row["bytes"] for row in rows), "tensors": rows}


def _open(
    path: Path, level: str | None
) -> tuple[str, dict[str, TensorRecord], dict[str, _Note], dict[str, Any] | None]:
    """Kind, tensors as stored, notes by tensor where there are some, and the manifest's summary."""
    if path.is_dir() and (path / MANIFEST).is_file():
        manifest = Manifest.from_json((path / MANIFEST).read_text(), str(path / MANIFEST))
        summary = dataclasses.asdict(manifest)
        for long in ("weights", "source"):
            summary[long] = len(summary[long])
        if level is not None and level not in manifest.every_level:
            known = ", ".join(manifest.every_level)
            raise RequestError(f"{path}: no level {level!r}; it has: {known}")
        if not manifest.weights_present:
            return "artifact", {}, {}, summary
        chosen = manifest.every_level[level or next(iter(manifest.every_level))]
        records: dict[str, TensorRecord] = {}
        notes: dict[str, _Note] = {}
        for name in chosen.archives if manifest.levels else (WEIGHTS,):
            of_records, of_notes = _archive(path / name)
            records |= of_records
            notes |= of_notes
        return "artifact", records, notes, summary
    if path.is_dir():
        return "checkpoint", read_checkpoint(path).tensors, {}, None
    if path.suffix == ".safetensors":
        return "safetensors", read_header(path), {}, None
    if path.suffix == ".irpa":
        return "archive", *_archive(path), None
    raise CheckpointError(
        f"{path}: wanted a checkpoint folder (with {CONFIG}), an artifact folder (with "
        f"{MANIFEST}), a .safetensors or an .irpa file; found "
        f"{'another kind of file' if path.exists() else 'nothing there'}"
    )


def _archive(path: Path) -> tuple[dict[str, TensorRecord], dict[str, _Note]]:
    records, notes = {}, {}
    for key, entry in read_archive(path).items():
        dtype, shape = "U8", (entry.bytes,)
        try:  # the note that packing leaves; archives of other tools have none, or another
            note = json.loads(entry.metadata)
            notes[key] = _Note(
                layout=str(note["layout"]), format=str(note.get("format", _UNSAID.format))
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


def _pair(records: dict[str, TensorRecord], notes: dict[str, _Note]) -> dict[str, _Tensor]:
    """Tensors by name, in the order of their names; blocks and their scales become one."""
    tensors: dict[str, _Tensor] = {}
    for name, record in records.items():
        stem = name.removesuffix(BLOCKS).removesuffix(SCALES)
        data, scales = records.get(f"{stem}{BLOCKS}"), records.get(f"{stem}{SCALES}")
        note = notes.get(f"{stem}{BLOCKS}", _UNSAID)
        format = FORMATS.get(note.format)
        if (
            stem != name
            and data is not None
            and scales is not None
            and format is not None
            and data.shape == (*scales.shape, format.block_bytes)
            and data.dtype == scales.dtype == "U8"
        ):
            tensors[stem] = _Tensor(
                name=stem,
                format=format.name,
                shape=(*scales.shape[:-1], scales.shape[-1] * format.block),
                layout=note.layout,
                data=data,
                scales=scales,
            )
        else:
            tensors[name] = _dense(record, notes.get(name, _UNSAID))
    return dict(sorted(tensors.items(), key=lambda item: _natural(item[0])))


def _natural(name: str) -> list[tuple[int, str]]:
    # Layer 10 comes after layer 9.
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _dense(record: TensorRecord, note: _Note) -> _Tensor:
    return _Tensor(
        name=record.name,
        format=record.dtype.lower(),
        shape=record.shape,
        layout=note.layout,
        data=record,
    )


def _statistics(path: Path, tensor: _Tensor) -> dict[str, Any]:
    files = Checkpoint(folder=path, config={}, tensors={}, files=())
    if tensor.scales is None:
        return _dense_statistics(files, tensor.data)
    return _block_statistics(files, tensor.data, tensor.scales, block_format(tensor.format))


def _chunks(files: Checkpoint, record: TensorRecord) -> Iterator[NDArray[Any]]:
    flat = dataclasses.replace(record, shape=(math.prod(record.shape),))
    for start in range(0, flat.shape[0], _CHUNK):
        yield files.read(flat, start, min(_CHUNK, flat.shape[0] - start))


def _dense_statistics(files: Checkpoint, record: TensorRecord) -> dict[str, Any]:
    first: list[Any] = []
    nan = infinite = 0
    low, high = math.inf, -math.inf
    for chunk in _chunks(files, record):
        # float64 holds every value of every dtype here but large 64-bit integers.
        numbers = chunk.astype(np.float64)
        first = first or [_number(x) for x in numbers[:_SHOWN].tolist()]
        finite = numbers[np.isfinite(numbers)]
        nan += int(np.isnan(numbers).sum())
        infinite += int(np.isinf(numbers).sum())
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    spread = {"min": low, "max": high} if low <= high else {"min": None, "max": None}
    return {"elements": math.prod(record.shape), "first": first, "nan": nan,
            "infinite": infinite, **spread}  # fmt: skip


def _block_statistics(
    files: Checkpoint, data: TensorRecord, scales: TensorRecord, format: BlockFormat
) -> dict[str, Any]:
    """Counts over bytes, not over numbers: a byte of fp4 is one of 256, whatever the size."""
    element = format.element
    codes = np.zeros(1 << element.bits, np.int64)
    per_byte = unpack_elements(np.arange(256, dtype=np.uint8)[:, None], format)
    for count, pair in zip(_byte_counts(files, data), per_byte, strict=True):
        np.add.at(codes, pair, count)
    magnitude = np.abs(element.values)
    exponents: dict[str, int] = {}
    nan = 0
    for count, value in zip(_byte_counts(files, scales), format.scale.values.tolist(), strict=True):
        if count and math.isnan(value):
            nan += count
        elif count:
            exponents[str(math.frexp(value)[1] - 1)] = count
    first = dequantize(
        Quantized(
            elements=next(_chunks(files, data), np.empty(0, np.uint8))[: format.block_bytes],
            scales=next(_chunks(files, scales), np.empty(0, np.uint8))[:1],
            format=format,
            recipe=None,
            axis=0,
            shape=(format.block if scales.bytes else 0,),
        )
    )
    return {
        "elements": scales.bytes * format.block,
        "first": [_number(x) for x in first.tolist()],
        "scales": scales.bytes,
        "scale_exponents": exponents,
        "nan_scales": nan,
        "zero": int(codes[magnitude == 0].sum()),
        "saturated": int(codes[magnitude == element.max].sum()),
    }


def _byte_counts(files: Checkpoint, record: TensorRecord) -> list[int]:
    counts = np.zeros(256, np.int64)
    for chunk in _chunks(files, record):
        counts += np.bincount(chunk, minlength=256)
    result: list[int] = counts.tolist()
    return result


def _number(value: float) -> float | str:
    # JSON has no word for these.
    return value if math.isfinite(value) else str(value)
