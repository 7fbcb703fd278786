"""MLIR of epilogues: elementwise operations after a contraction."""

from __future__ import annotations

from collections.abc import Callable

from fuzz.description import Program
from fuzz.writer import Value, Writer

_WIDTH = {"f32": 32, "bf16": 16, "f16": 16}


def to_float(w: Writer, value: str, source: str, target: str) -> str:
    """Convert a scalar from the float type `source` to `target`. Between bf16 and f16 by f32."""
    if source == target:
        return value
    narrow = _WIDTH.get(source, 8) > _WIDTH[target]
    if {source, target} == {"bf16", "f16"}:
        value = w.scalar(f"arith.extf {value} : {source} to f32")
        source, narrow = "f32", True
    return w.scalar(f"arith.{'truncf' if narrow else 'extf'} {value} : {source} to {target}")


class Elementwise:
    """Writes elementwise operations on tensors [.., m, n]: each as a linalg.generic, or as
    arithmetic on whole tensors if `Program.whole` is set."""

    def __init__(self, w: Writer, program: Program) -> None:
        self.w, self.program = w, program
        self.loops = ["m", "n"] if not program.batch else ["z", "m", "n"]

    def apply(self, y: Value, body: Callable[..., str], others: list[tuple[Value, str]]) -> Value:
        """Write a linalg.generic with an f32 result. `body` gets an element of y, and one of each
        tensor of `others`: pairs of a tensor and the loops that index it."""
        index = " ".join(self.loops)
        sizes = dict(zip(self.loops, y.shape, strict=True))
        return self.w.generic([(y, index), *others], index, "f32", sizes, body)

    def binary(self, op: str, y: Value, other: Value, index: str) -> Value:
        """Write `op` of y and other, which may have another float type. index: the loops of other;
        it is broadcast along the remaining loops of y."""
        if not self.program.whole:
            return self.apply(
                y,
                lambda a, b: self.w.scalar(
                    f"{op} {a}, {to_float(self.w, b, other.element, 'f32')} : f32"
                ),
                [(other, index)],
            )
        if other.element != "f32":
            wide = Value("", other.shape, "f32").type
            other = self.w.value(
                f"arith.extf {other.name} : {other.type} to {wide}", other.shape, "f32"
            )
        missing = [axis for axis, loop in enumerate(self.loops) if loop not in index.split()]
        if missing:
            other = self.w.broadcast(other, y.shape, missing)
        return self.w.value(f"{op} {y.name}, {other.name} : {y.type}", y.shape, "f32")

    def with_number(self, op: str, y: Value, number: float) -> Value:
        """Write `op` of y and a constant."""
        if self.program.whole and -1 not in y.shape:
            splat = self.w.value(f"arith.constant dense<{number!r}> : {y.type}", y.shape, "f32")
            return self.w.value(f"{op} {y.name}, {splat.name} : {y.type}", y.shape, "f32")
        return self.apply(
            y, lambda a: self.w.scalar(f"{op} {a}, {self.w.constant(number, 'f32')} : f32"), []
        )


def finished(w: Writer, program: Program, y: Value) -> Value:
    """Convert the result of a contraction to f32, and write the epilogue of the program."""
    each = Elementwise(w, program)
    if y.element != "f32":
        kind = y.element
        y = each.apply(y, lambda a: to_float(w, a, kind, "f32"), [])
    for number, name in enumerate(program.epilogue):
        y = _one(each, y, name, f"e{number}")
    return y


def _one(each: Elementwise, y: Value, name: str, argument: str) -> Value:
    w, n = each.w, each.program.n
    what, _, kind = name.partition("_")
    index = " ".join(each.loops)
    if what == "bias":
        return each.binary("arith.addf", y, w.argument(argument, [n], kind), "n")
    if what == "residual":
        return each.binary("arith.addf", y, w.argument(argument, y.shape, kind), index)
    if what == "rows":
        rows = index.rpartition(" ")[0]
        return each.binary("arith.mulf", y, w.argument(argument, y.shape[:-1], "f32"), rows)
    if name == "factor":
        return each.binary("arith.mulf", y, w.argument(argument, [], "f32"), "")
    if name == "captured":
        given = w.argument(argument, [], "f32")
        factor = w.scalar(f"tensor.extract {given.name}[] : {given.type}")
        return each.apply(y, lambda a: w.scalar(f"arith.mulf {a}, {factor} : f32"), [])
    if name == "scalar":
        return each.with_number("arith.mulf", y, 0.7071067690849304)
    if name == "relu_select":
        return each.apply(y, lambda a: _relu_select(w, a), [])
    if what == "relu":
        return each.with_number(f"arith.{kind}", y, 0.0)
    if name == "clamp":
        y = each.with_number("arith.minimumf", y, 1.5)
        return each.with_number("arith.maximumf", y, -1.0)
    if name == "square":
        return each.binary("arith.mulf", y, y, index)
    body = {"gelu_tanh": gelu_tanh, "gelu_erf": gelu_erf, "silu": silu}[name]
    return each.apply(y, lambda a: body(w, a), [])


def _relu_select(w: Writer, a: str) -> str:
    zero = w.constant(0.0, "f32")
    positive = w.scalar(f"arith.cmpf ogt, {a}, {zero} : f32")
    return w.scalar(f"arith.select {positive}, {a}, {zero} : f32")


def silu(w: Writer, a: str) -> str:
    """a / (1 + exp(-a))."""
    negative = w.scalar(f"arith.negf {a} : f32")
    power = w.scalar(f"math.exp {negative} : f32")
    below = w.scalar(f"arith.addf {power}, {w.constant(1.0, 'f32')} : f32")
    return w.scalar(f"arith.divf {a}, {below} : f32")


def gelu_tanh(w: Writer, a: str) -> str:
    """a / 2 * (1 + tanh(sqrt(2 / pi) * (a + 0.044715 a^3)))."""
    square = w.scalar(f"arith.mulf {a}, {a} : f32")
    cube = w.scalar(f"arith.mulf {square}, {a} : f32")
    part = w.scalar(f"arith.mulf {cube}, {w.constant(0.044714998453855515, 'f32')} : f32")
    inner = w.scalar(f"arith.addf {a}, {part} : f32")
    scaled = w.scalar(f"arith.mulf {inner}, {w.constant(0.7978845834732056, 'f32')} : f32")
    return _half(w, a, w.scalar(f"math.tanh {scaled} : f32"))


def gelu_erf(w: Writer, a: str) -> str:
    """a / 2 * (1 + erf(a / sqrt(2)))."""
    scaled = w.scalar(f"arith.mulf {a}, {w.constant(0.7071067690849304, 'f32')} : f32")
    return _half(w, a, w.scalar(f"math.erf {scaled} : f32"))


def _half(w: Writer, a: str, share: str) -> str:
    more = w.scalar(f"arith.addf {share}, {w.constant(1.0, 'f32')} : f32")
    half = w.scalar(f"arith.mulf {a}, {w.constant(0.5, 'f32')} : f32")
    return w.scalar(f"arith.mulf {half}, {more} : f32")
