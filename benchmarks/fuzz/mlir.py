"""Writes a description as an MLIR module, as exporters of JAX and torch or people write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fuzz.description import FLAT, FORMATS, Program, block_of
from fuzz.endings import ending
from fuzz.epilogues import finished, to_float
from fuzz.sides import Operand, Sides
from fuzz.writer import DYNAMIC, Value, Writer, affine

Constants = Mapping[str, npt.NDArray[np.int8]]
#: Operands that are weights, by their names in operands.py.
WEIGHTS = ("rhs", "rhs_scale", "gate", "gate_scale")


@dataclass(frozen=True)
class Function:
    """The text of a function, and the names of its arguments in their order."""

    text: str
    arguments: tuple[str, ...]


def function(
    program: Program, name: str, constants: Constants, *, parameters: bool = False
) -> Function:
    """Write the function `name` that computes a program.

    parameters: whether weights that are not constants are named parameters instead of arguments.
    """
    writer = Writer(name, constants, WEIGHTS if parameters else ())
    results = _Builder(program, writer, name).results()
    arguments = tuple(each.name[1:] for each in writer.arguments)
    return Function(writer.text(results), arguments)


class _Builder:
    """Writes the body of the function of a program."""

    def __init__(self, program: Program, writer: Writer, name: str) -> None:
        self.program, self.w, self.name = program, writer, name
        inline = [s for s in (program.lhs, program.rhs) if s.packed and s.style == "inline"]
        #: Elements in the inner loop over k, if there are two: over blocks, and in a block.
        self.block = FORMATS[inline[0].format][3] if inline else block_of(program)
        self.sides = Sides(program, writer, batched=True)
        self.weights = Sides(program, writer, batched=not program.shared)
        self.outer, self.lead = self.sides.outer, self.sides.lead
        self.m = DYNAMIC if program.dynamic else program.m

    def results(self) -> list[Value]:
        """Write the body of the function, and return its results."""
        program = self.program
        left = self._left()
        right = self.weights.side(program.rhs, "rhs", "n", program.n)
        y = finished(self.w, program, self._contraction(left, right, ""))
        if program.gated:
            other = self.weights.side(program.rhs, "gate", "n", program.n)
            return ending(self.w, program, y, self._contraction(left, other, "_gate"))
        return ending(self.w, program, y, None)

    def _left(self) -> Operand:
        program = self.program
        if program.lhs.packed:
            return self.sides.side(program.lhs, "lhs", "m", self.m)
        kind = program.lhs.format
        if not program.before:
            x = self.w.argument("lhs", [*self.lead, self.m, program.k], kind)
        else:
            sizes = self._sizes(m=self.m, k=program.k, j=16)
            first = self.w.argument("first", [*self.lead, self.m, 16], "f32")
            dense = self.w.argument("dense", [16, program.k], "f32")
            zero = self.w.fill(0.0, [*self.lead, self.m, program.k], "f32")
            x = self.w.generic(
                [(first, f"{self.outer}m j"), (dense, "j k")], f"{self.outer}m k", "f32", sizes,
                lambda a, b, s: self._sum(a, b, s, "f32"), zero,
            )  # fmt: skip
            if kind != "f32":
                x = self._cast(x, kind)
        return Operand(((x, f"{self.outer}m k"),), lambda a: a)

    def _sizes(self, **loops: int) -> dict[str, int]:
        found = {"z": self.program.batch} if self.program.batch else {}
        return {**found, **loops}

    def _cast(self, x: Value, kind: str) -> Value:
        return self.w.each(x, kind, lambda v: to_float(self.w, v, x.element, kind))

    def _sum(self, a: str, b: str, acc: str, kind: str) -> str:
        a, b = (b, a) if self.program.swapped else (a, b)
        product = self.w.scalar(f"arith.mulf {a}, {b} : {kind}")
        both = f"{product}, {acc}" if self.program.swapped else f"{acc}, {product}"
        return self.w.scalar(f"arith.addf {both} : {kind}")

    # The contraction.

    def _contraction(self, left: Operand, right: Operand, suffix: str) -> Value:
        """Write the contracting operation. suffix: of the name of its accumulator and location."""
        program, w = self.program, self.w
        kind, location = program.sum, f"{self.name}{suffix}"
        flat = program.contraction in FLAT
        out = [*self.lead, program.n] if flat else [*self.lead, self.m, program.n]
        acc = self._accumulator(out, kind, suffix)
        if program.contraction == "generic":
            return self._generic(left, right, acc, location)
        (x, _), (weight, index) = left.reads[0], right.reads[0]
        read = index.split()
        if program.contraction == "first":
            return self._weight_first(x, weight, read[-2:] == ["n", "k"], acc)
        if flat:
            x = w.collapse(x, 0)
            both = [x, weight] if program.contraction.endswith("vecmat") else [weight, x]
            y = w.named(f"linalg.{program.contraction}", [(v.name, v.type) for v in both], acc)
            return w.expand(y, 0, [program.batch, 1] if program.batch else [1, program.n])
        op, maps = program.contraction, ""
        loops = [*self.outer.split(), "m", "n", "k"]
        wanted = {"matmul": ["k", "n"], "transposed": ["n", "k"]}.get(op, read[-2:])
        if read[-2:] != wanted:
            weight = w.transpose(weight, [*range(len(self.lead)), len(self.lead) + 1,
                                          len(self.lead)])  # fmt: skip
        if op == "contract" or wanted == ["n", "k"]:
            each = (f"{self.outer}m k", f"{self.weights.outer}{' '.join(wanted)}",
                    f"{self.outer}m n")  # fmt: skip
            maps = f"indexing_maps = [{', '.join(affine(loops, read) for read in each)}]"
        name = {"transposed": "matmul"}.get(op, op)
        ins = [(x.name, x.type), (weight.name, weight.type)]
        return w.named(f"linalg.{name}", ins, acc, maps)

    def _weight_first(self, x: Value, weight: Value, rows: bool, acc: Value) -> Value:
        """Write weight [n, k] times x [k, m] with a transposed accumulator, and transpose the
        result to [m, n]."""
        w = self.w
        left = weight if rows else w.transpose(weight, [1, 0])
        ins = [(v.name, v.type) for v in (left, w.transpose(x, [1, 0]))]
        return w.transpose(w.named("linalg.matmul", ins, w.transpose(acc, [1, 0])), [1, 0])

    def _generic(self, left: Operand, right: Operand, acc: Value, location: str) -> Value:
        program, w = self.program, self.w
        blocks = left.blocks or right.blocks
        sides = [self._in_blocks(each) if blocks else each for each in (left, right)]
        last = {"o": program.k // self.block, "i": self.block} if blocks else {"k": program.k}
        sizes = self._sizes(m=self.m, n=program.n, **last)
        count = len(sides[program.swapped].reads)
        kinds = program.lhs.register, program.rhs.register

        def body(*scalars: str) -> str:
            given = scalars[:count], scalars[count:-1]
            given = given[::-1] if program.swapped else given
            a, b = (
                to_float(w, side.decode(*each), kind, program.sum)
                for side, each, kind in zip(sides, given, kinds, strict=True)
            )
            return self._sum(a, b, scalars[-1], program.sum)

        reads = [*sides[0].reads, *sides[1].reads]
        if program.swapped:
            reads = [*sides[1].reads, *sides[0].reads]
        return w.generic(reads, f"{self.outer}m n", program.sum, sizes, body, acc, location)

    def _in_blocks(self, operand: Operand) -> Operand:
        """Return the operand indexed by two loops over k: `o` over blocks, `i` in a block."""
        if operand.blocks:
            return operand
        reads = []
        for value, index in operand.reads:
            places = index.split()
            found = next((p for p in places if p[0] == "k"), "")
            axis = places.index(found)
            if found == "k":
                value = self.w.expand(value, axis, [value.shape[axis] // self.block, self.block])
                places[axis : axis + 1] = ["o", "i"]
            else:
                # A scale k / block is that of block `o`: `fault` refuses blocks of two sizes here.
                places[axis] = "o"
            reads.append((value, " ".join(places)))
        return Operand(tuple(reads), operand.decode, blocks=True)

    def _accumulator(self, shape: list[int], kind: str, suffix: str) -> Value:
        w, form = self.w, self.program.accumulator
        zero = Value("", tuple(shape), kind).type
        if form == "dense":
            return w.value(f"arith.constant dense<0.0> : {zero}", shape, kind)
        if form == "bitcast":
            integer = f"i{ {'f32': 32}.get(kind, 16) }".replace(" ", "")
            bits = w.value(f"arith.constant dense<0> : {Value('', tuple(shape), integer).type}",
                           shape, integer)  # fmt: skip
            return w.value(f"arith.bitcast {bits.name} : {bits.type} to {zero}", shape, kind)
        if form == "splat":
            return w.value(f"arith.constant dense<1.5> : {zero}", shape, kind)
        if form == "argument":
            return w.argument(f"accumulator{suffix}", shape, kind)
        if form == "bias":
            bias = w.argument(f"initial{suffix}", [self.program.n], kind)
            return w.broadcast(bias, shape, list(range(len(shape) - 1))) if len(shape) > 1 else bias
        if form == "generic":
            loops = "abcd"[: len(shape)]
            sizes = dict(zip(loops, shape, strict=True))
            number = w.constant(0.0, kind)
            return w.generic([], " ".join(loops), kind, sizes, lambda: number)
        return w.fill(-0.0 if form == "negative" else 0.0, shape, kind)
