"""IREE parameter archives (.irpa): lay out the header, and read archives back.

mxc does not use `iree.runtime.ParameterIndex.create_archive_file`, which needs every tensor in
memory (or in a file with its final bytes) before it starts. Packing reorders tensors on their way
to the archive, in buffers of a few MiB, and the header can be computed beforehand.

Format: https://github.com/iree-org/iree/blob/main/runtime/src/iree/schemas/parameter_archive.h,
version 0.0. All structures are packed and little-endian. The tests compare the bytes with those of
IREE's own writer, and load every archive with IREE.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mxc.errors import ArtifactError

#: Every tensor starts at a multiple of this. IREE maps aligned tensors and copies others.
ALIGNMENT = 64

# magic, major, minor, header_size, next_header_offset, flags; entry_count; then offset and
# length of the segments for entries, metadata and storage.
_HEADER = struct.Struct("<IHHQQQ Q QQ QQ QQ")
# entry_size, type, flags, name (offset, length), metadata (offset, length), minimum_alignment;
# storage (offset, length).
_ENTRY = struct.Struct("<QIQ QQ QQ Q QQ")
_MAGIC = 0x41505249  # "IRPA"
_DATA = 2
_ENTRY_ALIGNMENT = 16
#: The size of the file is a multiple of this, so that the whole file can be mapped.
_PAGE = 4096
_CURE = "pack it again"


@dataclass(frozen=True, kw_only=True)
class ArchiveTensor:
    """A tensor to be written: its key, its size in bytes and a note stored beside the key."""

    key: str
    bytes: int
    metadata: str = ""


@dataclass(frozen=True, kw_only=True)
class ArchiveEntry:
    """A tensor in an archive: `bytes` bytes at `offset` from the start of the file."""

    key: str
    offset: int
    bytes: int
    metadata: str = ""


@dataclass(frozen=True, kw_only=True)
class ArchiveLayout:
    """Layout of an archive: `head` is the first bytes of the file, `total` its size in bytes."""

    head: bytes
    entries: tuple[ArchiveEntry, ...]
    total: int


def lay_out(tensors: Sequence[ArchiveTensor]) -> ArchiveLayout:
    """The layout of an archive of `tensors`, in order. Raises ValueError for a repeated key."""
    if len({t.key for t in tensors}) != len(tensors):
        raise ValueError("two tensors of one key")
    texts = bytearray()

    def text(value: str) -> tuple[int, int]:
        encoded = value.encode()
        start = len(texts)
        texts.extend(encoded)
        return (start, len(encoded)) if encoded else (0, 0)

    rows, position = [], 0
    for tensor in tensors:
        position = _align(position, ALIGNMENT)
        rows.append((text(tensor.key), text(tensor.metadata), position, tensor.bytes))
        position += tensor.bytes

    stride = _align(_ENTRY.size, _ENTRY_ALIGNMENT)
    table = b"".join(
        _ENTRY.pack(_ENTRY.size, _DATA, 0, *key, *note, ALIGNMENT, start, size).ljust(stride, b"\0")
        for key, note, start, size in rows
    )
    if rows:  # IREE counts no padding after the last entry
        table = table[: _ENTRY.size - stride]
    table_start = _align(_HEADER.size, _ENTRY_ALIGNMENT)
    text_start = table_start + len(table)
    storage_start = _align(text_start + len(texts), ALIGNMENT)
    header = _HEADER.pack(
        _MAGIC, 0, 0, _HEADER.size, 0, 0, len(rows),
        table_start, len(table), text_start, len(texts), storage_start, position,
    )  # fmt: skip
    head = (header.ljust(table_start, b"\0") + table + bytes(texts)).ljust(storage_start, b"\0")
    entries = tuple(
        ArchiveEntry(
            key=tensor.key,
            offset=storage_start + start,
            bytes=tensor.bytes,
            metadata=tensor.metadata,
        )
        for tensor, (_, _, start, _) in zip(tensors, rows, strict=True)
    )
    return ArchiveLayout(head=head, entries=entries, total=_align(storage_start + position, _PAGE))


def read_archive(path: Path, *, canonical: bool = False) -> dict[str, ArchiveEntry]:
    """The tensors of an archive with one header and embedded data, by key.

    `canonical` is for an archive that mxc wrote: its header must equal, to the byte, the one that
    `lay_out` writes for these tensors, so that damage is found before anything is mapped.

    Raises ArtifactError for a file that is not an archive, another version, a kind of entry that
    mxc never writes (splat, external file), ranges outside of the file, and keys that repeat or are
    not UTF-8.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            found = _read_header(file, size, path)
            entries = _entries(found, path)
            if canonical:
                _require_canonical(file, size, entries, path)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error
    return {entry.key: entry for entry in entries}


