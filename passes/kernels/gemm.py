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
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, scf, vector

from mxc.passes.kernels.activations import Prepared
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.isa import Isa, zero
from mxc.passes.kernels.rows import Rows, Span
from mxc.passes.kernels.vectors import bitcast, broadcast, f32, i1, i8, index, loop, of, splat
from mxc.passes.kernels.weights import PANEL, Column, Weights

#: Chains of dependent dot products that hide their latency.
CHAINS = 12
MAX_SPLIT = 4


@dataclass(frozen=True)
class Tile:
    """Rows and registers of columns that are computed at once; blocks that weights are asked for
    ahead; what a workgroup has: registers of columns."""

    rows: int
    columns: int
    prefetch: int
    columns_a_workgroup: int


@dataclass(frozen=True)
class _Memory:
    """The memrefs that a tile reads and writes."""

    activations: ir.Value
    elements: ir.Value
    scales: ir.Value | None
    result: ir.Value


@dataclass(frozen=True)
class Gemm:
    """One kernel. `columns` of the result, `blocks` of 32 along K."""

    isa: Isa
    weights: Weights
    prepared: Prepared
    rows: Rows
    columns: int
    blocks: int
    tile: Tile

    @property
    def registers(self) -> int:
        """Registers of the columns, the last panel padded."""
        return -(-self.columns // PANEL) * PANEL // self.isa.lanes

    @property
    def workgroups(self) -> tuple[int, int, int]:
        """Along columns, rows and groups."""
        return (-(-self.registers // self.tile.columns_a_workgroup), *self.rows.workgroups)

    @property
    def buffers(self) -> list[ir.Type]:
        """Memref types: activations, what chooses the rows if anything, weights, scales, result."""
        return [
            self.prepared.memref(self.rows.sources, self.blocks),
            *self.rows.memrefs(),
            *self.weights.memrefs(self.rows.experts, -(-self.columns // PANEL), self.blocks),
            ir.MemRefType.get([self.rows.results, self.columns], f32()),
        ]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        rest = list(buffers)
        activations, result = rest.pop(0), rest.pop()
        span = self.rows.begin(rest.pop(0) if self.rows.memrefs() else None)
        elements, *scales = rest
        memory = _Memory(activations, elements, scales[0] if scales else None, result)
        width = index(self.tile.columns_a_workgroup)
        first = arith.muli(workgroup(0), width)
        last = arith.minui(arith.addi(first, width), index(self.registers))
        whole = self.registers // self.tile.columns * self.tile.columns
        parts = [(self.tile.columns, whole), (1, self.registers)]
        for size, limit in parts if whole < self.registers else parts[:1]:
            stop = arith.minui(last, index(limit))
            with loop(first, stop, index(size)) as (register, _, _):
                columns = [arith.addi(register, index(i)) for i in range(size)]
                for row, rows in self.rows.tiles(span, self.tile.rows):
                    self._tile(memory, span, row, rows, columns)
                scf.YieldOp([])
            first = arith.maxui(first, index(whole))

    def _tile(
        self, memory: _Memory, span: Span, row: ir.Value, rows: int, registers: list[ir.Value]
    ) -> None:
        isa, weights, kind = self.isa, self.weights, self.weights.kind
        expert = [] if span.expert is None else [span.expert]
        columns = [weights.column(isa, expert, register) for register in registers]
        results = [span.row(arith.addi(row, index(i))) for i in range(rows)]
        sources = [self.rows.source(result) for result in results]
        cells = [(i, j) for i in range(rows) for j in range(len(columns))]
        split = min(MAX_SPLIT, -(-CHAINS // len(cells)))
        scaled = weights.scaled or self.prepared.scaled
        nothing, none = splat(0.0, f32(), isa.lanes), zero(kind, isa.lanes)
        carried = [nothing] * (len(cells) * (1 if scaled else split))
        with loop(index(0), index(self.blocks), index(1), carried) as (block, totals, op):
            if self.tile.prefetch:
                ahead = arith.addi(block, index(self.tile.prefetch))
                for column in columns:
                    weights.prefetch(isa, memory.elements, column, ahead)
            sums = list(totals)
            if scaled:
                begun = self._begin(memory, sources, block)
                sums = [v for i, _ in cells for v in [begun[i], *[none] * (split - 1)]]
            steps = [weights.steps(isa, memory.elements, column, block) for column in columns]
            for step, decoded in enumerate(zip(*steps, strict=True)):
                for i in range(rows):
                    one = self._operand(memory, sources[i], block, step)
                    for j, register in enumerate(decoded):
                        chain = (i * len(columns) + j) * split + step % split
                        sums[chain] = self._dot(sums[chain], register, one)
            if scaled:
                parts = [sums[c * split : (c + 1) * split] for c in range(len(cells))]
                sums = self._scale(memory, sources, columns, block, parts, totals)
            scf.YieldOp(sums)
        totals = list(op.results)
        if not scaled:
            totals = [_sum(totals[c * split : (c + 1) * split]) for c in range(len(cells))]
        for (i, j), total in zip(cells, totals, strict=True):
            self._store(memory.result, results[i], registers[j], self._worth(total))

    def _begin(
        self, memory: _Memory, sources: Sequence[ir.Value], block: ir.Value
    ) -> list[ir.Value]:
        """What the sums of each row begin with."""
        lanes, kind = self.isa.lanes, self.weights.kind
        if kind != "quads":
            return [zero(kind, lanes)] * len(sources)
        at = index(self.prepared.start_at)
        return [broadcast(memory.activations, [source, block, at], lanes) for source in sources]

    def _operand(self, memory: _Memory, source: ir.Value, block: ir.Value, step: int) -> ir.Value:
        lanes = self.isa.lanes
        one = broadcast(memory.activations, [source, block, index(step)], lanes)
        kind = self.weights.kind
        if kind == "pairs":
            return bitcast(one, ir.BF16Type.get(), 2 * lanes)
        return bitcast(one, i8(), 4 * lanes) if kind == "quads" else bitcast(one, f32(), lanes)

    def _dot(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        if self.weights.kind == "pairs":
            return self.isa.dot_pairs(total, weight, one)
        if self.weights.kind == "quads":
            return self.isa.dot_quads(total, weight, one)
        return math.fma(weight, one, total)

    def _scale(
        self,
        memory: _Memory,
        sources: Sequence[ir.Value],
        columns: Sequence[Column],
        block: ir.Value,
        sums: Sequence[Sequence[ir.Value]],
        totals: Sequence[ir.Value],
    ) -> list[ir.Value]:
        """totals + sums under the scales of the block."""
        lanes = self.isa.lanes
        by_column = (
            [self.weights.scale(self.isa, memory.scales, column, block) for column in columns]
            if memory.scales is not None
            else []
        )
        found = []
        for i, source in enumerate(sources):
            by_row = None
            if self.prepared.scaled:
                at = index(self.prepared.scale_at)
                by_row = broadcast(memory.activations, [source, block, at], lanes)
                by_row = bitcast(by_row, f32(), lanes)
            for j in range(len(columns)):
                cell = i * len(columns) + j
                total = _sum(sums[cell])
                if self.weights.kind == "quads":
                    total = arith.sitofp(of(f32(), lanes), total)
                scales = [*by_column[j : j + 1], *([] if by_row is None else [by_row])]
                for scale in scales[:-1]:
                    total = arith.mulf(total, scale)
                found.append(math.fma(total, scales[-1], totals[cell]))
        return found

    def _worth(self, total: ir.Value) -> ir.Value:
        """The total in ones: quads count in the units of both sides. A power of two: exact."""
        unit = self.prepared.unit * self.weights.elements.unit
        if self.weights.kind != "quads" or unit == 1.0:
            return total
        return arith.mulf(total, splat(unit, f32(), self.isa.lanes))

    def _store(self, result: ir.Value, row: ir.Value, register: ir.Value, total: ir.Value) -> None:
        lanes = self.isa.lanes
        column = arith.muli(register, index(lanes))
        if self.columns % PANEL == 0:
            vector.store(total, result, [row, column])
            return
        left = arith.subi(index(self.columns), column)
        mask = vector.create_mask(of(i1(), lanes), [left])
        vector.maskedstore(result, [row, column], mask, total)


def _sum(values: Sequence[ir.Value]) -> ir.Value:
    total = values[0]
    for value in values[1:]:
        integer = isinstance(ir.VectorType(value.type).element_type, ir.IntegerType)
        total = arith.addi(total, value) if integer else arith.addf(total, value)
    return total
