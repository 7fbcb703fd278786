"""Reads FlatBuffers: tables, vectors, strings (https://flatbuffers.dev internals).

Offsets outside of the data raise CodeObjectError. Nothing is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from mxc.errors import CodeObjectError


class Table:
    """A table of a FlatBuffer; fields are numbered from 0 in the order of its schema."""

    def __init__(self, data: memoryview, at: int) -> None:
        """Read the table at byte `at`."""
        self._data = data
        self._at = at
        vtable = at - _read(data, "<i", at)
        size = _read(data, "<H", vtable)
        self._fields = [_read(data, "<H", vtable + n) for n in range(4, size, 2)]

    @classmethod
    def root(cls, data: memoryview) -> Table:
        """Return the root table."""
        return cls(data, _read(data, "<I", 0))

    def scalar(self, field: int, format: str, default: int = 0) -> int:
        """Read a number; format as in the struct module."""
        at = self._place(field)
        return default if at is None else _read(self._data, "<" + format, at)

    def string(self, field: int) -> str:
        """Read a string, "" where there is none."""
        return bytes(self.bytes(field)).decode(errors="replace")

    def bytes(self, field: int) -> memoryview:
        """Read the bytes of a string or a vector of bytes."""
        at = self._target(field)
        if at is None:
            return self._data[:0]
        count = _read(self._data, "<I", at)
        if at + 4 + count > len(self._data):
            raise CodeObjectError("a FlatBuffer vector lies outside of its data")
        return self._data[at + 4 : at + 4 + count]

    def table(self, field: int) -> Table | None:
        """Read a table, None where there is none."""
        at = self._target(field)
        return None if at is None else Table(self._data, at)

    def tables(self, field: int) -> list[Table]:
        """Read a vector of tables."""
        return [Table(self._data, at + _read(self._data, "<I", at)) for at in self._items(field, 4)]

    def structs(self, field: int, format: str) -> list[tuple[int, ...]]:
        """Read a vector of structs; format as in the struct module, with padding."""
        size = struct.calcsize("<" + format)
        return [struct.unpack_from("<" + format, self._data, at) for at in self._items(field, size)]

    def _items(self, field: int, size: int) -> Iterator[int]:
        at = self._target(field)
        if at is None:
            return
        count = _read(self._data, "<I", at)
        if at + 4 + count * size > len(self._data):
            raise CodeObjectError("a FlatBuffer vector lies outside of its data")
        yield from range(at + 4, at + 4 + count * size, size)

    def _place(self, field: int) -> int | None:
        offset = self._fields[field] if field < len(self._fields) else 0
        return self._at + offset if offset else None

    def _target(self, field: int) -> int | None:
        at = self._place(field)
        return None if at is None else at + _read(self._data, "<I", at)


def _read(data: memoryview, format: str, at: int) -> int:
    if at < 0 or at + struct.calcsize(format) > len(data):
        raise CodeObjectError("a FlatBuffer offset lies outside of its data")
    return int(struct.unpack_from(format, data, at)[0])
