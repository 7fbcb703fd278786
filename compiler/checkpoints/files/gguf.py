"""GGUF on disk: header, metadata and tensor list, checked before use.

The gguf package is not used because it trusts the lengths in a file (an array of 2^63 elements).
Here every length is compared with the number of bytes left.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; little endian, versions 2 and 3.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from mxc.errors import CheckpointError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)

#: With the largest vocabularies, metadata and tensor list have some ten MiB.
_MAX_HEADER = 256 << 20
_MAX_KEY = 65535
_MAX_NAME = 1024
_MAX_DIMENSIONS = 4
_DEFAULT_ALIGNMENT = 32

#: struct formats of the scalar metadata types. 8 is a string, 9 an array.
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?",
    10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True)
class GgmlType:
    """A tensor type: `bytes` bytes for each `block` elements of a row."""

    name: str
    block: int
    bytes: int


#: Supported types by their numbers in ggml.h (enum ggml_type).
TYPES: Mapping[int, GgmlType] = {
    0: GgmlType("F32", 1, 4),
    1: GgmlType("F16", 1, 2),
    8: GgmlType("Q8_0", 32, 34),
    24: GgmlType("I8", 1, 1),
    25: GgmlType("I16", 1, 2),
    26: GgmlType("I32", 1, 4),
    27: GgmlType("I64", 1, 8),
    28: GgmlType("F64", 1, 8),
    30: GgmlType("BF16", 1, 2),
    39: GgmlType("MXFP4", 32, 17),
    40: GgmlType("NVFP4", 64, 36),
}
#: Names of the unsupported types, for messages.
_OTHERS = {
    2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One tensor: `shape` outermost first, `bytes` bytes at `offset` from the start of the file."""

    name: str
    type: GgmlType
    shape: tuple[int, ...]
    offset: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """The content of one file's header. In `metadata`, arrays of numbers are numpy arrays, and
    arrays of strings are lists."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_gguf(path: Path) -> GgufFile:
    """Return header, metadata and tensor list of a .gguf file; reads no tensor.

    Raises CheckpointError if the file is not GGUF, has an unsupported version or type, is
    truncated, has lengths or offsets outside the file, overlapping tensors, or duplicate names.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            return _Reader(path, file, size).read()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: not found; fetch the missing file") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error


