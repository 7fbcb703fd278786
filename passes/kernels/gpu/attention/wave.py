"""Assign rows and keys to waves. Numbers are i32.

The rows of a run are the query heads of its tokens: row r is head r % G of token r // G. Waves are
numbered so that the place of a run needs no sum over the runs before it:

    blocks of rows      those of run s from number first[s] * G // rows + s on; some are empty
    decoded tokens      if Z > 0: for each piece, for each run, the tiles of rows of its token

first[s] is the first token of run s, rows the number of rows of a block, Z the number of waves that
split the keys of a decoded token (`GpuAttention.pieces_apart`). A token is decoded if it is the
only one of its run. If Z = 0, all rows are in blocks of rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, rocdl, scf

from mxc.dialects.generic import constant
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.attention.shape import (
    BLOCK_KEYS,
    PIECE_KEYS,
    TILE,
    GpuAttention,
    piece_of,
)
from mxc.passes.kernels.gpu.lanes import at_most, long, short
from mxc.passes.kernels.runs import first_seen, read_run
from mxc.passes.kernels.vectors import below, equal, i1, i32, loop, unequal


@dataclass(frozen=True)
class LaneRow:
    """The row of a tile that this lane has.

    `number`: counted from the first row of the wave's first token, i32. `token`: counted from the
    wave's first token, i32. `member`: the query head, an index. If the run has fewer rows, `token`
    and `member` are those of its last row.
    """

    number: ir.Value
    token: ir.Value
    member: ir.Value


@dataclass(frozen=True)
class Wave:
    """The rows and keys of a wave.

    `some`: whether it has any. `run`: number of the run of its rows. `token`: its first token,
    counted in the call; `place`: the same token, counted in the run. Counted from the first row of
    this token, the rows of the wave begin at `skipped`, and the run ends before row `rows`.
    `position`: the last key that this token attends to; `last`: that of the wave's last token. The
    wave goes over the keys `start` .. `behind` - 1; `start` is the first key of a block.
    `positions`: number of dense keys, None for pages. `apart`: whether the wave has one piece of
    several; its sums are then stored at index `part` of the memref of all pieces.
    """

    some: ir.Value
    run: ir.Value
    token: ir.Value
    skipped: ir.Value
    rows: ir.Value
    place: ir.Value
    position: ir.Value
    last: ir.Value
    start: ir.Value
    behind: ir.Value
    apart: ir.Value
    part: ir.Value
    positions: ir.Value | None

    def seen(self, position: ir.Value) -> ir.Value:
        """The last key that a token at `position` attends to, i32: its own, or the last of dense
        keys, of which there may be fewer."""
        if self.positions is None:
            return position
        return arith.minui(position, self.positions + -1)

    def row(self, lane: ir.Value, tile: int, group: int) -> LaneRow:
        """The row of tile `tile` that a lane has. `lane`: row of the tile, i32. `group`: G."""
        number = self.skipped + (lane + tile * TILE)
        inside = arith.minui(number, self.rows + -1)
        return LaneRow(number, inside // group, long(inside % group))


def wave(shape: GpuAttention, runs: ir.Value, tiles: int, lane: ir.Value) -> Wave:
    """Return the rows and keys of this wave. `runs`: the memref i32 [S, 3] of the call.
    `tiles`: tiles of rows of a wave; more than one only where Z is 0. `lane`: an index."""
    rows, group = tiles * TILE, shape.group
    count, pieces = short(value_of(shape.runs)), short(value_of(shape.pieces))
    unit, blocks = short(workgroup(1)), short(shape.blocks(tiles))
    mine = below(unit, blocks)
    branch = scf.IfOp(mine, [i32()] * 3, has_else=True)
    with ir.InsertionPoint(branch.then_block):
        # The last rows attend to most keys, and are started first, to balance the load.
        block = blocks + -1 - unit
        number = _run_of_block(shape, runs, count, block, tiles, lane)
        begin = shape.first_block(_run(runs, number)[0], tiles) + number
        scf.YieldOp([number, (block - begin) * rows, constant(0, i32())])
    with ir.InsertionPoint(branch.else_block):
        each = unit - blocks
        row = each % shape.token_blocks * TILE
        each = each // shape.token_blocks
        piece = each // count
        scf.YieldOp([each - piece * count, row, piece])
    number, row, piece = branch.results
    first, tokens, before = _run(runs, number)

    all_rows = tokens * group
    token = row // group
    position = last = before
    positions = short(value_of(shape.positions)) if shape.dense else None
    if shape.causal:
        position = before + token
        last = before + (arith.minui(row + rows, all_rows) + -1) // group
        if positions is not None:
            position, last = (arith.minui(each, positions + -1) for each in (position, last))
    start, behind = first_seen(shape.reach, position), last + 1
    some, apart = below(row, all_rows), constant(0, i1())
    if tiles == 1:
        decoded = equal(tokens, 1)
        none = below(pieces, 1)
        owned = none | unequal(decoded, mine)
        apart = below(constant(1, i32()), pieces) & decoded
        # The wave has one of the pieces that the token attends to.
        begin = (piece_of(start) + piece) * PIECE_KEYS
        some = some & owned & below(begin, behind)
        end = arith.minui(behind, begin + PIECE_KEYS)
        behind = arith.select(apart, end, behind)
        start = arith.select(apart, arith.maxui(start, begin), start)
    skipped = token * group
    return Wave(
        some=some,
        run=number,
        token=first + token,
        skipped=row - skipped,
        rows=all_rows - skipped,
        place=token,
        position=position,
        last=last,
        start=start // BLOCK_KEYS * BLOCK_KEYS,
        behind=behind,
        apart=apart,
        part=long(piece) * value_of(shape.runs) + long(number),
        positions=positions,
    )


def _run_of_block(
    shape: GpuAttention,
    runs: ir.Value,
    count: ir.Value,
    block: ir.Value,
    tiles: int,
    lane: ir.Value,
) -> ir.Value:
    """Return the last run whose blocks begin at or before `block`. Each lane compares one run at a
    time, and the wave counts those that do."""
    none = constant(0, i32())
    with loop(none, count, constant(shape.lanes, i32()), [none]) as (start, (found,), op):
        number = start + short(lane)
        token = _run(runs, at_most(number, count + -1))[0]
        first = shape.first_block(token, tiles) + number
        begun = arith.cmpi(arith.CmpIPredicate.ule, first, block)
        some = votes(below(number, count) & begun, shape.lanes)
        scf.YieldOp([found + some])
    return op.results[0] + -1


def votes(condition: ir.Value, lanes: int) -> ir.Value:
    """Return the number of lanes of the wave for which `condition` holds, i32."""
    found = math.ctpop(rocdl.ballot(ir.IntegerType.get_signless(lanes), condition))
    return found if found.type == i32() else arith.trunci(i32(), found)


def _run(runs: ir.Value, number: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Load run `number`: first token, number of tokens, and number of earlier positions, i32."""
    run = read_run(runs, long(number))
    return short(run.first), short(run.tokens), short(run.before)
