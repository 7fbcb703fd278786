"""The rows of a workgroup of attention, and the keys that they attend to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.attention.memory import Workgroup
from mxc.passes.kernels.attention.shape import CpuAttention, is_apart
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.runs import block_of_rows
from mxc.passes.kernels.vectors import index, when


@dataclass(frozen=True)
class KeysSeen:
    """The keys that a workgroup processes: from `first`, the first that one of its rows attends to,
    to `last`, in the pieces from number `piece` to `end` - 1. `apart`: this is one piece, and other
    workgroups have the others."""

    first: ir.Value
    last: ir.Value
    piece: ir.Value
    end: ir.Value
    apart: ir.Value


@dataclass(frozen=True)
class RowBlock:
    """Block number `block` of the rows of a run, of one head or of all heads."""

    shape: CpuAttention
    work: Workgroup
    block: ir.Value

    def rows(self) -> tuple[ir.Value, ir.Value]:
        """The first row of the block, and the row after its last."""
        rows = self.shape.rows_of_call()
        first = self.block * rows
        count = self.work.run.tokens * self.shape.group
        return first, arith.minui(count, first + rows)

    def heads(self) -> tuple[ir.Value, ir.Value]:
        """The first head of the workgroup, and the head after its last."""
        every, own = self.shape.all_heads(), workgroup(0)
        first = arith.select(every, index(0), own)
        return first, arith.select(every, index(self.shape.heads), own + 1)

    def keys(self) -> KeysSeen:
        """The keys of the workgroup."""
        shape, (first_row, behind_row) = self.shape, self.rows()
        group, size = index(shape.group), index(shape.piece_keys)
        first = shape.position(self.work.run, first_row // group)
        last = shape.position(self.work.run, (behind_row - 1) // group)
        first, apart = shape.first_seen(first), is_apart(shape)
        # Without a workgroup per piece, this is workgroup 0 of 1.
        piece, end = first // size + workgroup(2), arith.ceildivui(last + 1, size)
        end = arith.select(apart, arith.minui(end, piece + 1), end)
        return KeysSeen(first, last, piece, end, apart)


@contextmanager
def rows_of_workgroup(shape: CpuAttention, runs: ir.Value) -> Iterator[RowBlock]:
    """Emit a body for the rows of this workgroup, if it has some. `runs`: i32 [S, 3]."""
    # The last rows of a run attend to most keys, and are started first, to balance the load.
    number = shape.blocks() - 1 - workgroup(1)
    run, block, found = block_of_rows(
        runs, value_of(shape.runs), number, group=shape.group, rows=shape.rows_of_call()
    )
    with when(found):
        yield RowBlock(shape, Workgroup(shape, run, workgroup(2) * value_of(shape.tokens)), block)
