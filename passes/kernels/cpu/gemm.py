"""The contraction on vector registers (kernels/vectors.py) as a CPU kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf

from mxc.formats.panels import PANEL
from mxc.kernels.language import Kernel
from mxc.kernels.lowering.index import Number, value_of
from mxc.kernels.lowering.nest import lower
from mxc.kernels.lowering.vectors import Vectors
from mxc.kernels.vectors import VectorPlan, scheduled
from mxc.passes.kernels.cpu.elements import FloatElements
from mxc.passes.kernels.cpu.isa import Isa
from mxc.passes.kernels.cpu.product import CpuProduct, ProductBuffers, put
from mxc.passes.kernels.cpu.quantize.output import BlockTile
from mxc.passes.kernels.cpu.schedule import OPERANDS
from mxc.passes.kernels.cpu.weights import Column, Later
from mxc.passes.kernels.finish import ResultColumns
from mxc.passes.kernels.narrow_floats import rounded
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import bitcast, broadcast, equal, f32, i8, index, of

#: Elements along K of a short block, see `Gemm._short`.
_SHORT = 16


@dataclass(frozen=True, kw_only=True)
class VectorProduct(CpuProduct):
    """A contraction on the vector registers of one instruction set."""

    isa: Isa

    @property
    def lanes(self) -> int:
        """Number of columns of a register."""
        return self.isa.lanes

    @property
    def registers(self) -> int:
        """Number of registers of columns of one half of the weights, with the padding of the last
        panel."""
        return -(-self.columns // PANEL) * PANEL // self.lanes // self.halves

    def nest(self, given: ProductBuffers, kernel: Kernel, rows: int) -> None:
        """Emit the loop nest of `kernel`, whose tiles have at most `rows` rows."""
        blocks = None
        if self.out is not None:
            blocks = BlockTile.of(self.out, given.results[0], given.results[1], rows)
        lower(
            kernel,
            given.arrays,
            {**self.sizes, **{axis: n for axis, n in kernel.sizes.items() if n is not None}},
            lambda kernel, places: self.statements(
                kernel=kernel, places=places, product=self, memory=given, blocks=blocks
            ),
        )

    @property
    def statements(self) -> type[Registers]:
        """The class that emits the statements of a nest."""
        return Registers


@dataclass(frozen=True, kw_only=True)
class Gemm(VectorProduct):
    """A contraction kernel on vector registers, with the schedule `plan`."""

    plan: VectorPlan

    @cached_property
    def kernel(self) -> Kernel:
        """The scheduled kernel for several rows."""
        return self.nests[0]

    @cached_property
    def nests(self) -> list[Kernel]:
        """The scheduled kernel for several rows, and one for a single row if the plan has one."""
        activations = OPERANDS[self.weights.kind]
        found = [scheduled(self._short.contraction(activations=activations), self.plan)]
        if self.plan.alone is not None:
            contraction = replace(self.contraction(activations=activations), rows=1)
            found.append(scheduled(contraction, self.plan.alone))
        return found

    @property
    def _short(self) -> Self:
        """This kernel with blocks of 16 elements along K, if it has a nest for several rows besides
        that for one row, and its weights are floats; else this kernel itself. A nest is unrolled
        over a block. Floats are not decoded, so that a shorter nest is as fast."""
        elements, prepared = self.weights.elements, self.prepared
        if self.plan.alone is None or not isinstance(elements, FloatElements):
            return self
        parts = elements.block // _SHORT
        return replace(
            self,
            weights=replace(self.weights, elements=replace(elements, block=_SHORT)),
            prepared=replace(prepared, order=prepared.order[: len(prepared.order) // parts]),
            steps=self.steps * parts,
        )

    def _split(self, given: ProductBuffers) -> ProductBuffers:
        """The buffers of the kernel with longer blocks, reshaped for the blocks of this kernel."""
        a = _in_parts(given.arrays["A"], self.prepared.dwords, 0)
        elements = _in_parts(given.elements, self.weights.elements.units, 1)
        return replace(given, arrays={**given.arrays, "A": a}, elements=elements)

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        given = self.memory(buffers)
        nest, *one = self.nests
        if not one:
            self.nest(given, nest, self.plan.rows)
            return
        alone = equal(self.rows_of_group(given), 1)
        branch = scf.IfOp(alone, has_else=True)
        with ir.InsertionPoint(branch.then_block):
            self.nest(given, one[0], 1)
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            short = self._short
            memory = given if short is self else short._split(given)
            short.nest(memory, nest, self.plan.rows)
            scf.YieldOp([])


def _in_parts(memory: ir.Value, size: int, behind: int) -> ir.Value:
    """View a memref [.., blocks, units, ..] as [.., parts, size, ..]. `behind`: number of
    dimensions after the units."""
    kind = ir.MemRefType(memory.type)
    at = kind.rank - behind - 2
    blocks, units = kind.shape[at : at + 2]
    shape = [*kind.shape[:at], blocks * units // size, size, *kind.shape[at + 2 :]]
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    result = ir.MemRefType.get(shape, kind.element_type)
    sizes = [memref.DimOp(memory, index(axis)).result for axis, n in enumerate(shape) if n < 0]
    return memref.ReinterpretCastOp(result, memory, [], sizes, [], [0], shape, strides).result


@dataclass(frozen=True, kw_only=True)
class Registers(Vectors):
    """Emits the statements of a kernel for the instruction set of `product`. `blocks`: scratch for
    results that become MX blocks."""

    product: VectorProduct
    memory: ProductBuffers
    blocks: BlockTile | None

    @property
    def lanes(self) -> int:
        """Number of columns of a register."""
        return self.product.lanes

    def column(self, e: Number | None, h: Number, n: Number) -> Column:
        """The register of columns that begins at column n of half h."""
        register = value_of(n // self.lanes + h * self.product.registers)
        expert = [] if e is None else [value_of(e)]
        return self.product.weights.column(self.product.isa, expert, register)

    def decode(self, columns: Sequence[Column], k: Number, ahead: int) -> list[Iterator[ir.Value]]:
        """For each register of columns, yield the register of each step of a block."""
        return [self.steps(columns, number, k, ahead) for number in range(len(columns))]

    def steps(
        self, columns: Sequence[Column], number: int, k: Number, ahead: int
    ) -> Iterator[ir.Value]:
        """Yield the operands of the steps of a block of register `number` of `columns`. They are
        scaled and rounded if the weights are."""
        found = self.block_steps(columns, number, self._block(k), ahead)
        if not self.product.weights.rounded:
            yield from found
            return
        kind = ir.Type.parse(self.product.weights.rounded)
        scale = self.factor(columns[number], k)
        for register in found:
            yield rounded(register * scale, kind)

    def block_steps(
        self, columns: Sequence[Column], number: int, block: ir.Value, ahead: int
    ) -> Iterator[ir.Value]:
        """Yield the decoded operands of the steps of a block of register `number` of `columns`.
        Prefetch the block that is `ahead` elements later or, past the end of K, one of the next
        columns."""
        product, memory, column = self.product, self.memory, columns[number]
        weights, narrow, later = product.weights, PANEL // self.lanes, None
        # Registers of one panel share cache lines: only the first prefetches.
        if ahead and number % narrow == 0:
            far, limit = block + ahead // weights.elements.block, index(product.steps)
            behind = arith.cmpi(arith.CmpIPredicate.uge, far, limit)
            together = len(columns) // product.halves
            step = arith.select(behind, index(max(1, together // narrow)), index(0))
            *expert, panel = column.place
            later = Later(
                [*expert, panel + step],
                arith.select(behind, far - limit, far),
                memory.scales,
            )
        return weights.steps(product.isa, memory.elements, column, block, later)

    def operand(self, dwords: ir.Value) -> ir.Value:
        """Bitcast dwords to the operand type of the dot product."""
        kind, lanes = self.product.weights.kind, self.lanes
        if kind == "pairs":
            return bitcast(dwords, ir.BF16Type.get(), 2 * lanes)
        return bitcast(dwords, *((i8(), 4 * lanes) if kind == "quads" else (f32(), lanes)))

    def factor(self, column: Column, k: Number) -> ir.Value:
        """The f32 scales of a block of weights."""
        assert self.memory.scales is not None
        weights, block = self.product.weights, self._block(k)
        return weights.scale(self.product.isa, self.memory.scales, column, block)

    def activations(self, name: str, row: Number, k: Number, step: int = 0) -> ir.Value:
        """Load a dword of the prepared row, and broadcast it to all lanes."""
        prepared = self.product.prepared
        place = {"A": step, "SA": prepared.scale_at, "OA": prepared.start_at}[name]
        at = [value_of(row), self._block(k), index(place)]
        return broadcast(self.memory.arrays["A"], at, self.lanes)

    def dot(self, sums: ir.Value, weights: ir.Value, activations: ir.Value) -> ir.Value:
        """`sums` plus the dot product."""
        isa, kind = self.product.isa, self.product.weights.kind
        if kind == "floats":
            return isa.multiply_add(weights, activations, sums)
        product = isa.dot_pairs if kind == "pairs" else isa.dot_quads
        return product(sums, weights, activations)

    def scaled(self, total: ir.Value, sums: ir.Value, factors: Sequence[ir.Value]) -> ir.Value:
        """total + sums * factors, if any. The scale of the weights is the last factor, because the
        scales of activations include units (`Prepared.weight_unit`)."""
        if self.product.weights.kind == "quads":
            sums = arith.sitofp(of(f32(), self.lanes), sums)
        if not factors:
            return total + sums
        *first, last = factors
        for factor in first:
            sums = sums * factor
        return self.product.isa.multiply_add(sums, last, total)

    def finish(self, totals: Sequence[ir.Value], row: Number, n: Number) -> ir.Value:
        """Apply the epilogue to totals."""
        places = self.product.places(value_of(row), value_of(n))
        return self.memory.finish.apply(list(totals), places)

    def put(self, value: ir.Value, row: Number, n: Number) -> None:
        """Store a register of results."""
        put(value, self.memory.results[0], self._cell(row, n))

    def wait(self, value: ir.Value, number: int, n: Number) -> None:
        """Keep results of a row in scratch until their block is complete."""
        assert self.blocks is not None
        self.blocks.put(value, number, value_of(n))

    def round(self, rows: Sequence[Number], n: Number) -> None:
        """Quantize and store the complete blocks of the rows of a tile."""
        assert self.blocks is not None
        self.blocks.store([value_of(row) for row in rows], value_of(n // BLOCK))

    def _cell(self, row: Number, n: Number) -> ResultColumns:
        return self.product.places(value_of(row), value_of(n))[0]

    def _block(self, k: Number) -> ir.Value:
        return value_of(k // self.product.weights.elements.block)
