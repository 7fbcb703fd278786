"""Attention over a cache as programs, drawn numbers, and what it is in float64.

Errors: a score is a sum of D products in f32, so that it is off by about scale |q| |k| u,
u = 2^-24, and its weight by as much relatively; a weight has 2 u of its own. A result is a mean of
values, so that it is off by that times the largest of them. Eight times as much is allowed; one key
too many or too few is a thousand times more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor
from numpy.typing import NDArray

from mxc.dialects.attention import Chunk, Reach, attention
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic

Floats = NDArray[np.float64]

U = 2.0**-24
TYPES = {
    "bf16": (ir.BF16Type, ml_dtypes.bfloat16),
    "f16": (ir.F16Type, np.float16),
    "f32": (ir.F32Type, np.float32),
}
#: Which entry of a cache has the keys, and which the values.
ENTRIES, KEYS, VALUES = 3, 2, 0


@dataclass(frozen=True)
class Case:
    """Queries [tokens, heads, group, depth] over a cache [ENTRIES, capacity, heads, depth].

    `latent`: values are so many elements of the rows that keys are; 0: they are rows of their own.
    `size`: how many keys the slices have; 0: as many as the caller says. `rounded`: the result is
    one row of bf16 a token.
    """

    tokens: int
    heads: int
    group: int
    depth: int
    capacity: int
    cache: str = "bf16"
    sinks: str = "f32"
    width: Reach = None
    size: int = 0
    rounded: bool = False
    latent: int = 0

    def __str__(self) -> str:
        sizes = f"{self.tokens}x{self.heads}x{self.group}x{self.depth}"
        window = "" if self.width is None else f"_near_{self.width}"
        if isinstance(self.width, Chunk):
            window = f"_chunks_{self.width.size}"
        size = f"_static_{self.size}" if self.size else ""
        size += "_as_bf16" if self.rounded else ""
        size += f"_latent_{self.latent}" if self.latent else ""
        return f"{sizes}_{self.cache}_{self.sinks}_of_{self.capacity}{window}{size}"

    @property
    def scale(self) -> float:
        return self.depth**-0.5

    @property
    def mixed(self) -> int:
        """Elements of a value."""
        return self.latent or self.depth

    @property
    def values(self) -> int:
        """The entry of the cache that has them."""
        return KEYS if self.latent else VALUES

    @property
    def queries(self) -> tuple[int, ...]:
        return (self.tokens, self.heads, self.group, self.depth)


def build(case: Case) -> Callable[..., ir.Value]:
    """The function of a case, over queries, cache, sinks, position, first key and size."""

    def body(queries: ir.Value, cache: ir.Value, sinks: ir.Value, *numbers: ir.Value) -> ir.Value:
        position, first, size = (arith.index_cast(ir.IndexType.get(), n) for n in numbers)
        dynamic = ir.ShapedType.get_dynamic_size()
        element = ir.RankedTensorType(cache.type).element_type

        def part(entry: int, depth: int) -> ir.Value:
            sizes = [case.size or dynamic, case.heads, depth]
            return tensor.extract_slice(
                ir.RankedTensorType.get(sizes, element),
                cache, [first], [] if case.size else [size], [],
                [entry, dynamic, 0, 0], [1, *sizes], [1] * 4,
            )  # fmt: skip

        keys, values = part(KEYS, case.depth), part(case.values, case.mixed)
        result = attention(
            queries, keys, values, sinks,
            position=position, first=first, width=case.width, scale=case.scale,
        )  # fmt: skip
        if not case.rounded:
            return result
        rows = [case.tokens, case.heads * case.group * case.mixed]
        kind = ir.RankedTensorType.get(rows, ir.F32Type.get())
        result = tensor.collapse_shape(kind, result, [[0], [1, 2, 3]])
        bf16 = ir.BF16Type.get()
        return generic([(result, "m n")], "m n", bf16, lambda x: arith.truncf(bf16, x))

    return body


def program(cases: Sequence[Case]) -> bytes:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        i32 = ir.IntegerType.get_signless(32)
        with ir.InsertionPoint(module.body):
            for case in cases:
                shape = [ENTRIES, case.capacity, case.heads, case.depth]
                kinds = [
                    ir.RankedTensorType.get(case.queries, ir.F32Type.get()),
                    ir.RankedTensorType.get(shape, TYPES[case.cache][0].get()),
                    ir.RankedTensorType.get([case.heads, case.group], TYPES[case.sinks][0].get()),
                ]
                func.FuncOp.from_py_func(*kinds, i32, i32, i32, name=str(case))(build(case))
        return str(module).encode()


@dataclass(frozen=True)
class Inputs:
    """Arguments of a case."""

    queries: NDArray[np.float32]
    cache: NDArray[Any]
    sinks: NDArray[Any]
    position: int
    first: int
    size: int

    def seen(self, case: Case) -> NDArray[np.bool_]:
        """Whether each token sees each key of the capacity."""
        tokens = self.position + np.arange(case.tokens)[:, None]
        keys = np.arange(case.capacity)[None]
        seen = (keys <= tokens) & (keys >= self.first) & (keys < self.first + self.size)
        if isinstance(case.width, Chunk):
            return seen & (keys // case.width.size == tokens // case.width.size)
        return seen if case.width is None else seen & (tokens - keys < case.width)


def draw(case: Case, position: int, first: int, size: int, seed: int = 0) -> Inputs:
    """Numbers of usual size."""
    rng = np.random.default_rng(seed)
    return Inputs(
        rng.normal(size=case.queries).astype(np.float32),
        rng.normal(size=(ENTRIES, case.capacity, case.heads, case.depth)).astype(
            TYPES[case.cache][1]
        ),
        rng.normal(size=(case.heads, case.group)).astype(TYPES[case.sinks][1]),
        position,
        first,
        size,
    )


def at_the_end(case: Case, seed: int = 0) -> Inputs:
    """The last tokens that the cache has room for."""
    first = case.capacity - case.size if case.size else 0
    return draw(case, case.capacity - case.tokens, first, case.capacity - first, seed)


def expected(case: Case, given: Inputs) -> tuple[Floats, float]:
    """Attention in float64, and the error that is allowed."""
    queries, cache, sinks = (
        x.astype(np.float64) for x in (given.queries, given.cache, given.sinks)
    )
    seen = given.seen(case)[:, None, None]
    scores = np.einsum("mhgd,shd->mhgs", queries, cache[KEYS]) * case.scale
    scores = np.where(seen, scores, -np.inf)
    sinks = np.broadcast_to(sinks[None, :, :, None], (*scores.shape[:3], 1))
    top = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
    weights = np.exp(scores - top)
    total = weights.sum(axis=-1, keepdims=True) + np.exp(sinks - top)
    values = cache[case.values, ..., : case.mixed]
    values = np.where(seen.any(axis=0)[0, 0][:, None, None], values, 0)
    norms = [np.linalg.norm(x, axis=-1).max() for x in (queries, cache[KEYS])]
    allowed = 8 * U * (case.scale * norms[0] * norms[1] + 2) * np.abs(values).max()
    return np.einsum("mhgs,shd->mhgd", weights / total, values), allowed


def check(found: NDArray[np.float32], case: Case, given: Inputs) -> None:
    wanted, allowed = expected(case, given)
    error = np.abs(found - wanted)
    bound = allowed + 2.0**-8 * np.abs(wanted) if case.rounded else allowed
    assert (error <= bound).all(), (error / bound).max()
