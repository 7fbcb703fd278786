"""Elementwise Triton kernels: sums, functions, conversions, integers, atomics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton_case import DTYPES, Case, normal, wide

COUNT, BLOCK = 300, 128


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def unary(x, out, n, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    v = tl.load(x + at, mask=mask, other=1.0)
    if NAME == "exp":
        r = tl.exp(v)
    elif NAME == "exp2":
        r = tl.exp2(v)
    elif NAME == "log":
        r = tl.log(tl.abs(v))
    elif NAME == "log2":
        r = tl.log2(tl.abs(v))
    elif NAME == "sqrt":
        r = tl.sqrt(tl.abs(v))
    elif NAME == "sqrt_rn":
        r = tl.sqrt_rn(tl.abs(v))
    elif NAME == "rsqrt":
        r = tl.rsqrt(tl.abs(v))
    elif NAME == "sin":
        r = tl.sin(v)
    elif NAME == "cos":
        r = tl.cos(v)
    elif NAME == "erf":
        r = tl.erf(v)
    elif NAME == "floor":
        r = tl.floor(v)
    elif NAME == "ceil":
        r = tl.ceil(v)
    elif NAME == "sigmoid":
        r = tl.sigmoid(v)
    elif NAME == "tanh":
        r = libdevice.tanh(v)
    elif NAME == "pow":
        r = libdevice.pow(tl.abs(v), v)
    elif NAME == "rint":
        r = libdevice.rint(v)
    elif NAME == "log1p":
        r = libdevice.log1p(tl.abs(v))
    elif NAME == "asin":
        r = libdevice.asin(v * 0.1)
    elif NAME == "silu":
        r = v * tl.sigmoid(v)
    else:
        r = 0.5 * v * (1 + libdevice.tanh(0.79788456 * (v + 0.044715 * v * v * v)))
    tl.store(out + at, r, mask=mask)


def _gelu(v: Any) -> Any:
    return 0.5 * v * (1 + np.tanh(0.79788456 * (v + 0.044715 * v**3)))


def _erf(v: Any) -> Any:
    import math

    return np.vectorize(math.erf)(v)


UNARY = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": lambda v: np.log(np.abs(v)),
    "log2": lambda v: np.log2(np.abs(v)),
    "sqrt": lambda v: np.sqrt(np.abs(v)),
    "sqrt_rn": lambda v: np.sqrt(np.abs(v)),
    "rsqrt": lambda v: 1 / np.sqrt(np.abs(v)),
    "sin": np.sin,
    "cos": np.cos,
    "erf": _erf,
    "floor": np.floor,
    "ceil": np.ceil,
    "sigmoid": lambda v: 1 / (1 + np.exp(-v)),
    "tanh": np.tanh,
    "pow": lambda v: np.power(np.abs(v), v),
    "rint": np.rint,
    "log1p": lambda v: np.log1p(np.abs(v)),
    "asin": lambda v: np.arcsin(0.1 * v),
    "silu": lambda v: v / (1 + np.exp(-v)),
    "gelu": _gelu,
}


@triton.jit
def binary(x, y, out, n, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    a = tl.load(x + at, mask=mask, other=1)
    b = tl.load(y + at, mask=mask, other=1)
    if NAME == "divide":
        r = a / b
    elif NAME == "div_rn":
        r = tl.div_rn(a, b)
    elif NAME == "fdiv":
        r = tl.fdiv(a, b)
    elif NAME == "fma":
        r = tl.fma(a, b, a)
    elif NAME == "maximum":
        r = tl.maximum(a, b)
    elif NAME == "minimum":
        r = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif NAME == "where":
        r = tl.where(a > b, a, -b)
    elif NAME == "quotient":
        r = a // b
    elif NAME == "remainder":
        r = a % b
    elif NAME == "shift":
        r = (a << (b & 3)) ^ (a >> (b & 7))
    elif NAME == "product":
        r = a * b
    elif NAME == "umulhi":
        r = tl.umulhi(a, b)
    else:
        r = tl.clamp(a, -0.5, 0.25)
    tl.store(out + at, r, mask=mask)


def _shift(a: Any, b: Any) -> Any:
    return (a << (b & 3)) ^ (a >> (b & 7))


def _truncated(a: Any, b: Any) -> Any:
    return (np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))).astype(a.dtype)


BINARY_FLOATS = {
    "divide": lambda a, b: a / b,
    "div_rn": lambda a, b: a / b,
    "fdiv": lambda a, b: a / b,
    "fma": lambda a, b: a * b + a,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "where": lambda a, b: np.where(a > b, a, -b),
    "clamp": lambda a, b: np.clip(a, -0.5, 0.25),
}
BINARY_INTEGERS = {
    "quotient": _truncated,
    "remainder": lambda a, b: a - b * _truncated(a, b),
    "shift": _shift,
    "product": lambda a, b: a * b,
    "maximum": np.maximum,
}


@triton.jit
def convert(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask).to(out.dtype.element_ty), mask=mask)


@triton.jit
def dropout(x, out, n, seed, p, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    keep = tl.rand(seed, at) > p
    v = tl.load(x + at, mask=mask)
    tl.store(out + at, tl.where(keep, v / (1 - p), 0.0), mask=mask)


def _philox(counter: Any, seed: int) -> Any:
    """The first word of Philox 4x32-10 (Salmon et al., 2011) with this counter and key."""
    mask, c = 0xFFFFFFFF, [counter.astype(object), 0 * counter.astype(object)]
    c0, c1, c2, c3 = c[0], c[1], c[1], c[1]
    k0, k1 = seed & mask, 0
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & mask, (p0 >> 32) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c0.astype(np.int64)


def _kept(count: int, seed: int, p: float) -> Any:
    word = _philox(np.arange(count), seed).astype(np.uint32).view(np.int32).astype(np.int64)
    return np.where(word < 0, -word - 1, word) * 4.6566127342e-10 > p


@triton.jit
def atomics(x, at, out, n, NAME: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    v = tl.load(x + i, mask=mask)
    place = tl.load(at + i, mask=mask)
    if NAME == "add":
        tl.atomic_add(out + place, v, mask=mask)
    elif NAME == "max":
        tl.atomic_max(out + place, v, mask=mask)
    elif NAME == "min":
        tl.atomic_min(out + place, v, mask=mask)
    elif NAME == "and":
        tl.atomic_and(out + place, v, mask=mask)
    elif NAME == "or":
        tl.atomic_or(out + place, v, mask=mask)
    else:
        tl.atomic_xor(out + place, v, mask=mask)


@triton.jit
def locked(lock, total, n):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + n)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


#: The fault of signed maxima: the code joins lanes of a wave with the same address by v_max_u32
#: before global_atomic_smax. Signed minima have the same fault.
_UNSIGNED = "it joins lanes of one address by the unsigned maximum or minimum"

ATOMICS = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _pair(name: str, kernel: Any, kind: str, function: Any, **constants: Any) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x, y = normal(rng, COUNT, kind), normal(rng, COUNT, kind)
        if x.dtype.kind in "iu":
            y[y == 0] = 3
            found = function(x, y)
        else:
            found = function(wide(x), wide(y))
        given = {"x": x, "y": y, "out": np.zeros_like(x), "n": COUNT}
        return given, {"out": found.astype(x.dtype)}

    grid = (-(-COUNT // BLOCK), 1, 1)
    constants = {**constants, "BLOCK": BLOCK}
    return Case(name=name, kernel=kernel, grid=grid, build=build, constants=constants,
                aligned=kind != "i16")  # fmt: skip


def _single(name: str, kind: str, out: str, kernel: Any, function: Any, **more: Any) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x = normal(rng, COUNT, kind)
        given = {"x": x, "out": np.zeros(COUNT, DTYPES[out]), "n": COUNT}
        return given, {"out": function(wide(x)).astype(np.float32).astype(DTYPES[out])}

    grid = (-(-COUNT // BLOCK), 1, 1)
    return Case(
        name=name, kernel=kernel, grid=grid, build=build, constants={**more, "BLOCK": BLOCK}
    )


def _atomic(name: str, kind: str, *, below_zero: bool = True) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x = normal(rng, COUNT, kind) if below_zero else np.abs(normal(rng, COUNT, kind))
        at = rng.integers(0, 50, COUNT).astype(np.int32)
        out = np.abs(normal(rng, 50, kind)) if not below_zero else normal(rng, 50, kind)
        found = out.astype(np.float64) if x.dtype.kind == "f" else out.copy()
        ATOMICS[name].at(found, at, x)
        return {"x": x, "at": at, "out": out, "n": COUNT}, {"out": found.astype(x.dtype)}

    return Case(
        name=f"atomic {name} {kind}" + ("" if below_zero else ", not below zero"),
        kernel=atomics,
        grid=(-(-COUNT // BLOCK), 1, 1),
        build=build,
        constants={"NAME": name, "BLOCK": BLOCK},
        fault=_UNSIGNED if kind == "i32" and name in ("max", "min") and below_zero else "",
    )


def _dropout(rng: np.random.Generator) -> Any:
    x = normal(rng, COUNT, "fp32")
    found = np.where(_kept(COUNT, 123, 0.25), x / np.float32(0.75), 0).astype(np.float32)
    return {"x": x, "out": np.zeros_like(x), "n": COUNT, "seed": 123, "p": 0.25}, {"out": found}


def _lock(rng: np.random.Generator) -> Any:
    given = {"lock": np.zeros(1, np.int32), "total": np.zeros(1, np.int32), "n": 5}
    return given, {"total": np.array([40], np.int32), "lock": np.zeros(1, np.int32)}


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for kind in ("fp32", "fp16", "bf16", "fp64", "i32", "i64", "i16", "i8"):
        yield _pair(f"add {kind}", add, kind, lambda a, b: a + b)
    for name, function in UNARY.items():
        yield _single(f"{name} fp32", "fp32", "fp32", unary, function, NAME=name)
    for name, function in BINARY_FLOATS.items():
        yield _pair(f"{name} fp32", binary, "fp32", function, NAME=name)
    for name in ("maximum", "clamp", "where"):
        yield _pair(f"{name} bf16", binary, "bf16", BINARY_FLOATS[name], NAME=name)
        yield _pair(f"{name} fp16", binary, "fp16", BINARY_FLOATS[name], NAME=name)
    yield _pair("fma fp64", binary, "fp64", BINARY_FLOATS["fma"], NAME="fma")
    yield _pair("divide fp64", binary, "fp64", BINARY_FLOATS["divide"], NAME="divide")
    for name, function in BINARY_INTEGERS.items():
        for kind in ("i32", "i64", "i8"):
            yield _pair(f"{name} {kind}", binary, kind, function, NAME=name)
    yield _pair("umulhi u32", binary, "u32",
                lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32),
                NAME="umulhi")  # fmt: skip
    for kind, out in (
        *(("fp32", "bf16"), ("fp32", "fp16"), ("bf16", "fp32"), ("fp16", "bf16")),
        *(("fp32", "fp8e4nv"), ("fp32", "fp8e5"), ("fp8e4nv", "fp32"), ("fp8e5", "fp16")),
        *(("fp8e4b8", "fp32"), ("fp8e5b16", "fp32")),
        *(("bf16", "fp8e4nv"), ("i8", "fp32"), ("i32", "fp16"), ("fp64", "fp32"), ("i64", "fp32")),
    ):
        yield _single(f"{kind} to {out}", kind, out, convert, lambda v: v)
    for name, kinds in {
        "add": ("fp32", "i32", "fp16", "bf16", "fp64", "i64"),
        "max": ("i32", "fp32", "u32"),
        "min": ("i32",),
        "and": ("i32",),
        "or": ("i32",),
        "xor": ("i32",),
    }.items():
        for kind in kinds:
            yield _atomic(name, kind)
    for name in ("max", "min"):
        yield _atomic(name, "i32", below_zero=False)
    grid = (-(-COUNT // BLOCK), 1, 1)
    yield Case(name="dropout", kernel=dropout, grid=grid, build=_dropout,
               constants={"BLOCK": BLOCK})  # fmt: skip
    yield Case(name="lock", kernel=locked, grid=(8, 1, 1), build=_lock, aligned=False)