class _Reader:
    """Reads a file from front to back, never past its end."""

    def __init__(self, path: Path, file: BinaryIO, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.left = min(size, _MAX_HEADER)

    def read(self) -> GgufFile:
        if self.take(4, "the magic") != MAGIC:
            raise CheckpointError(f"{self.path}: not a GGUF file; it does not begin with GGUF")
        version = self.number("<I", "the version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            raise self.refuse(
                f"version {version} is not supported; supported: 2 and 3, little endian"
                + (" (this one is big endian)" if swapped else "")
            )
        tensors = self.count(self.number("<Q", "the number of tensors"), 24, "tensors")
        values = self.count(self.number("<Q", "the number of values"), 13, "values")
        metadata = self.metadata(values)
        infos = [self.info() for _ in range(tensors)]
        return GgufFile(path=self.path, metadata=metadata, tensors=self.place(metadata, infos))

    def metadata(self, values: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for _ in range(values):
            key = self.string("a key", _MAX_KEY)
            if key in found:
                raise self.refuse(f"key {key[:80]!r} is there twice")
            kind = self.number("<I", f"the type of {key[:80]!r}")
            found[key] = self.value(kind, key[:80])
        return found

    def value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self.number(_SCALARS[kind], f"the value of {key!r}")
        if kind == _STRING:
            return self.string(f"the value of {key!r}", _MAX_HEADER)
        if kind != _ARRAY:
            raise self.refuse(f"value {key!r} is of type {kind}, which GGUF does not have")
        kind = self.number("<I", f"the type of {key!r}")
        count = self.number("<Q", f"the length of {key!r}")
        if kind == _STRING:
            count = self.count(count, 8, f"strings of {key!r}")
            return [self.string(f"a string of {key!r}", _MAX_HEADER) for _ in range(count)]
        if kind not in _SCALARS:
            raise self.refuse(f"value {key!r} is an array of type {kind}, which is not supported")
        dtype = np.dtype(_SCALARS[kind])
        count = self.count(count, dtype.itemsize, f"numbers of {key!r}")
        return np.frombuffer(self.take(count * dtype.itemsize, f"the numbers of {key!r}"), dtype)

    def info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string("the name of a tensor", _MAX_NAME)
        rank = self.number("<I", f"the dimensions of {name!r}")
        if rank > _MAX_DIMENSIONS:
            raise self.refuse(f"tensor {name!r} has {rank} dimensions, wanted at most 4")
        inner_first = [self.number("<Q", f"the shape of {name!r}") for _ in range(rank)]
        kind = self.number("<I", f"the type of {name!r}")
        return name, tuple(reversed(inner_first)), kind, self.number("<Q", f"where {name!r} lies")

    def place(
        self, metadata: Mapping[str, Any], infos: list[tuple[str, tuple[int, ...], int, int]]
    ) -> tuple[GgufTensor, ...]:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
            raise self.refuse(f"wanted a power of two for general.alignment, found {alignment!r}")
        start = -(-self.file.tell() // alignment) * alignment
        found: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in infos:
            if name in found:
                raise self.refuse(f"tensor {name!r} is there twice")
            found[name] = self.tensor(name, shape, kind, start + offset)
        end = start
        for tensor in sorted(found.values(), key=lambda t: t.offset):
            # ggml requires that each tensor begins at the aligned end of the one before.
            if tensor.offset != end:
                what = "overlaps what lies before it" if tensor.offset < end else "leaves a hole"
                raise self.refuse(
                    f"tensor {tensor.name!r} at byte {tensor.offset} {what}, wanted it at {end}"
                )
            end = -(-(tensor.offset + tensor.bytes) // alignment) * alignment
            if tensor.offset + tensor.bytes > self.size:
                raise CheckpointError(
                    f"{self.path}: truncated: tensor {tensor.name!r} ends at byte "
                    f"{tensor.offset + tensor.bytes}, the file has {self.size}; fetch it again"
                )
        if found and self.size > end:
            raise self.refuse(f"the header accounts for {end} bytes, the file has {self.size}")
        return tuple(found.values())

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
        if kind not in TYPES:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is of type {_OTHERS.get(kind, kind)}, which is not "
                f"supported; supported: {', '.join(t.name for t in TYPES.values())}"
            )
        of = TYPES[kind]
        row = shape[-1] if shape else 1
        elements = math.prod(shape)
        if elements >= 1 << 63 or row % of.block:
            raise self.refuse(
                f"tensor {name!r} of {of.name} is {list(shape)}, wanted rows of a multiple of "
                f"{of.block} and fewer than 2^63 elements"
            )
        size = elements // of.block * of.bytes
        return GgufTensor(name=name, type=of, shape=shape, offset=offset, bytes=size)

    def string(self, what: str, limit: int) -> str:
        length = self.number("<Q", f"the length of {what}")
        if length > min(limit, self.left):
            raise self.refuse(
                f"{what} claims {length} bytes, wanted at most {min(limit, self.left)}"
            )
        # Tokens need not be UTF-8; other bytes are preserved when the string is encoded again.
        return self.take(length, what).decode(errors="surrogateescape")

    def count(self, count: int, size: int, what: str) -> int:
        if count * size > self.left:
            raise self.refuse(
                f"it claims {count} {what}, which take at least {count * size} bytes; "
                f"{self.left} are left"
            )
        return count

    def number(self, format: str, what: str) -> Any:
        return struct.unpack(format, self.take(struct.calcsize(format), what))[0]

    def take(self, size: int, what: str) -> bytes:
        data = self.file.read(size) if size <= self.left else b""
        if len(data) < size:
            limit = f" (of which at most {_MAX_HEADER} are header)" if self.size > self.left else ""
            raise CheckpointError(
                f"{self.path}: truncated: wanted {size} bytes for {what} at byte "
                f"{self.file.tell() - len(data)}, the file has {self.size}{limit}; fetch it again"
            )
        self.left -= size
        return data

    def refuse(self, why: str) -> CheckpointError:
        return CheckpointError(f"{self.path}: {why}; the file is damaged: fetch it again")
