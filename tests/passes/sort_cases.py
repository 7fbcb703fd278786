"""Cases of sorts: their programs, operands, and the check against a stable sort of numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
KINDS: dict[str, Any] = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
    "i32": np.int32,
    "i64": np.int64,
}
#: Predicates by which one element goes before another, of arith.cmpf and of arith.cmpi.
PREDICATES = {
    "least": ("olt", "slt"),
    "least or equal": ("ole", "sle"),
    "greatest": ("ogt", "sgt"),
    "greatest or equal": ("oge", "sge"),
}


@dataclass(frozen=True)
class SortCase:
    """A sort along `axis` of a tensor of `kind`, with i32 that say where each element was.

    `order`: a key of PREDICATES. `dynamic`: whether all sizes come with the call.
    """

    kind: str
    shape: tuple[int, ...]
    axis: int
    order: str = "least"
    dynamic: bool = False

    @property
    def name(self) -> str:
        """The name of its function."""
        sizes = "x".join(map(str, self.shape))
        return f"{self.kind}_{sizes}_{self.axis}_{self.order.replace(' ', '_')}_{self.dynamic}"

    @property
    def text(self) -> str:
        """The text of the function."""
        sizes = "x".join("?" if self.dynamic else str(size) for size in self.shape)
        x, places = f"tensor<{sizes}x{self.kind}>", f"tensor<{sizes}xi32>"
        is_float = self.kind not in ("i8", "i32", "i64")
        compare = "cmpf" if is_float else "cmpi"
        predicate = PREDICATES[self.order][not is_float]
        return f"""
          func.func @{self.name}(%x: {x}, %places: {places}) -> ({x}, {places}) {{
            %r:2 = iree_linalg_ext.sort dimension({self.axis}) outs(%x, %places : {x}, {places}) {{
            ^bb0(%a: {self.kind}, %b: {self.kind}, %i: i32, %j: i32):
              %before = arith.{compare} {predicate}, %a, %b : {self.kind}
              iree_linalg_ext.yield %before : i1
            }} -> {x}, {places}
            return %r#0, %r#1 : {x}, {places}
          }}"""

    def operands(self) -> tuple[Array, Array]:
        """Draw numbers, and return them with the place of each.

        Many numbers are equal; floats have NaN, infinities and zeros of both signs.
        """
        rng = np.random.default_rng(self.shape)
        x = rng.integers(-4, 5, self.shape).astype(KINDS[self.kind])
        if not np.issubdtype(x.dtype, np.integer):
            x[rng.random(self.shape) < 0.05] = np.nan
            x[rng.random(self.shape) < 0.05] = -0.0
            x[rng.random(self.shape) < 0.02] = np.inf
            x[rng.random(self.shape) < 0.02] = -np.inf
        places = np.arange(x.size, dtype=np.int32).reshape(self.shape)
        return x, places

    def check(self, results: Sequence[Array]) -> None:
        """Assert that results are sorted: equal elements stay in order, NaN is the greatest."""
        x, places = self.operands()
        keys = x.astype(np.float64)
        keys = np.where(np.isnan(keys), 1e300, np.where(keys == np.inf, 1e299, keys))
        sign = -1 if self.order.startswith("greatest") else 1
        order = np.argsort(sign * keys, axis=self.axis, kind="stable")
        wanted = [np.take_along_axis(each, order, axis=self.axis) for each in (x, places)]
        for found, each in zip(results, wanted, strict=True):
            kept = np.asarray(found).view(each.dtype).reshape(each.shape)
            np.testing.assert_array_equal(kept.view(np.uint8), each.view(np.uint8))


#: Rows of zero elements, one, powers of two, and numbers beside these; every type, order and axis.
CASES = [
    *(SortCase("f32", (3, length), 1) for length in (0, 1, 2, 3, 5, 8, 33, 64, 130)),
    *(SortCase(kind, (2, 37), 1) for kind in KINDS if kind != "f32"),
    *(SortCase("bf16", (2, 37), 1, order) for order in PREDICATES),
    *(SortCase("i32", (2, 37), 1, order) for order in PREDICATES),
    *(SortCase("i32", (4, 9, 5), axis) for axis in range(3)),
    *(SortCase("f32", (3, 21, 2), axis, "greatest", dynamic=True) for axis in range(3)),
    SortCase("f32", (0, 4), 1, dynamic=True),
]
