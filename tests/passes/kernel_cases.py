"""Contractions that are described by a name, and programs that consist of them.

    mxfp4 int8 12x1x40x64 of 5 share 4

The parts of a name are: the format of the weights; the format of the activations; groups x rows x
columns x depth; the number of experts that groups choose from; and how many consecutive rows have
the same activations. Further notation:

- "each" instead of "of 5": every group has an expert of its own.
- "?": the number of groups or rows comes with the call.
- "bf16r": f32 activations that the program rounds to bf16.
- "mxfp4/64": a scale for 64 elements instead of 32, on both sides; if the activations have a number
  of their own, as "mxfp8e4m3/32", it is theirs.
- "plus": a residual [rows, columns] and a bias [columns] are added to the result.
- "given": the weights are not parameters but arguments of the call.

On CPUs with the instructions, contractions become kernels of mxc; elsewhere they run as portable
code and must give the same numbers.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, func
from numpy.typing import NDArray

from mxc.compiler import iree
from mxc.compiler.models.blocks.primitives import collapse, expand
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import element_of, generic
from mxc.dialects.linalg_ext import gather
from mxc.dialects.parameters import Parameters
from mxc.dialects.scaled import scaled_contraction
from mxc.targets.target import target

Array = NDArray[Any]
Floats = NDArray[np.float64]
#: The expert of each group; None: those of `Case.ids`.
Ids = NDArray[np.int32] | None

#: Half a unit in the last place of f32, relative.
U = 2.0**-24
BLOCK = 32

FLOATS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
#: Activations without scales.
PLAIN = (*FLOATS, "bf16r")
#: Bits of an element; elements of other formats have eight.
BITS = {"mxfp4": 4, "nvfp4": 4, "int4": 4, "mxfp6e2m3": 6, "mxfp6e3m2": 6}
#: Types of scales of one byte; scales of other formats are f32.
SCALES = dict.fromkeys(("mxint8", "mxfp4", "mxfp6e2m3", "mxfp6e3m2"), ir.Float8E8M0FNUType)
SCALES |= dict.fromkeys(("mxfp8e4m3", "mxfp8e5m2"), ir.Float8E8M0FNUType)
SCALES["nvfp4"] = ir.Float8E4M3FNType
MLIR = {
    "mxfp4": ir.Float4E2M1FNType,
    "nvfp4": ir.Float4E2M1FNType,
    "e4m3": ir.Float8E4M3FNType,
    "e5m2": ir.Float8E5M2Type,
    "e4m3fnuz": ir.Float8E4M3FNUZType,
    "e5m2fnuz": ir.Float8E5M2FNUZType,
    "mxfp6e2m3": ir.Float6E2M3FNType,
    "mxfp6e3m2": ir.Float6E3M2FNType,
    "mxfp8e4m3": ir.Float8E4M3FNType,
    "mxfp8e5m2": ir.Float8E5M2Type,
    "bf16": ir.BF16Type,
    "f16": ir.F16Type,
    "f32": ir.F32Type,
}
#: Formats whose elements are integers of at most 8 bits times a unit: that unit.
UNITS = {"mxfp4": 0.5, "nvfp4": 0.5, "mxfp6e2m3": 0.125, "mxint8": 2.0**-6}
UNITS |= {"int8": 1.0, "int4": 1.0}
#: Whether this CPU has dot products of bytes, which multiply such integers exactly.
QUADS = iree.resolve(target("cpu")).has_any(("avx512vnni", "avxvnni"))


@dataclass(frozen=True)
class Case:
    """One contraction; see the top of the file."""

    name: str
    weight: str
    activation: str
    groups: int
    rows: int
    columns: int
    depth: int
    experts: int = 0
    share: int = 1
    block: int = BLOCK
    plus: bool = False
    given: bool = False
    each: bool = False
    row_block: int = BLOCK

    @staticmethod
    def parse(name: str) -> "Case":
        found = re.fullmatch(
            r"(\w+)(?:/(\d+))? (\w+)(?:/(\d+))? ([\d?]+)x([\d?]+)x(\d+)x(\d+)"
            r"(?: of (\d+)|( each))?(?: share (\d+))?( plus)?( given)?",
            name,
        )
        assert found is not None, name
        weight, block, activation, own, *numbers, experts, each, share, plus, given = found.groups()
        numbers = [number.replace("?", "-1") for number in numbers]
        experts = numbers[0] if each else experts
        sizes = [*map(int, numbers), int(experts or 0), int(share or 1)]
        halved = weight == "nvfp4" or sizes[3] % BLOCK
        size = int(block or (16 if halved else BLOCK))
        flags = (flag is not None for flag in (plus, given, each))
        fields: list[Any] = [weight, activation, *sizes, size, *flags, int(own or size)]
        return Case(name, *fields)

    @property
    def blocks(self) -> int:
        return self.depth // self.block

    @property
    def row_blocks(self) -> int:
        """Number of blocks in a row of activations."""
        return self.depth // self.row_block

    @property
    def source_rows(self) -> int:
        """Number of rows of the activations; -1 if it comes with the call."""
        return self.groups * self.rows // self.share

    @property
    def is_dynamic(self) -> bool:
        return self.groups * self.rows < 0

    @property
    def chooses(self) -> bool:
        """Whether ids, an argument, choose the expert of each group."""
        return self.experts > 0 and not self.each

    @property
    def in_bytes(self) -> bool:
        """Whether this CPU multiplies both sides exactly, as integers in dot products of bytes."""
        return QUADS and self.weight in UNITS and self.activation in UNITS

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        if self.weight in FLOATS:
            return {f"{self.name}.w": (self.columns, self.depth)}
        lead = (self.experts,) if self.experts else ()
        shape = (*lead, self.columns, self.blocks)
        width = self.block * BITS.get(self.weight, 8) // 8
        return {f"{self.name}.w": (*shape, width), f"{self.name}.s": shape}

    def draw(self, formats: Any, *, exact: bool, seed: int = 0) -> tuple[Any, Any]:
        """Draw weights [experts, columns, ..] and activations [source rows, ..].

        `exact`: numbers such that every sum is exact in f32, in any order of its terms.
        """
        rng = np.random.default_rng([seed, len(self.name), self.rows, self.columns, self.depth])
        lead = [max(self.experts, 1), self.columns]
        shape = [*lead, self.blocks]
        weight = formats.draw(rng, self.weight, shape, exact=exact, size=self.block)
        shape = [self.source_rows, self.row_blocks]
        x = formats.draw(rng, self.activation, shape, exact=exact, size=self.row_block)
        if exact:
            self.require_exact(weight, x)
        return weight, x

    def require_exact(self, weight: Any, x: Any) -> None:
        """Assert that all partial sums, in any order, are multiples of a unit, below 2^24 times it.

        Such sums are exact in f32.
        """
        unit, largest = 1.0, float(self.depth)
        for side in (weight, x):
            values = side.values
            unit *= next(u for u in 2.0 ** np.arange(0, -20, -1) if not (values % u).any())
            largest *= np.abs(values).max()
        assert largest / unit < 2**24, self.name

    def ids(self, seed: int = 0) -> NDArray[np.int32]:
        """Draw an expert for each group; an expert may have several groups or none."""
        if self.each:
            return np.arange(self.groups, dtype=np.int32)
        rng = np.random.default_rng([seed, self.groups, self.experts])
        return rng.integers(0, max(self.experts, 1), self.groups).astype(np.int32)

    def factors(self, weight: Any, x: Any, ids: Ids = None) -> tuple[Floats, Floats]:
        """Return x [groups, rows, depth] and the weights of each group [groups, columns, depth], in
        float64."""
        rows = np.repeat(x.values, self.share, axis=0).reshape(self.groups, self.rows, -1)
        return rows, weight.values[self.ids() if ids is None else ids]


def body(case: Case, parameters: Parameters) -> Callable[..., ir.Value]:
    """Return what builds the body of a case's function.

    The arguments of the function are elements, then scales, ids, the residual and weights, if the
    case has them.
    """
    lead = [case.groups] if case.experts else []
    rows = [*lead, case.rows]

    def repeated(x: ir.Value) -> ir.Value:
        inner = "k b" if len(ir.RankedTensorType(x.type).shape) == 3 else "k"
        _, *rest = ir.RankedTensorType(x.type).shape
        if case.share > 1:
            sizes = {"j": case.share}
            x = generic(
                [(x, f"m {inner}")], f"m j {inner}", element_of(x), lambda e: e, sizes=sizes
            )
            x = collapse(x, [[0, 1], *([axis + 2] for axis in range(len(rest)))])
        if case.experts and not case.is_dynamic:
            x = expand(x, [[0, 1], *([axis + 2] for axis in range(len(rest)))], [*rows, *rest])
        return x

    def plus(y: ir.Value, arguments: list[ir.Value]) -> ir.Value:
        if not case.plus:
            return y
        f32 = ir.F32Type.get()
        bias = parameters.load(f"{case.name}.b", (case.columns,), f32)
        y = generic([(y, "m n"), (bias, "n")], "m n", f32, arith.addf)
        return generic([(y, "m n"), (arguments[-1], "m n")], "m n", f32, arith.addf)

    def build(*inputs: ir.Value) -> ir.Value:
        i8, f32, bf16 = ir.IntegerType.get_signless(8), ir.F32Type.get(), ir.BF16Type.get()
        arguments = [*inputs]
        x, scale, names = arguments.pop(0), None, list(case.parameters.items())
        if case.activation == "bf16r":
            x = generic([(x, "m k b")], "m k b", bf16, lambda e: arith.truncf(bf16, e))
        x = repeated(x)
        if case.activation not in PLAIN:
            scale = repeated(arguments.pop(0))
            if case.activation in MLIR:
                x = unpack(x, MLIR[case.activation].get())
            if case.activation in SCALES:
                scale = unpack(scale, SCALES[case.activation].get())
        if case.weight in FLOATS:

            def multiply(a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
                a, b = (v if v.type == f32 else arith.extf(f32, v) for v in (a, b))
                return arith.addf(total, arith.mulf(a, b))

            weight = parameters.load(*names[0], MLIR[case.weight].get())
            y = generic(
                [(collapse(x, [[0], [1, 2]]), "m k"), (weight, "n k")], "m n", f32, multiply
            )
            return plus(y, arguments)
        in_bytes = case.weight in SCALES
        if case.given:
            elements, scales = arguments[-2:]
        else:
            elements = parameters.load(*names[0], i8)
            scales = parameters.load(*names[1], i8 if in_bytes else f32)
        if case.weight in MLIR:
            elements = unpack(elements, MLIR[case.weight].get())
        if case.weight == "int4":
            elements = unpack(elements, ir.IntegerType.get_signless(4))
        if in_bytes:
            scales = unpack(scales, SCALES[case.weight].get())
        if case.chooses:
            elements, scales = (gather(value, arguments[0]) for value in (elements, scales))
        y = scaled_contraction(
            x, elements, lhs_scale=scale, rhs_scale=scales, batch=len(lead), name=case.name
        )
        return plus(y, arguments)

    return build


def program(cases: Sequence[Case]) -> bytes:
    """Return a module with a function for each case."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        parameters = Parameters(module)
        i8, i32 = (ir.IntegerType.get_signless(width) for width in (8, 32))
        with ir.InsertionPoint(module.body):
            for case in cases:
                # If the number of groups comes with the call, each has one row.
                lead = [case.source_rows] if not (case.experts and case.is_dynamic) else [-1, 1]
                lead = [ir.ShapedType.get_dynamic_size() if n < 0 else n for n in lead]
                shape = [*lead, case.row_blocks]
                width = case.row_block * BITS.get(case.activation, 8) // 8
                kinds = [ir.RankedTensorType.get([*shape, width], i8)]
                if case.activation in PLAIN:
                    kind = MLIR.get(case.activation, ir.F32Type).get()
                    kinds = [ir.RankedTensorType.get([*shape, case.row_block], kind)]
                elif case.activation not in SCALES:
                    kinds.append(ir.RankedTensorType.get(shape, ir.F32Type.get()))
                else:
                    kinds.append(ir.RankedTensorType.get(shape, i8))
                if case.chooses:
                    count = lead[0] if case.is_dynamic else case.groups
                    kinds.append(ir.RankedTensorType.get([count], i32))
                if case.plus:
                    f32 = ir.F32Type.get()
                    kinds.append(ir.RankedTensorType.get([lead[0], case.columns], f32))
                if case.given:
                    scale = i8 if case.weight in SCALES else ir.F32Type.get()
                    types = zip(case.parameters.values(), (i8, scale), strict=True)
                    kinds += [ir.RankedTensorType.get(shape, type) for shape, type in types]
                func.FuncOp.from_py_func(*kinds, name=case.name)(body(case, parameters))
        return str(module).encode()
