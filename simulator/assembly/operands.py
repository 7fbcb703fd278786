"""Reads operands of assembly text: registers, constants, sign and absolute value marks."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from mxc.simulator.assembly.expressions import evaluate
from mxc.simulator.assembly.source import SourceLine, refuse
from mxc.simulator.code.instruction import INLINE_FLOATS, NAMED, SPECIAL, Operand

_RANGE = re.compile(
    r"(?P<bank>[sva]|acc|ttmp)\[\s*(?P<first>[^:\]]+?)\s*(?::\s*(?P<last>[^\]]+?)\s*)?\]$"
)
_SINGLE = re.compile(r"(?P<bank>[sva]|acc|ttmp)(?P<index>\d+)$")
_FLOAT = re.compile(r"[-+]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$")
_PAIRS = {"vcc": 106, "exec": 126, "flat_scratch": 102, "xnack_mask": 104}
_NAMES = {name: number for number, name in NAMED.items()}
_SPECIALS = {name: number for number, name in SPECIAL.items()} | {
    name.removeprefix("src_"): number for number, name in SPECIAL.items()
}
_LIMITS = {"s": 102, "v": 256, "a": 256}
_PATTERNS = {
    bits: {int(np.array(x, kind).view(f"u{bits // 8}")): code for code, x in INLINE_FLOATS.items()}
    for bits, kind in ((16, "f2"), (32, "f4"), (64, "f8"))
}


class ModifiedOperand(NamedTuple):
    """An operand with its marks: negated, absolute value, sign-extended (SDWA)."""

    operand: Operand
    negative: bool = False
    absolute: bool = False
    extended: bool = False


class OperandReader:
    """Reads the operands of one instruction, whose text and place it names in errors."""

    def __init__(self, symbols: Mapping[str, int], place: SourceLine, what: str) -> None:
        """symbols: values of `.set`; what: the instruction's name."""
        self.symbols, self.place, self.what = symbols, place, what

    def refuse(self, message: str) -> Exception:
        """Return the error to raise, with file, line and instruction."""
        return refuse(self.place, f"{self.what}: {message}")

    def integer(self, text: str) -> int:
        """Return the value of an expression."""
        return evaluate(text, self.symbols, self.place)

    def marked(self, text: str, kind: str) -> ModifiedOperand:
        """Read an operand of the kind `kind` (operations.py), with its marks."""
        negative = absolute = extended = False
        while True:
            if text.startswith("-") and (text[1:2] in "|" or text[1:2].isalpha()):
                negative, text = not negative, text[1:].strip()
            elif match := re.fullmatch(r"neg\((.*)\)", text):
                negative, text = not negative, match[1].strip()
            elif match := re.fullmatch(r"\|(.*)\||abs\((.*)\)", text):
                absolute, text = True, (match[1] or match[2] or "").strip()
            elif match := re.fullmatch(r"sext\((.*)\)", text):
                extended, text = True, match[1].strip()
            else:
                return ModifiedOperand(self.operand(text, kind), negative, absolute, extended)

    def operand(self, text: str, kind: str = "u") -> Operand:
        """Read a register or a constant of the kind `kind`."""
        return self.register(text) or self._constant(text, kind)

    def register(self, text: str) -> Operand | None:
        """Read a register or a special name; None for anything else."""
        if text == "off":
            return Operand("off", 0)
        if text in _PAIRS:
            return Operand("s", _PAIRS[text], 2)
        if text in _NAMES:
            return Operand("s", _NAMES[text])
        if text in _SPECIALS:
            return Operand("special", _SPECIALS[text])
        if single := _SINGLE.match(text):
            return self._checked(single["bank"], int(single["index"]), 1)
        if match := _RANGE.match(text):
            first = self.integer(match["first"])
            last = self.integer(match["last"]) if match["last"] else first
            return self._checked(match["bank"], first, last - first + 1)
        if text.startswith("[") and text.endswith("]"):
            return self._listed(text)
        return None

    def _listed(self, text: str) -> Operand:
        """Read a list of consecutive registers: [s0,s1]."""
        parts = [self.register(part.strip()) for part in text[1:-1].split(",")]
        first = parts[0]
        if first is None or parts != [
            Operand(first.bank, first.index + n) for n in range(len(parts))
        ]:
            raise self.refuse(f"{text} is no list of consecutive registers")
        return self._checked(first.bank, first.index, len(parts))

    def _checked(self, bank: str, first: int, count: int) -> Operand:
        bank = "a" if bank == "acc" else bank
        if bank == "ttmp":
            raise self.refuse("trap registers (ttmp) are not modelled")
        named = f"{bank}{first}" if count == 1 else f"{bank}[{first}:{first + count - 1}]"
        if count < 1 or first < 0 or first + count > _LIMITS[bank]:
            raise self.refuse(f"{named} does not exist; {bank}0 to {bank}{_LIMITS[bank] - 1} do")
        unit = min(4, 1 << (count - 1).bit_length()) if bank == "s" else min(count, 2)
        # Three scalar registers begin at a multiple of 4, three vector registers at one of 2.
        if first % (unit if count != 3 else 4 if bank == "s" else 2):
            raise self.refuse(f"{named} does not begin at a multiple of {unit}")
        return Operand(bank, first, count)

    def _constant(self, text: str, kind: str) -> Operand:
        bits = 64 if kind in "UIdm" else 16 if kind in "hbws" else 32
        if _FLOAT.match(text):
            return self._float(float(text), kind)
        if not re.match(r"[-+~!(\w.$]", text):
            raise self.refuse(f"{text!r} is no operand; wanted a register, a number or a symbol")
        value = self.integer(text)
        if -16 <= value <= 64:
            return Operand("int", value)
        patterns = _PATTERNS[bits] if kind != "b" else _PATTERNS[32]
        if (code := patterns.get(value & (1 << bits) - 1)) is not None:
            return Operand("float", code)
        if not -(1 << 31) <= value < 1 << 32:
            raise self.refuse(f"{text} does not fit into 32 bits")
        return Operand("literal", value & 0xFFFFFFFF)

    def _float(self, value: float, kind: str) -> Operand:
        for code, known in INLINE_FLOATS.items():
            if value == known or (code == 248 and np.float32(value) == np.float32(known)):
                return Operand("float", code)
        if value == 0 and not np.signbit(value):
            return Operand("int", 0)
        if kind == "h":
            return Operand("literal", int(np.float16(value).view(np.uint16)))
        if kind == "d":
            low, high = struct.unpack("<II", struct.pack("<d", value))
            if low:
                raise self.refuse(f"{value} needs 64 bits; a literal is the upper 32 of a double")
            return Operand("literal", high)
        bits = int(np.float32(value).view(np.uint32))
        return Operand("literal", bits >> 16 if kind == "b" else bits)

    def float_bits(self, operand: Operand) -> int | None:
        """Return the float32 bits of an inline float constant; None for anything else."""
        if operand.bank != "float":
            return None
        return int(np.float32(INLINE_FLOATS[operand.index]).view(np.uint32))
