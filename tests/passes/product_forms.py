"""Programs of products whose operands are both arguments of the call, described as for einsum."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, func
from numpy.typing import NDArray

from mxc.dialects.context import new_context
from mxc.dialects.generic import constant, generic

Array = NDArray[Any]
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "i8": np.int8}
#: Size of each letter in a call. Rows (m), columns (n) and K (k) are no multiples of a tile and
#: more than one. Only h is a multiple of a block of 32.
SIZES = {"a": 2, "b": 3, "m": 67, "n": 131, "k": 75, "h": 160, "j": 5, "u": 1}


@dataclass(frozen=True)
class Form:
    """A product by the subscripts of numpy's einsum.

    `dynamic`: the letters whose sizes come with the call. `after`: what follows the product.
    "rounded": it is rounded to bf16. "bias": a bias of the last dimension is added, and negative
    results become zero. "residual": rows are multiplied by weights, and a tensor is added.
    """

    lhs: str
    rhs: str
    out: str
    dynamic: str
    types: tuple[str, str] = ("bf16", "bf16")
    after: Literal["", "rounded", "bias", "residual"] = ""

    @property
    def name(self) -> str:
        """The name of its function."""
        parts = [self.lhs, self.rhs, self.out, self.dynamic, *self.types, self.after]
        return "_".join(parts).rstrip("_")

    @property
    def operands(self) -> list[tuple[str, str]]:
        """Subscripts and element type of each operand, also of those that `after` reads."""
        more = {"bias": [self.out[-1]], "residual": [self.out[:-1], self.out]}.get(self.after, [])
        sides = zip((self.lhs, self.rhs), self.types, strict=True)
        return [*sides, *((each, "f32") for each in more)]

    @property
    def text(self) -> str:
        """The text of the program."""
        with new_context(), ir.Location.unknown():
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                self._build()
            return "\n".join(str(op) for op in module.body.operations)

    def _build(self) -> None:
        dynamic = ir.ShapedType.get_dynamic_size()
        kinds = [
            ir.RankedTensorType.get(
                [dynamic if c in self.dynamic else SIZES[c] for c in letters], ir.Type.parse(kind)
            )
            for letters, kind in self.operands
        ]
        integers = "i8" in self.types
        total = ir.Type.parse("i32" if integers else "f32")

        def wide(value: ir.Value) -> ir.Value:
            if value.type == total:
                return value
            return (arith.extsi if integers else arith.extf)(total, value)

        def multiply(a: ir.Value, b: ir.Value, sum: ir.Value) -> ir.Value:
            times, plus = (arith.muli, arith.addi) if integers else (arith.mulf, arith.addf)
            return plus(sum, times(wide(a), wide(b)))

        @func.FuncOp.from_py_func(*kinds, name=self.name)
        def _(*given: ir.Value) -> Any:
            read = [
                (value, " ".join(letters))
                for value, (letters, _) in zip(given, self.operands, strict=True)
            ]
            out = " ".join(self.out)
            found = generic(read[:2], out, total, multiply)
            more, bf16 = [(found, out), *read[2:]], ir.BF16Type.get()
            if self.after == "rounded":
                return generic(more, out, bf16, lambda y: arith.truncf(bf16, y))
            if self.after == "bias":
                zero = constant(0.0, total)
                add = arith.addf
                return generic(more, out, total, lambda y, c: arith.maximumf(add(y, c), zero))
            if self.after == "residual":
                weigh = arith.mulf
                return generic(more, out, total, lambda y, r, x: arith.addf(weigh(y, r), x))
            return found


#: Both operands are contiguous along K, which is a multiple of a block: other kernels than those of
#: PLAIN compute these products.
BLOCKS = [
    *(Form("mh", "nh", "mn", dynamic) for dynamic in ("", "m")),
    *(Form("amh", "anh", "amn", dynamic) for dynamic in ("", "m")),
    Form("amh", "nh", "amn", "a"),
    *(Form("mh", "nh", "mn", "m", ("f16", kind)) for kind in ("f16", "bf16")),
    Form("mh", "nh", "mn", "", ("f32", "bf16")),
]
#: Dynamic rows, columns, batches and sums; loops of one kind that are not adjacent; any layout;
#: operands of different types.
PLAIN = [
    *(Form("mk", "nk", "mn", dynamic) for dynamic in ("m", "n", "mn", "k", "mnk")),
    *(Form("mk", "kn", "mn", dynamic) for dynamic in ("m", "n", "k", "mnk")),
    *(Form("km", "kn", out, "mnk") for out in ("mn", "nm")),
    *(Form("km", "nk", *each) for each in (("mn", "m"), ("nm", "k"))),
    Form("mk", "nk", "nm", "mn"),
    *(Form("amk", "ank", "amn", dynamic) for dynamic in ("a", "m", "amnk")),
    *(Form("bamk", "bakn", "bamn", dynamic) for dynamic in ("b", "bmk")),
    Form("bamh", "banh", "bamn", "bmn"),
    Form("amh", "ahn", "amn", "an"),
    *(Form("bmah", "bnah", "bamn", dynamic) for dynamic in ("bmn", "m")),
    Form("bamn", "bnah", "bmah", "bmn"),
    Form("mka", "kna", "amn", "mk"),
    Form("bamk", "akn", "bamn", "bm"),
    *(Form("mjk", "njk", "mn", dynamic) for dynamic in ("mn", "mk")),
    *(Form("abmk", "nk", "abmn", dynamic) for dynamic in ("m", "bm")),
    Form("umk", "unk", "umn", "mn"),
    Form("mk", "ank", "man", "m"),
    *(Form("mk", "kn", "mn", "mk", (kind, kind)) for kind in ("f16", "f32", "i8")),
    *(Form("mk", "nk", "mn", "mn", (kind, kind)) for kind in ("f16", "f32", "i8")),
    *(
        Form("mk", "nk", "mn", dynamic, types)
        for dynamic in ("", "mk")
        for types in (("f32", "bf16"), ("bf16", "f32"), ("f16", "bf16"), ("f32", "f16"))
    ),
    *(Form("amk", "ank", out, "amnk", after="rounded") for out in ("amn", "anm")),
    *(Form("amk", "akn", out, "amk", after="bias") for out in ("amn", "man", "anm")),
    *(Form("amk", "akn", out, "amnk", after="residual") for out in ("amn", "man", "nam")),
]


def draw(form: Form) -> list[Array]:
    """Draw operands: small integers, so that every sum is exact in any order."""
    rng = np.random.default_rng(3)
    return [
        rng.integers(-8, 9, [SIZES[c] for c in letters]).astype(TYPES[kind])
        for letters, kind in form.operands
    ]


def wanted(form: Form, operands: Sequence[Array]) -> Array:
    """Return the expected result, by numpy."""
    wide = np.int32 if "i8" in form.types else np.float32
    sides = [each.astype(wide) for each in operands[:2]]
    found = np.einsum(f"{form.lhs},{form.rhs}->{form.out}", *sides)
    if form.after == "rounded":
        return found.astype(TYPES["bf16"])
    if form.after == "bias":
        return np.maximum(found + operands[2], 0)
    if form.after == "residual":
        return found * operands[2][..., None] + operands[3]
    return found
