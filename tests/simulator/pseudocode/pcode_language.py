"""An interpreter of AMD's pseudocode of an instruction, for one lane.

The text is that of AMD's CDNA ISA document, which the tinygrad wheel contains.
"""

import re
from functools import cache
from typing import Any

import numpy as np
from tinygrad.runtime.autogen.amd.cdna.str_pcode import PCODE

from tests.simulator.pseudocode.pcode_values import FLOAT, FUNCTIONS, Value, arithmetic, make

#: WAVE_MODE.IEEE, which is set when HSA starts a wave.
IEEE_MODE = True
TOKEN = re.compile(
    r"\d+'\d+\.\d+|\d+'(?:0x)?[0-9a-f]+U?|\d+'[UIFB]|0x[0-9a-f]+(?:ULL|LL|U)?|\d+\.\d*F?|\d+(?:ULL|LL|U)?"
    r"|[A-Za-z_]\w*|\*\*|<<|>>|<>|<=|>=|==|!=|&&|\|\||[-+*/%&|^~!<>?:()\[\]{}.,]"
)


class Expression:
    """Parses and evaluates one expression over an environment of bits and values."""

    def __init__(self, text: str, scope: dict[str, Any]) -> None:
        self.tokens, self.at, self.scope = TOKEN.findall(text), 0, scope

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.peek()
        assert wanted is None or token == wanted, (self.tokens, self.at, wanted)
        self.at += 1
        return token

    def value(self) -> Value:
        condition = self.binary(0)
        if self.peek() != "?":
            return condition
        self.take()
        yes = self.value()
        self.take(":")
        no = self.value()
        return yes if condition.number else no

    LEVELS = (
        ("||",),
        ("&&",),
        ("|",),
        ("^",),
        ("&",),
        ("==", "!=", "<>"),
        ("<", ">", "<=", ">="),
        ("<<", ">>"),
        ("+", "-"),
        ("*", "/"),
        ("**",),
    )

    def binary(self, level: int) -> Value:
        if level == len(self.LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in self.LEVELS[level]:
            op = self.take()
            # A zero that is written with a sign equals only the zero of this sign.
            signed = op == "==" and self.tokens[self.at : self.at + 2] in (
                ["+", "0.0"],
                ["-", "0.0"],
            )
            right = self.binary(level + 1)
            same = not signed or np.signbit(left.number) == np.signbit(right.number)
            left = self.apply(op, left, right) if same else Value("u", 1, 0)
        return left

    def apply(self, op: str, a: Value, b: Value) -> Value:
        if op in ("&&", "||"):
            both = (bool(a.number), bool(b.number))
            return Value("u", 1, int(all(both) if op == "&&" else any(both)))
        if op in ("==", "!=", "<", ">", "<=", ">=", "<>"):
            x, y = a.number, b.number
            tests = {"==": x == y, "!=": x != y, "<": x < y, ">": x > y, "<=": x <= y, ">=": x >= y}
            return Value("u", 1, int(tests.get(op, x < y or x > y)))
        if op in ("&", "|", "^"):
            width = max(a.width, b.width)
            x, y = (v.number & ((1 << width) - 1) for v in (a, b))
            return make(a.kind, width, {"&": x & y, "|": x | y, "^": x ^ y}[op])
        if op == "<<":
            return make(a.kind, a.width, int(a.number) << int(b.number))
        if op == ">>":
            return make(a.kind, a.width, int(a.number) >> int(b.number))
        return arithmetic(op, a, b)

    def unary(self) -> Value:
        token = self.peek()
        if token in "-+~!" and token:
            self.take()
            inner = self.unary()
            if token == "!":
                return Value("u", 1, int(not inner.number))
            if token == "~":
                return make(inner.kind, inner.width, ~inner.bits)
            if inner.kind == "f":
                return Value("f", inner.width, -inner.number if token == "-" else inner.number)
            sign = -1 if token == "-" else 1
            return make(inner.kind, inner.width, sign * int(inner.number))
        return self.postfix(self.primary())

    def primary(self) -> Value:
        token = self.take()
        if token == "(":
            inner = self.value()
            self.take(")")
            return inner
        if token == "{":
            parts = [self.value()]
            while self.peek() == ",":
                self.take()
                parts.append(self.value())
            self.take("}")
            bits = 0
            for part in parts:
                bits = bits << part.width | part.bits
            return make("u", sum(p.width for p in parts), bits)
        if match := re.fullmatch(r"(\d+)'([UIFB])", token):
            self.take("(")
            inner = self.value()
            self.take(")")
            width, kind = int(match[1]), {"B": "u"}.get(match[2], match[2].lower())
            if kind == "f" and inner.kind == "bf":
                return make("f", width, inner.bits << width - 16)
            if kind == "f":
                # A cast of bits to a float reinterprets them.
                same = inner.kind == "f"
                return (
                    Value("f", width, FLOAT[width](inner.number))
                    if same
                    else make("f", width, inner.bits)
                )
            number = inner.bits if inner.kind == "f" else int(inner.number)
            return make(kind, width, number)
        if match := re.fullmatch(r"(\d+)'(0x)?([0-9a-f]+)U?", token):
            return make("u", int(match[1]), int(match[3], 16 if match[2] else 10))
        if match := re.fullmatch(r"(\d+)'(\d+\.\d+)", token):
            return Value("f", int(match[1]), FLOAT[int(match[1])](match[2]))
        if re.fullmatch(r"\d+\.\d*F?", token):
            width = 32 if token.endswith("F") else 64
            return Value("f", width, FLOAT[width](token.rstrip("F")))
        if token[0].isdigit():
            digits = (
                token.rstrip("UL") if not token.startswith("0x") else re.sub("U?L*$", "", token)
            )
            wide = token.endswith("LL")
            return make("u" if "U" in token else "i", 64 if wide else 32, int(digits, 0))
        if token in ("INF", "NAN", "PI"):
            named = np.pi if token == "PI" else float(token.lower())
            if self.peek() == "." and re.fullmatch(r"f\d+", self.tokens[self.at + 1]):
                width = int(self.tokens[self.at + 1][1:])
                self.at += 2
                return Value("f", width, FLOAT[width](named))
            return Value("f", 64, np.float64(named))
        if token == "WAVE_MODE":
            self.take(".")
            assert self.take() == "IEEE"
            return Value("u", 1, int(IEEE_MODE))
        if self.peek() == "(" and token not in self.scope:
            return self.call(token)
        found = self.scope[token]
        if isinstance(found, list):
            self.take("[")
            found = found[int(self.value().number)]
            self.take("]")
        return found if isinstance(found, Value) else make("u", 64, found)

    def call(self, name: str) -> Value:
        """Call a function of the language, or run the pseudocode of the instruction `name`."""
        self.take("(")
        arguments = [self.value()]
        while self.peek() == ",":
            self.take()
            arguments.append(self.value())
        self.take(")")
        if name in FUNCTIONS:
            return FUNCTIONS[name](*arguments)
        scope: dict[str, Any] = {f"S{n}": a.bits for n, a in enumerate(arguments)}
        execute(list(program(name) or ()), scope)
        return make(arguments[0].kind, arguments[0].width, scope["D0"])

    def postfix(self, value: Value) -> Value:
        while self.peek() in (".", "["):
            if self.take() == ".":
                kind, width = re.fullmatch(r"([uifbB]|bf)(\d+)", self.take()).groups()
                number = value.bits
                value = make({"b": "u"}.get(kind, kind), int(width), number)
                continue
            high = self.value()
            if self.peek() == ":":
                self.take()
                low = self.value()
                a, b = int(high.number), int(low.number)
                bits = value.bits
                if a < b:
                    bits = int(f"{bits & (1 << (b + 1)) - 1:0{b + 1}b}"[::-1], 2)
                    a, b = b, a
                value = make("u", a - b + 1, bits >> b)
            else:
                value = make("u", 1, value.bits >> int(high.number))
            self.take("]")
        return value


class _Break(Exception):
    pass


def execute(lines: list[str], scope: dict[str, Any]) -> None:
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("if ") or line.startswith("for "):
            end, branches = block(lines, at)
            if line.startswith("for "):
                name, first, last = re.fullmatch(r"for (\w+) in (\d+) : (\d+) do", line).groups()
                try:
                    for n in range(int(first), int(last) + 1):
                        scope[name] = make("i", 32, n)
                        execute(branches[0][1], scope)
                except _Break:
                    pass
            else:
                for condition, body in branches:
                    if condition is None or Expression(condition, scope).value().number:
                        execute(body, scope)
                        break
            at = end
        elif line == "break":
            raise _Break
        elif not line.startswith("declare") and "ROUND_MODE" not in line:
            assign(line, scope)
        at += 1


def block(lines: list[str], at: int) -> tuple[int, list[tuple[str | None, list[str]]]]:
    """Return the line of the end of the if or for at line `at`, and its branches."""
    depth = 0
    branches: list[tuple[str | None, list[str]]] = []
    condition: str | None = re.sub(r"^(if|for) | then$| do$", "", lines[at])
    start = at + 1
    for n in range(at, len(lines)):
        line = lines[n]
        depth += line.startswith(("if ", "for ")) - line.startswith(("endif", "endfor"))
        if depth == 0:
            return n, [*branches, (condition, lines[start:n])]
        if depth == 1 and line.startswith(("elsif ", "else")) and n > at:
            branches.append((condition, lines[start:n]))
            condition = re.sub(r"^elsif | then$", "", line) if line.startswith("elsif") else None
            start = n + 1
    raise AssertionError(lines)


def assign(line: str, scope: dict[str, Any]) -> None:
    target, op, text = re.fullmatch(r"(.+?) ([-+|]?)= (.+)", line).groups()
    value = Expression(text, scope).value()
    if op:
        value = Expression("", scope).apply(op, Expression(target, scope).value(), value)
    if target.startswith("{"):
        high, low = re.findall(r"(\w+)\.\w(\d+)", target)
        scope[low[0]] = value.bits & (1 << int(low[1])) - 1
        scope[high[0]] = value.bits >> int(low[1])
        return
    name, *rest = re.split(r"(?=[.\[])", target.replace(" ", ""))
    place = "".join(rest)
    if isinstance(scope.get(name), list):
        scope[name][int(Expression(place.strip("[]"), scope).value().number)] = value
    elif match := re.search(r"\[(\d+):(\d+)\]", place):
        high, low = int(match[1]), int(match[2])
        mask = (1 << high - low + 1) - 1
        scope[name] = bits_of(scope.get(name, 0)) & ~(mask << low) | (value.bits & mask) << low
    elif "[laneId]" in place:
        scope[f"{name}.lane"] = value.bits & 1
    elif match := re.fullmatch(r"\.([uifb])(\d+)", place):
        kind, width = match[1], int(match[2])
        if value.kind == "f" and kind == "f":
            value = Value("f", width, FLOAT[width](value.number))
        scope[name] = value.bits & (1 << width) - 1
        if name.startswith("tmp"):
            scope[name] = make(kind if kind != "b" else "u", width, value.bits)
    else:
        scope[name] = value


def bits_of(value: Any) -> int:
    return value.bits if isinstance(value, Value) else int(value)


@cache
def program(name: str) -> tuple[str, ...] | None:
    """Return the lines of an instruction's pseudocode, without comments; None if it has none."""
    wanted = {name.upper(), f"{name.upper()}_E32", f"{name.upper()}_E64"}
    for key, text in PCODE.items():
        if key.name in wanted:
            text = text.replace("VCC.u64[laneId]", "VCC_lane").replace(
                "VCC_lane =", "VCC[laneId] ="
            )
            # v_pk_mov_b32 reads bits of a pair of registers past the 32-bit type that it names.
            text = re.sub(r"(S\d|D0)\.u32\[", r"\1[", text)
            lines = [re.sub(r"//.*", "", line).strip().rstrip(";") for line in text.split("\n")]
            return tuple(line for line in lines if line)
    return None
