"""Paged attention on AMX tiles: the computation of kernel.py, with products on tiles.

    scores[row, key] = queries . keys       keys transposed as pairs of elements
    sums[row, d]     = weights . values     values as pairs of keys

A workgroup stages a piece of keys and values, once for all of its rows:

    for piece of keys:                                       # at absolute positions
      staged, mixed = keys, values                           # see tiled_staging.py
      for tile of 16 rows:                                   # see tiled_rows.py
        maximum = of the scores for all keys of the piece
        for block of 64 keys:
          weights = exp(scores - maximum), in their place    # meanwhile, on tiles:
                                                             #   sums of the block before,
                                                             #   scores of the next tile of rows
        result += sums                                       # see pieces.py
    result /= total

Queries and weights are the sum of two bf16 planes, and have 16 significant bits. Keys and values
are bf16. The products of the second plane are added first. The order of a row's sums does not
depend on other rows.

A value that is infinite or NaN is staged as zero: a weight of zero times it would be NaN. Rows with
another weight get it afterwards, by vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects import x86
from mxc.kernels.amx import TILE
from mxc.kernels.decode import STEP
from mxc.kernels.lowering.index import of
from mxc.kernels.lowering.memory import load_tile, pointer, store_tile
from mxc.passes.kernels.attention.pieces import SoftmaxState
from mxc.passes.kernels.attention.row_block import RowBlock, rows_of_workgroup
from mxc.passes.kernels.attention.tiled_memory import KeyPiece, TiledBuffers, tiled_memory
from mxc.passes.kernels.attention.tiled_rows import RowTile
from mxc.passes.kernels.attention.tiled_shape import KEYS, PLANES, TiledAttention
from mxc.passes.kernels.attention.tiled_staging import TiledStaging, is_finite
from mxc.passes.kernels.vectors import (
    equal,
    f32,
    i16,
    index,
    loop,
    signed_below,
    splat,
    when,
)

#: Bytes of a row of a tile, and of a tile.
_ROW, _BYTES = 64, 1024
#: Tiles of sums that are computed at once. Their products are independent, which hides latency.
SUMS = 4


def tiled_attention(shape: TiledAttention, buffers: Sequence[ir.Value]) -> None:
    """Build the body at the insertion point."""
    with rows_of_workgroup(shape, buffers[3]) as block:
        _Walk(shape, tiled_memory(shape, buffers), block).build()


@dataclass(frozen=True)
class _Walk:
    """Builds the loops of a workgroup over the keys that its rows attend to."""

    shape: TiledAttention
    memory: TiledBuffers
    block: RowBlock

    def _tile(self, head: ir.Value, row: ir.Value) -> RowTile:
        """The tile of rows of a head that begins at `row`; the last may have fewer rows."""
        first, behind = self.block.rows()
        # A workgroup for all heads has the rows of a token.
        state = row - first + (head - self.block.heads()[0]) * self.shape.head_states
        count = arith.minsi(behind - row, index(TILE))
        buffer = (row - first) // TILE % 2
        return RowTile(self.shape, self.memory, self.block.work, head, row, state, count, buffer)

    def build(self) -> None:
        """Compute one piece and write its partial result, or compute all and write the result."""
        shape, run, size = self.shape, self.block.work.run, index(self.shape.piece_keys)
        seen, heads = self.block.keys(), self.block.heads()
        first_row, behind_row = self.block.rows()
        # A product of 8 rows takes about half the time of one of 16.
        rows = arith.index_cast(i16(), arith.minsi(behind_row - first_row, index(TILE)))
        with when(signed_below(seen.piece, seen.end)):
            tiles = first_row, behind_row, index(TILE)
            with (
                when(seen.apart ^ 1),
                loop(*heads, index(1)) as (head, _, _),
                loop(*tiles) as (row, _, _),
            ):
                self._tile(head, row).begin()
            with loop(seen.piece, seen.end, index(1)) as (each, _, _):
                base = each * size
                least = arith.maxsi(seen.first, base)
                until = arith.minsi(seen.last, base + size - 1)
                ends = equal(each, seen.piece), equal(each + 1, seen.end)
                with loop(*heads, index(1)) as (head, _, _):
                    begin = (least - base) // KEYS * KEYS
                    stop = (until - base) // KEYS * KEYS + KEYS
                    given = shape, self.memory.lists, run.number, head
                    own = KeyPiece(*given, base, begin, stop, least, until)
                    staging = TiledStaging(shape, self.memory, own, shape.all_heads(), seen.last)
                    staging.stage_keys()
                    poisoned = staging.stage_values()

                    products = _Products(shape, self.memory, own, rows)
                    start = self._tile(head, first_row)
                    start.stage()
                    with loop(begin, stop, index(KEYS)) as (column, _, _):
                        products.score(start.buffer, column, SUMS)
                    with loop(*tiles) as (row, _, _):
                        tile, after = self._tile(head, row), self._tile(head, row + TILE)
                        more = signed_below(index(0), after.count)
                        with when(more):
                            after.stage()
                        state = products.build(tile, more)
                        with when(poisoned):
                            products.add_infinite(staging, tile)
                        with when(seen.apart):
                            tile.leave_piece(state)
                        with when(seen.apart ^ 1):
                            tile.add_piece(state, *ends)


@dataclass(frozen=True)
class _Products:
    """Products of tiles of rows with a piece of keys that is staged. `rows`: rows of the tile
    registers of queries, weights and sums, i16."""

    shape: TiledAttention
    memory: TiledBuffers
    piece: KeyPiece
    rows: ir.Value

    @property
    def _row(self) -> int:
        """Bytes of a row of scores."""
        return 4 * (self.shape.piece_keys + TILE)

    def score(self, buffer: ir.Value, column: ir.Value, count: int) -> None:
        """Compute the scores of the rows whose queries are staged, for `count` tiles of 16 keys
        from `column` on, and store them to half `buffer` (0 or 1) of `scores`."""
        memory, steps = self.memory, self.shape.steps
        keys, planes, scores = (
            pointer(each) for each in (memory.staged, memory.planes, memory.scores)
        )
        sums = [x86.tile_zero(self.rows) for _ in range(count)]
        for step in range(steps):
            a = []
            for plane in range(PLANES):
                at = (plane * steps + step) * _BYTES
                a.append(load_tile(planes, at, _ROW, streamed=False, rows=self.rows))
            for part in range(count):
                place = of(column) * (steps * _BYTES // TILE) + (part * steps + step) * _BYTES
                b = load_tile(keys, place, _ROW, streamed=False)
                for plane in reversed(range(PLANES)):
                    sums[part] = x86.tile_dot_bf16(sums[part], a[plane], b, self.rows)
        for part, found in enumerate(sums):
            place = of(buffer) * (TILE * self._row) + of(column) * 4 + part * _ROW
            store_tile(found, scores, place, self._row, self.rows)

    def build(self, tile: RowTile, more: ir.Value) -> SoftmaxState:
        """Compute the weights of a tile of rows, and store weights times values to `sums`. Returns
        maxima and totals. `more`: whether there is a next tile of rows, whose scores are computed
        meanwhile."""
        begin, behind, size = self.piece.begin, self.piece.behind, index(KEYS)
        maximum = tile.begin_piece(self.piece)
        parts = range(min(SUMS, 2 * self.shape.mixed_steps))
        quarters = index(0), index(KEYS // TILE), index(1)

        def weigh(column: ir.Value, quarter: ir.Value, *, first: bool) -> None:
            tile.weigh(column, quarter, first=first)
            with when(more):
                self.score(tile.buffer ^ 1, column + quarter * TILE, 1)

        with loop(*quarters) as (quarter, _, _):
            weigh(begin, quarter, first=True)
        # While weights of a block are computed, those of the one before are multiplied.
        sums = [x86.tile_zero(self.rows) for _ in parts]
        with loop(begin + size, behind, size, sums) as (column, carried, op):
            with loop(*quarters, carried) as (quarter, found, inner):
                found = self._mixed(tile, found, parts, column - size, quarter)
                weigh(column, quarter, first=False)
                scf.YieldOp(found)
            scf.YieldOp(inner.results)
        sums = list(op.results)
        for quarter in range(KEYS // TILE):
            sums = self._mixed(tile, sums, parts, behind - size, index(quarter))
        self._store(sums, parts)
        for first in range(SUMS, 2 * self.shape.mixed_steps, SUMS):
            parts = range(first, min(first + SUMS, 2 * self.shape.mixed_steps))
            sums = [x86.tile_zero(self.rows) for _ in parts]
            with loop(begin, behind, size, sums) as (column, found, op):
                for quarter in range(KEYS // TILE):
                    found = self._mixed(tile, found, parts, column, index(quarter))
                scf.YieldOp(found)
            self._store(op.results, parts)
        return SoftmaxState(maximum, tile.totals())

    def _mixed(
        self,
        tile: RowTile,
        sums: Sequence[ir.Value],
        parts: range,
        column: ir.Value,
        quarter: ir.Value,
    ) -> list[ir.Value]:
        """Return `sums` plus a quarter of the products of values and weights of a block.

        A block has the 64 keys from `column` on. Its quarters, 0 to 3, are: the first 32 keys with
        the second plane of weights, the same keys with the first plane, then the other 32 keys
        likewise. `sums`: for each of `parts`, a tile of 16 elements of the values.
        """
        memory, every = self.memory, 2 * self.shape.mixed_steps
        step, plane = quarter // 2, index(1) - quarter % 2
        place = of(tile.buffer) * (TILE * self._row) + of(column) * 4
        place += of(plane) * (2 * _ROW) + of(step) * _ROW
        weights = load_tile(
            pointer(memory.scores), place, self._row, streamed=False, rows=self.rows
        )
        found = []
        for part, earlier in zip(parts, sums, strict=True):
            place = (of(column) + of(step) * STEP) * (every * _BYTES // STEP) + part * _BYTES
            values = load_tile(pointer(memory.mixed), place, _ROW, streamed=False)
            found.append(x86.tile_dot_bf16(earlier, weights, values, self.rows))
        return found

    def _store(self, sums: Sequence[ir.Value], parts: range) -> None:
        row = 4 * (STEP * self.shape.mixed_steps + TILE)
        for part, found in zip(parts, sums, strict=True):
            store_tile(found, pointer(self.memory.sums), part * _ROW, row, self.rows)

    def add_infinite(self, staging: TiledStaging, tile: RowTile) -> None:
        """Add the values that are infinite or NaN to the sums of rows with a weight for them."""
        memory, shape, piece = self.memory, self.shape, self.piece
        with loop(piece.begin, piece.behind, index(1)) as (column, _, _):
            position = piece.base + column
            early, late = signed_below(position, piece.least), signed_below(piece.last, position)
            with when((early | late) ^ 1):
                place, _, _ = piece.sixteen(column // TILE * TILE)
                for step in range(shape.mixed_steps):
                    given = memory.values, column % TILE, index(step * STEP), shape.mixed
                    values = staging.row(place, *given)
                    wide = arith.extf(ir.VectorType.get([STEP], f32()), values)
                    found = arith.select(is_finite(values), splat(0.0, f32(), STEP), wide)
                    tile.add_weighted(column, step, found)
