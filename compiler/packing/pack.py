"""Writes parameter archives (.irpa): tensors reordered for the program, aligned, hashed, in pieces.

A piece is some units of one tensor. They are read, checked for NaN scales, quantized if requested,
reordered, and written to their place. Memory stays at a few MiB per worker for any size of
checkpoint. Archives get their names only when all are complete. The kinds of pieces:

  rows     some units of a tensor
  source   the digest of a source file, for the manifest
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mxc.artifact.manifest import FileRecord
from mxc.artifact.parameter_archive import ArchiveLayout, ArchiveTensor, lay_out
from mxc.compiler.artifact import record
from mxc.compiler.leftovers import resumable_folder
from mxc.compiler.packing.items import PackingFindings, PackItem, archive_bytes
from mxc.compiler.packing.nan_scales import NanCount, NanScale, nan_scales
from mxc.compiler.packing.quantized import Loss
from mxc.compiler.pieces.piece import Piece, PieceOutput, chunks, ranges
from mxc.compiler.pieces.run import Runner, digest_of
from mxc.compiler.pieces.workers import Workers
from mxc.errors import CheckpointError

#: Called after every piece: bytes done, total bytes, name of the tensor.
Progress = Callable[[int, int, str], None]

#: Name of the file from which worker processes read the plan.
_PLAN = "plan.pickle"

#: Factor on the source bytes of a piece for quantization, which needs several float32 copies.
_QUANTIZING = 16


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The result of packing one archive: its record, source files by name, and permitted NaN
    scales.

    `entries` is key -> (offset from the start of the archive, bytes). `losses` are the losses of
    quantization by the key of the elements.
    """

    file: FileRecord
    source: dict[str, FileRecord]
    nan_scales: tuple[NanScale, ...]
    entries: dict[str, tuple[int, int]]
    losses: dict[str, Loss]


def pack(
    plans: Mapping[str, Sequence[PackItem]],
    folder: Path,
    output: Path,
    *,
    allow_nan_scales: bool = False,
    workers: Workers | None = None,
    progress: Progress | None = None,
) -> dict[str, Packed]:
    """Write a parameter archive for each of `plans` (by file name) to `folder`, and describe it.

    Tensors are in the order of the source files, followed by arrays of the compiler. The bytes do
    not depend on `workers`, by default threads of this process. `output` is the artifact that the
    archives are for: an interrupted run of the same plans beside it is resumed. Raises
    CheckpointError if a source was truncated meanwhile, or has NaN scales or numbers that cannot be
    quantized; ArtifactError if an archive does not fit on the disk or cannot be written. Nothing is
    left behind then, nor after an interrupt. Raises WorkerError if a worker is lost; finished
    pieces are kept.
    """
    workers = workers or Workers()
    packing = Packing(plans)
    digest = packing.digest()
    with resumable_folder(output, digest) as hidden:
        job = PackJob(hidden.absolute() / _PLAN)
        if workers.remote:
            job.plan.write_bytes(pickle.dumps(packing.without_arrays()))
        with Runner(job, packing, hidden, digest, workers, output) as runner:
            found = packing.write(
                runner, hidden, allow_nan_scales, progress or (lambda done, total, tensor: None)
            )
        for name in plans:
            os.replace(hidden / name, folder / name)
    return found


@dataclass(frozen=True)
class PackJob:
    """The file of the pickled plans of a run, for worker processes."""

    plan: Path

    def open(self) -> Packing:
        """Return the object that computes pieces, in a worker process."""
        return Packing(pickle.loads(self.plan.read_bytes()))


@dataclass
class _Archive:
    """An archive: its items, the number of the first among all items, and their offsets."""

    name: str
    first: int
    items: Sequence[PackItem]
    layout: ArchiveLayout


