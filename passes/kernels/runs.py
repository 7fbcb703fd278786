"""Assign rows and keys to the workgroups of paged attention.

A *run* is consecutive tokens of a call that belong to one sequence. `runs` is the memref i32 [S, 3]
of a call: first token, number of tokens, and number of earlier positions of each run. A token has G
rows, one for each of its query heads: row r of a run is head r % G of token r // G. A *block* of
rows belongs to one run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf

from mxc.dialects.attention import AttentionChunk, Reach
from mxc.dialects.generic import constant
from mxc.passes.kernels.vectors import i1, index, loop, signed_below


def reach_size(reach: int | AttentionChunk) -> int:
    """Number of tokens of a sliding window, or of an attention chunk."""
    return reach.size if isinstance(reach, AttentionChunk) else reach


#: A reach (None, a window or a chunk) whose window may be an index value that comes with the call.
DynamicReach: TypeAlias = Reach | ir.Value


def first_seen(reach: DynamicReach, position: ir.Value) -> ir.Value:
    """The first key that a token at `position` attends to, in the type of `position`. The last key
    is that of the token itself."""

    def number(value: int) -> ir.Value:
        return constant(value, position.type)

    if reach is None:
        return number(0)
    if isinstance(reach, AttentionChunk):
        return position // number(reach.size) * number(reach.size)
    return arith.maxsi(number(0), position - (reach - 1))


def most_blocks(
    tokens: ir.Value, runs: ir.Value, *, group: int, rows: ir.Value, unit: int
) -> ir.Value:
    """An upper bound of the number of blocks of `rows` rows in all runs of a call. If each run has
    one token and G divides `unit`, it is the number of runs.

    `tokens`, `runs`: their numbers in the call. `group`: G. `rows`: a multiple of `unit`. A run of
    c tokens has at most (c * G + rows - g) / rows blocks, where g divides both rows and G.
    """
    ragged = runs * (rows - math.gcd(group, unit))
    return (tokens * group + ragged) // rows


def most_pieces(
    positions: ir.Value, *, reach: DynamicReach, group: int, rows: ir.Value, piece_keys: int
) -> ir.Value:
    """An upper bound of the number of pieces of `piece_keys` keys that a block of `rows` rows
    attends to, if no run has more than `positions` positions. `group`: G."""
    found = arith.ceildivui(positions, index(piece_keys))
    if reach is None:
        return found
    tokens = arith.ceildivui(rows, index(group)) + 1
    # A block attends to this many keys, which may begin anywhere in a piece.
    size = reach if isinstance(reach, ir.Value) else index(reach_size(reach))
    keys = arith.ceildivui(size + tokens, index(piece_keys))
    return arith.minui(found, keys + 1)


@dataclass(frozen=True)
class KernelRun:
    """A run: its `number`, its `first` token, its number of `tokens`, and the number of positions
    of its sequence that come `before` them."""

    number: ir.Value
    first: ir.Value
    tokens: ir.Value
    before: ir.Value


def block_of_rows(
    runs: ir.Value, count: ir.Value, number: ir.Value, *, group: int, rows: ir.Value
) -> tuple[KernelRun, ir.Value, ir.Value]:
    """Emit a search for a block of rows. Return its run, its number within the run, and whether it
    exists (i1).

    `runs`: the memref. `count`: number of runs of the call. `number`: of the block, counted through
    all runs. `group`: G. `rows`: of a block. If the block does not exist, the run is the first one.
    """
    no = constant(0, i1())
    with loop(index(0), count, index(1), [index(0), index(0), index(0), no]) as (each, carried, op):
        before, run, block, found = carried
        all_rows = _number(runs, each, 1) * group
        behind = before + arith.ceildivui(all_rows, rows)
        here = _at_most(before, number) & _less(number, behind)
        run = arith.select(here, each, run)
        block = arith.select(here, number - before, block)
        scf.YieldOp([behind, run, block, found | here])
    _, run, block, found = op.results
    return read_run(runs, run), block, found


def run_of_token(runs: ir.Value, count: ir.Value, token: ir.Value) -> KernelRun:
    """The run of a token of the call: the last run that begins at or before it."""
    with loop(index(1), count, index(1), [index(0)]) as (each, (run,), op):
        scf.YieldOp([arith.select(_at_most(_number(runs, each, 0), token), each, run)])
    return read_run(runs, op.results[0])


def read_run(runs: ir.Value, number: ir.Value) -> KernelRun:
    """Load run `number` of the call."""
    first, tokens, before = (_number(runs, number, column) for column in range(3))
    return KernelRun(number, first, tokens, before)


def _number(runs: ir.Value, run: ir.Value, column: int) -> ir.Value:
    value = memref.LoadOp(runs, [run, index(column)]).result
    return arith.index_cast(ir.IndexType.get(), value)


def _less(x: ir.Value, y: ir.Value) -> ir.Value:
    return signed_below(x, y)


def _at_most(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.sle, x, y)
