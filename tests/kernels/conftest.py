"""Contractions with random data for the interpreter of the kernel language, without IREE.

The values of codes and scales are those of ml_dtypes.
"""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.formats.formats import block_format
from mxc.kernels import language
from mxc.kernels.contraction import ContractionShape
from mxc.kernels.decode import element_of, scale_element
from mxc.kernels.interpret import interpret
from mxc.kernels.language import Kernel

Array = NDArray[Any]

CODES = {
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "nvfp4": ml_dtypes.float4_e2m1fn,
    "mxfp6e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp6e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp8e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8e5m2": ml_dtypes.float8_e5m2,
}
#: Initial value of results, which elements that no statement writes must keep.
UNTOUCHED = -7.0


def values_of(format: str, codes: Array) -> Array:
    """Decode elements."""
    if format == "mxint8":
        return codes.view(np.int8) / 64.0
    return codes.view(CODES[format]).astype(np.float64)


def factors_of(format: str, scales: Array) -> Array:
    """Decode bytes of scales."""
    kind = ml_dtypes.float8_e4m3fn if format == "nvfp4" else ml_dtypes.float8_e8m0fnu
    return scales.view(kind).astype(np.float64)


@dataclass
class Problem:
    """A contraction with its operands.

    `x`: activations. `weights`: scaled weights in float64, or plain ones. `memory`: other arrays of
    the kernel. `ids`: expert of each row. `codes`, `scales`: of weights, if they are scaled.
    """

    contraction: ContractionShape
    rows: int
    x: Array
    weights: Array
    memory: dict[str, Array]
    ids: Array
    codes: Array | None = None
    scales: Array | None = None
    sizes: dict[str, int] = field(default_factory=dict)

    def run(self, kernel: Kernel, pitch: int = 0) -> Array:
        """Interpret a kernel; return its results [rows, columns], with two more rows and the rest
        of the last fragment after them, which should be UNTOUCHED."""
        c, arrays = self.contraction, kernel.arrays
        sizes: dict[str, Any] = {
            **kernel.sizes,
            **self.sizes,
            "r": self.rows + 31,
            "y": self.rows + 2,
        }
        sizes["e"] = max(1, c.experts)
        a = arrays["A"]
        memory = dict(self.memory)
        # Memory after the rows, and in a row after K, must not affect results: NaN, or 99.
        nothing = np.nan if a.element.bits > 8 else 99
        memory["A"] = np.full(a.count(sizes), nothing, a.element.numpy)
        grid = np.ogrid[tuple(slice(n) for n in self.x.shape)]
        memory["A"][a.address(dict(zip(a.axes, grid, strict=True)), sizes)] = self.x
        given = self.weights if self.codes is None else self.codes
        lead = () if c.experts else (0,)
        halves = given.reshape(given.shape[0], c.halves, -1, given.shape[-1])
        memory["B"] = pack(arrays["B"], _axes(halves, c)[lead], sizes)
        if self.scales is not None:
            split = self.scales.reshape(given.shape[0], c.halves, -1, self.scales.shape[-1])
            memory["SB"] = pack(arrays["SB"], _axes(split, c)[lead], sizes)
        width = arrays["Y"].fragments("n", c.columns)
        memory["Y"] = np.full((self.rows + 2) * width, UNTOUCHED, np.float32)
        finish = (lambda totals, at: totals[0] * 2 - totals[1]) if c.halves > 1 else None
        interpret(kernel, memory, self.sizes, finish)
        return memory["Y"].reshape(self.rows + 2, width)

    @property
    def order(self) -> Array:
        """The numbers of the rows, in the order of their experts."""
        return self.memory["ROUTES"][2 * self.contraction.experts + 1 :]

    @property
    def wanted(self) -> Array:
        """The expected results in float64, [rows, columns]."""
        x = self.x.astype(np.float64)
        x = x.sum(axis=2) if x.ndim == 3 else x
        with np.errstate(invalid="ignore"):
            found = np.einsum("rk,rnk->rn", x, self.weights[self.ids])
        if self.contraction.choice == "sorted":
            ordered = np.empty_like(found)
            ordered[self.order] = found
            found = ordered
        if self.contraction.halves > 1:
            first, second = np.split(found, 2, axis=1)
            return first * 2 - second
        return found


