"""A reader for the part of MessagePack that the metadata of code objects uses.

Maps, arrays, strings, integers, booleans and nil (https://github.com/msgpack/msgpack spec.md).
Other types, and truncated data, raise CodeObjectError.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from mxc.errors import CodeObjectError

Value: TypeAlias = "dict[str, Value] | list[Value] | str | int | bool | None"

_INTEGERS = {
    0xCC: ">B",
    0xCD: ">H",
    0xCE: ">I",
    0xCF: ">Q",
    0xD0: ">b",
    0xD1: ">h",
    0xD2: ">i",
    0xD3: ">q",
}
_LENGTHS = {
    0xD9: ("str", ">B"),
    0xDA: ("str", ">H"),
    0xDB: ("str", ">I"),
    0xDC: ("array", ">H"),
    0xDD: ("array", ">I"),
    0xDE: ("map", ">H"),
    0xDF: ("map", ">I"),
}
_CONSTANTS: dict[int, bool | None] = {0xC0: None, 0xC2: False, 0xC3: True}
#: Deepest nesting that is read; metadata of kernels is nested four deep.
_DEEPEST = 32


def unpack(data: bytes) -> Value:
    """Read `data`, which holds one value. Raises CodeObjectError."""
    value, end = _value(data, 0, 0)
    if any(data[end:]):
        raise CodeObjectError(f"metadata: {len(data) - end} bytes after the end of the value")
    return value


def _value(data: bytes, at: int, depth: int) -> tuple[Value, int]:
    if depth > _DEEPEST:
        raise CodeObjectError(f"metadata: nested deeper than {_DEEPEST}")
    if at >= len(data):
        raise CodeObjectError("metadata: ends within a value")
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag < 0x90:
        return _map(data, at, tag & 15, depth)
    if tag < 0xA0:
        return _array(data, at, tag & 15, depth)
    if tag < 0xC0:
        return _string(data, at, tag & 31)
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag in _INTEGERS:
        return _number(data, at, _INTEGERS[tag])
    if tag in _LENGTHS:
        kind, width = _LENGTHS[tag]
        count, at = _number(data, at, width)
        if kind == "str":
            return _string(data, at, count)
        return (_map if kind == "map" else _array)(data, at, count, depth)
    raise CodeObjectError(f"metadata: type 0x{tag:02x} at byte {at - 1} is not one that it uses")


def _number(data: bytes, at: int, width: str) -> tuple[int, int]:
    end = at + struct.calcsize(width)
    if end > len(data):
        raise CodeObjectError("metadata: ends within a number")
    return int(struct.unpack(width, data[at:end])[0]), end


def _string(data: bytes, at: int, count: int) -> tuple[str, int]:
    if at + count > len(data):
        raise CodeObjectError("metadata: ends within a string")
    try:
        return data[at : at + count].decode(), at + count
    except UnicodeDecodeError as error:
        raise CodeObjectError(f"metadata: a string that is not UTF-8 ({error})") from error


def _array(data: bytes, at: int, count: int, depth: int) -> tuple[Value, int]:
    items: list[Value] = []
    for _ in range(count):
        item, at = _value(data, at, depth + 1)
        items.append(item)
    return items, at


def _map(data: bytes, at: int, count: int, depth: int) -> tuple[Value, int]:
    items: dict[str, Value] = {}
    for _ in range(count):
        key, at = _value(data, at, depth + 1)
        if not isinstance(key, str):
            raise CodeObjectError(f"metadata: a key that is not a string: {key!r}")
        items[key], at = _value(data, at, depth + 1)
    return items, at
