"""Paged attention on CPUs: one kernel body for all numbers of rows, with online softmax.

    result[t, v, g] = sum over s of p[s] values[s, v]
    p               = softmax over s of scale * queries[t, v, g] . keys[s, v], and the sink

A row is one query head of one token. A workgroup has a block of rows of a run and a key/value head,
and loops over the keys that any of the rows attends to, in blocks of keys that fill two registers:

    for piece of keys:                                               # at absolute positions
      for block of keys:                                             # in one page
        staged[d, key] = keys, extended to f32 and transposed        # once for all rows
        factors[d / 32, key] = scales of values                      # in an MX format
        for tile of rows that sees some of them:                     # see tile.py
          scores[row, key]   = scale * queries . staged              # keys in the lanes
          maximum, total     = of the blocks before and of the scores
          weights[row, key]  = exp(scores - maximum)
          part[row, d]       = part[row, d] * exp(old maximum - maximum) + weights . values
      result += part                                                 # see pieces.py
    result /= total

With few rows in a call, each piece has its own workgroup, which writes its partial result. With one
token per run, a workgroup processes all heads of the token, whose keys are adjacent in the pool.
The order of a row's sums is the same in all cases and depends only on its position. Queries,
products and sums are f32. The pool is read in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import constant
from mxc.dialects.quantize import BLOCK
from mxc.passes.kernels.attention.memory import (
    AttentionBuffers,
    KeyBlock,
    KeyPlace,
    place_of,
)
from mxc.passes.kernels.attention.mix import BlockValues
from mxc.passes.kernels.attention.row_block import RowBlock, rows_of_workgroup
from mxc.passes.kernels.attention.shape import CpuAttention, is_apart
from mxc.passes.kernels.attention.staging import Staging
from mxc.passes.kernels.attention.tile import AttentionTile
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.page_bytes import bytes_of_entries
from mxc.passes.kernels.vectors import equal, f32, i1, index, loop, scratch, signed_below, when

#: Prefetch distance, in keys, if values are copied; otherwise it is one block.
AHEAD = 64


def attention(shape: CpuAttention, buffers: Sequence[ir.Value]) -> None:
    """Build the body at the insertion point."""
    with rows_of_workgroup(shape, buffers[3]) as block:
        Walk(shape, _memory(shape, buffers), block).build()


def _memory(shape: CpuAttention, buffers: Sequence[ir.Value]) -> AttentionBuffers:
    """The buffers of a call, and scratch memory of a workgroup."""
    queries, pool, sinks, _, lists, *dense, parts, result = buffers
    staged = scratch([shape.depth, shape.block_keys], f32())
    weights = scratch([shape.tile_rows + 1, shape.block_keys], f32())
    copied, copies = None, constant(0, i1())
    if shape.copies_values:
        copied = scratch([shape.block_keys, shape.mixed], shape.value_type())
        copies = shape.all_heads() ^ 1
    states = [scratch([shape.tiles, shape.states], f32()) for _ in range(4)]
    return AttentionBuffers(
        queries=queries,
        pool=pool,
        value_pool=dense[0] if dense else pool,
        packed=bytes_of_entries(pool) if shape.scaled else None,
        sinks=sinks,
        lists=lists,
        mask=None if shape.mask is None else dense[1],
        parts=parts,
        result=result,
        sums=arith.select(is_apart(shape), parts, result),
        keys=value_of(shape.keys),
        values=value_of(shape.values),
        staged=staged,
        copied=copied,
        copies=copies,
        factors=scratch([shape.mixed // BLOCK, shape.block_keys], f32()) if shape.scaled else None,
        weights=weights,
        maxima=states[0],
        totals=states[1],
        all_maxima=states[2],
        all_totals=states[3],
    )


@dataclass(frozen=True)
class Walk:
    """Builds the loops of a workgroup over the keys that its rows attend to."""

    shape: CpuAttention
    memory: AttentionBuffers
    block: RowBlock

    def _each_tile(self, head: ir.Value, act: Callable[[AttentionTile], None]) -> None:
        """Emit `act` for each tile of rows of a head.

        Tiles are full; the last one repeats rows if there are fewer. But if the rows that are left
        are the remainder of one token's rows (G % `tile_rows`), they have a smaller tile.
        """
        first, behind = self.block.rows()
        size, count = self.shape.tile_rows, behind - first
        # A workgroup for all heads has one tile per head.
        number = head - self.block.heads()[0]
        tiles, rest = arith.ceildivui(count, index(size)), self.shape.group % size
        left = None
        if rest:
            left = equal(count % size, index(rest))
            tiles = arith.select(left, tiles - 1, tiles)
        with loop(index(0), tiles, index(1)) as (tile, _, _):
            rows = self.block.work.tile(head, number + tile, first + tile * size, size)
            act(AttentionTile(self.shape, self.memory, rows))
        if left is not None:
            with when(left):
                rows = self.block.work.rest(head, number + tiles, rest)
                act(AttentionTile(self.shape, self.memory, rows))

    def _all_tiles(self, act: Callable[[AttentionTile], None]) -> None:
        """Emit `act` for all tiles of the workgroup."""
        with loop(*self.block.heads(), index(1)) as (head, _, _):
            self._each_tile(head, act)

    def build(self) -> None:
        """Compute one piece and write its partial result, or compute all and write the result."""
        size, piece_keys = index(self.shape.block_keys), index(self.shape.piece_keys)
        seen = self.block.keys()
        begin, behind = seen.first // size * size, seen.last + 1
        with when(signed_below(seen.piece, seen.end)):
            with when(seen.apart ^ 1):
                self._all_tiles(AttentionTile.begin)
            with loop(seen.piece, seen.end, index(1)) as (each, _, _):
                self._all_tiles(AttentionTile.begin_piece)
                start = each * piece_keys
                stop = arith.minui(behind, start + piece_keys)
                self._go_over(arith.maxui(start, begin), stop, seen.last // size * size)
                ends = equal(each, seen.piece), equal(each + 1, seen.end)
                with when(seen.apart):
                    self._all_tiles(AttentionTile.leave_piece)
                with when(seen.apart ^ 1):
                    self._all_tiles(lambda tile: tile.add_piece(*ends))

    def _go_over(self, start: ir.Value, stop: ir.Value, last: ir.Value) -> None:
        """Process the keys `start` .. `stop` - 1 of a piece; the last block begins at `last`."""
        shape, memory = self.shape, self.memory
        size, (head, behind) = index(shape.block_keys), self.block.heads()
        distance = arith.select(memory.copies, index(AHEAD), size)

        def place(position: ir.Value, head: ir.Value) -> KeyPlace:
            return place_of(shape, memory.lists, self.block.work.run.number, position, head)

        staging = Staging(shape, memory)
        with loop(start, stop, size) as (at, _, _):
            later = place(arith.minui(at + distance, last), head)
            with loop(head, behind, index(1)) as (each, _, _):
                # What is prefetched: this block of the next head, or, after the last head of the
                # workgroup, a later block of the first one.
                ahead = later.select(equal(each + 1, behind), place(at, each + 1))
                block = KeyBlock(at, arith.minui(at + size, stop), place(at, each), ahead)
                staging.stage_keys(block)
                if memory.packed is not None:
                    staging.stage_factors(block)
                if memory.copied is not None:
                    with when(memory.copies):
                        staging.copy_values(block)
                values = BlockValues(shape, memory, block)
                self._each_tile(each, lambda tile: tile.block(block, values))
