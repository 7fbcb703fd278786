"""Writes the header of a GGUF file: metadata, and the list of tensors with offsets.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; little endian, version 3.
"""

from __future__ import annotations

import struct
from typing import Any

from mxc.compiler.checkpoints.dialects.gguf_names import ARCHITECTURES
from mxc.compiler.checkpoints.files.gguf import TYPES
from mxc.compiler.convert.plan import ConversionPlan
from mxc.errors import CheckpointError

_ALIGNMENT = 32
_LONGEST_NAME = 63

#: Numbers of ggml's tensor types, by name.
_TYPES = {kind.name: number for number, kind in TYPES.items()}

#: Metadata types by their numbers: a single integer is uint32, integers in arrays are int32.
_UINT, _INT, _FLOAT, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_LETTERS = {_UINT: "I", _INT: "i", _FLOAT: "f", _BOOL: "?"}


def header(plan: ConversionPlan) -> tuple[bytes, list[int], int]:
    """Return everything before the tensors, the offset of each tensor, and the size of the file."""
    text = [b"GGUF", struct.pack("<IQQ", 3, len(plan.tensors), len(plan.metadata))]
    for key, value in plan.metadata.items():
        text += [_string(key), _value(value)]
    end, starts = 0, []
    for tensor in plan.tensors:
        if len(tensor.name.encode()) > _LONGEST_NAME:
            raise CheckpointError(
                f"tensor {tensor.name}: ggml wants names of at most {_LONGEST_NAME} bytes; only "
                f"architectures {', '.join(ARCHITECTURES)} are renamed"
            )
        dims = b"".join(struct.pack("<Q", n) for n in reversed(tensor.shape))
        kind = _TYPES[tensor.dtype]
        rank = struct.pack("<I", len(tensor.shape))
        text += [_string(tensor.name), rank, dims, struct.pack("<IQ", kind, end)]
        starts.append(end)
        end += -(-tensor.bytes // _ALIGNMENT) * _ALIGNMENT
    raw = b"".join(text)
    raw += bytes(-len(raw) % _ALIGNMENT)
    return raw, [len(raw) + start for start in starts], len(raw) + end


def _string(text: str) -> bytes:
    raw = text.encode(errors="surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if not isinstance(value, list):
        kind = _UINT if type(value) is int else _kind(value)
        return struct.pack("<I", kind) + _packed(kind, [value])
    kind = _kind(value[0]) if value else _INT
    return struct.pack("<IIQ", _ARRAY, kind, len(value)) + _packed(kind, value)


def _kind(value: Any) -> int:
    return {str: _STRING, float: _FLOAT, bool: _BOOL}.get(type(value), _INT)


def _packed(kind: int, values: list[Any]) -> bytes:
    if kind == _STRING:
        return b"".join(map(_string, values))
    return struct.pack(f"<{len(values)}{_LETTERS[kind]}", *values)
