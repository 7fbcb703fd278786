"""Reads IREE's compiled modules (.vmfb): the host program's functions, constants and executables.

A module is a ZIP archive. Its first file is a FlatBuffer with the bytecode
(runtime/src/iree/schemas/bytecode_module_def.fbs of IREE), the other files are constants that the
bytecode refers to. Executables for AMD GPUs are FlatBuffers too (hip_executable_def.fbs).
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from mxc.errors import CodeObjectError
from mxc.simulator.host.flatbuffer import Table

#: The bytecode of IREE 3.13; other versions number their operations differently.
_BYTECODE = 17
_ZIP = b"PK\x03\x04"
_HEADER = 64


@dataclass(frozen=True)
class Code:
    """One function: its bytecode, and its calling convention, "" if unknown."""

    data: memoryview
    convention: str


@dataclass(frozen=True)
class Import:
    """An imported function: its name ("hal.fence.create") and calling convention ("0rI_r")."""

    name: str
    convention: str


@dataclass(frozen=True)
class HostModule:
    """A module: functions, imports, exports, constants, and the sizes of its globals."""

    functions: list[Code]
    imports: list[Import]
    exports: dict[str, int]
    attributes: dict[str, dict[str, str]]
    constants: list[memoryview]
    global_bytes: int
    global_refs: int


def read_module(source: Path | bytes) -> HostModule:
    """Map a .vmfb file, or read its bytes.

    Raises CodeObjectError for a file that is not a module of this version of IREE.
    """
    if isinstance(source, bytes):
        data = memoryview(source)
    else:
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise CodeObjectError(f"{source}: is empty")
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    start = 0
    if bytes(data[:4]) == _ZIP and len(data) >= 30:
        start = 30 + sum(struct.unpack_from("<HH", data, 26))
    if bytes(data[start + 8 : start + 12]) != b"IREE":
        raise CodeObjectError("not a module of IREE: no FlatBuffer with the name IREE")
    length = struct.unpack_from("<I", data, start)[0]
    end = start + 4 + length
    if end > len(data):
        raise CodeObjectError("the module is cut short")
    return _module(Table.root(data[start + 4 : end]), data, end)


def _module(root: Table, data: memoryview, end: int) -> HostModule:
    version = root.scalar(13, "I") >> 16
    if version != _BYTECODE:
        raise CodeObjectError(f"bytecode of version {version}, wanted {_BYTECODE}")
    bytecode = root.bytes(14)
    signatures = root.tables(8)
    functions = []
    for n, (offset, size, *_rest) in enumerate(root.structs(12, "iiIhhhh")):
        if offset < 0 or offset + size > len(bytecode):
            raise CodeObjectError("a function lies outside of the module")
        convention = signatures[n].string(0) if n < len(signatures) else ""
        functions.append(Code(bytecode[offset : offset + size], convention))
    imports = []
    for entry in root.tables(6):
        signature = entry.table(1)
        imports.append(Import(entry.string(0), signature.string(0) if signature else ""))
    exports = {e.string(0): e.scalar(1, "i") for e in root.tables(7)}
    attributes = {
        name: {a.string(0): a.string(1) for a in signatures[n].tables(1)}
        for name, n in exports.items()
        if 0 <= n < len(signatures)
    }
    outside = (end + 63) // 64 * 64
    constants = [_constant(segment, data, outside) for segment in root.tables(9)]
    state = root.table(11)
    return HostModule(
        functions,
        imports,
        exports,
        attributes,
        constants,
        state.scalar(0, "i") if state else 0,
        state.scalar(1, "i") if state else 0,
    )


def _constant(segment: Table, data: memoryview, outside: int) -> memoryview:
    """Return the bytes of a constant, which are in the FlatBuffer or after it."""
    embedded = segment.bytes(2)
    if len(embedded):
        return embedded
    offset, length = segment.scalar(3, "Q"), segment.scalar(4, "Q")
    if outside + offset + length > len(data):
        raise CodeObjectError("a constant lies outside of the module; is it cut short?")
    return data[outside + offset : outside + offset + length]


class HostFunction(NamedTuple):
    """A function of an executable: the index of its code object, and its bytes of dynamic LDS."""

    code: int
    dynamic_lds: int


def read_executable(data: memoryview) -> tuple[list[bytes], dict[str, HostFunction]]:
    """Return the code objects of an executable, and its functions by name."""
    if bytes(data[:4]) != b"HIP1":
        raise CodeObjectError(
            f"an executable of kind {bytes(data[:4])!r}; the simulator runs those for gfx950"
        )
    root = Table.root(data[_HEADER:])
    objects = [bytes(entry.bytes(0)) for entry in root.tables(1)]
    functions = {
        entry.string(1): HostFunction(entry.scalar(0, "I"), entry.scalar(3, "I"))
        for entry in root.tables(0)
    }
    if any(function.code >= len(objects) for function in functions.values()):
        raise CodeObjectError("an executable names a code object that it does not hold")
    return objects, functions
