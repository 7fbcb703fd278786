"""Paged attention on CPUs: one kernel body for all numbers of rows, with online softmax.

    result[t, v, g] = sum over s of p[s] values[s, v]
    p               = softmax over s of scale * queries[t, v, g] . keys[s, v], and the sink

A row is one query head of one token. A workgroup has a block of rows of a run and a key/value head,
and loops over the keys that any of the rows attends to, a block of two registers at a time:

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
token per run, a workgroup processes all heads of the token. The order of a row's sums is the same
in all cases and depends only on its position. Queries, products and sums are f32. The pool is read
in place.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.dialects.quantize import BLOCK
from mxc.passes.kernels.attention.memory import AttentionBuffers, KeyBlock, Workgroup, place_of
from mxc.passes.kernels.attention.packed import bytes_of_entries
from mxc.passes.kernels.attention.shape import BLOCK_ROWS, PIECE_KEYS, CpuAttention, is_apart
from mxc.passes.kernels.attention.staging import Staging
from mxc.passes.kernels.attention.tile import AttentionTile
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, value_of
from mxc.passes.kernels.runs import block_of_rows, first_seen
from mxc.passes.kernels.vectors import equal, f32, i8, index, loop, scratch, signed_below, when

#: Prefetch distance, in keys, where values are copied.
AHEAD = 64

#: Called with a head and the number of its first tile.
EachHead = Callable[[ir.Value, ir.Value], None]


def attention(shape: CpuAttention, buffers: Sequence[ir.Value]) -> None:
    """Build the body at the insertion point."""
    runs = buffers[3]
    # The last rows of a run attend to most keys, and are started first, to balance the load.
    number = shape.blocks() - 1 - workgroup(1)
    run, block, found = block_of_rows(
        runs, value_of(shape.runs), number, group=shape.group, rows=BLOCK_ROWS
    )
    memory, of_all_heads = _memory(shape, buffers)
    work = Workgroup(shape, run, workgroup(2) * value_of(shape.tokens))
    many = found
    together = shape.all_heads()
    if together is not None:
        with when(found & together):
            AllHeads(shape, of_all_heads, work, block).build()
        many = found & (together ^ 1)
    with when(many):
        OneHead(shape, memory, work, block).build()


def _memory(
    shape: CpuAttention, buffers: Sequence[ir.Value]
) -> tuple[AttentionBuffers, AttentionBuffers]:
    """Scratch memory of a workgroup for one head, and for all heads; both use the same memory."""
    queries, pool, sinks, _, lists, *dense, parts, result = buffers
    staged = scratch([shape.depth, shape.block_keys], f32())
    weights = scratch([shape.tile_rows + 1, shape.block_keys], f32())
    whole, values = shape.state_bytes(shape.tiles), None
    if shape.copies_values:
        values = Buffer([shape.block_keys, shape.mixed], shape.value_type())
        whole += math.prod(values.memref.shape) * values.element.width // 8
    if shape.takes_all_heads:
        whole = max(whole, shape.state_bytes(shape.heads))
    rest = scratch([whole], i8())
    packed = factors = None
    if shape.scaled:
        packed = bytes_of_entries(pool)
        factors = scratch([shape.mixed // BLOCK, shape.block_keys], f32())

    def memory(tiles: int, copied: Buffer | None) -> AttentionBuffers:
        def view(buffer: Buffer, at: int) -> ir.Value:
            return memref.ViewOp(buffer.memref, rest, index(at), []).result

        each = shape.state_bytes(tiles) // 4
        states = [view(Buffer([tiles, shape.lanes], f32()), number * each) for number in range(4)]
        return AttentionBuffers(
            queries=queries,
            pool=pool,
            value_pool=dense[0] if dense else pool,
            packed=packed,
            sinks=sinks,
            lists=lists,
            mask=None if shape.mask is None else dense[1],
            parts=parts,
            result=result,
            sums=arith.select(is_apart(shape), parts, result),
            keys=value_of(shape.keys),
            values=value_of(shape.values),
            staged=staged,
            copied=None if copied is None else view(copied, 4 * each),
            factors=factors,
            weights=weights,
            maxima=states[0],
            totals=states[1],
            all_maxima=states[2],
            all_totals=states[3],
        )

    return memory(shape.tiles, values), memory(shape.heads, None)


@dataclass(frozen=True)
class Walk(ABC):
    """A workgroup loops over the keys that its rows attend to. `block`: number of the block of rows
    in the run."""

    shape: CpuAttention
    memory: AttentionBuffers
    work: Workgroup
    block: ir.Value

    @property
    @abstractmethod
    def tokens(self) -> tuple[ir.Value, ir.Value]:
        """The tokens of the first and of the last row, counted within the run."""

    @abstractmethod
    def each_head(self, act: EachHead) -> None:
        """Emit `act` for the heads of the workgroup."""

    @abstractmethod
    def each_tile(
        self, head: ir.Value, number: ir.Value, act: Callable[[AttentionTile], None]
    ) -> None:
        """Emit `act` for the tiles of a head; `number` is the number of its first tile."""

    def all_tiles(self, act: Callable[[AttentionTile], None]) -> None:
        """Emit `act` for all tiles of the workgroup."""
        self.each_head(lambda head, number: self.each_tile(head, number, act))

    def build(self) -> None:
        """Compute one piece and write its partial result, or compute all and write the result."""
        shape, run = self.shape, self.work.run
        first, last = (shape.position(run, token) for token in self.tokens)
        size, piece_keys = index(shape.block_keys), index(PIECE_KEYS)
        begin = first_seen(shape.reach, first) // size * size
        behind = last + 1
        apart = is_apart(shape)
        # Without a workgroup per piece, this is workgroup 0 of 1.
        piece = begin // piece_keys + workgroup(2)
        end = arith.ceildivui(behind, piece_keys)
        end = arith.select(apart, arith.minui(end, piece + 1), end)
        with when(signed_below(piece, end)):
            whole = apart ^ 1
            self.all_tiles(AttentionTile.begin_piece)
            several = signed_below(piece + 1, end)
            with when(whole):
                self.all_tiles(AttentionTile.begin)
                with when(several):
                    self.all_tiles(AttentionTile.begin_sums)
            with loop(piece, end, index(1)) as (each, _, _):
                start = each * piece_keys
                stop = arith.minui(behind, start + piece_keys)
                self._go_over(arith.maxui(start, begin), stop)
                with when(signed_below(each + 1, end)):
                    self.all_tiles(AttentionTile.add_piece)
            with when(whole):
                self.all_tiles(lambda tile: tile.finish(several))
            with when(apart):
                self.all_tiles(AttentionTile.leave_piece)

    def _go_over(self, start: ir.Value, stop: ir.Value) -> None:
        """Process the keys `start` .. `stop` - 1 of a piece."""
        size, run = index(self.shape.block_keys), self.work.run
        last = self.shape.position(run, self.tokens[1]) // size * size
        ahead = index(self.shape.block_keys if self.memory.copied is None else AHEAD)
        with loop(start, stop, size) as (at, _, _):
            places = [
                place_of(self.shape, self.memory.lists, run.number, position)
                for position in (at, arith.minui(at + ahead, last))
            ]
            block = KeyBlock(at, arith.minui(at + size, stop), *places)

            def go_over(head: ir.Value, number: ir.Value) -> None:
                staging = Staging(self.shape, self.memory, head)
                staging.stage_keys(block)
                if self.memory.packed is not None:
                    staging.stage_factors(block)
                if self.memory.copied is not None:
                    staging.copy_values(block)
                self.each_tile(head, number, lambda tile: tile.block(block))

            self.each_head(go_over)


class AllHeads(Walk):
    """All heads of the single token of a run, one tile per head."""

    @property
    def tokens(self) -> tuple[ir.Value, ir.Value]:
        """The run has one token."""
        return index(0), index(0)

    def each_head(self, act: EachHead) -> None:
        """Loop over the heads."""
        with loop(index(0), index(self.shape.heads), index(1)) as (head, _, _):
            act(head, head)

    def each_tile(
        self, head: ir.Value, number: ir.Value, act: Callable[[AttentionTile], None]
    ) -> None:
        """Emit `act` for the tile of all query heads of a key/value head."""
        rows = self.work.rest(head, number, self.shape.group)
        act(AttentionTile(self.shape, self.memory, rows, all_heads=True))


class OneHead(Walk):
    """A block of rows of one head."""

    def _bounds(self) -> tuple[ir.Value, ir.Value]:
        """The first row of the block, and the row after its last."""
        first = self.block * BLOCK_ROWS
        count = self.work.run.tokens * self.shape.group
        return first, arith.minui(count, first + BLOCK_ROWS)

    @property
    def tokens(self) -> tuple[ir.Value, ir.Value]:
        """The tokens of the first and of the last row."""
        first, behind = self._bounds()
        group = index(self.shape.group)
        return first // group, (behind - 1) // group

    def each_head(self, act: EachHead) -> None:
        """Emit `act` for the head of the workgroup."""
        act(workgroup(0), index(0))

    def each_tile(
        self, head: ir.Value, number: ir.Value, act: Callable[[AttentionTile], None]
    ) -> None:
        """Emit full tiles; the last may repeat rows, unless it is the rest of one token's rows."""
        first, behind = self._bounds()
        size = self.shape.tile_rows
        count = behind - first
        tiles, rest = arith.ceildivui(count, index(size)), self.shape.group % size
        left = None
        if rest:
            left = equal(count % size, index(rest))
            tiles = arith.select(left, tiles - 1, tiles)
        with loop(index(0), tiles, index(1)) as (tile, _, _):
            at = first + tile * size
            rows = self.work.tile(head, number + tile, at, size)
            act(AttentionTile(self.shape, self.memory, rows, all_heads=False))
        if left is not None:
            with when(left):
                rows = self.work.rest(head, number + tiles, rest)
                act(AttentionTile(self.shape, self.memory, rows, all_heads=False))
