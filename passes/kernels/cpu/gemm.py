"""Activations times packed weights: one kernel body for decode and prefill, dense and MX.

    result[p, n] = sum over k of activations[p, k] * weights[e(p), n, k]

A workgroup has some columns and some rows of one group. It goes over them in tiles of registers;
for each tile it walks K block by block: a step of the weights is decoded once, and used for every
row.

    for tile of columns, for tile of rows:
      totals = 0
      for block in K:                                    # weights are prefetched ahead
        sums = 0, or what the prepared activations begin with
        for step:
          registers = decode(weights[columns, block, step])
          for row, column: sums = dot(sums, registers[column], activations[row, block, step])
        totals += sums * scale(columns, block) * scale(row, block)  # no scales: totals are the sums
      result[rows, columns] = totals
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.generic import element_of
from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.cells import Cells, Memory, Stage
from mxc.passes.kernels.cpu.isa import Isa
from mxc.passes.kernels.cpu.quantise.output import BlockTile
from mxc.passes.kernels.cpu.quantise.output import buffers as block_buffers
from mxc.passes.kernels.cpu.quantise.rounding import Rounding
from mxc.passes.kernels.cpu.rows import Rows, Span
from mxc.passes.kernels.cpu.weights import PANEL, Weights
from mxc.passes.kernels.epilogues import NOTHING, Epilogue, flat_shape
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size
from mxc.passes.kernels.finish import Finish
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import f32, i8, index, loop, scratch


@dataclass(frozen=True)
class Tile:
    """Rows and registers of columns that are computed at once; blocks that weights are asked for
    ahead; the registers of columns that a workgroup has; blocks of weights that are decoded to
    memory at once, for all tiles of rows (0: each tile decodes for itself)."""

    rows: int
    columns: int
    prefetch: int
    columns_a_workgroup: int
    staged_blocks: int = 0


@dataclass(frozen=True)
class Gemm:
    """One kernel. `columns` of the result, `blocks` of the weights along K. `out`: the result is MX
    blocks along the columns, of which there are whole ones."""

    isa: Isa
    weights: Weights
    prepared: Prepared
    rows: Rows
    columns: int
    blocks: int
    tile: Tile
    epilogue: Epilogue = NOTHING
    out: Rounding | None = None

    @property
    def registers(self) -> int:
        """Registers of the columns, the last panel padded."""
        return -(-self.columns // PANEL) * PANEL // self.isa.lanes

    @property
    def _halves(self) -> int:
        """Parts of the columns that are computed together: two for a gate."""
        return 2 if self.epilogue.gated else 1

    @property
    def _registers_a_workgroup(self) -> int:
        """Of the result."""
        count = max(1, self.tile.columns_a_workgroup // self._halves)
        return -(-count // self._registers_a_block) * self._registers_a_block

    @property
    def _registers_a_block(self) -> int:
        """Of the result, where it is blocks."""
        return 1 if self.out is None else BLOCK // self.isa.lanes

    @property
    def scalars(self) -> int:
        """How many index values come with each call."""
        return self.rows.scalars

    def given(self, scalars: Sequence[ir.Value]) -> Gemm:
        """This kernel for so many groups or rows."""
        return replace(self, rows=self.rows.given(scalars)) if self.scalars else self

    @property
    def workgroups(self) -> list[Size]:
        """Along columns, rows and groups."""
        registers = self.registers // self._halves
        return [-(-registers // self._registers_a_workgroup), *self.rows.workgroups]

    @property
    def buffers(self) -> list[Buffer]:
        """Activations, what chooses the rows if anything, weights, scales, what the epilogue reads,
        results."""
        return [
            self.prepared.buffer(self.rows.sources, self.blocks),
            *self.rows.buffers,
            *self.weights.buffers(self.rows.experts, -(-self.columns // PANEL), self.blocks),
            *(
                Buffer(flat_shape(reach, value, self.rows.results), element_of(value))
                for reach, value in self.epilogue.operands
            ),
            *self._results,
        ]

    @property
    def _results(self) -> list[Buffer]:
        if self.out is None:
            return [Buffer([self.rows.results, self.result_columns], self.epilogue.result)]
        return block_buffers(self.out, self.rows.results, self.result_columns)

    @property
    def result_columns(self) -> int:
        """Columns of the result."""
        return self.columns // self._halves

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        rest = list(buffers)
        activations, results = rest.pop(0), [rest.pop() for _ in self._results][::-1]
        span = self.rows.begin(rest.pop(0) if self.rows.buffers else None)
        elements, scales = rest.pop(0), rest.pop(0) if self.weights.scaled else None
        keys = self.epilogue.operands
        finish = Finish(self.epilogue, dict(zip(keys, rest, strict=True)), self.isa.lanes)
        memory = Memory(activations, elements, scales, results[0], finish)
        width = index(self._registers_a_workgroup)
        first = arith.muli(workgroup(0), width)
        last = arith.minui(arith.addi(first, width), index(self._registers_of_result))
        if self.out is not None:
            tile = BlockTile.of(self.out, results[0], results[1], self.tile.rows)
            self._blocks(memory, span, tile, first, last)
        else:
            self._columns(memory, span, first, last)

    @property
    def _registers_of_result(self) -> int:
        return self.registers // self._halves

    @property
    def _together(self) -> int:
        """Registers of the result that are computed at once."""
        return max(1, self.tile.columns // self._halves)

    def _columns(self, memory: Memory, span: Span, first: ir.Value, last: ir.Value) -> None:
        """The result is stored as it is."""
        stage = self._stage() if self.tile.staged_blocks else None
        registers, together = self._registers_of_result, self._together
        whole = registers // together * together
        # A tile that never comes up is not built: most of the time of a compilation goes there.
        parts = [(together, whole)] if whole else []
        parts += [(1, registers)] if whole < registers else []
        for size, limit in parts:
            stop = arith.minui(last, index(limit))
            with loop(first, stop, index(size)) as (register, _, _):
                cells = self._cells(memory, span, register, size)
                if stage is None:
                    cells.whole()
                else:
                    cells.staged(stage)
                scf.YieldOp([])
            first = arith.maxui(first, index(whole))

    def _blocks(
        self, memory: Memory, span: Span, tile: BlockTile, first: ir.Value, last: ir.Value
    ) -> None:
        """The result waits until there is a block of every row of a tile."""
        block, together = self._registers_a_block, self._together
        lanes = index(self.isa.lanes)
        with loop(first, last, index(block)) as (register, _, _):
            for results in self.rows.tiles(span, self.tile.rows):
                with loop(index(0), index(block), index(together)) as (part, _, _):
                    cells = self._cells(memory, span, arith.addi(register, part), together)
                    cells.put(tile, results, arith.muli(part, lanes))
                    scf.YieldOp([])
                tile.store(results, arith.divui(register, index(block)))
            scf.YieldOp([])

    def _cells(self, memory: Memory, span: Span, register: ir.Value, size: int) -> Cells:
        """Some registers of the result, and those of the other half."""
        numbers = [
            arith.addi(register, index(i + half * self._registers_of_result))
            for half in range(self._halves)
            for i in range(size)
        ]
        expert = [] if span.expert is None else [span.expert]
        columns = [self.weights.column(self.isa, expert, at) for at in numbers]
        return Cells(self, memory, span, numbers, columns)

    def _stage(self) -> Stage:
        """Memory for the decoded weights of some blocks: it stays in the cache nearest."""
        place, lanes = [self.tile.staged_blocks, self.tile.columns], self.isa.lanes
        elements = scratch([*place, self.weights.step_count, 4 * lanes], i8())
        return Stage(
            elements, scratch([*place, lanes], f32()) if self.weights.scales_sums else None
        )
