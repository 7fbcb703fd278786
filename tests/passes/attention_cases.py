"""Cases of attention over pages: their programs, random inputs, and results in float64.

Error bound: a score is a sum of D products in f32, so its error is about scale |q| |k| u with
u = 2^-24, and its softmax weight has the same relative error, plus 2 u from the exponential. A
result is a mean of values, so its error is that relative error times the largest value. Eight
times this is allowed; one key too many or too few makes a thousand times more. Where queries and
weights have 16 bits, u is 2^-17, and exactly this is allowed, not eight times as much.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, tensor
from numpy.typing import NDArray

from mxc.dialects.attention import F32_BITS, AttentionChunk, Reach, Runs, attention
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.pages import Pages
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import quantize

Array = NDArray[Any]
Floats = NDArray[np.float64]

U = 2.0**-24
TYPES = {
    "bf16": (ir.BF16Type, ml_dtypes.bfloat16),
    "f16": (ir.F16Type, np.float16),
    "f32": (ir.F32Type, np.float32),
}
FP8 = "fp8e4m3"
#: Positions of a page, number of its entries, and the entries that hold keys and values.
PAGE, ENTRIES, KEYS, VALUES = 64, 3, 2, 0


@dataclass(frozen=True)
class Case:
    """Queries [T, heads, group, depth] over a pool [N, ENTRIES, PAGE, heads, depth].

    `pool`: the type of its numbers, or the format that they are packed in.
    `latent`: values are the first `latent` elements of the rows of keys; 0: rows of their own.
    `rounded`: the result is a row of bf16 for each token.
    `bits`: significant bits that queries and softmax weights need.
    """

    heads: int
    group: int
    depth: int
    pool: str = "bf16"
    sinks: str = "f32"
    reach: Reach = None
    latent: int = 0
    cap: float | None = None
    rounded: bool = False
    bits: int = F32_BITS

    def __str__(self) -> str:
        name = f"{self.heads}x{self.group}x{self.depth}_{self.pool}_{self.sinks}"
        if isinstance(self.reach, AttentionChunk):
            name += f"_chunks_{self.reach.size}"
        elif self.reach is not None:
            name += f"_near_{self.reach}"
        name += f"_latent_{self.latent}" if self.latent else ""
        name += "_capped" if self.cap else ""
        name += f"_{self.bits}_bits" if self.bits != F32_BITS else ""
        return name + ("_as_bf16" if self.rounded else "")

    @property
    def scale(self) -> float:
        return self.depth**-0.5

    @property
    def format(self) -> str | None:
        """The format that the pool is packed in; None if it is not packed."""
        return None if self.pool in TYPES else self.pool

    @property
    def block(self) -> int:
        """Number of elements that one NaN makes NaN: a block under one scale, or one element."""
        return 32 if self.format in FORMATS else 1

    @property
    def mixed(self) -> int:
        """Number of elements of a row of values."""
        return self.latent or self.depth

    @property
    def values(self) -> int:
        """The entry of a page that holds the values."""
        return KEYS if self.latent else VALUES

    def first_seen(self, position: int) -> int:
        """Return the position of the first key that a token at `position` sees."""
        if isinstance(self.reach, AttentionChunk):
            return position // self.reach.size * self.reach.size
        return 0 if self.reach is None else max(0, position - self.reach + 1)


def build(case: Case) -> Callable[..., ir.Value]:
    """Return what builds the body of a case's function, whose arguments are `Inputs.arrays`."""

    def body(
        queries: ir.Value,
        sinks: ir.Value,
        positions: ir.Value,
        runs: ir.Value,
        pool: ir.Value,
        lists: ir.Value,
    ) -> ir.Value:
        result = attention(
            queries, sinks, Runs(positions, runs), Pages(pool, lists, case.format),
            (KEYS, case.values),
            mixed=case.mixed, reach=case.reach, scale=case.scale, cap=case.cap, bits=case.bits,
        )  # fmt: skip
        if not case.rounded:
            return result
        rows = [ir.ShapedType.get_dynamic_size(), case.heads * case.group * case.mixed]
        kind = ir.RankedTensorType.get(rows, ir.F32Type.get())
        result = tensor.collapse_shape(kind, result, [[0], [1, 2, 3]])
        bf16 = ir.BF16Type.get()
        return generic([(result, "m n")], "m n", bf16, lambda x: arith.truncf(bf16, x))

    return body


