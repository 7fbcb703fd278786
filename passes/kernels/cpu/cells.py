"""Rows of a workgroup by some registers of columns: tiles, steps, scales, stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iree.compiler import ir
from iree.compiler.dialects import arith, scf, vector

from mxc.passes.kernels.cpu.isa import Kind, zero
from mxc.passes.kernels.cpu.quantise.output import BlockTile
from mxc.passes.kernels.cpu.rows import Span
from mxc.passes.kernels.cpu.weights import PANEL, Column
from mxc.passes.kernels.finish import Finish, Place
from mxc.passes.kernels.narrow_floats import narrowed, rounded
from mxc.passes.kernels.vectors import bitcast, broadcast, f32, i1, i8, index, load, loop, of, splat

if TYPE_CHECKING:
    from mxc.passes.kernels.cpu.gemm import Gemm

#: Sums of one cell, at most.
MAX_SPLIT = 4
#: Registers that are not for sums: weights, an activation, a table.
OTHERS = 6


@dataclass(frozen=True)
class Memory:
    """The memrefs that a tile reads and writes; `result`: the first, where there are several."""

    activations: ir.Value
    elements: ir.Value
    scales: ir.Value | None
    result: ir.Value
    finish: Finish


#: Gives the registers of each step of a block, a list with one for each column.
Steps = Callable[[ir.Value], Iterator[Sequence[ir.Value]]]

#: Gives the scales of a block, one for each column.
ScalesOf = Callable[[ir.Value], Sequence[ir.Value]]


@dataclass(frozen=True)
class Stage:
    """Memory for decoded weights, [blocks, columns, steps, bytes], and for their scales, f32
    [blocks, columns, lanes]."""

    elements: ir.Value
    scales: ir.Value | None


@dataclass(frozen=True)
class Reading:
    """Where weights of a block come from."""

    steps: Steps
    scales: ScalesOf


@dataclass(frozen=True)
class Cells:
    """Rows of a workgroup by some registers of columns."""

    gemm: Gemm
    memory: Memory
    span: Span
    registers: Sequence[ir.Value]
    columns: Sequence[Column]

    def whole(self) -> None:
        """Every tile of rows decodes the weights by itself, in registers."""
        gemm = self.gemm
        for results in gemm.rows.tiles(self.span, gemm.tile.rows):
            zero, last = index(0), index(gemm.blocks)
            self._store(results, self._totals(results, zero, last, None, self._direct))

    def staged(self, stage: Stage) -> None:
        """Some blocks are decoded to memory, once for all tiles of rows, whose sums so far wait in
        the result."""
        gemm = self.gemm
        step = index(gemm.tile.staged_blocks)
        with loop(index(0), index(gemm.blocks), step) as (first, _, _):
            last = arith.minui(arith.addi(first, step), index(gemm.blocks))
            with loop(first, last, index(1)) as (block, _, _):
                place = arith.subi(block, first)
                for number, decoded in enumerate(self._decoded(block)):
                    for j, register in enumerate(decoded):
                        at = [place, index(j), index(number), index(0)]
                        raw = bitcast(register, i8(), 4 * gemm.isa.lanes)
                        vector.store(raw, stage.elements, at)
                if stage.scales is not None:
                    for j, scale in enumerate(self._scales(block)):
                        vector.store(scale, stage.scales, [place, index(j), index(0)])
                scf.YieldOp([])

            def read(block: ir.Value) -> Iterator[Sequence[ir.Value]]:
                place = arith.subi(block, first)
                for number in range(gemm.weights.step_count):
                    yield [
                        self._staged_register(
                            stage.elements, [place, index(j), index(number), index(0)]
                        )
                        for j in range(len(self.columns))
                    ]

            def scales(block: ir.Value) -> Sequence[ir.Value]:
                if stage.scales is None:
                    return []
                place = arith.subi(block, first)
                lanes = gemm.isa.lanes
                return [
                    load(stage.scales, [place, index(j), index(0)], f32(), lanes)
                    for j in range(len(self.columns))
                ]

            begun = arith.cmpi(arith.CmpIPredicate.ne, first, index(0))
            for results in gemm.rows.tiles(self.span, gemm.tile.rows):
                reading = Reading(read, scales)
                self._store(results, self._totals(results, first, last, begun, reading))
            scf.YieldOp([])

    def _staged_register(self, stage: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        lanes = self.gemm.isa.lanes
        return _as_operand(load(stage, at, i8(), 4 * lanes), self.gemm.weights.kind, lanes)

    @property
    def _direct(self) -> Reading:
        """Weights as they lie, decoded to registers."""
        return Reading(self._decoded, self._scales)

    def _decoded(self, block: ir.Value) -> Iterator[Sequence[ir.Value]]:
        gemm = self.gemm
        elements = self.memory.elements
        if gemm.tile.prefetch:
            self._prefetch(block)
        steps = [gemm.weights.steps(gemm.isa, elements, c, block) for c in self.columns]
        if not gemm.weights.rounded:
            yield from zip(*steps, strict=True)
            return
        scales, kind = self._scales(block), ir.Type.parse(gemm.weights.rounded)
        for decoded in zip(*steps, strict=True):
            yield [
                rounded(arith.mulf(register, scale), kind)
                for register, scale in zip(decoded, scales, strict=True)
            ]

    def _scales(self, block: ir.Value) -> Sequence[ir.Value]:
        """The f32 scales of a block, for each column; none where it has none."""
        gemm, scales = self.gemm, self.memory.scales
        if scales is None:
            return []
        return [gemm.weights.scale(gemm.isa, scales, c, block) for c in self.columns]

    def _prefetch(self, block: ir.Value) -> None:
        """Ask for what is multiplied some blocks later: at the end of K, of the next columns."""
        gemm, memory = self.gemm, self.memory
        ahead = arith.addi(block, index(gemm.tile.prefetch))
        limit = index(gemm.blocks)
        behind = arith.cmpi(arith.CmpIPredicate.uge, ahead, limit)
        ahead = arith.select(behind, arith.subi(ahead, limit), ahead)
        # Columns of one panel are in the same cache lines.
        narrow = PANEL // gemm.isa.lanes
        panels = self.columns[::narrow]
        together = len(self.columns) // (2 if memory.finish.epilogue.gated else 1)
        step = arith.select(behind, index(max(1, together // narrow)), index(0))
        for column in panels:
            *expert, panel = column.place
            place = [*expert, arith.addi(panel, step)]
            gemm.weights.prefetch(gemm.isa, memory.elements, memory.scales, place, ahead)

    def _totals(
        self,
        results: Sequence[ir.Value],
        first: ir.Value,
        last: ir.Value,
        begun: ir.Value | None,
        reading: Reading,
    ) -> list[ir.Value]:
        """The totals of a tile, cell by cell, row by row; `begun`: the result holds some."""
        gemm, lanes, kind = self.gemm, self.gemm.isa.lanes, self.gemm.weights.kind
        sources = [gemm.rows.source(result) for result in results]
        cells = len(results) * len(self.columns)
        room = max(1, (gemm.isa.registers - OTHERS) // cells)
        # Of sorted rows the height of the tile depends on other rows, and no sum may.
        split = 1 if gemm.rows.sorted else min(MAX_SPLIT, -(-gemm.isa.chains(kind) // cells), room)
        scaled = gemm.weights.scales_sums or gemm.prepared.scaled
        nothing, none = splat(0.0, f32(), lanes), zero(kind, lanes)
        each = 1 if scaled else split
        carried = [nothing] * (cells * each)
        if begun is not None:
            for cell in range(cells):
                row, register = results[cell // len(self.columns)], cell % len(self.columns)
                before = self._load(row, self.registers[register])
                carried[cell * each] = arith.select(begun, before, nothing)
        with loop(first, last, index(1), carried) as (block, totals, op):
            sums = list(totals)
            if scaled:
                starts = self._begin(sources, block)
                sums = [
                    value
                    for start in starts
                    for _ in self.columns
                    for value in [start, *[none] * (split - 1)]
                ]
            for step, decoded in enumerate(reading.steps(block)):
                for i, source in enumerate(sources):
                    one = self._operand(source, block, step)
                    for j, register in enumerate(decoded):
                        chain = (i * len(decoded) + j) * split + step % split
                        sums[chain] = self._dot(sums[chain], register, one)
            if scaled:
                parts = [sums[c * split : (c + 1) * split] for c in range(cells)]
                sums = self._scale(sources, block, parts, totals, reading.scales(block))
            scf.YieldOp(sums)
        found = list(op.results)
        return found if scaled else [_sum(found[c * split : (c + 1) * split]) for c in range(cells)]

    def _begin(self, sources: Sequence[ir.Value], block: ir.Value) -> list[ir.Value]:
        """What the sums of each row begin with."""
        gemm = self.gemm
        if gemm.weights.kind != "quads":
            return [zero(gemm.weights.kind, gemm.isa.lanes)] * len(sources)
        return [self._dword(source, block, gemm.prepared.start_at) for source in sources]

    def _dword(self, source: ir.Value, block: ir.Value, place: int) -> ir.Value:
        """A dword of the prepared activations in every lane."""
        at = [source, block, index(place)]
        return broadcast(self.memory.activations, at, self.gemm.isa.lanes)

    def _operand(self, source: ir.Value, block: ir.Value, step: int) -> ir.Value:
        one = self._dword(source, block, step)
        return _as_operand(one, self.gemm.weights.kind, self.gemm.isa.lanes)

    def _dot(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        gemm = self.gemm
        if gemm.weights.kind == "pairs":
            return gemm.isa.dot_pairs(total, weight, one)
        if gemm.weights.kind == "quads":
            return gemm.isa.dot_quads(total, weight, one)
        return gemm.isa.multiply_add(weight, one, total)

    def _scale(
        self,
        sources: Sequence[ir.Value],
        block: ir.Value,
        sums: Sequence[Sequence[ir.Value]],
        totals: Sequence[ir.Value],
        by_column: Sequence[ir.Value],
    ) -> list[ir.Value]:
        """totals + sums under the scales of the block."""
        gemm, lanes = self.gemm, self.gemm.isa.lanes
        found = []
        for i, source in enumerate(sources):
            by_row: list[ir.Value] = []
            if gemm.prepared.scaled:
                bits = self._dword(source, block, gemm.prepared.scale_at)
                by_row = [bitcast(bits, f32(), lanes)]
            for j in range(len(self.columns)):
                cell = i * len(self.columns) + j
                total = _sum(sums[cell])
                if gemm.weights.kind == "quads":
                    total = arith.sitofp(of(f32(), lanes), total)
                # The scale of the weight last: see `Prepared`.
                late = by_column[j : j + 1] if gemm.weights.scales_sums else []
                *first, last = [*by_row, *late]
                for scale in first:
                    total = arith.mulf(total, scale)
                found.append(gemm.isa.multiply_add(total, last, totals[cell]))
        return found

    def _place(self, register: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """The first column of a register, and which of its lanes are columns of the result."""
        lanes = self.gemm.isa.lanes
        column = arith.muli(register, index(lanes))
        if self.gemm.columns % PANEL == 0:
            return column, None
        left = arith.subi(index(self.gemm.columns), column)
        return column, vector.create_mask(of(i1(), lanes), [left])

    def _load(self, row: ir.Value, register: ir.Value) -> ir.Value:
        column, mask = self._place(register)
        kind = of(f32(), self.gemm.isa.lanes)
        if mask is None:
            return vector.load(kind, self.memory.result, [row, column])
        nothing = splat(0.0, f32(), self.gemm.isa.lanes)
        return vector.maskedload(kind, self.memory.result, [row, column], mask, nothing)

    def _store(self, results: Sequence[ir.Value], totals: Sequence[ir.Value]) -> None:
        """Finish and store the cells of each row."""
        element = ir.MemRefType(self.memory.result.type).element_type
        for _, _, place, found in self._finished(results, totals):
            at, value = [place.row, place.column], narrowed(found, element)
            if place.mask is None:
                vector.store(value, self.memory.result, at)
            else:
                vector.maskedstore(self.memory.result, at, place.mask, value)

    def put(self, tile: BlockTile, results: Sequence[ir.Value], first: ir.Value) -> None:
        """Compute the cells of each row, which go on to blocks; `first`: where in one they are."""
        totals = self._totals(results, index(0), index(self.gemm.blocks), None, self._direct)
        for row, number, _, value in self._finished(results, totals):
            tile.put(value, row, arith.addi(first, index(number * self.gemm.isa.lanes)))

    def _finished(
        self, results: Sequence[ir.Value], totals: Sequence[ir.Value]
    ) -> Iterator[tuple[int, int, Place, ir.Value]]:
        """Row, register, place and result of each cell; of a gate, of the two that belong
        together."""
        width = len(self.columns)
        stored = width // (2 if self.memory.finish.epilogue.gated else 1)
        for i, row in enumerate(results):
            for j in range(stored):
                together = range(j, width, stored)
                places = [Place(row, *self._place(self.registers[k])) for k in together]
                values = [totals[i * width + k] for k in together]
                yield i, j, places[0], self.memory.finish.apply(values, places)


def _as_operand(dwords: ir.Value, kind: Kind, lanes: int) -> ir.Value:
    """Dwords (of any element type) as an operand of a dot product."""
    if kind == "pairs":
        return bitcast(dwords, ir.BF16Type.get(), 2 * lanes)
    return bitcast(dwords, *((i8(), 4 * lanes) if kind == "quads" else (f32(), lanes)))


def _sum(values: Sequence[ir.Value]) -> ir.Value:
    total = values[0]
    for value in values[1:]:
        integer = isinstance(ir.VectorType(value.type).element_type, ir.IntegerType)
        total = arith.addi(total, value) if integer else arith.addf(total, value)
    return total
