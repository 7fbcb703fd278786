"""The memory of a workgroup of attention on tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.kernels.amx import TILE
from mxc.kernels.decode import STEP
from mxc.passes.kernels.attention.memory import KeyPlace, place_of
from mxc.passes.kernels.attention.tiled_shape import PLANES, TiledAttention
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.vectors import f32, i32, index, scratch, signed_below


def bf16() -> ir.Type:
    """The bf16 type."""
    return ir.BF16Type.get()


@dataclass(frozen=True)
class TiledBuffers:
    """`queries`, `pool`, `sinks`, `lists`, `parts` and `result` are the memrefs of a call. `keys`
    and `values` are the entries of a page that have them.

    The rest is scratch. Of a piece: `staged` i32 [keys / 16, D / 32, 16, 16], pairs of elements of
    each key; `mixed` bf16 [keys / 32, tiles, 16, 32], pairs of keys for 16 elements of values. Of
    a tile of rows: `planes` bf16 [planes, D / 32, rows, 32], its queries; `scores` f32 [2, rows,
    keys], of this tile and the next one, which are replaced by planes of weights; `sums` f32
    [rows, D]; `wide` f32 [rows, 16], maxima or totals that are not reduced yet; `kept` f32 [2,
    rows], two numbers for each row. Of each row of the workgroup: `all_maxima` and `all_totals`, of
    the pieces before this one and the sink.
    """

    queries: ir.Value
    pool: ir.Value
    sinks: ir.Value
    lists: ir.Value
    parts: ir.Value
    result: ir.Value
    keys: ir.Value
    values: ir.Value
    staged: ir.Value
    mixed: ir.Value
    planes: ir.Value
    scores: ir.Value
    sums: ir.Value
    wide: ir.Value
    kept: ir.Value
    all_maxima: ir.Value
    all_totals: ir.Value


def tiled_memory(shape: TiledAttention, buffers: Sequence[ir.Value]) -> TiledBuffers:
    """The buffers of a call, and scratch memory of a workgroup."""
    queries, pool, sinks, _, lists, parts, result = buffers
    keys, steps, mixed = shape.piece_keys, shape.steps, shape.mixed_steps
    # Rows are a cache line longer than they need to be, so that they lie in different sets.
    every = [scratch([shape.row_states], f32()) for _ in range(2)]
    return TiledBuffers(
        queries=queries,
        pool=pool,
        sinks=sinks,
        lists=lists,
        parts=parts,
        result=result,
        keys=value_of(shape.keys),
        values=value_of(shape.values),
        staged=scratch([keys // TILE, steps, TILE, TILE], i32()),
        mixed=scratch([keys // STEP, 2 * mixed, TILE, STEP], bf16()),
        planes=scratch([PLANES, steps, TILE, STEP], bf16()),
        scores=scratch([2, TILE, keys + TILE], f32()),
        sums=scratch([TILE, STEP * mixed + TILE], f32()),
        wide=scratch([TILE, TILE], f32()),
        kept=scratch([2, TILE], f32()),
        all_maxima=every[0],
        all_totals=every[1],
    )


@dataclass(frozen=True)
class KeyPiece:
    """The keys of a head in the piece that begins at position `base` of run number `run`.

    Rows of the workgroup attend to the keys from position `least` to `last` of it. The blocks of 64
    keys that contain these are `begin` .. `behind` - 1, counted from `base`.
    """

    shape: TiledAttention
    lists: ir.Value
    run: ir.Value
    head: ir.Value
    base: ir.Value
    begin: ir.Value
    behind: ir.Value
    least: ir.Value
    last: ir.Value

    def sixteen(self, column: ir.Value) -> tuple[KeyPlace, Callable[[int], ir.Value], ir.Value]:
        """Return the place of the 16 keys from `column` on, a function from a key (0 .. 15) to its
        number at this place, and whether the function is the identity.

        A key that no row attends to is replaced by the nearest one that a row attends to.
        """
        size = index(TILE)

        def within(value: ir.Value, least: ir.Value, last: ir.Value) -> ir.Value:
            return arith.minsi(arith.maxsi(value, least), last)

        start = within(self.base + column, self.least // size * size, self.last // size * size)
        first, last = self.least - start, self.last - start
        every = signed_below(first, 1) & signed_below(index(TILE - 2), last)

        def number(key: int) -> ir.Value:
            return within(index(key), first, last)

        return place_of(self.shape, self.lists, self.run, start, self.head), number, every
