"""A test case: a Triton kernel with its arguments, and its result in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

Arrays = Mapping[str, Any]

#: Triton's names of types.
TYPES = {
    np.dtype(np.float64): "fp64",
    np.dtype(np.float32): "fp32",
    np.dtype(np.float16): "fp16",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(ml_dtypes.float8_e4m3fn): "fp8e4nv",
    np.dtype(ml_dtypes.float8_e5m2): "fp8e5",
    np.dtype(ml_dtypes.float8_e4m3fnuz): "fp8e4b8",
    np.dtype(ml_dtypes.float8_e5m2fnuz): "fp8e5b16",
    np.dtype(np.int64): "i64",
    np.dtype(np.int32): "i32",
    np.dtype(np.int16): "i16",
    np.dtype(np.int8): "i8",
    np.dtype(np.uint64): "u64",
    np.dtype(np.uint32): "u32",
    np.dtype(np.uint16): "u16",
    np.dtype(np.uint8): "u8",
}
DTYPES = {name: dtype for dtype, name in TYPES.items()}
#: The largest error of right results in a type, over the largest magnitude; integers are exact.
BOUNDS = {"fp64": 2.0**-40, "fp32": 2.0**-15, "fp16": 2.0**-9, "bf16": 2.0**-7, "fp8e4nv": 2.0**-3,
          "fp8e5": 2.0**-2}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kernel, its arguments and its results.

    build: returns the arguments (arrays and numbers, in the order of the kernel's parameters) and
    what arrays hold afterwards, by name. constants: constexpr parameters. options: num_warps,
    num_stages and others of Triton. aligned: whether Triton may assume that pointers, and numbers
    that are multiples of 16, are so, as it does at a call. bound: replaces that of `BOUNDS`. fault:
    what is wrong in the code that Triton 3.9 generates, if its results are not right.
    """

    name: str
    kernel: Any
    grid: tuple[int, int, int]
    build: Callable[[np.random.Generator], tuple[Arrays, Arrays]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    aligned: bool = True
    bound: float | None = None
    fault: str = ""


def normal(rng: np.random.Generator, shape: Any, kind: str, scale: float = 1.0) -> Any:
    """Return random numbers of a type: normally distributed floats, or integers of a few bits."""
    dtype = DTYPES[kind]
    if dtype.kind in "iu":
        low = 0 if dtype.kind == "u" else -100
        return rng.integers(low, 100, shape).astype(dtype)
    return (rng.standard_normal(shape) * scale).astype(np.float32).astype(dtype)


def wide(array: Any) -> Any:
    """Convert an array to float64, to compute with it in numpy."""
    return (
        np.asarray(array)
        .astype(np.float32 if array.dtype.itemsize < 4 else array.dtype)
        .astype(np.float64)
    )
