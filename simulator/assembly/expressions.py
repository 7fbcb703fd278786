"""Integer expressions in assembly text, with symbols, as in `.set` and `.amdhsa_` directives.

LLVM writes the resources of kernels that call functions symbolically, so the functions of its User
Guide for AMDGPU Backend (Code Object V5, symbolic resource usage) are supported too.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from mxc.simulator.assembly.source import SourceLine, refuse

_TOKEN = re.compile(
    r"\s*(?:(?P<number>0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)(?![\w.])|(?P<name>[A-Za-z_.$][\w.$]*)"
    r"|(?P<mark>>=|<=|==|!=|<<|>>|&&|\|\||[-+*/%&|^~!<>(),]))"
)
_LEVELS: tuple[dict[str, Callable[[int, int], int]], ...] = (
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt}
    | {"<=": operator.le, ">=": operator.ge},
    {"+": operator.add, "-": operator.sub},
    {"|": operator.or_, "^": operator.xor, "&": operator.and_},
    {"*": operator.mul, "/": operator.floordiv, "%": operator.mod}
    | {"<<": operator.lshift, ">>": operator.rshift},
)


def _total_registers(agprs: int, vgprs: int) -> int:
    """Return the size in the unified file, where accumulation registers begin at multiples of 4."""
    return (vgprs + 3) // 4 * 4 + agprs if agprs else vgprs


_FUNCTIONS: dict[str, Callable[..., int]] = {
    "max": max,
    "or": lambda *values: int(any(values)),
    "alignto": lambda value, unit: -(-value // unit) * unit,
    "totalnumvgprs": _total_registers,
    # Registers for VCC and the like do not matter: the simulator has all scalar registers.
    "extrasgprs": lambda *_: 0,
    "instprefsize": lambda *_: 0,
}
_DEEPEST = 50


def evaluate(text: str, symbols: Mapping[str, int], place: SourceLine) -> int:
    """Return the value of an expression. Raises AssemblyError if it is malformed or undefined."""
    parser = _Parser(text, symbols, place)
    value = parser.level(0, 0)
    if parser.at < len(parser.tokens):
        raise refuse(place, f"{text!r}: {parser.tokens[parser.at]!r} was not expected there")
    return value


class _Parser:
    def __init__(self, text: str, symbols: Mapping[str, int], place: SourceLine) -> None:
        self.text, self.symbols, self.place = text, symbols, place
        self.tokens: list[str] = []
        self.at = 0
        end = 0
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if match is None:
                raise refuse(place, f"{text!r} is no number or expression")
            self.tokens.append(match[0].strip())
            end = match.end()

    def take(self) -> str:
        self.at += 1
        return self.tokens[self.at - 1] if self.at <= len(self.tokens) else ""

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def level(self, n: int, depth: int) -> int:
        if depth > _DEEPEST:
            raise refuse(self.place, f"an expression nested deeper than {_DEEPEST}")
        if n == len(_LEVELS):
            return self.single(depth)
        value = self.level(n + 1, depth)
        while (run := _LEVELS[n].get(self.peek())) is not None:
            mark = self.take()
            other = self.level(n + 1, depth)
            if (mark in "/%" and not other) or (mark in ("<<", ">>") and not 0 <= other < 64):
                raise refuse(self.place, f"{self.text!r}: {mark} by {other}")
            value = int(run(value, other))
        return value

    def single(self, depth: int) -> int:
        token = self.take()
        if token in ("-", "+", "~", "!"):
            value = self.single(depth + 1) if depth < _DEEPEST else self.level(0, depth + 1)
            return {"-": -value, "+": value, "~": ~value, "!": int(not value)}[token]
        if token == "(":
            value = self.level(0, depth + 1)
            self.expect(")")
            return value
        if token[:1].isdigit():
            return _number(token)
        if token in _FUNCTIONS and self.peek() == "(":
            return self.call(token, depth)
        if token in self.symbols:
            return self.symbols[token]
        found = f"{token!r}" if token else "its end"
        raise refuse(
            self.place, f"{self.text!r}: {found} has no value here; wanted a number or a symbol"
        )

    def call(self, name: str, depth: int) -> int:
        self.expect("(")
        values = [self.level(0, depth + 1)]
        while self.peek() == ",":
            self.take()
            values.append(self.level(0, depth + 1))
        self.expect(")")
        try:
            return _FUNCTIONS[name](*values)
        except (TypeError, ZeroDivisionError) as error:
            raise refuse(self.place, f"{self.text!r}: {name} of {values}: {error}") from error

    def expect(self, mark: str) -> None:
        found = self.take()
        if found != mark:
            raise refuse(self.place, f"{self.text!r}: wanted {mark!r}, found {found!r}")


def _number(token: str) -> int:
    """Parse a number; a leading 0 means octal, as in assemblers."""
    octal = len(token) > 1 and token[0] == "0" and set(token) <= set("01234567")
    return int(token, 8 if octal else 0)
