"""Checkpoint tensors to weights.irpa: reordered for the program, aligned, checksummed, streamed.

Every source file is read once, front to back, in chunks of `CHUNK` bytes; what is read is hashed,
looked through for NaN scales, reordered and written. Memory stays at a few chunks whatever the
size of the checkpoint. The archive appears under its name only when it is whole.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.tensors import DTYPES, TensorRecord, dtype_name
from mxc.compiler.packing.archive import ArchiveTensor, Layout, lay_out
from mxc.compiler.packing.panels import panel_bytes, to_panels
from mxc.compiler.packing.streams import Digest, Shard
from mxc.dialects.errors import ArtifactError, CheckpointError
from mxc.dialects.manifest import FileRecord

#: Bytes read, hashed and written at a time. At most five such buffers are alive at once.
CHUNK = 8 << 20

#: Called after every chunk: bytes done, bytes in all, name of the tensor.
Progress = Callable[[int, int, str], None]

_Read = Callable[[int, int], NDArray[np.uint8]]

#: E8M0 byte that is NaN (OCP MX 1.0, section 5.4.1).
_NAN_SCALE = 0xFF


@dataclass(frozen=True, kw_only=True)
class PackItem:
    """One tensor of the archive: `key`, where its bytes come from, and how they are reordered.

    `source` is a tensor of a checkpoint, or an array that the compiler made. `layout` is a key of
    LAYOUTS; `panels`, if given, a key of panels.UNITS, applied to what that gives. `scales` says
    that the bytes are E8M0 scales [experts, rows, blocks]: a NaN among them is found and named.
    """

    key: str
    source: TensorRecord | NDArray[Any]
    layout: str = "identity"
    panels: str | None = None
    scales: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """In elements of `dtype`; no layout changes it."""
        return tuple(self.source.shape)

    @property
    def dtype(self) -> str:
        """A safetensors dtype name."""
        return (
            self.source.dtype
            if isinstance(self.source, TensorRecord)
            else dtype_name(self.source.dtype)
        )

    @property
    def source_bytes(self) -> int:
        """Size in the source."""
        return prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def bytes(self) -> int:
        """Size in the archive, without padding between tensors."""
        if self.panels is None:
            return self.source_bytes
        return panel_bytes(*self.matrix)

    @property
    def matrix(self) -> tuple[int, int, int]:
        """The tensor as (experts, rows, bytes of a row): of [N, K] and [E, N, ..] alike."""
        lead, rest = (1, self.shape) if len(self.shape) == 2 else (self.shape[0], self.shape[1:])
        rows = rest[0]
        return lead, rows, self.source_bytes // (lead * rows) if lead * rows else 0

    @property
    def full_layout(self) -> str:
        """The name of the layout: of the rows, then of the panels."""
        steps = [self.layout] if self.layout != "identity" or self.panels is None else []
        return ", ".join([*steps, *([self.panels] if self.panels else [])])


@dataclass(frozen=True, kw_only=True)
class NanScale:
    """`count` NaN scales in one row (as the checkpoint counts rows) of one expert."""

    tensor: str
    expert: int
    row: int
    count: int


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was written: the archive, the source files by name, NaN scales that were let through.

    `entries` is key -> (offset from the start of the archive, bytes).
    """

    file: FileRecord
    source: dict[str, FileRecord]
    nan_scales: tuple[NanScale, ...]
    entries: dict[str, tuple[int, int]]


def _identity(item: PackItem, read: _Read) -> Iterator[NDArray[np.uint8]]:
    for start in range(0, item.source_bytes, CHUNK):
        yield read(start, min(CHUNK, item.source_bytes - start))


