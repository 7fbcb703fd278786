"""Activations times weights: a kernel of the kernel language with its buffers.

    result[p, n] = sum over k of activations[p, k] * weights[e(p), n, k]

e(p) is the expert of row p.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.formats.panels import PANEL
from mxc.kernels.contraction import Choice, ContractionShape
from mxc.kernels.decode import BF16, F32, element_of, scale_element
from mxc.kernels.language import Element, Kernel
from mxc.kernels.lowering.nest import GRID, workgroup, workgroups
from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.elements import CodeElements
from mxc.passes.kernels.cpu.quantize.output import buffers as block_buffers
from mxc.passes.kernels.cpu.quantize.rounding import Rounding
from mxc.passes.kernels.cpu.rows import GroupedRows
from mxc.passes.kernels.cpu.weights import RegisterWeights
from mxc.passes.kernels.epilogues import NOTHING, Epilogue
from mxc.passes.kernels.extents import Buffer, Size, quotient_up, value_of
from mxc.passes.kernels.finish import Finish, ResultColumns
from mxc.passes.kernels.narrow_floats import narrowed
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.kernels.vectors import i1, index, of


@dataclass(frozen=True)
class ProductBuffers:
    """The memrefs of a kernel. `arrays`: activations and row indices, by their names in the kernel.
    `elements`, `scales`: the weights. `finish`: the epilogue. `results`: the result; its elements
    and scales if it is MX blocks."""

    arrays: dict[str, ir.Value]
    elements: ir.Value
    scales: ir.Value | None
    finish: Finish
    results: list[ir.Value]


@dataclass(frozen=True)
class CpuProduct(ABC):
    """A kernel that computes a product. `columns`: columns of the weights, over both halves of a
    gate. `steps`: number of blocks of prepared activations along K. `out`: if set, the result is
    quantized to MX blocks along the columns, of which all are whole."""

    weights: RegisterWeights
    prepared: Prepared
    rows: GroupedRows
    columns: int
    steps: int
    epilogue: Epilogue = NOTHING
    out: Rounding | None = None

    @property
    @abstractmethod
    def kernel(self) -> Kernel:
        """The scheduled kernel."""

    @property
    def nests(self) -> list[Kernel]:
        """The scheduled kernel, and the one for a single row if there is one."""
        return [self.kernel]

    @property
    @abstractmethod
    def lanes(self) -> int:
        """Number of columns that are finished at once."""

    @property
    def scalars(self) -> int:
        """Number of sizes that come with the call, as index values."""
        return self.rows.scalars

    def given(self, scalars: Sequence[ir.Value]) -> Self:
        """The kernel with the numbers of groups and rows that come with the call."""
        return replace(self, rows=self.rows.given(scalars)) if self.scalars else self

    @property
    def halves(self) -> int:
        """Number of halves of the weights that are multiplied together: two for a gate."""
        return 2 if self.epilogue.gated else 1

    @property
    def result_columns(self) -> int:
        """Number of columns of the result."""
        return self.columns // self.halves

    def contraction(self, *, activations: Element = BF16, copied: bool = False) -> ContractionShape:
        """The contraction that the kernel computes. `copied`: whether activations are copied in
        sorted order."""
        elements, scales, rows = self.weights.elements, self.weights.scales, self.rows
        choice: Choice = "all"
        if rows.experts:
            choice = "sorted" if rows.sorted else "own" if rows.own else "chosen"
        groups = rows.experts if rows.sorted else rows.groups
        weights = F32 if elements.type == "f32" else element_of(None)
        if isinstance(elements, CodeElements):
            weights = element_of(elements.element, self.weights.counts)
        return ContractionShape(
            columns=self.result_columns,
            depth=self.steps * self.prepared.block,
            weights=weights,
            scales=None if scales is None else scale_element(scales.type),
            block=self.prepared.block if scales is None else scales.block,
            rows=rows.rows if isinstance(rows.rows, int) and not rows.sorted else None,
            groups=groups if isinstance(groups, int) else None,
            experts=rows.experts,
            choice=choice,
            halves=self.halves,
            planes=self.prepared.planes,
            together=PANEL if self.out is None else BLOCK,
            activations=activations,
            scaled=self.prepared.scaled,
            step=self.prepared.block,
            share=rows.share,
            copied=copied,
        )

    @property
    def sizes(self) -> dict[str, int | ir.Value]:
        """The size of every axis, for one call."""
        found: dict[str, int | ir.Value] = {
            axis: size if size is not None else 0 for axis, size in self.kernel.sizes.items()
        }
        for axis, size in {"m": self.rows.rows, "g": self.rows.groups}.items():
            if isinstance(size, ir.Value) and not self.rows.sorted:
                found[axis] = size
        return found

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along columns, rows and groups."""
        sizes: dict[str, Size] = {"n": self.result_columns, "m": self.rows.rows}
        sizes["g"] = self.rows.most
        grid = workgroups(self.kernel)
        return [
            quotient_up(sizes[grid[at][0]], grid[at][1]) if at in grid else 1 for at in range(3)
        ]

    @property
    def buffers(self) -> list[Buffer]:
        """Activations, row indices if any, weights, scales, operands of the epilogue, results."""
        blocks = self.steps * self.prepared.block // self.weights.elements.block
        return [
            self._activations,
            *self.rows.buffers,
            *self.weights.buffers(self.rows.experts, -(-self.columns // PANEL), blocks),
            *self.epilogue.buffers(self.rows.results, self.rows.groups),
            *self._results,
        ]

    @property
    def _activations(self) -> Buffer:
        return self.prepared.buffer(self.rows.sources, self.steps)

    @property
    def _results(self) -> list[Buffer]:
        if self.out is None:
            return [Buffer([self.rows.results, self.result_columns], self.epilogue.result)]
        return block_buffers(self.out, self.rows.results, self.result_columns)

    def memory(self, buffers: Sequence[ir.Value]) -> ProductBuffers:
        """Assign the memrefs, which are in the order of `buffers`, to their roles."""
        rest = list(buffers)
        arrays, results = {"A": rest.pop(0)}, [rest.pop() for _ in self._results][::-1]
        if self.rows.buffers:
            arrays["ROUTES" if self.rows.sorted else "IDS"] = rest.pop(0)
        elements = rest.pop(0)
        scales = rest.pop(0) if self.weights.scaled else None
        keys = self.epilogue.operands
        operands = dict(zip(keys, rest, strict=True))
        finish = Finish(self.epilogue, operands, self.lanes, group=workgroup(GRID["g"]))
        return ProductBuffers(arrays, elements, scales, finish, results)

    def rows_of_group(self, given: ProductBuffers) -> ir.Value:
        """Number of rows of the group that this workgroup computes."""
        if not self.rows.sorted:
            return value_of(self.rows.rows)
        table, group = given.arrays["ROUTES"], workgroup(GRID["g"])
        begin = memref.LoadOp(table, [group]).result
        end = memref.LoadOp(table, [group + 1]).result
        return arith.index_cast(ir.IndexType.get(), end - begin)

    def places(self, row: ir.Value, column: ir.Value) -> list[ResultColumns]:
        """The row, first column and mask of a register of results; for a gate, also those of the
        register in the second half."""
        width, mask = self.result_columns, None
        if width % PANEL:
            mask = vector.create_mask(of(i1(), self.lanes), [index(width) - column])
        second = [column + width] * (self.halves - 1)
        return [ResultColumns(row, each, mask) for each in (column, *second)]


def put(value: ir.Value, result: ir.Value, place: ResultColumns) -> None:
    """Store f32 values as the type of the result. Columns past the end of the result are masked."""
    value = narrowed(value, ir.MemRefType(result.type).element_type)
    if place.mask is None:
        vector.store(value, result, [place.row, place.column])
    else:
        vector.maskedstore(result, [place.row, place.column], place.mask, value)