class Packing:
    """The archives of some plans, and the computation of their pieces."""

    def __init__(self, plans: Mapping[str, Sequence[PackItem]]) -> None:
        """Lay out the archives; no tensor is read."""
        self._items: list[PackItem] = []
        self._places: list[tuple[str, int]] = []
        self._archives: list[_Archive] = []
        for name, plan in plans.items():
            items = sorted(plan, key=_source_order)
            layout = lay_out([_archive_tensor(item) for item in items])
            self._archives.append(_Archive(name, len(self._items), items, layout))
            self._items += items
            self._places += [(name, entry.offset) for entry in layout.entries]
        records = [each for item in self._items for each in item.records]
        self._files = tuple(dict.fromkeys(each.file for each in records))

    def digest(self) -> str:
        """Return a digest of the plans, the state of the source files, and the arrays."""
        items = [
            (place, replace(item, source=np.zeros(0)), _description(item))
            for place, item in zip(self._places, self._items, strict=True)
        ]
        states = [path.stat() for path in self._files]
        files = zip(self._files, states, strict=True)
        return digest_of(items, [(path, state.st_size, state.st_mtime_ns) for path, state in files])

    def without_arrays(self) -> dict[str, list[PackItem]]:
        """Return the plans for other processes: arrays, which only this one packs, have no
        values."""
        return {each.name: [_without_array(item) for item in each.items] for each in self._archives}

    def write(
        self, runner: Runner, folder: Path, allow_nan_scales: bool, progress: Progress
    ) -> dict[str, Packed]:
        """Write all archives with `runner` to `folder`; `progress` is called in this thread."""
        for each in self._archives:
            runner.create(each.name, each.layout.total, each.layout.head)
        done, total = 0, sum(item.bytes for item in self._items)
        sources: dict[str, FileRecord] = {}
        result: dict[str, Packed] = {}
        for archive in self._archives:
            found, nan = _Totals(), list[NanScale]()
            with _Digest(folder / archive.name) as digest:
                for piece, value in self._run(runner, archive, set(sources)):
                    if piece.kind == "source":
                        sources[self._files[piece.tensor].name] = FileRecord(**value)
                        continue
                    item, (_, offset) = self._items[piece.tensor], self._places[piece.tensor]
                    count, unit = item.units
                    end = piece.start + piece.count
                    digest.advance(offset + end * unit)
                    found.add(item, value)
                    if end == count:
                        nan += found.nan_scales(item, allowed=allow_nan_scales)
                    done += piece.count * unit
                    progress(done, total, item.key)
                digest.advance(archive.layout.total)
            result[archive.name] = Packed(
                file=FileRecord(bytes=archive.layout.total, sha256=digest.hexdigest()),
                source=dict(sources),
                nan_scales=tuple(nan),
                entries={e.key: (e.offset, e.bytes) for e in archive.layout.entries},
                losses=found.losses,
            )
        return result

    def compute(self, piece: Piece, output: PieceOutput) -> Any:
        """Write a piece and return a file's digest, or the NaN scales and the Loss of rows."""
        if piece.kind == "source":
            return _source_digest(self._files[piece.tensor])
        item, (name, offset) = self._items[piece.tensor], self._places[piece.tensor]
        unit, read, found = item.units[1], item.reader(), PackingFindings()
        entry = _unit_source(item) * (1 if item.quantized is None else _QUANTIZING)
        for start, count in chunks(piece, entry):
            output.put(name, offset + start * unit, archive_bytes(item, read, start, count, found))
        return {"nan": found.nan.listed(), "loss": asdict(found.loss)}

    def _run(
        self, runner: Runner, archive: _Archive, known: set[str]
    ) -> Iterator[tuple[Piece, Any]]:
        """Run the pieces of an archive; items made from an array are computed in this process."""
        numbers = range(archive.first, archive.first + len(archive.items))
        stored = [number for number in numbers if self._items[number].records]
        yield from runner.run(self._pieces(stored, known))
        yield from runner.run(self._pieces(numbers[len(stored) :], known), here=True)

    def _pieces(self, numbers: Sequence[int], known: set[str]) -> Iterator[Piece]:
        """Yield the pieces of items, and once for each file not in `known` a piece for its
        digest."""
        for number in numbers:
            item = self._items[number]
            for file in dict.fromkeys(each.file for each in item.records):
                if file.name not in known:
                    known.add(file.name)
                    yield Piece("source", self._files.index(file), 0, file.stat().st_size)
            for start, count in ranges(item.units[0], _unit_source(item)):
                yield Piece("rows", number, start, count)


@dataclass
class _Totals:
    """Findings in the pieces of an archive, accumulated."""

    losses: dict[str, Loss] = field(default_factory=dict)
    _nan: dict[str, NanCount] = field(default_factory=dict)

    def add(self, item: PackItem, value: Mapping[str, Any]) -> None:
        """Add the findings in one piece of `item`."""
        for each in value["nan"]:
            self._nan.setdefault(item.key, NanCount()).add(*each)
        loss = Loss(**value["loss"])
        if loss.elements:
            self.losses.setdefault(item.key, Loss()).add(loss)

    def nan_scales(self, item: PackItem, *, allowed: bool) -> list[NanScale]:
        """Return NaN scales of a complete item. Raises CheckpointError for any unless `allowed`."""
        file = str(item.records[0].file) if item.records else "generated"
        nan = self._nan.get(item.key, NanCount())
        return nan_scales(item.key, file, nan, experts=item.experts, allowed=allowed)


class _Digest:
    """SHA-256 of a file, computed while the file is written from its start; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the file."""
        self._path, self._hash, self._done = path, hashlib.sha256(), 0
        self._buffer = memoryview(bytearray(1 << 20))
        self._handle = os.open(path, os.O_RDONLY)

    def __enter__(self) -> _Digest:
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the file."""
        os.close(self._handle)

    def advance(self, end: int) -> None:
        """Hash the file up to the offset `end`."""
        while self._done < end:
            view = self._buffer[: end - self._done]
            count = os.preadv(self._handle, [view], self._done)
            if not count:
                raise AssertionError(f"{self._path}: ends at {self._done}, wanted {end} bytes")
            self._hash.update(view[:count])
            self._done += count

    def hexdigest(self) -> str:
        """Return the digest of the bytes hashed so far."""
        return self._hash.hexdigest()


def _source_digest(path: Path) -> dict[str, Any]:
    try:
        return asdict(record(path))
    except OSError as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error.strerror}); fetch it again"
        ) from error


def _unit_source(item: PackItem) -> int:
    """Return the number of source bytes per unit."""
    return -(-item.source_bytes // max(1, item.units[0]))


def _description(item: PackItem) -> str:
    if isinstance(item.source, np.ndarray):
        flat = np.ascontiguousarray(item.source).reshape(-1).view(np.uint8)
        return hashlib.sha256(flat.data).hexdigest()
    return repr(item.source)


def _without_array(item: PackItem) -> PackItem:
    if not isinstance(item.source, np.ndarray):
        return item
    # One broadcast element, so that the pickle is small.
    return replace(item, source=np.broadcast_to(np.zeros((), item.source.dtype), item.shape))


def _source_order(item: PackItem) -> tuple[bool, str, int]:
    if item.records:
        return (False, str(item.records[0].file), item.records[0].offset)
    return (True, item.key, 0)


def _archive_tensor(item: PackItem) -> ArchiveTensor:
    note = {"dtype": item.dtype, "shape": list(item.shape), "layout": item.full_layout}
    if item.quantized is not None:
        note["format"] = item.quantized.format.name
    return ArchiveTensor(key=item.key, bytes=item.bytes, metadata=json.dumps(note))
