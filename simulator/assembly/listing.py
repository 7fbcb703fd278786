"""Reads an assembly file: instructions at their addresses, labels, symbols, kernel blocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mxc.simulator.assembly.expressions import evaluate
from mxc.simulator.assembly.instructions import Line, read_instruction
from mxc.simulator.assembly.source import SourceLine, Statement, refuse, split, statements
from mxc.simulator.code.instruction import Instruction
from mxc.simulator.errors import AssemblyError

#: Directives without an effect on a kernel's execution.
_IGNORED = """
    .amdgcn_target .amdhsa_code_object_version .globl .global .weak .hidden .protected .local
    .type .ident .file .loc .addrsig .addrsig_sym .cfi_startproc .cfi_endproc .cfi_sections
    .cfi_escape .cfi_undefined
"""
_DATA = {".byte": 1, ".short": 2, ".hword": 2, ".long": 4, ".word": 4, ".int": 4, ".quad": 8}
#: Most bytes of code, which limits the memory that a directive can request.
_LARGEST = 1 << 26


@dataclass
class Listing:
    """The contents of a file: instructions and their source lines by address, labels, symbols.

    blocks: the fields of each `.amdhsa_kernel`, by kernel. metadata: the YAML text and its place.
    """

    instructions: dict[int, Instruction] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, dict[str, tuple[str, SourceLine]]] = field(default_factory=dict)
    metadata: tuple[str, SourceLine] | None = None


def read_listing(text: str, file: str) -> Listing:
    """Read a whole file. Raises AssemblyError, which begins with file and line."""
    reader = _Reader()
    for statement in statements(text, file):
        reader.add(statement)
    return reader.finish(file)


class _Reader:
    def __init__(self) -> None:
        self.found = Listing()
        self.at = 0
        self.section = ".text"
        self.lines: list[Line] = []
        self.local: dict[str, list[int]] = {}
        self.block: dict[str, tuple[str, SourceLine]] | None = None
        self.pending: dict[str, tuple[str, SourceLine]] = {}

    def add(self, statement: Statement) -> None:
        if statement.kind == "metadata":
            if self.found.metadata is not None:
                raise refuse(statement.place, "a second .amdgpu_metadata")
            self.found.metadata = (statement.text, statement.place)
        elif statement.kind == "label":
            self.label(statement)
        elif statement.kind == "directive":
            self.directive(statement)
        elif self.section != ".text":
            raise refuse(statement.place, f"{statement.name}: an instruction in {self.section}")
        elif "=" in statement.text.split(" ")[:1]:
            self.assign(statement.name, statement.text[1:].strip(), statement.place)
        else:
            line = read_instruction(statement, self.found.symbols, self.at)
            self.lines.append(line)
            self.at += line.instruction.size

    def label(self, statement: Statement) -> None:
        name = statement.name
        if name.isdigit():
            self.local.setdefault(name, []).append(self.at)
        elif self.section != ".text":
            return
        elif name in self.found.labels:
            raise refuse(statement.place, f"the label {name} for the second time")
        else:
            self.found.labels[name] = self.at

    def directive(self, statement: Statement) -> None:
        name, text, place = statement.name, statement.text, statement.place
        if name == ".amdhsa_kernel":
            if self.block is not None or not text:
                raise refuse(place, ".amdhsa_kernel within another one, or without a name")
            if text in self.found.blocks:
                raise refuse(place, f".amdhsa_kernel {text} for the second time")
            self.block = self.found.blocks[text] = {"": ("", place)}
        elif name == ".end_amdhsa_kernel":
            if self.block is None:
                raise refuse(place, ".end_amdhsa_kernel without .amdhsa_kernel")
            self.block = None
        elif self.block is not None:
            if not name.startswith(".amdhsa_"):
                raise refuse(place, f"{name} within .amdhsa_kernel")
            self.block[name.removeprefix(".amdhsa_")] = (text, place)
        elif name in (".text", ".data", ".bss", ".rodata"):
            self.section = name
        elif name in (".section", ".pushsection"):
            self.section = split(text)[0].strip('"') if text else ""
        elif name in (".set", ".equ"):
            symbol, _, value = text.partition(",")
            self.assign(symbol.strip(), value.strip(), place)
        elif name in (".p2align", ".balign", ".align", ".p2alignl"):
            self.align(name, text, place)
        elif name in (".fill", ".skip", ".space", ".zero") or name in _DATA:
            self.data(name, text, place)
        elif not (name in _IGNORED.split() or name == ".size" or self.section != ".text"):
            raise refuse(place, f"the directive {name} is not known")

    def assign(self, symbol: str, text: str, place: SourceLine) -> None:
        if not symbol or not text:
            raise refuse(place, ".set wants a symbol and a value")
        self.pending[symbol] = (text, place)
        self.settle(symbol)

    def settle(self, symbol: str) -> bool:
        """Evaluate a pending symbol; return whether all symbols that it uses are known."""
        text, place = self.pending[symbol]
        try:
            value = evaluate(text, {**self.found.labels, **self.found.symbols}, place)
        except AssemblyError:
            # Functions may be listed after the kernels that call them. A symbol that stays
            # undefined is an error where it is used.
            return False
        self.found.symbols[symbol] = value
        del self.pending[symbol]
        return True

    def align(self, name: str, text: str, place: SourceLine) -> None:
        if self.section != ".text":
            return
        value = evaluate(split(text)[0] if text else "", self.found.symbols, place)
        power = name.startswith(".p2align")
        if not (0 <= value <= 16 if power else 0 < value <= 1 << 16):
            raise refuse(place, f"{name} {value}")
        unit = 1 << value if power else value
        end = -(-self.at // unit) * unit
        # Execution may run through the padding, which LLVM fills with s_nop.
        while self.at + 4 <= end:
            nop = Instruction("s_nop", "SOPP", self.at, 4)
            self.lines.append(Line(nop, Statement("directive", name, text, place)))
            self.at += 4

    def data(self, name: str, text: str, place: SourceLine) -> None:
        """Advance the address by the size of data; executing data is refused when it is reached."""
        if self.section != ".text":
            return
        parts = split(text)
        if name in _DATA:
            self.at += _DATA[name] * len(parts)
        else:
            values = [evaluate(part, self.found.symbols, place) for part in parts]
            size = values[1] if name == ".fill" and len(values) > 1 else 1
            self.at += values[0] * size if values else 0
            if not values or values[0] < 0 or self.at > _LARGEST:
                raise refuse(place, f"{name} {text}")

    def finish(self, file: str) -> Listing:
        if self.block is not None:
            raise refuse(self.block[""][1], ".amdhsa_kernel without .end_amdhsa_kernel")
        progress = True
        while progress:
            progress = False
            for symbol in list(self.pending):
                progress |= self.settle(symbol)
        for line in self.lines:
            i = line.instruction
            if line.target:
                i = self.jump(line)
            self.found.instructions[i.address] = i
            self.found.places[i.address] = str(line.statement.place)
        if not self.found.instructions:
            raise refuse(SourceLine(file, 1), "no instruction in it")
        return self.found

    def jump(self, line: Line) -> Instruction:
        i, place = line.instruction, line.statement.place
        target = self.target(line)
        if target is None:
            known = ", ".join(list(self.found.labels)[:8])
            raise refuse(place, f"{i.name}: no label {line.target!r}; there are {known or 'none'}")
        distance = (target - i.address - 4) // 4
        if not -(1 << 15) <= distance < 1 << 15:
            raise refuse(place, f"{i.name}: {line.target} is {distance} dwords away")
        fields = {"simm16": distance & 0xFFFF} if distance else {}
        return replace(i, modifiers=fields)

    def target(self, line: Line) -> int | None:
        """Return the target of a branch: a label, a local label (1b, 1f), or a distance."""
        name, here = line.target, line.instruction.address
        if name in self.found.labels:
            return self.found.labels[name]
        places = self.local.get(name[:-1], [])
        if name.endswith("f"):
            return next((at for at in places if at > here), None)
        if name.endswith("b"):
            return next((at for at in reversed(places) if at <= here), None)
        if name.lstrip("-").isdigit():
            return here + 4 + 4 * int(name)
        return None
