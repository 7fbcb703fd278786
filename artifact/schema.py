"""Read records from JSON: the types of a frozen dataclass are the schema of its object.

A field of a record is a key of the object, and the object may have no other keys. Supported types
are int, float (finite), str, bool, None, `Any`, `Literal`, unions of these, tuples (arrays),
mappings with string keys (objects), and nested records. Nothing is converted: true is not a number,
and 1.0 is not an integer.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

_Record = TypeVar("_Record")

#: Longest text of a value that an error quotes.
_LONGEST = 60

_NAMES: Mapping[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    type(None): "null",
}


class SchemaError(ValueError):
    """A value does not match the schema; the message names its key."""


def read_record(cls: type[_Record], raw: object, key: str = "") -> _Record:
    """Read the record of type `cls` from the JSON value `raw`; every field must be present.

    `key` is the path of the value in the file. Raises SchemaError, which names the key, the
    expected and the found value, for a wrong type, a missing key and an unknown one.
    """
    if not isinstance(raw, Mapping):
        raise _wrong(key, "an object", raw)
    hints: dict[str, Any] = _fields(cls)
    for name in raw:
        if name not in hints:
            raise SchemaError(f"{_join(key, name)}: unknown key; known are {', '.join(hints)}")
    values: dict[str, Any] = {}
    for name, hint in hints.items():
        if name in raw:
            values[name] = _read(hint, raw[name], _join(key, name))
        else:
            raise SchemaError(f"{_join(key, name)}: missing")
    return cls(**values)


def _fields(cls: Any) -> dict[str, Any]:
    """The fields of a record with their types."""
    hints = _hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _read(hint: Any, raw: object, key: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return raw
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read_record(hint, raw, key)
    if origin in (Union, types.UnionType):
        return _one_of(inner, raw, key)
    if origin is Literal:
        if not isinstance(raw, str) or raw not in inner:
            raise _wrong(key, _name(hint), raw)
        return raw
    if origin is tuple:
        return _array(inner, raw, key)
    if origin in (dict, Mapping):
        if not isinstance(raw, dict):
            raise _wrong(key, "an object", raw)
        return {name: _read(inner[1], value, _join(key, name)) for name, value in raw.items()}
    return _scalar(hint, raw, key)


def _scalar(hint: type, raw: object, key: str) -> Any:
    if hint is float and type(raw) is int:
        return raw
    if type(raw) is not hint or (isinstance(raw, float) and not math.isfinite(raw)):
        raise _wrong(key, _name(hint), raw)
    return raw


def _one_of(kinds: tuple[Any, ...], raw: object, key: str) -> Any:
    """Read a value as the first matching kind; for a record or null, raise the record's error."""
    others = [kind for kind in kinds if kind is not type(None)]
    if raw is None and len(others) < len(kinds):
        return None
    if len(others) == 1 and isinstance(raw, dict | list | tuple):
        return _read(others[0], raw, key)
    for kind in others:
        try:
            return _read(kind, raw, key)
        except SchemaError:
            continue
    raise _wrong(key, " or ".join(map(_name, kinds)), raw)


def _array(kinds: tuple[Any, ...], raw: object, key: str) -> tuple[Any, ...]:
    if not isinstance(raw, list | tuple):  # a tuple: of what was never JSON
        raise _wrong(key, "an array", raw)
    if kinds[-1] is not Ellipsis and len(kinds) != len(raw):
        raise SchemaError(f"{key}: wants {len(kinds)} items, found {len(raw)}")
    each = (kinds[0],) * len(raw) if kinds[-1] is Ellipsis else kinds
    return tuple(
        _read(kind, value, f"{key}[{index}]")
        for index, (kind, value) in enumerate(zip(each, raw, strict=True))
    )


def _name(hint: Any) -> str:
    if hint in _NAMES:
        return _NAMES[hint]
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    return "an array" if get_origin(hint) is tuple else "an object"


def _join(key: str, name: str) -> str:
    short = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}..."
    return f"{key}.{short}" if key else short


def _wrong(key: str, wanted: str, raw: object) -> SchemaError:
    found = "an object" if isinstance(raw, dict) else "an array" if isinstance(raw, list) else ""
    if raw is None or isinstance(raw, bool):
        found = str(raw).lower().replace("none", "null")
    return SchemaError(
        f"{key or 'the file'}: wants {wanted}, found {found or repr(raw)[:_LONGEST]}"
    )