def program(cases: Sequence[Case]) -> bytes:
    """Return a program with a function for each case, named `str(case)`."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        i32, some = ir.IntegerType.get_signless(32), ir.ShapedType.get_dynamic_size()
        with ir.InsertionPoint(module.body):
            for case in cases:
                page = [ENTRIES, PAGE, case.heads, case.depth]
                kind = ir.IntegerType.get_signless(8)
                if case.format is None:
                    kind = TYPES[case.pool][0].get()
                elif case.format in FORMATS:
                    page[1] += PAGE // 32
                shapes = [
                    ([some, case.heads, case.group, case.depth], ir.F32Type.get()),
                    ([case.heads, case.group], TYPES[case.sinks][0].get()),
                    ([some], i32),
                    ([some, 3], i32),
                    ([some, *page], kind),
                    ([some, some], i32),
                ]
                kinds = [ir.RankedTensorType.get(*shape) for shape in shapes]
                function(str(case), kinds, build(case))
        return str(module).encode()


def function(name: str, kinds: list[ir.Type], body: Callable[..., ir.Value]) -> None:
    op = ir.Operation.create("util.func", regions=1, attributes={
        "sym_name": ir.StringAttr.get(name),
        "sym_visibility": ir.StringAttr.get("public"),
        "function_type": ir.TypeAttr.get(ir.FunctionType.get(kinds, [])),
    })  # fmt: skip
    block = op.regions[0].blocks.append(*kinds)
    with ir.InsertionPoint(block):
        result = body(*block.arguments)
        ir.Operation.create("util.return", operands=[result])
    kind = ir.FunctionType.get(kinds, [result.type])
    op.attributes["function_type"] = ir.TypeAttr.get(kind)


@dataclass(frozen=True)
class Inputs:
    """Arguments of a case. `lengths`: for each run, its tokens and the positions before them.

    `pool`: the numbers of the pool; if it is packed, bf16 that `format` holds without an error.
    `bytes`: the packed pool, once `fixed` has packed it.
    """

    lengths: Sequence[tuple[int, int]]
    queries: NDArray[np.float32]
    sinks: Array
    positions: NDArray[np.int32]
    runs: NDArray[np.int32]
    pool: Array
    lists: NDArray[np.int32]
    format: str | None = None
    bytes: NDArray[np.int8] | None = None

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arguments of the function, in their order."""
        pool: Any = self.fixed().bytes if self.format else self.pool
        return self.queries, self.sinks, self.positions, self.runs, pool, self.lists

    def fixed(self) -> "Inputs":
        """Return the same inputs with the pool packed; its numbers must not change afterwards."""
        if self.format is None or self.bytes is not None:
            return self
        return replace(self, bytes=packed(self.pool, self.format))

    def place(self, run: int, key: int) -> tuple[int, int]:
        """Return the page of a key of a run, and the position in the page."""
        return int(self.lists[run, key // PAGE]), key % PAGE

    def rows_of(self, run: int) -> slice:
        """The rows of a run."""
        first, count, _ = self.runs[run]
        return slice(first, first + count)

    def some(self, case: Case, lengths: Sequence[tuple[int, int, int]]) -> "Inputs":
        """Return the inputs of a call with other runs over the same sequences.

        `lengths`: for each new run, a run of these inputs, its first token there, and its tokens.
        """
        rows = [
            int(self.runs[run, 0]) + first + i
            for run, first, count in lengths
            for i in range(count)
        ]
        given = [(count, self.lengths[run][1] + first) for run, first, count in lengths]
        longest = max(-(-(count + before) // PAGE) for count, before in given)
        lists = self.lists[[run for run, _, _ in lengths], :longest]
        return replace(
            self, lengths=given, queries=self.queries[rows], positions=self.positions[rows],
            runs=_runs(given), lists=np.ascontiguousarray(lists),
        )  # fmt: skip


def _runs(lengths: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    counts = np.array([count for count, _ in lengths])
    columns = [np.cumsum(counts) - counts, counts, [before for _, before in lengths]]
    return np.stack(columns, axis=1).astype(np.int32)


def draw(case: Case, lengths: Sequence[tuple[int, int]], seed: int = 0) -> Inputs:
    """Draw inputs from a normal distribution. Pages are in random order; two belong to no run."""
    rng = np.random.default_rng(seed)
    needed = [-(-(count + before) // PAGE) for count, before in lengths]
    pages = sum(needed) + 2
    order = iter(rng.permutation(pages))
    # Entries past the end of a list are any number of the pool.
    lists = rng.integers(0, pages, [len(lengths), max(needed) + int(rng.integers(0, 2))])
    for row, count in zip(lists, needed, strict=True):
        row[:count] = [next(order) for _ in range(count)]
    tokens = sum(count for count, _ in lengths)
    positions = np.concatenate([np.arange(count) + before for count, before in lengths])
    page = [ENTRIES, PAGE, case.heads, case.depth]
    pool = rng.standard_normal([pages, *page], np.float32)
    if case.format is None:
        pool = pool.astype(TYPES[case.pool][1])
    else:
        # Magnitudes of rows differ, so that scales do.
        pool *= 2.0 ** rng.integers(-3, 2, [*pool.shape[:-1], 1])
        pool = unpacked(packed(pool, case.format), case.format)
    return Inputs(
        list(lengths),
        rng.normal(size=[tokens, case.heads, case.group, case.depth]).astype(np.float32),
        rng.normal(size=[case.heads, case.group]).astype(TYPES[case.sinks][1]),
        positions.astype(np.int32),
        _runs(lengths),
        pool,
        lists.astype(np.int32),
        case.format,
    )


def packed(pool: Array, format: str) -> NDArray[np.int8]:
    """Pack numbers [N, E, B, V, D] to bytes. For fp8 the shape stays. For an MX format it is
    [N, E, B + B / 32, V, D]: the positions of an entry are followed by their scales,
    [V, D / 32, B]."""
    if format == FP8:
        return np.asarray(pool, np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.int8)
    found = quantize(np.asarray(pool, np.float32), format, recipe=ScaleRecipe.RCEIL)
    scales = np.ascontiguousarray(np.moveaxis(found.scales, 2, -1))
    rows = scales.reshape(*pool.shape[:2], -1, *pool.shape[3:])
    return np.concatenate([found.elements.view(np.int8), rows.view(np.int8)], axis=2)


def unpacked(pool: NDArray[np.int8], format: str) -> Array:
    """Return the numbers of a pool that `packed` made, by ml_dtypes: bf16 [N, E, B, V, D]."""
    if format == FP8:
        return pool.view(ml_dtypes.float8_e4m3fn).astype(ml_dtypes.bfloat16)
    pages, entries, rows, heads, depth = pool.shape
    size = rows * 32 // 33
    scales = pool[:, :, size:].reshape(pages, entries, heads, depth // 32, size)
    factors = np.moveaxis(scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32), -1, 2)
    codes = pool[:, :, :size].astype(np.float32) / 64
    if format == "mxfp8e4m3":
        codes = pool[:, :, :size].copy().view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    found = (codes * np.repeat(factors, 32, axis=-1)).astype(ml_dtypes.bfloat16)
    return found


def seen(case: Case, given: Inputs) -> NDArray[np.bool_]:
    """Return whether any row sees a position of a page, [pages, PAGE]."""
    found = np.zeros([len(given.pool), PAGE], bool)
    for run, (count, before) in enumerate(given.lengths):
        for key in range(case.first_seen(before), before + count):
            found[given.place(run, key)] = True
    return found


def expected(case: Case, given: Inputs) -> tuple[Floats, float]:
    """Return the result in float64, and the error that is allowed (see the top of the file)."""
    queries, sinks = given.queries.astype(np.float64), given.sinks.astype(np.float64)[..., None]
    found, largest, norm = [], 0.0, 0.0
    for run, (count, before) in enumerate(given.lengths):
        pages = given.pool[given.lists[run, : -(-(count + before) // PAGE)]]
        flat = np.moveaxis(pages, 1, 0).reshape(ENTRIES, -1, case.heads, case.depth)
        flat = flat[:, : before + count].astype(np.float64)
        for own, query in zip(
            range(before, before + count), queries[given.rows_of(run)], strict=True
        ):
            keys = flat[KEYS, case.first_seen(own) : own + 1]
            values = flat[case.values, case.first_seen(own) : own + 1, :, : case.mixed]
            scores = np.einsum("hgd,shd->hgs", query, keys) * case.scale
            if case.cap:
                scores = case.cap * np.tanh(scores / case.cap)
            top = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
            weights = np.exp(scores - top)
            total = weights.sum(axis=-1, keepdims=True) + np.exp(sinks - top)
            found.append(np.einsum("hgs,shd->hgd", weights / total, values))
            largest = max(largest, np.abs(values).max())
            norm = max(norm, np.linalg.norm(keys, axis=-1).max())
    norm *= np.linalg.norm(queries, axis=-1).max()
    unit = 8 * U if case.bits == F32_BITS else 2.0 ** (-1 - case.bits)
    return np.stack(found), unit * (case.scale * norm + 2) * largest


def check(found: NDArray[np.float32], case: Case, given: Inputs) -> None:
    """Assert that a result is that of float64, within the allowed error."""
    wanted, allowed = expected(case, given)
    error = np.abs(found.reshape(wanted.shape) - wanted)
    bound = allowed + 2.0**-8 * np.abs(wanted) if case.rounded else allowed
    assert (error <= bound).all(), (error / bound).max()
