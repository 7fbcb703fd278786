"""Reads lines of assembly as instructions, the same objects as the decoder of machine code."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

from mxc.simulator.assembly import memory, vector
from mxc.simulator.assembly.modifiers import (
    hardware_register,
    is_modifier,
    read_modifiers,
    wait_counters,
)
from mxc.simulator.assembly.operands import OperandReader
from mxc.simulator.assembly.source import Statement, split
from mxc.simulator.assembly.written import InstructionText, finish, take
from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.code.words import OPCODES

_SUFFIXES = ("_e32", "_e64", "_sdwa", "_dpp")
_JUMPS = ("s_branch", "s_cbranch_")
_FLAT = ("FLAT", "GLOBAL", "SCRATCH")


@dataclass(frozen=True, slots=True)
class Line:
    """An instruction and its statement; `target`: the label of a branch, else ""."""

    instruction: Instruction
    statement: Statement
    target: str = ""


@cache
def _encodings() -> dict[str, tuple[str, ...]]:
    """Return the possible encodings of each instruction name."""
    found: dict[str, tuple[str, ...]] = {}
    for table, names in OPCODES.items():
        for name in names.values():
            found[name] = (*found.get(name, ()), "FLAT" if table in _FLAT else table)
    for name in [n for n in found if n.startswith("v_mfma_") and n.endswith("f8f6f4")]:
        found[name.replace("v_mfma_", "v_mfma_scale_")] = ("VOP3P",)
    return found


def read_instruction(statement: Statement, symbols: Mapping[str, int], address: int) -> Line:
    """Read the instruction of a line, at an address; the distance of a branch is left at 0.

    Raises AssemblyError, with file and line, for a name that gfx950 does not have, and for operands
    and modifiers that the instruction does not take.
    """
    read = OperandReader(symbols, statement.place, statement.name)
    name, suffix = _plain(statement.name)
    encodings = _encodings().get(name, ())
    if not encodings:
        raise read.refuse(f"no instruction of gfx950{_similar(name)}")
    parts, words = _parts(statement.text)
    written = InstructionText(name, encodings[0], suffix, parts, words, read, address)
    target = ""
    if written.encoding == "SOPP" and name.startswith(_JUMPS):
        take(written, 1)
        target = parts[0]
        written = replace(written, parts=[])
    made = _READERS[written.encoding](replace(written, encoding=encodings[0]))
    return Line(made, statement, target)


def _plain(name: str) -> tuple[str, str]:
    for suffix in _SUFFIXES:
        if name.startswith("v_") and name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""


def _similar(name: str) -> str:
    close = difflib.get_close_matches(name, _encodings(), 3, 0.8)
    return f"; there is {', '.join(close)}" if close else ""


def _parts(text: str) -> tuple[list[str], list[str]]:
    """Split operands and modifiers; modifiers follow the last operand without a comma."""
    parts = split(text)
    if not parts:
        return [], []
    last = split(parts.pop(), " ")
    at = next((n for n, word in enumerate(last) if is_modifier(word)), len(last))
    if at:
        parts.append(" ".join(last[:at]))
    return parts, last[at:]


def _scalar(w: InstructionText) -> Instruction:
    """Read SOP1, SOP2 and SOPC: a result, except for compares, and sources."""
    results = [] if w.encoding == "SOPC" else w.parts[:1]
    sources = w.parts[len(results) :]
    take(w, len(results) + (1 if w.encoding == "SOP1" else 2))
    kinds = w.kinds(len(sources))
    return finish(
        w,
        [w.scalar_register(text) for text in results],
        [w.scalar(text, kind) for text, kind in zip(sources, kinds, strict=True)],
    )


def _sop1(w: InstructionText) -> Instruction:
    if w.name == "s_getpc_b64":
        take(w, 1)
        return finish(w, [w.scalar_register(w.parts[0])], [])
    return _scalar(w)


def _sopk(w: InstructionText) -> Instruction:
    if w.name.startswith("s_setreg"):
        take(w, 2)
        fields = {"hwreg": hardware_register(w.parts[0], w.read)}
        if w.name == "s_setreg_b32":
            return finish(w, [], [w.scalar_register(w.parts[1])], fields)
        value = w.read.integer(w.parts[1]) & 0xFFFFFFFF
        return finish(w, [], [Operand("literal", value)], fields)
    take(w, 2)
    register = w.scalar_register(w.parts[0])
    if w.name.startswith("s_getreg"):
        return finish(w, [register], [], {"hwreg": hardware_register(w.parts[1], w.read)})
    value = w.read.integer(w.parts[1])
    if not -(1 << 15) <= value < 1 << 16:
        raise w.read.refuse(f"{w.parts[1]} does not fit into 16 bits")
    value &= 0xFFFF
    if not w.name.endswith("_u32"):
        value -= (value & 0x8000) << 1
    immediate = Operand("int", value)
    if w.name.startswith("s_cmpk"):
        return finish(w, [], [register, immediate])
    return finish(w, [register], [immediate])


def _sopp(w: InstructionText) -> Instruction:
    value = 0
    if w.name == "s_waitcnt":
        value = wait_counters(" ".join(w.parts), w.read) if w.parts else 0
    elif w.parts:
        take(w, 1)
        value = w.read.integer(w.parts[0])
        if not -(1 << 15) <= value < 1 << 16:
            raise w.read.refuse(f"{w.parts[0]} does not fit into 16 bits")
    return finish(w, [], [], {"simm16": value & 0xFFFF})


def _smem(w: InstructionText) -> Instruction:
    fields = {key: int(value) for key, value in w.plain_fields().items()}
    if not w.parts:
        return finish(w, [], [], fields)
    if len(w.parts) == 1:
        return finish(w, [w.scalar_register(w.parts[0])], [], fields)
    take(w, 3)
    data, base = (w.scalar_register(text) for text in w.parts[:2])
    register = w.read.register(w.parts[2])
    if register is None:
        found = read_modifiers([f"offset:{w.parts[2]}"], "SMEM", w.read)
        fields |= {key: int(value) for key, value in found.items() if isinstance(value, int)}
        register = Operand("off", 0)
    return finish(w, [data], [base, register], fields)


_READERS = {
    "SOP1": _sop1,
    "SOP2": _scalar,
    "SOPC": _scalar,
    "SOPK": _sopk,
    "SOPP": _sopp,
    "SMEM": _smem,
    "VOP1": vector.read_vector,
    "VOP2": vector.read_vector,
    "VOPC": vector.read_vector,
    "VOP3": vector.read_vector,
    "VOP3P": vector.read_packed,
    "DS": memory.read_local,
    "FLAT": memory.read_flat,
    "MUBUF": memory.read_buffer,
}
