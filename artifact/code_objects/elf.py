"""The parts of ELF that code objects use: sections, symbols and notes.

Every size and offset is checked against the file before it is used. Source: System V ABI, ELF-64.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from mxc.errors import CodeObjectError

_EM_AMDGPU = 224
_SHT_SYMTAB, _SHT_NOTE, _SHT_NOBITS, _SHT_DYNSYM = 2, 7, 8, 11
_STT_FUNC = 2
_SHF_WRITE, _SHF_ALLOC = 1, 2
#: Most bytes of address space of a code object; known code objects take less than 1 MiB.
_LARGEST_IMAGE = 1 << 28
_NOTE_METADATA = 32


class Section(NamedTuple):
    """A section. `kind` is sh_type, `flags` sh_flags, `link` the section with its names."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    entry_size: int


def read_sections(data: bytes) -> list[Section]:
    """The sections of a code object. Raises CodeObjectError for any other file."""
    machine(data)
    table = struct.unpack_from("<Q", data, 40)[0]
    size, count, names_index = struct.unpack_from("<HHH", data, 58)
    if size != 64 or table + size * count > len(data) or names_index >= count:
        raise CodeObjectError("the ELF section table lies outside of the file")
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * i) for i in range(count)]
    for _, kind, _, _, offset, length, *_ in raw:
        if kind != _SHT_NOBITS and offset + length > len(data):
            raise CodeObjectError("an ELF section lies outside of the file; is it cut short?")
    names = raw[names_index]
    return [
        Section(_text(data, names[4] + r[0]), r[1], r[2], r[3], r[4], r[5], r[6], r[9]) for r in raw
    ]


def machine(data: bytes) -> int:
    """The processor that a code object is for (EF_AMDGPU_MACH, the low byte of e_flags).

    Raises CodeObjectError for any other file.
    """
    if data[:6] != b"\x7fELF\x02\x01" or len(data) < 64:
        raise CodeObjectError("not a code object: wanted a 64-bit little-endian ELF file")
    found, flags = struct.unpack_from("<H", data, 18)[0], struct.unpack_from("<I", data, 48)[0]
    if found != _EM_AMDGPU:
        raise CodeObjectError(
            f"not a code object: wanted ELF machine {_EM_AMDGPU}, found machine {found}"
        )
    return int(flags & 0xFF)


def _text(data: bytes, at: int) -> str:
    end = data.find(b"\0", at)
    if end < 0:
        raise CodeObjectError("an ELF name lies outside of the file")
    return data[at:end].decode(errors="replace")


def note(data: bytes, sections: list[Section]) -> bytes:
    """The note with the metadata of the kernels. Raises CodeObjectError where there is none."""
    for section in sections:
        at, end = section.offset, section.offset + section.size
        while section.kind == _SHT_NOTE and at + 12 <= end:
            name_size, size, kind = struct.unpack_from("<III", data, at)
            name = data[at + 12 : at + 12 + name_size].rstrip(b"\0")
            body = at + 12 + (name_size + 3) // 4 * 4
            if body + size > end:
                raise CodeObjectError("a note of the code object lies outside of its section")
            if name == b"AMDGPU" and kind == _NOTE_METADATA:
                return data[body : body + size]
            at = body + (size + 3) // 4 * 4
    raise CodeObjectError("the code object has no metadata note (AMDGPU, type 32)")


def symbols(data: bytes, sections: list[Section]) -> dict[str, int]:
    """The values of all symbols, by name. Raises CodeObjectError for a malformed table."""
    found = _symbols(data, sections, (_SHT_SYMTAB, _SHT_DYNSYM))
    return {name: value for name, _, value, _ in found}


def functions(data: bytes, sections: list[Section]) -> list[tuple[str, int, int]]:
    """The name, address and size in bytes of each function, in the order of the code.

    Raises CodeObjectError for a malformed table.
    """
    found = _symbols(data, sections, (_SHT_SYMTAB,))
    each = {(name, at, size) for name, info, at, size in found if info & 15 == _STT_FUNC}
    return sorted(each, key=lambda function: function[1])


def _symbols(
    data: bytes, sections: list[Section], kinds: tuple[int, ...]
) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, info byte, value and size of each symbol in the tables of these kinds."""
    for section in sections:
        if section.kind not in kinds:
            continue
        if section.entry_size != 24 or section.link >= len(sections):
            raise CodeObjectError(f"the ELF symbol table {section.name} is malformed")
        names = sections[section.link].offset
        for at in range(section.offset, section.offset + section.size - 23, 24):
            name, info, _, _, value, size = struct.unpack_from("<IBBHQQ", data, at)
            yield _text(data, names + name), info, value, size


def section_of(sections: list[Section], address: int, name: str) -> Section:
    """The section loaded at `address`; `name`: the kernel, for errors. Raises CodeObjectError."""
    for section in sections:
        inside = section.address <= address < section.address + section.size
        if section.address and inside and section.kind != _SHT_NOBITS:
            return section
    raise CodeObjectError(f"kernel {name}: address 0x{address:x} is in no section")


def bytes_at(data: bytes, sections: list[Section], at: int, count: int, name: str) -> bytes:
    """`count` bytes at the address `at`; `name`: the kernel, for errors. Raises CodeObjectError."""
    section = section_of(sections, at, name)
    start = section.offset + at - section.address
    if at + count > section.address + section.size:
        raise CodeObjectError(f"kernel {name}: its descriptor is cut short")
    return data[start : start + count]


def image(data: bytes, sections: list[Section]) -> bytes:
    """Code and constants as they are loaded: the bytes from address 0 to the end of the last
    section that is loaded read-only."""
    loaded = [
        s
        for s in sections
        if s.flags & (_SHF_ALLOC | _SHF_WRITE) == _SHF_ALLOC and s.kind != _SHT_NOBITS
    ]
    size = max((s.address + s.size for s in loaded), default=0)
    if size > _LARGEST_IMAGE:
        raise CodeObjectError(f"a code object of {size} bytes, at most {_LARGEST_IMAGE}")
    found = bytearray(size)
    for s in loaded:
        found[s.address : s.address + s.size] = data[s.offset : s.offset + s.size]
    return bytes(found)


def contents(data: bytes, sections: list[Section], name: str) -> bytes:
    """The bytes of the section `name`, b"" where there is none."""
    for section in sections:
        if section.name == name and section.kind != _SHT_NOBITS:
            return data[section.offset : section.offset + section.size]
    return b""


def emptied(data: bytes, sections: list[Section], name: str) -> bytes:
    """The file with the section `name` empty, and smaller; unchanged where there is none.

    What follows the section is moved by a multiple of 64 bytes, so that it stays aligned. Raises
    CodeObjectError if the section, or something that follows it, is loaded.
    """
    taken = next((s for s in sections if s.name == name and s.kind != _SHT_NOBITS), None)
    if taken is None:
        return data
    end = taken.offset + taken.size
    later = [s for s in sections if s.offset >= end and s.kind != _SHT_NOBITS]
    if any(s.flags & _SHF_ALLOC for s in [taken, *later]):
        raise CodeObjectError(f"the section {name} or one that follows it is loaded")
    table, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    moved = taken.size // 64 * 64
    found = bytearray(data)
    for number in range(count):
        at = table + 64 * number
        if sections[number] is taken:
            struct.pack_into("<Q", found, at + 32, 0)
        elif sections[number].offset >= end:
            struct.pack_into("<Q", found, at + 24, sections[number].offset - moved)
    if table >= end:
        struct.pack_into("<Q", found, 40, table - moved)
    del found[taken.offset : taken.offset + moved]
    return bytes(found)
