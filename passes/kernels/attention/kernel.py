"""Attention over a cache: one kernel body for prefill and decode, softmax as the keys go by.

    result[t, v, g] = sum over s of p[s] values[s, v]
    p               = softmax over s of scale * queries[t, v, g] . keys[s, v]

A row is one query head of one token: r = t * G + g. A workgroup has some rows of a key/value head v
and goes over the keys that any of them sees, a block of two registers at a time:

    for block of keys:
      staged[d, key] = keys, extended to f32 and transposed         # once for all rows
      for tile of rows that sees some of them:                       # see attention_tile.py
        scores[row, key]   = scale * queries . staged                # keys in the lanes
        maximum, total     = of what came before and of the scores
        weights[row, key]  = exp(scores - maximum)
        result[row, d]     = result[row, d] * exp(old maximum - maximum) + weights . values
    result /= total

Queries stay f32; products and sums are f32. The cache is read where it lies.

Where there are too few rows to share out, the keys are shared out too, in pieces whose size depends
on their number alone; attention_pieces.py puts the results together. So no result depends on the
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.passes.kernels.attention.rows import when
from mxc.passes.kernels.attention.shape import Attention, Source
from mxc.passes.kernels.attention.staging import Staging, scratch
from mxc.passes.kernels.attention.tile import Memory, Tile
from mxc.passes.kernels.caches import Seen
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.vectors import index, loop


def attention(shape: Attention, buffers: Sequence[ir.Value], scalars: Sequence[ir.Value]) -> None:
    """Build the body at the insertion point, over the memrefs and scalars that `shape` names."""
    queries, keys, values, sinks, result = buffers
    position, slice_begin, size, piece_keys, *places = scalars
    split = len(shape.keys) - 3
    heads = shape.heads_a_workgroup
    first_head = arith.muli(workgroup(0), index(heads))
    # The last rows see most keys: begun first, they do not make the others wait.
    block = arith.subi(index(shape.blocks - 1), workgroup(1))
    begin, end = slice_begin, arith.addi(slice_begin, size)
    piece = None
    if shape.pieces is not None:
        piece = workgroup(2)
        begin = arith.addi(begin, arith.muli(piece, piece_keys))
        end = arith.minsi(end, arith.addi(begin, piece_keys))
    seen = Seen(position, begin, end, shape.width)
    tiles = -(-min(shape.rows, shape.block_rows) // shape.tile_rows)
    f32, block_keys = ir.F32Type.get(), shape.block_keys
    copied = None
    if shape.copies_values:
        copied = scratch([block_keys, shape.mixed], shape.element_type())
    memory = Memory(
        queries=queries,
        keys=Source(keys, places[:split]),
        values=Source(values, places[split:]),
        sinks=sinks,
        result=result,
        staged=scratch([shape.depth, block_keys], f32),
        copied=copied,
        weights=scratch([shape.tile_rows + 1, block_keys], f32),
        maxima=scratch([heads * tiles, shape.lanes], f32),
        totals=scratch([heads * tiles, shape.lanes], f32),
    )
    first = arith.muli(block, index(shape.block_rows))
    behind = arith.minsi(index(shape.rows), arith.addi(first, index(shape.block_rows)))

    def each_head(build: Callable[[ir.Value, ir.Value], None]) -> None:
        """With the head, and the number of its first tile."""
        with loop(index(0), index(heads), index(1)) as (number, _, _):
            build(arith.addi(first_head, number), arith.muli(number, index(tiles)))
            scf.YieldOp([])

    def each_tile(head: ir.Value, number: ir.Value, build: Callable[[Tile], None]) -> None:
        whole = arith.divui(arith.subi(behind, first), index(shape.tile_rows))
        with loop(index(0), whole, index(1)) as (tile, _, _):
            at = arith.addi(first, arith.muli(tile, index(shape.tile_rows)))
            each = arith.addi(number, tile)
            build(Tile(shape, memory, head, piece, at, each, shape.tile_rows))
            scf.YieldOp([])
        rest = shape.rows % shape.tile_rows
        if rest:
            last = arith.cmpi(arith.CmpIPredicate.eq, behind, index(shape.rows))
            with when(last):
                at = index(shape.rows - rest)
                build(Tile(shape, memory, head, piece, at, arith.addi(number, whole), rest))

    each_head(lambda head, number: each_tile(head, number, Tile.begin))
    first_key = seen.first(arith.divui(first, index(shape.group)))
    last_token = arith.divui(arith.subi(behind, index(1)), index(shape.group))
    behind_keys = seen.behind(last_token)
    with loop(first_key, behind_keys, index(block_keys)) as (start, _, _):
        stop = arith.minsi(arith.addi(start, index(block_keys)), behind_keys)

        def go_over(head: ir.Value, number: ir.Value) -> None:
            staging = Staging(
                shape,
                keys=memory.keys,
                values=memory.values,
                staged=memory.staged,
                copied=copied,
                head=head,
            )
            staging.stage_keys(start, stop)
            if copied is not None:
                staging.copy_values(start, stop)
            each_tile(head, number, lambda tile: tile.block(seen, start))

        each_head(go_over)
        scf.YieldOp([])
    each_head(lambda head, number: each_tile(head, number, Tile.finish))
