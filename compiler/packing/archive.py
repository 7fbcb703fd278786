"""IREE parameter archives (.irpa): lay out, read back.

Written here and not through `iree.runtime.ParameterIndex.create_archive_file`, which wants every
tensor in memory (or already in a file with its final bytes) before it starts; packing reorders
tensors on their way, in buffers of a few MiB, and the header can be computed beforehand.

Format: https://github.com/iree-org/iree/blob/main/runtime/src/iree/schemas/parameter_archive.h,
version 0.0. All structures are packed and little-endian. The tests compare the bytes
with those of IREE's own writer, and load every archive with IREE.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxc.dialects.errors import ArtifactError

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
#: The size of the file is a multiple of this, so that it can be mapped whole.
_PAGE = 4096


@dataclass(frozen=True, kw_only=True)
class ArchiveTensor:
    """A tensor to be written: its key, its size in bytes and a note kept beside the key."""

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
class Layout:
    """Where everything lies: `head` are the first bytes of the file, `total` its size."""

    head: bytes
    entries: tuple[ArchiveEntry, ...]
    total: int


def lay_out(tensors: Sequence[ArchiveTensor]) -> Layout:
    """The archive that holds `tensors` in the given order. Keys must differ (ValueError)."""
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
    return Layout(head=head, entries=entries, total=_align(storage_start + position, _PAGE))


def read_archive(path: Path) -> dict[str, ArchiveEntry]:
    """The tensors of an archive with one header and embedded data, by key.

    Raises ArtifactError: not an archive, another version, a kind of entry that mxc never writes
    (splat, external file), or ranges outside of the file.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or header[:4] != _MAGIC.to_bytes(4, "little"):
                raise ArtifactError(f"{path}: not an IREE parameter archive; pack it again")
            (_, major, _, _, next_header, _, count, table, table_bytes, texts, texts_bytes,
             storage, storage_bytes) = _HEADER.unpack(header)  # fmt: skip
            if major != 0 or next_header:
                raise ArtifactError(
                    f"{path}: wanted one archive of version 0, found version {major}"
                    f"{', linked to another' if next_header else ''}; pack it again"
                )
            ends = (table + table_bytes, texts + texts_bytes, storage + storage_bytes)
            if max(ends) > size:
                raise ArtifactError(
                    f"{path}: truncated: wanted {max(ends)} bytes, found {size}; pack it again"
                )
            file.seek(table)
            table_data = file.read(table_bytes)
            file.seek(texts)
            text_data = file.read(texts_bytes)
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read ({error.strerror})") from error

    entries: dict[str, ArchiveEntry] = {}
    position = 0
    for _ in range(count):
        if position + _ENTRY.size > len(table_data):
            raise ArtifactError(f"{path}: entry table ends early; pack it again")
        (entry_size, kind, _, key_at, key_bytes, note_at, note_bytes, _, start, length) = (
            _ENTRY.unpack_from(table_data, position)
        )
        key = text_data[key_at : key_at + key_bytes].decode(errors="replace")
        if kind != _DATA or start + length > storage_bytes:
            raise ArtifactError(
                f"{path}: entry {key} is not embedded data inside the file; pack it again"
            )
        entries[key] = ArchiveEntry(
            key=key,
            offset=storage + start,
            bytes=length,
            metadata=text_data[note_at : note_at + note_bytes].decode(errors="replace"),
        )
        position += _align(entry_size, _ENTRY_ALIGNMENT)
    return entries


def _align(value: int, to: int) -> int:
    return -(-value // to) * to
