"""Triton kernels that reduce, scan, sort and move elements among lanes; norms and softmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton_case import Case, normal, wide

ROWS = 4


@triton.jit
def softmax(x, out, stride, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, mask=at < n, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + row * stride + at, e / tl.sum(e, 0), mask=at < n)


@triton.jit
def layer_norm(x, weight, bias, out, mean, rstd, stride, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    middle = tl.sum(total, 0) / n
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
        v = tl.where(at < n, v - middle, 0.0)
        squares += v * v
    inverse = 1 / tl.sqrt(tl.sum(squares, 0) / n + eps)
    tl.store(mean + row, middle)
    tl.store(rstd + row, inverse)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < n
        w, b = tl.load(weight + at, mask=mask), tl.load(bias + at, mask=mask)
        v = tl.load(x + row * stride + at, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + row * stride + at, (v - middle) * inverse * w + b, mask=mask)


@triton.jit
def rms_norm(x, weight, out, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(out + row * n + at, v * scale * tl.load(weight + at, mask=at < n), mask=at < n)


@triton.jit
def first(a, b):
    return tl.minimum(a, b)


@triton.jit
def reduce(x, out, N: tl.constexpr, NAME: tl.constexpr):
    row = tl.program_id(0)
    v = tl.load(x + row * N + tl.arange(0, N))
    if NAME == "sum":
        r = tl.sum(v, 0)
    elif NAME == "max":
        r = tl.max(v, 0)
    elif NAME == "min":
        r = tl.min(v, 0)
    elif NAME == "argmax":
        r = tl.argmax(v, 0)
    elif NAME == "argmin":
        r = tl.argmin(v, 0)
    elif NAME == "xor":
        r = tl.xor_sum(v, 0)
    else:
        r = tl.reduce(v, 0, first)
    tl.store(out + row, r)


REDUCE: dict[str, Callable[..., Any]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "argmax": np.argmax,
    "argmin": np.argmin,
    "xor": np.bitwise_xor.reduce,
    "own": np.min,
}


@triton.jit
def linear(a1, b1, a2, b2):
    return a1 * a2, b1 * a2 + b2


@triton.jit
def move(x, out, N: tl.constexpr, NAME: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, N)
    v = tl.load(x + row * N + at)
    if NAME == "cumsum":
        r = tl.cumsum(v, 0)
    elif NAME == "cumprod":
        r = tl.cumprod(v, 0)
    elif NAME == "reverse scan":
        r = tl.cumsum(v, 0, reverse=True)
    elif NAME == "recurrence":
        _, r = tl.associative_scan((v, v), 0, linear)
    elif NAME == "sort":
        r = tl.sort(v)
    elif NAME == "sort down":
        r = tl.sort(v, descending=True)
    elif NAME == "flip":
        r = tl.flip(v)
    elif NAME == "interleave":
        left, right = tl.split(tl.reshape(v, (N // 2, 2)))
        r = tl.interleave(right, left)
    elif NAME == "gather":
        r = tl.gather(v, (at * 7) % N, 0)
    else:
        r = tl.reshape(tl.trans(tl.reshape(v, (N // 8, 8))), (N,))
    tl.store(out + row * N + at, r)


def _recurrence(v: Any) -> Any:
    out, total = np.zeros_like(v), np.zeros(v.shape[0])
    for n in range(v.shape[1]):
        total = total * v[:, n] + v[:, n]
        out[:, n] = total
    return out


def _swapped(v: Any) -> Any:
    return v.reshape(v.shape[0], -1, 2)[:, :, ::-1].reshape(v.shape)


MOVE = {
    "cumsum": lambda v: np.cumsum(v, axis=1),
    "cumprod": lambda v: np.cumprod(v, axis=1),
    "reverse scan": lambda v: np.cumsum(v[:, ::-1], axis=1)[:, ::-1],
    "recurrence": _recurrence,
    "sort": lambda v: np.sort(v, axis=1),
    "sort down": lambda v: np.sort(v, axis=1)[:, ::-1],
    "flip": lambda v: v[:, ::-1],
    "interleave": _swapped,
    "gather": lambda v: v[:, np.arange(v.shape[1]) * 7 % v.shape[1]],
    "transpose": lambda v: v.reshape(v.shape[0], -1, 8).transpose(0, 2, 1).reshape(v.shape),
}


@triton.jit
def histogram(x, out, N: tl.constexpr, BINS: tl.constexpr):
    counts = tl.histogram(tl.load(x + tl.arange(0, N)), BINS)
    tl.store(out + tl.arange(0, BINS), counts)


@triton.jit
def columns(x, out, M: tl.constexpr, N: tl.constexpr, AXIS: tl.constexpr):
    v = tl.load(x + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :])
    if AXIS == 0:
        tl.store(out + tl.arange(0, N), tl.sum(v, 0))
    else:
        tl.store(out + tl.arange(0, M), tl.sum(v, 1))


@triton.jit
def transpose(x, out, m, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows[:, None] < m) & (at[None, :] < n)
    v = tl.load(x + rows[:, None] * n + at[None, :], mask=inside)
    tl.store(out + at[:, None] * m + rows[None, :], tl.trans(v), mask=tl.trans(inside))


def _softmax(kind: str, n: int, warps: int) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x = normal(rng, (ROWS, n), kind, 3)
        e = np.exp(wide(x) - wide(x).max(axis=1, keepdims=True))
        found = (e / e.sum(axis=1, keepdims=True)).astype(x.dtype)
        return {"x": x, "out": np.zeros_like(x), "stride": n, "n": n}, {"out": found}

    block = triton.next_power_of_2(n)
    return Case(name=f"softmax {kind} of {n}, {warps} warps", kernel=softmax, grid=(ROWS, 1, 1),
                build=build, constants={"BLOCK": block}, options={"num_warps": warps},
                aligned=n % 16 == 0)  # fmt: skip


def _norm(kind: str, n: int, block: int, warps: int) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x, w, b = normal(rng, (ROWS, n), kind), normal(rng, n, kind), normal(rng, n, kind)
        v = wide(x)
        mean, rstd = v.mean(axis=1), 1 / np.sqrt(v.var(axis=1) + 1e-5)
        found = (v - mean[:, None]) * rstd[:, None] * wide(w) + wide(b)
        blank = np.zeros(ROWS, np.float32)
        given = {"x": x, "weight": w, "bias": b, "out": np.zeros_like(x), "mean": blank,
                 "rstd": blank.copy(), "stride": n, "n": n, "eps": 1e-5}  # fmt: skip
        return given, {"out": found.astype(x.dtype), "rstd": rstd.astype(np.float32)}

    return Case(name=f"layer norm {kind} of {n}, {warps} warps", kernel=layer_norm,
                grid=(ROWS, 1, 1), build=build, constants={"BLOCK": block},
                options={"num_warps": warps}, aligned=n % 16 == 0)  # fmt: skip


def _rms(kind: str, n: int) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x, w = normal(rng, (ROWS, n), kind), normal(rng, n, kind)
        v = wide(x)
        found = v / np.sqrt((v**2).mean(axis=1, keepdims=True) + 1e-6) * wide(w)
        given = {"x": x, "weight": w, "out": np.zeros_like(x), "n": n, "eps": 1e-6}
        return given, {"out": found.astype(x.dtype)}

    return Case(name=f"rms norm {kind} of {n}", kernel=rms_norm, grid=(ROWS, 1, 1), build=build,
                constants={"BLOCK": triton.next_power_of_2(n)})  # fmt: skip


def _reduced(name: str, kind: str, n: int, warps: int) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x = normal(rng, (ROWS, n), kind)
        result = np.int32 if name.startswith("arg") else x.dtype
        values = x if x.dtype.kind in "iu" or name.startswith("arg") else wide(x)
        found = REDUCE[name](values, axis=1).astype(result)
        return {"x": x, "out": np.zeros(ROWS, result)}, {"out": found}

    return Case(name=f"{name} {kind} of {n}, {warps} warps", kernel=reduce, grid=(ROWS, 1, 1),
                build=build, constants={"N": n, "NAME": name},
                options={"num_warps": warps})  # fmt: skip


def _moved(name: str, kind: str, n: int, warps: int) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x = normal(rng, (ROWS, n), kind)
        found = MOVE[name](x if x.dtype.kind in "iu" else wide(x)).astype(x.dtype)
        return {"x": x, "out": np.zeros_like(x)}, {"out": found}

    return Case(name=f"{name} {kind} of {n}, {warps} warps", kernel=move, grid=(ROWS, 1, 1),
                build=build, constants={"N": n, "NAME": name},
                options={"num_warps": warps})  # fmt: skip


def _histogram(rng: np.random.Generator) -> Any:
    x = rng.integers(0, 32, 512).astype(np.int32)
    found = np.bincount(x, minlength=32).astype(np.int32)
    return {"x": x, "out": np.zeros(32, np.int32)}, {"out": found}


def _columns(axis: int, kind: str) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x = normal(rng, (32, 64), kind)
        found = wide(x).sum(axis=axis).astype(x.dtype)
        return {"x": x, "out": np.zeros(x.shape[1 - axis], x.dtype)}, {"out": found}

    return Case(name=f"sum of axis {axis} {kind}", kernel=columns, grid=(1, 1, 1), build=build,
                constants={"M": 32, "N": 64, "AXIS": axis})  # fmt: skip


def _transposed(kind: str) -> Case:
    def build(rng: np.random.Generator) -> Any:
        x = normal(rng, (40, 56), kind)
        given = {"x": x, "out": np.zeros((56, 40), x.dtype), "m": 40, "n": 56}
        return given, {"out": np.ascontiguousarray(x.T)}

    return Case(name=f"transpose {kind}", kernel=transpose, grid=(2, 2, 1), build=build,
                constants={"BLOCK": 32}, aligned=False)  # fmt: skip


def cases() -> Iterator[Case]:
    """Yield all cases."""
    for kind, n, warps in (
        *(("fp32", 64, 1), ("fp32", 100, 4), ("fp32", 781, 4), ("fp32", 1024, 8)),
        *(("fp16", 256, 4), ("bf16", 512, 2)),
    ):
        yield _softmax(kind, n, warps)
    for kind, n, block, warps in (
        *(("fp32", 256, 256, 4), ("fp32", 300, 128, 1)),
        *(("fp16", 512, 256, 4), ("bf16", 130, 64, 2)),
    ):
        yield _norm(kind, n, block, warps)
    for kind in ("fp32", "bf16", "fp16"):
        yield _rms(kind, 256)
    for name in ("sum", "max", "min", "argmax", "argmin", "own"):
        yield _reduced(name, "fp32", 256, 4)
    for name, kind in (("sum", "i32"), ("xor", "i32"), ("max", "i64"), ("sum", "fp64"),
                       ("max", "fp16"), ("min", "i16")):  # fmt: skip
        yield _reduced(name, kind, 128, 1)
    for name in MOVE:
        yield _moved(name, "fp32", 64, 1)
    for name in ("cumsum", "sort", "flip", "gather", "transpose"):
        yield _moved(name, "i32", 256, 4)
    yield _moved("transpose", "fp16", 256, 2)
    yield _moved("sort", "fp16", 64, 1)
    yield Case(name="histogram", kernel=histogram, grid=(1, 1, 1), build=_histogram,
               constants={"N": 512, "BINS": 32})  # fmt: skip
    for axis in (0, 1):
        yield _columns(axis, "fp32")
        yield _columns(axis, "bf16")
    for kind in ("fp32", "fp16", "i8", "i64"):
        yield _transposed(kind)
