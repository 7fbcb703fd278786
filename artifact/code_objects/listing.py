"""The assembly of the kernels in a code object, as LLVM wrote it when it generated the code.

A function with the feature "dumpcode" has its instructions as text in the section `.AMDGPU.disasm`:
one line for each, with its machine code after a semicolon. The targets of branches are not in the
text, which is written before they are known; they are read from the code. Nor is a move between
registers of which an index register chooses one, which follows `s_set_gpr_idx_on`. Source: LLVM,
AMDGPUAsmPrinter.cpp.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from mxc.artifact.code_objects import elf
from mxc.errors import CodeObjectError

_SECTION = ".AMDGPU.disasm"
_BRANCH = ("s_branch", "s_cbranch")
#: s_nop 0, with which blocks are aligned; the text does not have it.
_PADDING = 0xBF800000
_INDEXED = "s_set_gpr_idx_on"
#: v_mov_b32_e32, with zeros for the destination in bits 17 to 24 and the source in bits 0 to 8, of
#: which 256 is the first vector register. Source: CDNA3 ISA, VOP1.
_MOVE, _MOVE_BITS, _VECTOR = 0x7E000200, 0xFE01FE00, 256
#: The last scalar register.
_SCALARS = 101


def read_listings(data: bytes) -> dict[str, str]:
    """Return the assembly of each function by name: its instructions, with labels that branches
    name; empty for a code object without the text.

    Raises CodeObjectError for another file, and where the text is not that of the code.
    """
    sections = elf.read_sections(data)
    text = elf.contents(data, sections, _SECTION).decode(errors="replace")
    found = {}
    lines = _instructions(text)
    for name, address, size in elf.functions(data, sections) if text else ():
        code = elf.bytes_at(data, sections, address, size, name)
        found[name] = _listing(name, code, lines)
    return found


def _instructions(text: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield mnemonic, operands and words of each instruction."""
    for line in text.splitlines():
        written, _, code = line.rpartition("; ")
        if written:
            mnemonic, _, operands = written.strip().partition(" ")
            yield mnemonic, operands, tuple(int(word, 16) for word in code.split())


def _listing(name: str, code: bytes, lines: Iterator[tuple[str, str, tuple[int, ...]]]) -> str:
    """Return the text of the function with these bytes, and consume its lines."""
    words = struct.unpack(f"<{len(code) // 4}I", code[: len(code) // 4 * 4])
    placed: dict[int, str] = {}
    targets: set[int] = set()
    at, end = 0, len(words)
    while end and words[end - 1] == _PADDING:
        end -= 1
    while at < end:
        mnemonic, operands, expected = next(lines, ("", "", (-1,)))
        branch = mnemonic.startswith(_BRANCH)
        # The number of a branch is written into the code later.
        while at < len(words) and (words[at] ^ expected[0]) >> (16 if branch else 0):
            if words[at] != _PADDING:
                raise CodeObjectError(
                    f"kernel {name}: the text of the code object has {mnemonic or 'no instruction'}"
                    f" at byte {4 * at} of its code, which has 0x{words[at]:08x} there"
                )
            at += 1
        if branch:
            (offset,) = struct.unpack("<h", struct.pack("<H", words[at] & 0xFFFF))
            targets.add(at + 1 + offset)
            operands = f".L{4 * (at + 1 + offset)}"
        placed[at] = f"\t{mnemonic} {operands}".rstrip()
        at += len(expected)
        if mnemonic == _INDEXED and at < end and words[at] & _MOVE_BITS == _MOVE:
            placed[at] = f"\t{_move(words[at])}"
            at += 1
    labelled = ((f".L{4 * at}:\n" if at in targets else "") + line for at, line in placed.items())
    return "".join(f"{line}\n" for line in labelled)


def _move(word: int) -> str:
    """The text of v_mov_b32 from a register, or from what else its source names by number."""
    source = word & 0x1FF
    kind = "v" if source >= _VECTOR else "s" if source <= _SCALARS else "source "
    return f"v_mov_b32_e32 v{word >> 17 & 0xFF}, {kind}{source % _VECTOR}"


def without_listing(data: bytes) -> bytes:
    """Return the code object without the text. Raises CodeObjectError for any other file."""
    return elf.emptied(data, elf.read_sections(data), _SECTION)
