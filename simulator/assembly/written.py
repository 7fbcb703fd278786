"""Parsed text of one instruction, and its conversion to an Instruction."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mxc.simulator.assembly.modifiers import read_modifiers
from mxc.simulator.assembly.operands import OperandReader
from mxc.simulator.code.instruction import Instruction, Operand
from mxc.simulator.code.text import operand_text
from mxc.simulator.compute.packed import MIXED, PACKED16, PACKED32
from mxc.simulator.compute.salu import SALU
from mxc.simulator.compute.signatures import VALU, register_counts

#: Bytes of an instruction without its literal.
_SIZES = dict.fromkeys(("SOP1", "SOP2", "SOPC", "SOPK", "SOPP", "VOP1", "VOP2", "VOPC"), 4)
_SIZES |= dict.fromkeys(("SMEM", "VOP3", "VOP3P", "DS", "FLAT", "MUBUF"), 8)
#: Encodings without literals on gfx9.
_NO_LITERAL = ("VOP3", "VOP3P", "DS", "FLAT", "MUBUF", "SMEM")


@dataclass(frozen=True)
class InstructionText:
    """The parsed text of one instruction: operands (`parts`) and modifiers (`words`)."""

    name: str
    encoding: str
    suffix: str
    parts: list[str]
    words: list[str]
    read: OperandReader
    address: int

    def fields(self) -> dict[str, int | list[int]]:
        """Return the fields that the modifiers set."""
        return read_modifiers(self.words, self.encoding, self.read)

    def plain_fields(self) -> dict[str, int]:
        """`fields` of an instruction whose modifiers are all numbers."""
        found = {}
        for key, value in self.fields().items():
            if not isinstance(value, int):
                raise self.read.refuse(f"{key} is no modifier of it")
            found[key] = value
        return found

    def kinds(self, count: int) -> str:
        """Return the kinds of the operands (operations.py), which decide how constants are read."""
        tables = (SALU, VALU, PACKED16, PACKED32, MIXED)
        entry = next((table[self.name] for table in tables if self.name in table), None)
        kinds = entry.ins.replace("c", "") if entry else "d" * count * self.name.endswith("_f64")
        return (kinds + "u" * count)[:count]

    def scalar(self, text: str, kind: str = "u") -> Operand:
        """Read a scalar register or a constant."""
        operand = self.read.operand(text, kind)
        if operand.bank in ("v", "a", "off"):
            raise self.read.refuse(f"{text} is no scalar operand")
        return operand

    def scalar_register(self, text: str) -> Operand:
        """Read a scalar register."""
        return self.register(text, "s")

    def register(self, text: str, banks: str) -> Operand:
        """Read a register of one of the banks."""
        found = self.read.register(text)
        if found is None or found.bank not in banks:
            wanted = {"s": "a scalar register", "v": "a vector register"}.get(
                banks, "a vector or accumulation register"
            )
            raise self.read.refuse(f"found {text}, wanted {wanted}")
        return found


def take(w: InstructionText, count: int) -> None:
    """Raise AssemblyError unless there are `count` operands."""
    if len(w.parts) != count:
        raise w.read.refuse(f"takes {count} operands, found {len(w.parts)}: {', '.join(w.parts)}")


def finish(
    w: InstructionText,
    results: list[Operand],
    operands: list[Operand],
    fields: dict[str, int] | None = None,
    *,
    size: int | None = None,
    counts: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
) -> Instruction:
    """Return the instruction.

    size: its bytes, by default those of the encoding. counts: registers of results and operands,
    by default those that belong to its name.
    """
    if fields is None:
        fields = w.plain_fields()
    if w.words and w.encoding in ("SOP1", "SOP2", "SOPC", "SOPK", "SOPP"):
        raise w.read.refuse(f"takes no modifier, found {w.words[0]}")
    wanted = counts or register_counts(w.name, len(results), len(operands))
    known = counts is not None or any(n > 1 for part in wanted for n in part) or _is_known(w.name)
    made = [
        tuple(_sized(w, o, n, known) for o, n in zip(these, numbers, strict=True))
        for these, numbers in zip((results, operands), wanted, strict=True)
    ]
    length = size or _SIZES[w.encoding]
    literals = {o.index for o in operands if o.bank == "literal"}
    if literals and (w.encoding in _NO_LITERAL or length > 4):
        shown = ", ".join(hex(value) for value in sorted(literals))
        raise w.read.refuse(f"this form takes no 32-bit constant, found {shown}: use a register")
    if len(literals) > 1:
        raise w.read.refuse("takes one 32-bit constant, found two")
    return Instruction(
        w.name,
        w.encoding,
        w.address,
        length + 4 * bool(literals),
        made[0],
        made[1],
        {key: value for key, value in fields.items() if value},
    )


def _is_known(name: str) -> bool:
    return name in SALU or name in VALU or name in PACKED16 or name in MIXED


def _sized(w: InstructionText, operand: Operand, count: int, known: bool) -> Operand:
    """Return an operand with the number of registers that the instruction takes.

    Raises AssemblyError where the text names another number.
    """
    if operand.is_register and operand.count != count:
        if known:
            raise w.read.refuse(
                f"{operand_text(operand)} is {operand.count} registers, wanted {count}"
            )
        return operand
    return replace(operand, count=count)
