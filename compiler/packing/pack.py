"""Checkpoint tensors to weights.irpa: reordered for the program, aligned, checksummed, streamed.

Every source file is read front to back, in chunks of `items.CHUNK` bytes; what is read is hashed,
looked through for NaN scales, quantised where that was asked for, reordered and written. Memory
stays at a few chunks whatever the size of the checkpoint. The archive appears under its name only
when it is whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import FileRecord
from mxc.artifact.parameter_archive import ArchiveTensor, Layout, lay_out
from mxc.compiler.checkpoints.files.tensors import TensorRecord
from mxc.compiler.packing import items as packing
from mxc.compiler.packing.archive_file import ArchiveFile, archive_file
from mxc.compiler.packing.items import PackItem, Read, archive_bytes
from mxc.compiler.packing.nan_scales import NanScale, NanSearch
from mxc.compiler.packing.quantised import Loss
from mxc.compiler.packing.streams import Digest, Shard

#: Called after every chunk: bytes done, bytes in all, name of the tensor.
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What was written: the archive, the source files by name, NaN scales that were let through.

    `entries` is key -> (offset from the start of the archive, bytes); `losses` what quantising
    changed, by the key of the elements.
    """

    file: FileRecord
    source: dict[str, FileRecord]
    nan_scales: tuple[NanScale, ...]
    entries: dict[str, tuple[int, int]]
    losses: dict[str, Loss]


def pack(
    plan: Sequence[PackItem],
    path: Path,
    *,
    allow_nan_scales: bool = False,
    progress: Progress | None = None,
) -> Packed:
    """Write the tensors of `plan` to the parameter archive `path` and describe it.

    The order in the archive is that of the source files, then the arrays of the compiler.
    Raises CheckpointError for a source that was cut meanwhile, has NaN scales or numbers that
    cannot be quantised; ArtifactError where the archive exists, does not fit or cannot be written.
    Nothing is left behind then, nor after an interrupt.
    """
    items = sorted(plan, key=_source_order)
    layout = lay_out([_archive_tensor(item) for item in items])
    with archive_file(path, layout.total) as archive:
        return _write(items, layout, archive, allow_nan_scales, progress)


def _write(
    items: Sequence[PackItem],
    layout: Layout,
    archive: ArchiveFile,
    allow_nan_scales: bool,
    progress: Progress | None,
) -> Packed:
    done, total = 0, sum(item.bytes for item in items)
    nan_scales: list[NanScale] = []
    losses: dict[str, Loss] = {}
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
            search, loss = NanSearch(item), Loss()
            for data in archive_bytes(item, _reader(item, shards, pool, stack, search), loss):
                put(data)
                done += data.size
                if progress is not None:
                    progress(done, total, item.key)
            nan_scales += search.result(allowed=allow_nan_scales)
            if loss.elements:
                losses[item.key] = loss
        put(np.zeros(layout.total - archive.position, np.uint8))
        return Packed(
            file=FileRecord(bytes=layout.total, sha256=digest.hexdigest()),
            source={path.name: shard.finish(packing.CHUNK) for path, shard in shards.items()},
            nan_scales=tuple(nan_scales),
            entries={e.key: (e.offset, e.bytes) for e in layout.entries},
            losses=losses,
        )


def _reader(
    item: PackItem,
    shards: dict[Path, Shard],
    pool: ThreadPoolExecutor,
    stack: ExitStack,
    search: NanSearch,
) -> Read:
    """Reads of the item's bytes, by offset and size, which `search` sees on the way."""
    source, first = item.source, item.record
    if isinstance(source, np.ndarray) or first is None:
        flat = np.ascontiguousarray(source).reshape(-1).view(np.uint8)
        return lambda start, size: flat[start : start + size]

    def stored(record: TensorRecord, start: int, size: int) -> NDArray[np.uint8]:
        if record.file not in shards:
            shards[record.file] = stack.enter_context(Shard(record.file, pool))
        shard = shards[record.file]
        return shard.read(record.offset + start, size, packing.CHUNK, record.name)

    decoded: Read = partial(stored, first)
    if not isinstance(source, TensorRecord):
        decoded = source.reader(stored)
    last: tuple[int, int] = (-1, -1)
    data: NDArray[np.uint8] = np.empty(0, np.uint8)

    def read(start: int, size: int) -> NDArray[np.uint8]:
        nonlocal last, data
        if (start, size) != last:
            data = decoded(start, size)
            last = (start, size)
            search.look(start, data)
        return data

    return read


def _source_order(item: PackItem) -> tuple[bool, str, int]:
    if (record := item.record) is not None:
        return (False, str(record.file), record.offset)
    return (True, item.key, 0)


def _archive_tensor(item: PackItem) -> ArchiveTensor:
    note = {"dtype": item.dtype, "shape": list(item.shape), "layout": item.full_layout}
    if item.quantised is not None:
        note["format"] = item.quantised.format.name
    return ArchiveTensor(key=item.key, bytes=item.bytes, metadata=json.dumps(note))
