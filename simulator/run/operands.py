"""Expressions with which the generated program reads operands in a kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mxc.simulator.code.instruction import EXEC, INLINE_FLOATS, VCC, Instruction, Operand
from mxc.simulator.compute import operations
from mxc.simulator.compute.lanes import dpp
from mxc.simulator.compute.operations import Array
from mxc.simulator.errors import SimulationError
from mxc.simulator.run.state import Waves, join

DTYPES: dict[str, Any] = {
    "u": np.uint32,
    "i": np.int32,
    "f": np.float32,
    "U": np.uint64,
    "I": np.int64,
    "d": np.float64,
    "w": np.uint32,
    "s": np.int32,
    "h": np.float16,
    "b": np.float32,
}


#: The upper halves of the addresses at which LDS and scratch appear to flat instructions.
SHARED_BASE, PRIVATE_BASE = 1 << 16, 2 << 16
_APERTURES = {235: SHARED_BASE, 236: SHARED_BASE, 237: PRIVATE_BASE, 238: PRIVATE_BASE}


def _is_zero(w: Waves, index: int) -> Array:
    zero: Array = (w.s[index] | w.s[index + 1]) == 0
    return zero.astype(np.uint32)


def _select(value: Array, selector: int, signed: int) -> Array:
    """SDWA: return a byte (0 to 3), a word (4, 5) or all (6) of a register."""
    if selector == 6:
        return value
    width, shift = (8, 8 * selector) if selector < 4 else (16, 16 * (selector - 4))
    if signed:
        cut = (value << (32 - width - shift)).view(np.int32) >> (32 - width)
        return cut.view(np.uint32)
    return value >> shift & ((1 << width) - 1)


def _insert(value: Array, old: Array, selector: int, unused: int) -> Array:
    """SDWA: insert the result in a byte or word; the rest is zero, sign or preserved."""
    if selector == 6:
        return value
    width, shift = (8, 8 * selector) if selector < 4 else (16, 16 * (selector - 4))
    mask = np.uint32(((1 << width) - 1) << shift)
    placed = (value << shift) & mask
    if unused == 2:
        return (old & ~mask) | placed
    if unused == 1:
        sign = value >> (width - 1) & 1
        above = np.uint32(0xFFFFFFFF << (width + shift) & 0xFFFFFFFF)
        return placed | sign * above
    return placed


def _half(value: Array) -> Array:
    return value.astype(np.uint16).view(np.float16)


def _word(value: Array) -> Array:
    return value & 0xFFFF


def _short(value: Array) -> Array:
    return (value << 16).view(np.int32) >> 16


def _bfloat(value: Array) -> Array:
    return (value << 16).view(np.float32)


def _from_half(value: Array) -> Array:
    return value.view(np.uint16).astype(np.uint32)


NAMES: dict[str, Any] = {
    "np": np,
    "u4": np.uint32,
    "i4": np.int32,
    "f4": np.float32,
    "u8": np.uint64,
    "i8": np.int64,
    "f8": np.float64,
    "join": join,
    "low32": operations.low32,
    "high32": operations.high32,
    "half": _half,
    "word": _word,
    "short": _short,
    "bfloat": _bfloat,
    "from_half": _from_half,
    "select": _select,
    "insert": _insert,
    "dpp": dpp,
    "is_zero": _is_zero,
    "zero": np.zeros((1, 1), bool),
}


#: Expressions of the flag operands by number: VCCZ (VCC is zero), EXECZ (EXEC is zero), SCC.
_FLAGS = {251: f"is_zero(w, {VCC})", 252: f"is_zero(w, {EXEC})", 253: "w.scc.astype(u4)"}

#: Functions that read the low 16 bits of a register, by kind.
HALF_READERS = {"h": "half", "w": "word", "s": "short", "b": "bfloat"}


class OperandExpressions:
    """Makes expressions of operands; `names`: the objects that the expressions refer to."""

    def __init__(self) -> None:
        """Start with the functions that expressions use."""
        self.names: dict[str, Any] = dict(NAMES)

    def bind(self, value: Any) -> str:
        """Bind a Python object to a new name in the generated program; return the name."""
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def constant(self, operand: Operand, kind: str = "u") -> Array:
        """Return a constant operand as an array [1, 1] of the kind's dtype."""
        bank, index = operand.bank, operand.index
        wide = kind in "UId"
        if bank == "float":
            number = INLINE_FLOATS[index]
            if kind == "h" or kind in "ws":
                bits = int(np.float16(number).view(np.uint16))
            elif wide:
                bits = int(np.float64(number).view(np.uint64))
            elif kind == "b":
                bits = int(np.float32(number).view(np.uint32)) >> 16
            else:
                bits = int(np.float32(number).view(np.uint32))
        elif bank == "literal" and wide:
            # A double takes its upper half from the literal; integers are extended.
            signed = index - ((index & 0x80000000) << 1)
            bits = index << 32 if kind == "d" else signed if kind == "I" else index
        else:
            bits = index
        word = np.array([[bits & 0xFFFFFFFFFFFFFFFF]], np.uint64)
        if wide:
            return word.view(DTYPES[kind])
        low = word.astype(np.uint32)
        readers: dict[str, Callable[[Array], Array]]
        readers = {"h": _half, "w": _word, "s": _short, "b": _bfloat}
        return readers[kind](low) if kind in readers else low.view(DTYPES[kind])

    def bits(self, operand: Operand, n: int = 0) -> str:
        """Return an expression of the n-th register of an operand, as uint32."""
        if operand.is_register:
            return f"{operand.bank}[{operand.index + n}]"
        if operand.bank == "special":
            if operand.index in _FLAGS:
                return _FLAGS[operand.index]
            raise SimulationError(f"operand code {operand.index} is not modelled")
        return self.bind(self.constant(operand))

    def reader(self, operand: Operand) -> Callable[[Waves], Array]:
        """Return a function that reads an operand's first register, or a constant, as uint32."""
        if operand.is_register:
            bank, index = operand.bank, operand.index
            return lambda w: w.bank(bank)[index]
        if operand.bank == "special":
            self.bits(operand)
            if operand.index == 253:
                return lambda w: w.scc.astype(np.uint32)
            index = VCC if operand.index == 251 else EXEC
            return lambda w: _is_zero(w, index)
        off = operand.bank == "off"
        value = np.zeros((1, 1), np.uint32) if off else self.constant(operand)
        return lambda w: value

    def float_reader(self, i: Instruction, n: int) -> Callable[[Waves], Array]:
        """Return a function that reads the n-th operand as float32, with sign modifiers."""
        plain = self.reader(i.operands[n])
        absolute, negative = i.has("abs") >> n & 1, i.has("neg") >> n & 1

        def read(w: Waves) -> Array:
            value = plain(w).view(np.float32)
            value = np.abs(value) if absolute else value
            return -value if negative else value

        return read

    def packed_half(self, operand: Operand, kind: str, upper: int) -> str:
        """Return an expression of one half of an operand of a packed instruction, in a 16-bit kind.

        An inline integer is sign-extended to 32 bits. An inline float is a float16 in the lower
        half, or a float32 in integer instructions (LLVM, getInlineEncodingV216 in
        AMDGPUBaseInfo.cpp).
        """
        if operand.is_register or operand.bank == "special":
            return self.get(operand, kind, upper)
        narrow = operand.bank == "float" and kind == "h"
        word = self.constant(operand, "h").view(np.uint16) if narrow else self.constant(operand)
        return self.bind(NAMES[HALF_READERS[kind]](word.astype(np.uint32) >> 16 * upper))

    def get(self, operand: Operand, kind: str, half: int = 0) -> str:
        """Return an expression of an operand in a kind; half: 1 for the upper 16 bits."""
        if kind == "m":
            if operand.is_register:
                return f"w.mask({operand.index})"
            mask = np.unpackbits(self.constant(operand, "I").view(np.uint8), bitorder="little")
            return self.bind(mask.view(bool)[None])
        if operand.bank == "special" and kind == "U" and operand.index in _APERTURES:
            # Even indices are limits: the last address of the 4 GiB aperture.
            low = 0xFFFFFFFF * (operand.index % 2 == 0)
            return self.bind(np.array([[_APERTURES[operand.index] << 32 | low]], np.uint64))
        if not operand.is_register and operand.bank != "special":
            if half:
                return self.packed_half(operand, kind, half)
            return self.bind(self.constant(operand, kind))
        bits = self.bits(operand)
        if kind in "UId":
            if operand.bank == "special":
                raise SimulationError(f"operand code {operand.index} is not modelled")
            wide = f"join({bits}, {self.bits(operand, 1)})"
            return wide if kind == "U" else f"{wide}.view({'i8' if kind == 'I' else 'f8'})"
        if half:
            bits = f"({bits} >> 16)"
        return read_kind(bits, kind)


def read_kind(bits: str, kind: str) -> str:
    """Return an expression that reads uint32 `bits` in a kind of one register."""
    if kind in HALF_READERS:
        return f"{HALF_READERS[kind]}({bits})"
    return bits if kind == "u" else f"{bits}.view({'i4' if kind == 'i' else 'f4'})"