def pack(array: language.Array, numbers: Array, sizes: dict[str, int]) -> Array:
    """Return numbers or codes, indexed by the entries of each axis, as the array's memory."""
    grid = np.ogrid[tuple(slice(count) for count in numbers.shape)]
    at = {a: g * array.grain.get(a, 1) for a, g in zip(array.axes, grid, strict=True)}
    flat = np.zeros(array.count(sizes), array.element.numpy)
    flat[np.broadcast_to(array.address(at, sizes), numbers.shape)] = numbers
    return flat


def _axes(array: Array, c: ContractionShape) -> Array:
    """Return [expert, half, column, k], without the second axis if there is only one half."""
    return array if c.halves > 1 else array[:, 0]


def problem(
    format: str, count: int, columns: int, depth: int, *, scales: tuple[int, int] = (115, 140),
    planes: int = 1, seed: int = 0, block: int = 0, **more: Any,
) -> Problem:  # fmt: skip
    """Draw a contraction and its data.

    `count`: rows, of each group if the contraction has groups that are not sorted. `scales`: least
    and greatest byte of a scale. `planes`: bf16 parts of an activation. `more`: further arguments
    of ContractionShape.
    """
    more = {"rows": None if more.get("choice") == "sorted" else count, **more}
    rng = np.random.default_rng(seed)
    experts, halves = more.get("experts", 0), more.get("halves", 1)
    shape = (max(1, experts), halves * columns, depth)
    codes = by = None
    if format == "bf16":
        weights = rng.normal(size=shape).astype(ml_dtypes.bfloat16)
        contraction = ContractionShape(columns, depth, element_of(None), planes=planes, **more)
    else:
        known = block_format(format)
        size = block or known.block
        codes = rng.integers(0, 1 << known.element.bits, shape).astype(np.uint8)
        codes = np.where(np.isfinite(values_of(format, codes)), codes, 1).astype(np.uint8)
        least, most = (0, 126) if format == "nvfp4" else scales
        by = rng.integers(least, most + 1, (*shape[:2], depth // size)).astype(np.uint8)
        weights = values_of(format, codes) * np.repeat(factors_of(format, by), size, axis=2)
        element, scale = element_of(known.element), scale_element(known.scale.mlir)
        contraction = ContractionShape(columns, depth, element, scale, size, planes=planes, **more)
    groups = 1 if not experts or more.get("choice") == "sorted" else more["groups"]
    total = count * groups
    x = rng.normal(size=(total, depth)).astype(np.float32)
    if planes > 1:
        parts = []
        for _ in range(planes):
            high = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)
            parts.append(high)
            x = x - high
        x = np.stack(parts, axis=2)
    x = x.astype(ml_dtypes.bfloat16)
    memory: dict[str, Array] = {}
    ids = np.zeros(total, np.int32)
    choice = more.get("choice", "all")
    if choice == "chosen":
        memory["IDS"] = rng.integers(0, experts, groups).astype(np.int32)
        ids = np.repeat(memory["IDS"], count)
    elif choice == "own":
        ids = np.repeat(np.arange(experts), count)
    elif choice == "sorted":
        ids = np.sort(rng.integers(0, experts, total)).astype(np.int32)
        # First sorted row of each group: experts with rows, then groups without rows, then the end.
        # After these, the expert of each group, and the row at each sorted place.
        own, begins = np.unique(ids, return_index=True)
        missing = experts - len(own)
        routes = [*begins, *[total] * (missing + 1), *own, *[0] * missing, *rng.permutation(total)]
        memory["ROUTES"] = np.array(routes, np.int32)
    sizes = {} if choice == "sorted" else {"m": count}
    return Problem(contraction, total, x, weights.astype(np.float64), memory, ids, codes, by, sizes)


@pytest.fixture(scope="session")
def draw() -> Any:
    """Return `problem`."""
    return problem