@dataclass(frozen=True, kw_only=True)
class _Header:
    """Number of entries, their table, the texts that they refer to, and the location of storage."""

    count: int
    table: bytes
    texts: bytes
    storage: int
    storage_bytes: int


def _read_header(file: BinaryIO, size: int, path: Path) -> _Header:
    file.seek(0)
    data = file.read(_HEADER.size)
    if len(data) < _HEADER.size or data[:4] != _MAGIC.to_bytes(4, "little"):
        raise ArtifactError(f"{path}: not an IREE parameter archive; {_CURE}")
    (_, major, minor, own, next_header, _, count, table, table_bytes, texts, texts_bytes,
     storage, storage_bytes) = _HEADER.unpack(data)  # fmt: skip
    if (major, minor) != (0, 0) or next_header:
        raise ArtifactError(
            f"{path}: wanted one archive of version 0.0, found version {major}.{minor}"
            f"{', linked to another' if next_header else ''}; {_CURE}"
        )
    end = max(own, table + table_bytes, texts + texts_bytes, storage + storage_bytes)
    if end > size:
        raise ArtifactError(f"{path}: truncated: wanted {end} bytes, found {size}; {_CURE}")
    file.seek(table)
    table_data = file.read(table_bytes)
    file.seek(texts)
    return _Header(
        count=count,
        table=table_data,
        texts=file.read(texts_bytes),
        storage=storage,
        storage_bytes=storage_bytes,
    )


def _entries(header: _Header, path: Path) -> list[ArchiveEntry]:
    entries: dict[str, ArchiveEntry] = {}
    position = 0
    for _ in range(header.count):
        if position + _ENTRY.size > len(header.table):
            raise ArtifactError(f"{path}: entry table ends early; {_CURE}")
        (size, kind, _, key_at, key_bytes, note_at, note_bytes, _, start, length) = (
            _ENTRY.unpack_from(header.table, position)
        )
        if size < _ENTRY.size:
            raise ArtifactError(
                f"{path}: entry {len(entries)} has {size} bytes, wanted at least {_ENTRY.size}; "
                f"{_CURE}"
            )
        key, note = header.texts[key_at:][:key_bytes], header.texts[note_at:][:note_bytes]
        name = key.decode(errors="backslashreplace")
        if len(key) != key_bytes or len(note) != note_bytes or name in entries:
            raise ArtifactError(
                f"{path}: the name of entry {len(entries)}, {name[:60]!r}, lies outside of the "
                f"archive or is there twice; {_CURE}"
            )
        if kind != _DATA or start + length > header.storage_bytes:
            raise ArtifactError(
                f"{path}: entry {name} is not embedded data inside the file; {_CURE}"
            )
        entries[name] = ArchiveEntry(
            key=name,
            offset=header.storage + start,
            bytes=length,
            metadata=note.decode(errors="backslashreplace"),
        )
        position += _align(size, _ENTRY_ALIGNMENT)
    return list(entries.values())


def _require_canonical(
    file: BinaryIO, size: int, entries: Sequence[ArchiveEntry], path: Path
) -> None:
    """Raise ArtifactError unless the file begins with the header mxc writes for these tensors."""
    wanted = lay_out(
        [ArchiveTensor(key=e.key, bytes=e.bytes, metadata=e.metadata) for e in entries]
    )
    file.seek(0)
    head = file.read(len(wanted.head))
    if head != wanted.head or size < wanted.total - _PAGE:
        at = next((n for n, pair in enumerate(zip(head, wanted.head, strict=False))
                   if pair[0] != pair[1]), len(head))  # fmt: skip
        raise ArtifactError(
            f"{path}: the header is damaged at byte {at}: it is not the one that mxc writes for "
            f"its {len(entries)} tensors; copy the artifact again or compile it again"
        )


def _align(value: int, to: int) -> int:
    return -(-value // to) * to
