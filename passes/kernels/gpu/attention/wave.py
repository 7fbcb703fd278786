"""Which rows and which keys a wave has. Numbers are i32.

Rows of a run are the query heads of its tokens: row r is head r % G of token r // G. Waves are
numbered so that no run has to be added up before another one:

    blocks of rows      of run s from first[s] * G // rows + s on, some of them empty
    what is apart       where Z > 0: tiles of the rows of run s, its token decoded, for each piece

A token is decoded where it is the only one of its run. Where Z = 0 these are blocks of rows too.
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

    `number`: counted from the first row of the wave's first token, i32; `token`, counted from that
    one, i32, and query head `member` are those of the last row where the wave has fewer.
    """

    number: ir.Value
    token: ir.Value
    member: ir.Value


@dataclass(frozen=True)
class Wave:
    """Whether the wave has `some` rows; keys `start` .. `behind` - 1, from that of a block on.

    `run`: their run. `token`: its first one in the call, `skipped` rows of which are those of
    another wave, as are all from `rows` on; `place`: that token in its run; `position`: of it,
    `last` that of the last one. `positions`: of dense keys, None for pages.
    `apart`: whether it is one piece of several; it is written to `part`, an index.
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
        """The last key that a token at a position sees, i32: of dense keys there may be fewer."""
        if self.positions is None:
            return position
        return arith.minui(position, self.positions + -1)

    def row(self, lane: ir.Value, tile: int, group: int) -> LaneRow:
        """That of a lane of a tile; past the last one, the last one."""
        number = self.skipped + (lane + tile * TILE)
        inside = arith.minui(number, self.rows + -1)
        return LaneRow(number, inside // group, long(inside % group))


def wave(shape: GpuAttention, runs: ir.Value, tiles: int, lane: ir.Value) -> Wave:
    """The wave that runs. `tiles` of rows; where they are several Z is 0."""
    rows, group = tiles * TILE, shape.group
    count, pieces = short(value_of(shape.runs)), short(value_of(shape.pieces))
    unit, blocks = short(workgroup(1)), short(shape.blocks(tiles))
    mine = below(unit, blocks)
    branch = scf.IfOp(mine, [i32()] * 3, has_else=True)
    with ir.InsertionPoint(branch.then_block):
        # The last rows see most keys: begun first, they do not make the others wait.
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
        # One piece, of those that the token sees.
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
    """The last run whose blocks begin at or before `block`: each lane looks at one run."""
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
    """How many lanes of a wave have the condition, i32."""
    found = math.ctpop(rocdl.ballot(ir.IntegerType.get_signless(lanes), condition))
    return found if found.type == i32() else arith.trunci(i32(), found)


def _run(runs: ir.Value, number: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """First token, number of tokens and positions before them."""
    run = read_run(runs, long(number))
    return short(run.first), short(run.tokens), short(run.before)