def _gate_then_up(item: PackItem, read: _Read) -> Iterator[NDArray[np.uint8]]:
    # gpt-oss interleaves the rows of an expert: 0, 2, 4, .. gate and 1, 3, 5, .. up. A program
    # that reads them in two halves needs no strided access. An expert that does not fit in a
    # chunk is read twice, once for each half, so that the archive is still written in order.
    experts, rows, *_ = item.shape
    row_bytes = item.source_bytes // (experts * rows) if experts * rows else 0
    step = max(2, CHUNK // max(row_bytes, 1) // 2 * 2)
    for expert in range(experts):
        for half in (0, 1):
            for row in range(0, rows, step):
                count = min(step, rows - row)
                chunk = read((expert * rows + row) * row_bytes, count * row_bytes)
                yield np.ascontiguousarray(chunk.reshape(count, row_bytes)[half::2]).reshape(-1)


#: How the bytes of a tensor may be reordered: name -> generator of the bytes in archive order.
LAYOUTS: dict[str, Callable[[PackItem, _Read], Iterator[NDArray[np.uint8]]]] = {
    "identity": _identity,
    "gate-then-up": _gate_then_up,
}


def _laid_out(item: PackItem, read: _Read) -> Iterator[NDArray[np.uint8]]:
    """The bytes of `item` in the order of the archive."""
    rows = LAYOUTS[item.layout](item, read)
    if item.panels is None:
        return rows
    _, count, row_bytes = item.matrix
    return to_panels(rows, count, row_bytes, item.panels)


def pack(
    plan: Sequence[PackItem],
    path: Path,
    *,
    allow_nan_scales: bool = False,
    progress: Progress | None = None,
) -> Packed:
    """Write the tensors of `plan` to the parameter archive `path` and describe it.

    The order in the archive is that of the source files, then the arrays of the compiler.
    Raises CheckpointError for a source that was cut meanwhile or has NaN scales;
    ArtifactError where the archive exists, does not fit or cannot be written. Nothing is left
    behind then, nor after an interrupt.
    """
    items = sorted(plan, key=_source_order)
    layout = lay_out([_archive_tensor(item) for item in items])
    _check_room(path, layout.total)
    temporary = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        try:
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError as error:
            raise ArtifactError(
                f"{path}: cannot be written ({error.strerror}); choose another output"
            ) from error
        try:
            archive = _Archive(handle, path, layout.total)
            packed = _write(items, layout, archive, allow_nan_scales, progress)
        finally:
            os.close(handle)
        os.replace(temporary, path)
    except BaseException:  # KeyboardInterrupt too: a half-written archive is of use to nobody
        temporary.unlink(missing_ok=True)
        raise
    return packed


def _write(
    items: Sequence[PackItem],
    layout: Layout,
    archive: _Archive,
    allow_nan_scales: bool,
    progress: Progress | None,
) -> Packed:
    done, total = 0, sum(item.bytes for item in items)
    nan_scales: list[NanScale] = []
    with ExitStack() as stack:
        # Hashing takes longer than reading and writing; hashlib lets go of the interpreter lock.
        pool = stack.enter_context(ThreadPoolExecutor(2, "sha256"))
        digest = Digest(pool)
        shards: dict[Path, Shard] = {}

        def put(data: NDArray[np.uint8]) -> None:
            digest.update(data)
            archive.write(data)

        put(np.frombuffer(layout.head, np.uint8))
        for item, entry in zip(items, layout.entries, strict=True):
            put(np.zeros(entry.offset - archive.position, np.uint8))
            found: dict[tuple[int, int], int] = {}
            for data in _laid_out(item, _reader(item, shards, pool, stack, found)):
                put(data)
                done += data.size
                if progress is not None:
                    progress(done, total, item.key)
            nan_scales += _nan_scales(item, found, allow_nan_scales)
        put(np.zeros(layout.total - archive.position, np.uint8))
        return Packed(
            file=FileRecord(bytes=layout.total, sha256=digest.hexdigest()),
            source={path.name: shard.finish(CHUNK) for path, shard in shards.items()},
            nan_scales=tuple(nan_scales),
            entries={e.key: (e.offset, e.bytes) for e in layout.entries},
        )


class _Archive:
    """The file being written; turns errors of the system into what was needed and is free."""

    def __init__(self, handle: int, path: Path, total: int) -> None:
        self.handle, self.path, self.total, self.position = handle, path, total, 0

    def write(self, data: NDArray[np.uint8]) -> None:
        view = data.data
        while view.nbytes:
            try:
                count = os.write(self.handle, view)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise _no_room(self.path, self.total, self.position) from error
                raise ArtifactError(
                    f"{self.path}: cannot be written after {self.position} of {self.total} bytes "
                    f"({error.strerror}); choose another output"
                ) from error
            view = view[count:]
            self.position += count


def _reader(
    item: PackItem,
    shards: dict[Path, Shard],
    pool: ThreadPoolExecutor,
    stack: ExitStack,
    found: dict[tuple[int, int], int],
) -> _Read:
    """Reads of the item's bytes, by offset and size; NaN scales seen on the way go to `found`."""
    source = item.source
    if not isinstance(source, TensorRecord):
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        return lambda start, size: flat[start : start + size]
    if source.file not in shards:
        shards[source.file] = stack.enter_context(Shard(source.file, pool))
    shard = shards[source.file]
    last: tuple[int, int] = (-1, -1)
    data: NDArray[np.uint8] = np.empty(0, np.uint8)
    seen = 0

    def read(start: int, size: int) -> NDArray[np.uint8]:
        nonlocal last, data, seen
        if (start, size) != last:
            data = shard.read(source.offset + start, size, CHUNK, source.name)
            last = (start, size)
            if item.scales and start >= seen:
                seen = start + size
                _look_for_nan(item, start, data, found)
        return data

    return read


def _look_for_nan(
    item: PackItem, start: int, data: NDArray[np.uint8], found: dict[tuple[int, int], int]
) -> None:
    _, rows, blocks = item.shape
    for index in np.flatnonzero(data == _NAN_SCALE).tolist():
        expert, row = divmod((start + index) // blocks, rows)
        found[expert, row] = found.get((expert, row), 0) + 1


def _nan_scales(item: PackItem, found: dict[tuple[int, int], int], allowed: bool) -> list[NanScale]:
    result = [
        NanScale(tensor=item.key, expert=expert, row=row, count=count)
        for (expert, row), count in sorted(found.items())
    ]
    if result and not allowed:
        file = item.source.file if isinstance(item.source, TensorRecord) else "generated"
        first = "; ".join(f"expert {n.expert} row {n.row} ({n.count})" for n in result[:4])
        more = f"; and {len(result) - 4} more rows" if len(result) > 4 else ""
        raise CheckpointError(
            f"{file}: tensor {item.key} has {sum(n.count for n in result)} NaN scales (byte "
            f"0xFF): {first}{more}; every weight of such a block is NaN. Fetch the file again, "
            "or pass --allow-nan-scales if they are meant"
        )
    return result


def _source_order(item: PackItem) -> tuple[bool, str, int]:
    if isinstance(item.source, TensorRecord):
        return (False, str(item.source.file), item.source.offset)
    return (True, item.key, 0)


def _archive_tensor(item: PackItem) -> ArchiveTensor:
    note = {"dtype": item.dtype, "shape": list(item.shape), "layout": item.full_layout}
    return ArchiveTensor(key=item.key, bytes=item.bytes, metadata=json.dumps(note))


def _check_room(path: Path, needed: int) -> None:
    if path.exists():
        raise ArtifactError(f"{path}: exists; remove it or choose another output")
    if not path.parent.is_dir():
        raise ArtifactError(f"{path.parent}: not a folder; create it or choose another output")
    if shutil.disk_usage(path.parent).free < needed:
        raise _no_room(path, needed, 0)


def _no_room(path: Path, needed: int, written: int) -> ArtifactError:
    # What is written already is removed with the error, so it counts as free.
    free = shutil.disk_usage(path.parent).free + written
    return ArtifactError(
        f"{path}: disk full: packing needs {needed} bytes, {free} are free in {path.parent}; "
        "free some space or choose another output"
    )
