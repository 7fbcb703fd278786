"""Access to the bits of an instruction, and helpers shared by the readers of all encodings."""

from __future__ import annotations

import struct
from dataclasses import replace

from mxc.simulator.code import opcodes_memory, opcodes_scalar, opcodes_vector
from mxc.simulator.code.instruction import SPECIAL, Instruction, Operand
from mxc.simulator.compute.signatures import register_counts
from mxc.simulator.errors import SimulationError

_LITERAL = 255


def _tables(*modules: object) -> dict[str, dict[int, str]]:
    tables: dict[str, dict[int, str]] = {}
    for module in modules:
        for table, text in vars(module).items():
            if table.isupper():
                number = -1
                tables[table] = {}
                for word in text.split():
                    number = int(word) - 1 if word.isdigit() else number + 1
                    if not word.isdigit():
                        tables[table][number] = word
    return tables


OPCODES = _tables(opcodes_memory, opcodes_scalar, opcodes_vector)


class Word:
    """The bits of one instruction and of the literal that may follow it."""

    def __init__(self, code: bytes, at: int) -> None:
        """Read the bits from byte `at` on."""
        # The longest instruction has twenty bytes; bytes past the end read as zero.
        raw = code[at : at + 20].ljust(20, b"\0")
        self.bits = int.from_bytes(raw[:16], "little")
        self.raw = raw
        self.size = 4

    def __call__(self, high: int, low: int) -> int:
        """Return bits high..low."""
        return self.bits >> low & ((1 << (high - low + 1)) - 1)

    def literal(self, size: int) -> int:
        """Return the 32-bit literal after an instruction of `size` bytes."""
        self.size = size + 4
        return int(struct.unpack_from("<I", self.raw, size)[0])

    def source(self, code: int, size: int) -> Operand:
        """Decode an 8- or 9-bit source operand; size: bytes of the instruction."""
        if code >= 256:
            return Operand("v", code - 256)
        if code < 128:
            return Operand("s", code)
        if code <= 192:
            return Operand("int", code - 128)
        if code <= 208:
            return Operand("int", 192 - code)
        if code in SPECIAL:
            return Operand("special", code)
        if 240 <= code <= 248:
            return Operand("float", code)
        if code == _LITERAL:
            return Operand("literal", self.literal(size))
        raise SimulationError(f"operand code {code} is reserved")


def instruction(
    name: str,
    encoding: str,
    address: int,
    word: Word,
    results: tuple[Operand, ...],
    operands: tuple[Operand, ...],
    modifiers: dict[str, int] | None = None,
) -> Instruction:
    """Return an instruction whose operands have their numbers of registers."""
    outs, ins = register_counts(name, len(results), len(operands))
    return Instruction(
        name,
        encoding,
        address,
        word.size,
        tuple(replace(o, count=n) for o, n in zip(results, outs, strict=True)),
        tuple(replace(o, count=n) for o, n in zip(operands, ins, strict=True)),
        {key: value for key, value in (modifiers or {}).items() if value},
    )
