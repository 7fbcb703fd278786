"""Triton kernels that multiply matrices: tl.dot, tl.dot_scaled and attention."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton_case import DTYPES, Case, normal, wide


@triton.jit
def product(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
            GROUP: tl.constexpr, LEAKY: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    number = tl.program_id(0)
    down, right = tl.cdiv(m, M), tl.cdiv(n, N)
    group = number // (GROUP * right)
    size = min(down - group * GROUP, GROUP)
    row = group * GROUP + (number % (GROUP * right)) % size
    column = (number % (GROUP * right)) // size
    rows, columns = row * M + tl.arange(0, M), column * N + tl.arange(0, N)
    depth = tl.arange(0, K)
    kind = tl.int32 if c.dtype.element_ty == tl.int32 else tl.float32
    total = tl.zeros((M, N), kind)
    for start in range(0, k, K):
        left = depth[None, :] + start < k
        under = depth[:, None] + start < k
        x = tl.load(a + rows[:, None] * k + depth[None, :] + start,
                    mask=(rows[:, None] < m) & left, other=0.0)  # fmt: skip
        y = tl.load(b + (depth[:, None] + start) * n + columns[None, :],
                    mask=(columns[None, :] < n) & under, other=0.0)  # fmt: skip
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=kind)
    if LEAKY:
        total = tl.where(total > 0, total, 0.01 * total)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def persistent(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
               PROGRAMS: tl.constexpr):  # fmt: skip
    right = tl.cdiv(n, N)
    for tile in range(tl.program_id(0), tl.cdiv(m, M) * right, PROGRAMS):
        rows = tile // right * M + tl.arange(0, M)
        columns = tile % right * N + tl.arange(0, N)
        total = tl.zeros((M, N), tl.float32)
        for start in range(0, k, K):
            depth = start + tl.arange(0, K)
            x = tl.load(a + rows[:, None] * k + depth[None, :])
            y = tl.load(b + columns[None, :] * k + depth[:, None])
            total += tl.dot(x, y)
        tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def scaled(a, p, b, q, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, A: tl.constexpr,
           B: tl.constexpr, PACK_A: tl.constexpr, PACK_B: tl.constexpr,
           HAS_P: tl.constexpr):  # fmt: skip
    rows, columns, blocks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    wide_a, wide_b = tl.arange(0, K // PACK_A), tl.arange(0, K // PACK_B)
    x = tl.load(a + rows[:, None] * (K // PACK_A) + wide_a[None, :])
    y = tl.load(b + columns[None, :] * (K // PACK_B) + wide_b[:, None])
    t = tl.load(q + columns[:, None] * (K // 32) + blocks[None, :])
    if HAS_P:
        s = tl.load(p + rows[:, None] * (K // 32) + blocks[None, :])
        total = tl.dot_scaled(x, s, A, y, t, B)
    else:
        total = tl.dot_scaled(x, None, A, y, t, B)
    tl.store(c + rows[:, None] * N + columns[None, :], total)


@triton.jit
def attention(q, k, v, out, tokens, scale, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr,
              CAUSAL: tl.constexpr):  # fmt: skip
    rows, at = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, D)
    base = tl.program_id(1) * tokens * D
    x = tl.load(q + base + rows[:, None] * D + at[None, :], mask=rows[:, None] < tokens, other=0.0)
    largest = tl.full((M,), -float("inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    sums = tl.zeros((M, D), tl.float32)
    last = tl.minimum((tl.program_id(0) + 1) * M, tokens) if CAUSAL else tokens
    for start in range(0, last, N):
        keys = start + tl.arange(0, N)
        there = keys < tokens
        y = tl.load(k + base + keys[None, :] * D + at[:, None], mask=there[None, :], other=0.0)
        scores = tl.dot(x, y) * scale
        seen = there[None, :] & (rows[:, None] >= keys[None, :]) if CAUSAL else there[None, :]
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        change = tl.exp2(largest - higher)
        total = total * change + tl.sum(weights, 1)
        z = tl.load(v + base + keys[:, None] * D + at[None, :], mask=there[:, None], other=0.0)
        sums = sums * change[:, None]
        sums = tl.dot(weights.to(z.dtype), z, sums)
        largest = higher
    sums = sums / total[:, None]
    place = out + base + rows[:, None] * D + at[None, :]
    tl.store(place, sums.to(out.dtype.element_ty), mask=rows[:, None] < tokens)


def _product(
    kind: str,
    out: str,
    sizes: tuple[int, int, int],
    tile: tuple[int, int, int],
    *,
    leaky: bool = False,
    precision: str = "ieee",
    bound: float | None = None,
    **options: int,
) -> Case:
    m, n, k = sizes
    more = "".join(f", {name.removeprefix('num_')} {value}" for name, value in options.items())
    more += ", leaky" if leaky else ""
    more += f", {precision}" if precision != "ieee" else ""

    def build(rng: np.random.Generator) -> Any:
        a, b = normal(rng, (m, k), kind), normal(rng, (k, n), kind)
        found = wide(a) @ wide(b)
        found = np.where(found > 0, found, 0.01 * found) if leaky else found
        c = np.zeros((m, n), DTYPES[out])
        given = {"a": a, "b": b, "c": c, "m": m, "n": n, "k": k}
        return given, {"c": found.astype(DTYPES[out])}

    shape = "x".join(map(str, sizes))
    return Case(
        name=f"product {kind} to {out} {shape} in {'x'.join(map(str, tile))}{more}",
        kernel=product,
        grid=(-(-m // tile[0]) * -(-n // tile[1]), 1, 1),
        build=build,
        constants={
            "M": tile[0],
            "N": tile[1],
            "K": tile[2],
            "GROUP": 2,
            "LEAKY": leaky,
            "PRECISION": precision,
        },
        options=options,
        aligned=not any(size % 16 for size in sizes),
        bound=bound,
    )


def _persistent(kind: str) -> Case:
    def build(rng: np.random.Generator) -> Any:
        a, b = normal(rng, (64, 64), kind), normal(rng, (96, 64), kind)
        given = {"a": a, "b": b, "c": np.zeros((64, 96), np.float32), "m": 64, "n": 96, "k": 64}
        return given, {"c": (wide(a) @ wide(b).T).astype(np.float32)}

    return Case(name=f"persistent product {kind}", kernel=persistent, grid=(3, 1, 1), build=build,
                constants={"M": 32, "N": 32, "K": 32, "PROGRAMS": 3})  # fmt: skip


#: By Triton's name of an element: its dtype, and how many of them an array item holds.
ELEMENTS = {
    "e2m1": (ml_dtypes.float4_e2m1fn, 2),
    "e4m3": (ml_dtypes.float8_e4m3fn, 1),
    "e5m2": (ml_dtypes.float8_e5m2, 1),
    "bf16": (ml_dtypes.bfloat16, 1),
    "fp16": (np.float16, 1),
}


def _elements(rng: np.random.Generator, rows: int, k: int, kind: str) -> tuple[Any, Any]:
    """Return random elements [rows, k] as a kernel reads them, and their values as float64."""
    dtype, pack = ELEMENTS[kind]
    if pack == 2:
        codes = rng.integers(0, 16, (rows, k)).astype(np.uint8)
        values = codes.view(dtype).astype(np.float64)
        return codes[:, 0::2] | codes[:, 1::2] << 4, values
    stored = rng.standard_normal((rows, k)).astype(np.float32).astype(dtype)
    values = stored.astype(np.float64)
    return (stored.view(np.uint8) if stored.itemsize == 1 else stored), values


def _scaled(lhs: str, rhs: str, tile: tuple[int, int, int], **options: int) -> Case:
    m, n, k = tile

    def build(rng: np.random.Generator) -> Any:
        (a, x), (b, y) = _elements(rng, m, k, lhs), _elements(rng, n, k, rhs)
        p, q = (rng.integers(120, 132, (rows, k // 32)).astype(np.uint8) for rows in (m, n))
        y = y * np.repeat(2.0 ** (q.astype(float) - 127), 32, axis=1)
        if lhs not in ("bf16", "fp16"):
            x = x * np.repeat(2.0 ** (p.astype(float) - 127), 32, axis=1)
        given = {"a": a, "p": p, "b": b, "q": q, "c": np.zeros((m, n), np.float32)}
        return given, {"c": (x @ y.T).astype(np.float32)}

    more = "".join(f", {name.removeprefix('num_')} {value}" for name, value in options.items())
    packs = {side: ELEMENTS[kind][1] for side, kind in (("A", lhs), ("B", rhs))}
    return Case(
        name=f"scaled {lhs} by {rhs} {'x'.join(map(str, tile))}{more}",
        kernel=scaled,
        grid=(1, 1, 1),
        build=build,
        constants={
            "M": m,
            "N": n,
            "K": k,
            "A": lhs,
            "B": rhs,
            "PACK_A": packs["A"],
            "PACK_B": packs["B"],
            "HAS_P": lhs not in ("bf16", "fp16"),
        },
        options=options,
    )


def _attention(kind: str, tokens: int, size: int, causal: bool, **options: int) -> Case:
    def build(rng: np.random.Generator) -> Any:
        q, k, v = (normal(rng, (2, tokens, size), kind) for _ in range(3))
        scale = np.float32(1.4426950408889634 / size**0.5)
        scores = wide(q) @ wide(k).transpose(0, 2, 1) * float(scale)
        if causal:
            scores = np.where(np.tril(np.ones((tokens, tokens), bool)), scores, -np.inf)
        e = np.exp2(scores - scores.max(axis=2, keepdims=True))
        found = e / e.sum(axis=2, keepdims=True) @ wide(v)
        given = {"q": q, "k": k, "v": v, "out": np.zeros_like(q), "tokens": tokens,
                 "scale": float(scale)}  # fmt: skip
        return given, {"out": found.astype(q.dtype)}

    more = "".join(f", {name.removeprefix('num_')} {value}" for name, value in options.items())
    return Case(
        name=f"attention {kind} {tokens}x{size}{', causal' if causal else ''}{more}",
        kernel=attention,
        grid=(-(-tokens // 32), 2, 1),
        build=build,
        constants={"M": 32, "N": 32, "D": size, "CAUSAL": causal},
        options=options,
        aligned=tokens % 16 == 0,
        bound=2.0**-6 if kind != "fp32" else None,
    )


def cases() -> Iterator[Case]:
    """Yield all cases."""
    small, tile = (48, 64, 96), (32, 32, 32)
    for kind in ("fp16", "bf16", "fp32", "fp8e4nv", "fp8e5"):
        yield _product(kind, "fp32", small, tile)
    for kind in ("fp8e4b8", "fp8e5b16"):
        yield _product(kind, "fp32", small, tile)
    yield _product("i8", "i32", small, tile)
    yield _product("fp16", "fp16", small, tile, leaky=True)
    yield _product("bf16", "bf16", (50, 70, 90), tile)
    yield _product("fp32", "fp32", (33, 17, 65), (16, 16, 16))
    for precision in ("bf16x3", "bf16x6"):
        bound = 2.0**-12
        yield _product("fp32", "fp32", small, tile, precision=precision, bound=bound)
    for rows in (16, 64, 128):
        yield _product("fp16", "fp32", (128, 128, 64), (rows, 64, 64))
    for stages in (1, 3):
        yield _product("bf16", "fp32", (64, 64, 256), (64, 64, 64), num_stages=stages)
    for warps in (1, 2, 8):
        yield _product("bf16", "fp32", (64, 64, 64), (64, 64, 32), num_warps=warps)
    for kind in ("fp16", "bf16", "fp8e5"):
        for edge in (16, 32):
            yield _product(kind, "fp32", (64, 64, 64), (64, 64, 64), matrix_instr_nonkdim=edge)
    for kind in ("fp16", "fp32"):
        yield _persistent(kind)
    for lhs in ("e2m1", "e4m3", "e5m2"):
        for rhs in ("e2m1", "e4m3", "e5m2"):
            yield _scaled(lhs, rhs, (32, 32, 128))
    for lhs, rhs in (("bf16", "e2m1"), ("fp16", "e2m1"), ("bf16", "e4m3")):
        yield _scaled(lhs, rhs, (32, 32, 64))
    yield _scaled("e2m1", "e2m1", (64, 64, 256), num_warps=8)
    yield _scaled("e4m3", "e2m1", (64, 32, 128), matrix_instr_nonkdim=16)
    yield _scaled("e2m1", "e2m1", (64, 64, 128), matrix_instr_nonkdim=32)
    for kind, size in (("fp16", 32), ("bf16", 64), ("fp32", 32)):
        for causal in (False, True):
            yield _attention(kind, 96, size, causal)
    yield _attention("fp16", 75, 64, True, num_warps=2)
    yield _attention("bf16", 64, 128, False, num_stages=1)
