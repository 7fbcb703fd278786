"""Compare mxfp4 times mxfp4 with IREE without mxc's passes: the same contraction, default flags.

Both results are compared with integer arithmetic; with the chosen scales every sum in f32 is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from contractions import both_scaled_program, exact_product, f4_by_f4
from iree.compiler import ir, tools
from iree.compiler.dialects import func
from problems import BLOCK, Array, Shape, Weights
from programs import Loaded, laid_out, shape
from repetitions import Time, interleave

from mxc.dialects.context import new_context

ROWS, PROBLEM = 128, Shape(256, 4096)

#: Wanted ratio of mxc's speed to that of stock IREE.
WANTED = 100.0

STOCK_FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
)


@dataclass(frozen=True)
class Stock:
    """Times of one product with mxc and with IREE without mxc's passes ("stock"), and the largest
    differences from the integer reference."""

    m: int
    problem: Shape
    ours: Time
    stock: Time
    error: float
    stock_error: float

    @property
    def ratio(self) -> float:
        return self.stock.least / self.ours.least

    @property
    def passes(self) -> bool:
        return self.ratio >= WANTED and self.error == 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "m": self.m,
            "shape": str(self.problem),
            "ms": 1e3 * self.ours.least,
            "stock_ms": 1e3 * self.stock.least,
            "gflops": self.problem.operations(self.m) / self.ours.least / 1e9,
            "of_stock": self.ratio,
            "wanted": WANTED,
            "error": self.error,
            "stock_error": self.stock_error,
            "passes": self.passes,
        }


def measure_stock(threads: int, seconds: float, m: int = ROWS, problem: Shape = PROBLEM) -> Stock:
    """Measure mxc and stock IREE alternately on the same bytes.

    Raises AssertionError if the result of stock IREE is wrong.
    """
    x, w = _draw(m, problem, 0), _draw(problem.n, problem, 1)
    wanted = exact_product(x, w)
    program = both_scaled_program(m, problem)
    given = {f"{name}0": laid_out(program, f"{name}0", rows) for name, rows in _sides(w).items()}
    ours = Loaded(program.code, given, threads)
    stock = Loaded(_compile_stock(m, problem), {}, threads)
    arguments = [array.view(np.int8) for side in (x, w) for array in _sides(side).values()]
    runs = {
        "ours": (ours, ours.prepare("main", *(ours.put(a) for a in arguments[:2]))),
        "stock": (stock, stock.prepare("main", *(stock.put(a) for a in arguments))),
    }
    errors = {
        name: float(np.abs(loaded.read(call()) - wanted).max())
        for name, (loaded, call) in runs.items()
    }
    assert errors["stock"] == 0, f"stock IREE is off by {errors['stock']}"
    times = interleave({name: call for name, (_, call) in runs.items()}, seconds=seconds, settle=0)
    return Stock(m, problem, times["ours"], times["stock"], errors["ours"], errors["stock"])


def _draw(rows: int, problem: Shape, seed: int) -> Weights:
    # f32 sums are exact: products of elements are multiples of 1/4 up to 36, and products of scales
    # are 2^-2 to 2^2. In units of 2^-4, the sum of 4096 of them stays below 2^24.
    rng = np.random.default_rng(seed)
    blocks = (rows, problem.k // BLOCK)
    codes = rng.integers(0, 16, (*blocks, BLOCK), dtype=np.uint8)
    return Weights(codes, rng.integers(126, 129, blocks, dtype=np.uint8))


def _sides(side: Weights) -> dict[str, Array]:
    return {"w": side.packed, "s": side.scales}


def _compile_stock(m: int, problem: Shape) -> bytes:
    """Compile @main(x, x scales, w, w scales), all bytes, without mxc's passes."""
    blocks = problem.k // BLOCK
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        i8 = ir.IntegerType.get_signless(8)
        kinds = [
            kind
            for rows in (m, problem.n)
            for kind in (shape(rows, blocks, BLOCK // 2, of=i8), shape(rows, blocks, of=i8))
        ]
        with ir.InsertionPoint(module.body):
            func.FuncOp.from_py_func(*kinds, name="main")(f4_by_f4)
        text = str(module)
    code: bytes = tools.compile_str(text, extra_args=list(STOCK_FLAGS))
    return code


def show_stock(found: Stock) -> None:
    """Print the result in two lines."""
    row = found.to_dict()
    verdict = "pass" if found.passes else "FAIL"
    print(f"mxfp4 x mxfp4, m {found.m}, n x k {found.problem}, beside stock IREE")
    print(
        f"{row['ms']:.3f} ms ({row['gflops']:.0f} GFLOP/s), stock {row['stock_ms']:.1f} ms: "
        f"{found.ratio:.0f} times (wanted {WANTED:.0f}); largest error {found.error:g}  {verdict}"
    )
