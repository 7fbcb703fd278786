"""Code objects of gfx950: an ELF file, its kernels, and how each of them wants to be started.

Sources: the LLVM documentation "User Guide for AMDGPU Backend", sections Code Object Metadata
(the note), Kernel Descriptor (64 bytes a kernel) and Initial Kernel Execution State.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from mxc.runtime.simulator.errors import CodeObjectError
from mxc.runtime.simulator.msgpack import Value, unpack

#: EF_AMDGPU_MACH_AMDGCN_GFX950 in the low byte of e_flags.
_GFX950 = 0x4F
_EM_AMDGPU = 224
_SHT_SYMTAB, _SHT_NOTE, _SHT_NOBITS, _SHT_DYNSYM = 2, 7, 8, 11
_NOTE_METADATA = 32


class Argument(NamedTuple):
    """One entry of the kernel's argument segment: `kind` is the metadata's `.value_kind`."""

    kind: str
    offset: int
    size: int


@dataclass(frozen=True)
class Descriptor:
    """The fields of a kernel descriptor that execution depends on.

    `mode` is the initial MODE register; `first_agpr` the accumulation registers' place in the
    unified register file.
    """

    lds_bytes: int
    scratch_bytes: int
    kernarg_bytes: int
    entry: int
    vgprs: int
    first_agpr: int
    mode: int
    user_sgprs: int
    workgroup_ids: tuple[bool, bool, bool]
    workitem_dimensions: int
    kernarg_sgpr: int | None
    preload_sgpr: int
    preload_dwords: int
    preload_offset: int


@dataclass(frozen=True)
class Kernel:
    """One kernel of a code object.

    `workgroup` is the size in work items; `code` the whole text section, `address` its virtual
    address, `descriptor.entry` the address of the first instruction.
    """

    name: str
    arguments: tuple[Argument, ...]
    workgroup: tuple[int, int, int]
    descriptor: Descriptor
    code: bytes
    address: int


class _Section(NamedTuple):
    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int


def read_kernels(data: bytes) -> dict[str, Kernel]:
    """The kernels of a code object (the bytes of an HSACO file), by name.

    Raises CodeObjectError for anything that is not a complete code object for gfx950.
    """
    sections = _sections(data)
    metadata = _metadata(data, sections)
    symbols = _symbols(data, sections)
    kernels: dict[str, Kernel] = {}
    for entry in _items(metadata, "amdhsa.kernels"):
        name = _string(entry, ".name")
        symbol = _string(entry, ".symbol")
        if symbol not in symbols:
            raise CodeObjectError(f"kernel {name}: no symbol {symbol!r} in the code object")
        at = symbols[symbol]
        descriptor = _descriptor(_bytes_at(data, sections, at, 64, name), at, name)
        text = _section_of(sections, descriptor.entry, name)
        if descriptor.entry % 4 or text.address % 4:
            raise CodeObjectError(f"kernel {name}: its code is not aligned to 4 bytes")
        kernels[name] = Kernel(
            name=name,
            arguments=tuple(
                Argument(_string(item, ".value_kind"), _int(item, ".offset"), _int(item, ".size"))
                for item in _items(entry, ".args", optional=True)
            ),
            workgroup=_workgroup(entry, name),
            descriptor=descriptor,
            code=data[text.offset : text.offset + text.size],
            address=text.address,
        )
    if not kernels:
        raise CodeObjectError("the code object holds no kernel")
    return kernels


def _sections(data: bytes) -> list[_Section]:
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        raise CodeObjectError("not a code object: wanted a 64-bit little-endian ELF file")
    machine, flags = struct.unpack_from("<H", data, 18)[0], struct.unpack_from("<I", data, 48)[0]
    if machine != _EM_AMDGPU or flags & 0xFF != _GFX950:
        raise CodeObjectError(
            f"not for gfx950: wanted ELF machine {_EM_AMDGPU} with processor 0x{_GFX950:x}, "
            f"found machine {machine} with 0x{flags & 0xFF:x}"
        )
    table = struct.unpack_from("<Q", data, 40)[0]
    size, count, names_index = struct.unpack_from("<HHH", data, 58)
    if size != 64 or table + size * count > len(data) or names_index >= count:
        raise CodeObjectError("the ELF section table lies outside of the file")
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * i) for i in range(count)]
    for _, kind, _, _, offset, length, *_ in raw:
        if kind != _SHT_NOBITS and offset + length > len(data):
            raise CodeObjectError("an ELF section lies outside of the file; is it cut short?")
    names = raw[names_index]
    return [_Section(_text(data, names[4] + r[0]), r[1], r[3], r[4], r[5], r[6], r[9]) for r in raw]


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    if end < 0:
        raise CodeObjectError("an ELF name lies outside of the file")
    return data[at:end].decode(errors="replace")


def _metadata(data: bytes, sections: list[_Section]) -> Value:
    for section in sections:
        at, end = section.offset, section.offset + section.size
        while section.kind == _SHT_NOTE and at + 12 <= end:
            name_size, size, kind = struct.unpack_from("<III", data, at)
            name = data[at + 12 : at + 12 + name_size].rstrip(b"\0")
            body = at + 12 + (name_size + 3) // 4 * 4
            if body + size > end:
                raise CodeObjectError("a note of the code object lies outside of its section")
            if name == b"AMDGPU" and kind == _NOTE_METADATA:
                return unpack(data[body : body + size])
            at = body + (size + 3) // 4 * 4
    raise CodeObjectError("the code object has no metadata note (AMDGPU, type 32)")


def _symbols(data: bytes, sections: list[_Section]) -> dict[str, int]:
    found = {}
    for section in sections:
        if section.kind not in (_SHT_SYMTAB, _SHT_DYNSYM):
            continue
        if section.entry_size != 24 or section.link >= len(sections):
            raise CodeObjectError(f"the ELF symbol table {section.name} is malformed")
        names = sections[section.link].offset
        for at in range(section.offset, section.offset + section.size - 23, 24):
            name, _, _, _, value, _ = struct.unpack_from("<IBBHQQ", data, at)
            found[_text(data, names + name)] = value
    return found


def _section_of(sections: list[_Section], address: int, name: str) -> _Section:
    for section in sections:
        inside = section.address <= address < section.address + section.size
        if section.address and inside and section.kind != _SHT_NOBITS:
            return section
    raise CodeObjectError(f"kernel {name}: address 0x{address:x} is in no section")


def _bytes_at(data: bytes, sections: list[_Section], at: int, count: int, name: str) -> bytes:
    section = _section_of(sections, at, name)
    start = section.offset + at - section.address
    if at + count > section.address + section.size:
        raise CodeObjectError(f"kernel {name}: its descriptor is cut short")
    return data[start : start + count]


def _descriptor(raw: bytes, address: int, name: str) -> Descriptor:
    lds, scratch, kernarg, _, entry = struct.unpack_from("<IIIIq", raw)
    rsrc3, rsrc1, rsrc2, properties, preload = struct.unpack_from("<IIIHH", raw, 44)
    # User SGPRs stand in this order; the bits of those that a kernel does not ask for take none.
    sizes = (4, 2, 2, 2, 2, 2, 1)
    places = [sum(n for j, n in enumerate(sizes[:i]) if properties >> j & 1) for i in range(8)]
    if properties & 0b0110111:
        raise CodeObjectError(
            f"kernel {name}: asks for dispatch, queue or private segment registers "
            f"(properties 0x{properties:x}), which the simulator does not provide"
        )
    return Descriptor(
        lds_bytes=lds,
        scratch_bytes=scratch,
        kernarg_bytes=kernarg,
        entry=address + entry,
        vgprs=((rsrc1 & 63) + 1) * 8,
        first_agpr=((rsrc3 & 63) + 1) * 4,
        mode=rsrc1 >> 12 & 0xFF
        | (rsrc1 >> 21 & 1) << 8
        | (rsrc1 >> 23 & 1) << 9
        | (rsrc1 >> 26 & 1) << 23,
        user_sgprs=rsrc2 >> 1 & 31,
        workgroup_ids=(bool(rsrc2 >> 7 & 1), bool(rsrc2 >> 8 & 1), bool(rsrc2 >> 9 & 1)),
        workitem_dimensions=(rsrc2 >> 11 & 3) + 1,
        kernarg_sgpr=places[3] if properties >> 3 & 1 else None,
        preload_sgpr=places[7],
        preload_dwords=preload & 127,
        preload_offset=preload >> 7,
    )


def _workgroup(entry: Value, name: str) -> tuple[int, int, int]:
    size = _field(entry, ".reqd_workgroup_size", optional=True)
    if size is None:
        raise CodeObjectError(f"kernel {name}: its metadata does not state a workgroup size")
    if not (isinstance(size, list) and len(size) == 3):
        raise CodeObjectError(f"kernel {name}: workgroup size {size!r}, wanted three numbers")
    x, y, z = (item if isinstance(item, int) else 0 for item in size)
    if min(x, y, z) < 1 or x * y * z > 1024:
        raise CodeObjectError(f"kernel {name}: workgroup size {size}, wanted 1 to 1024 work items")
    return x, y, z


def _field(value: Value, key: str, *, optional: bool = False) -> Value:
    if not isinstance(value, dict) or (key not in value and not optional):
        raise CodeObjectError(f"metadata: no {key!r} where one was wanted")
    return value.get(key)


def _items(value: Value, key: str, *, optional: bool = False) -> list[Value]:
    found = _field(value, key, optional=optional)
    if found is None and optional:
        return []
    if not isinstance(found, list):
        raise CodeObjectError(f"metadata: {key} is {found!r}, wanted a list")
    return found


def _string(value: Value, key: str) -> str:
    found = _field(value, key)
    if not isinstance(found, str):
        raise CodeObjectError(f"metadata: {key} is {found!r}, wanted a string")
    return found


def _int(value: Value, key: str) -> int:
    found = _field(value, key)
    if not isinstance(found, int):
        raise CodeObjectError(f"metadata: {key} is {found!r}, wanted a number")
    return found
