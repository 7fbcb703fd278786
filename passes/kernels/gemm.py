"""Activations times packed weights: one kernel body for decode and prefill, dense and MX.

    result[g, m, n] = sum over k of activations[g, m, k] * weights[e(g), n, k]

A workgroup has some panels of one group. For each panel it takes the rows in register tiles; for
each tile it walks K block by block: decode a step of the panel once, use it for every row.

    for panel, for tile of rows:
      totals = 0
      for block in K:                                   # weights are prefetched ahead
        sums = 0
        for step: register = decode(panel, block, step)
                  for row: sums[row] = dot(sums[row], register, activations[row, block, step])
        totals[row] += sums[row] * scale(panel, block)   # without scales: totals are the sums
      result[rows, panel] = totals
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf, vector

from mxc.dialects import x86
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.vectors import bitcast, broadcast, i32, index, loop, of, prefetch, splat
from mxc.passes.kernels.weights import BLOCK, LANES, Weights

#: Rows of a register tile, and chains of dependent dot products that hide their latency.
TILE_ROWS = 8
CHAINS = 12
MAX_SPLIT = 4

#: Blocks ahead that weights are asked for; bytes that come at once.
PREFETCH_BLOCKS = 32
CACHE_LINE = 64


@dataclass(frozen=True)
class Shape:
    """Sizes of one kernel: groups, rows of each, columns, blocks of 32 along K.

    `gathered`: a group's weights are those of the expert that its id names.
    """

    groups: int
    rows: int
    columns: int
    blocks: int
    gathered: bool
    panels_a_workgroup: int

    @property
    def panels(self) -> int:
        """Panels of the weights, the last one padded."""
        return -(-self.columns // LANES)

    @property
    def workgroups(self) -> tuple[int, int]:
        """Workgroups along panels and along groups."""
        return -(-self.panels // self.panels_a_workgroup), self.groups


@dataclass(frozen=True)
class Buffers:
    """The memrefs of a kernel; `scales` and `ids` where it has them."""

    activations: ir.Value
    ids: ir.Value | None
    weights: ir.Value
    scales: ir.Value | None
    result: ir.Value


def gemm(shape: Shape, weights: Weights, buffers: Buffers) -> None:
    """Build the body at the insertion point."""
    weights.prepare()
    group = workgroup(1)
    place: list[ir.Value] = []
    if buffers.ids is not None:
        expert = memref.LoadOp(buffers.ids, [group]).result
        place = [arith.index_cast(ir.IndexType.get(), expert)]
    first = arith.muli(workgroup(0), index(shape.panels_a_workgroup))
    behind = arith.addi(first, index(shape.panels_a_workgroup))
    last = arith.minui(behind, index(shape.panels))
    whole = shape.rows // TILE_ROWS * TILE_ROWS
    with loop(first, last, index(1)) as (panel, _, _):
        tile = _Tile(shape, weights, buffers, group, [*place, panel], panel)
        if whole:
            with loop(index(0), index(whole), index(TILE_ROWS)) as (row, _, _):
                tile.build(row, TILE_ROWS)
                scf.YieldOp([])
        if shape.rows > whole:
            tile.build(index(whole), shape.rows - whole)
        scf.YieldOp([])


@dataclass(frozen=True)
class _Tile:
    shape: Shape
    weights: Weights
    buffers: Buffers
    group: ir.Value
    place: Sequence[ir.Value]
    panel: ir.Value

    def build(self, row: ir.Value, count: int) -> None:
        """`count` rows from `row` of the panel."""
        f32 = ir.F32Type.get()
        zero = splat(0.0, f32, LANES)
        rows = [arith.addi(row, index(i)) for i in range(count)]
        split = min(MAX_SPLIT, -(-CHAINS // count))
        scaled = self.buffers.scales is not None
        carried = [zero] * (count if scaled else count * split)
        with loop(index(0), index(self.shape.blocks), index(1), carried) as (k, totals, op):
            self._prefetch(k)
            sums = [zero] * (count * split) if scaled else list(totals)
            for step in range(self.weights.steps):
                register = self.weights.decode(step, self.buffers.weights, [*self.place, k])
                for i in range(count):
                    chain = i * split + step % split
                    one = self._activation(rows[i], k, step)
                    sums[chain] = self._multiply(sums[chain], register, one)
            if scaled:
                scale = self.weights.scale(self.buffers.scales, [*self.place, k])
                added = [_sum(sums[i * split : (i + 1) * split]) for i in range(count)]
                sums = [
                    math.fma(total, scale, before)
                    for total, before in zip(added, totals, strict=True)
                ]
            scf.YieldOp(sums)
        totals = list(op.results)
        if not scaled:
            totals = [_sum(totals[i * split : (i + 1) * split]) for i in range(count)]
        self._store(rows, totals)

    def _prefetch(self, k: ir.Value) -> None:
        ahead = arith.addi(k, index(PREFETCH_BLOCKS))
        kind = ir.MemRefType(self.buffers.weights.type)
        *_, rows, width = kind.shape
        row_bytes = width * kind.element_type.width // 8
        for row in range(0, rows, max(1, CACHE_LINE // row_bytes)):
            prefetch(self.buffers.weights, [*self.place, ahead, index(row), index(0)])

    def _activation(self, row: ir.Value, k: ir.Value, step: int) -> ir.Value:
        one = broadcast(self.buffers.activations, [self.group, row, k, index(step)], LANES)
        return bitcast(one, ir.BF16Type.get(), 2 * LANES) if self.weights.pair else one

    def _multiply(self, total: ir.Value, weight: ir.Value, one: ir.Value) -> ir.Value:
        if self.weights.pair:
            return x86.dot_bf16(total, weight, one)
        return math.fma(weight, one, total)

    def _store(self, rows: Sequence[ir.Value], totals: Sequence[ir.Value]) -> None:
        column = arith.muli(self.panel, index(LANES))
        for row, total in zip(rows, totals, strict=True):
            at = [self.group, row, column]
            if self.shape.columns % LANES == 0:
                vector.store(total, self.buffers.result, at)
                continue
            left = arith.subi(index(self.shape.columns), column)
            mask = vector.create_mask(of(ir.IntegerType.get_signless(1), LANES), [left])
            vector.maskedstore(self.buffers.result, at, mask, total)


def _sum(values: Sequence[ir.Value]) -> ir.Value:
    total = values[0]
    for value in values[1:]:
        total = arith.addf(total, value)
    return total


def buffer_types(shape: Shape, weights: Weights, experts: int | None) -> list[ir.Type]:
    """Memref types in the order activations, ids, weights, scales, result."""
    f32 = ir.F32Type.get()
    element, width = (i32(), BLOCK // 2) if weights.pair else (f32, BLOCK)
    lead = [] if experts is None else [experts]
    return [
        ir.MemRefType.get([shape.groups, shape.rows, shape.blocks, width], element),
        *([] if experts is None else [ir.MemRefType.get([shape.groups], i32())]),
        *weights.memrefs([*lead, shape.panels, shape.blocks]),
        ir.MemRefType.get([shape.groups, shape.rows, shape.columns], f32),
    ]
