"""One row of a product on vector registers, with the bits that tiles give (kernels/tile_rows.py).

Where scales multiply sums instead of elements, a workgroup first tests the magnitudes of the row
and its scales. If a number could leave the range of normal f32, tiles compute the row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.formats.panels import PANEL
from mxc.kernels.amx import TILE
from mxc.kernels.contraction import ContractionShape
from mxc.kernels.decode import STEP
from mxc.kernels.language import Do, Kernel
from mxc.kernels.lowering.index import Number, value_of
from mxc.kernels.lowering.nest import GRID
from mxc.kernels.lowering.places import CurrentTile
from mxc.kernels.tile_rows import ScaleRange, scales_sums, scheduled
from mxc.passes.kernels.cpu.gemm import Registers, VectorProduct
from mxc.passes.kernels.cpu.isa import halves
from mxc.passes.kernels.cpu.product import ProductBuffers
from mxc.passes.kernels.cpu.weights import CACHE_LINE, Column
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.vectors import (
    bitcast,
    equal,
    f32,
    i8,
    i16,
    i32,
    index,
    load,
    loop,
    of,
    splat,
)

#: Number of mantissa bits of a bf16, and a mask of all of its bits but the sign.
_MANTISSA, _MAGNITUDE = 7, 0x7FFF


@dataclass(frozen=True, kw_only=True)
class TileRow(VectorProduct):
    """The kernel of groups of one row. `steps`: number of blocks of weights along K. `shape`: the
    contraction that is computed. `width`: columns of a workgroup, over both halves of a gate."""

    shape: ContractionShape
    width: int

    @cached_property
    def kernel(self) -> Kernel:
        """The scheduled kernel."""
        return scheduled(self.shape, self.width)

    @property
    def statements(self) -> type[Registers]:
        """The class that emits the statements of the nest."""
        return _RowRegisters

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        self.nest(self.memory(buffers), self.kernel, 1)

    def serves(self, given: ProductBuffers) -> ir.Value:
        """Emit the test whether this workgroup may run this kernel instead of that on tiles: i1."""
        one = equal(self.rows_of_group(given), 1)
        if not scales_sums(self.shape):
            return one
        op = scf.IfOp(one, [one.type], has_else=True)
        with ir.InsertionPoint(op.then_block):
            scf.YieldOp([self._in_range(given)])
        with ir.InsertionPoint(op.else_block):
            scf.YieldOp([one])
        return op.results[0]

    def _in_range(self, given: ProductBuffers) -> ir.Value:
        """Whether the row and every scale of this workgroup are in the `ScaleRange`."""
        assert self.shape.weights.values is not None
        known = ScaleRange.of(self.shape.weights.values)
        least, most = self._exponents(given)
        low, high = self._bytes(given)
        below = arith.CmpIPredicate.sle
        tests = (
            (known.least_exponent, least),
            (most, known.most_exponent),
            (known.least_byte, low),
            (high, known.most_byte),
            (known.least_sum, low + least),
            (high + most, known.most_sum),
        )
        found = None
        for small, large in tests:
            pair = [splat(x, i32(), 1) if isinstance(x, int) else x for x in (small, large)]
            holds = arith.cmpi(below, *pair)
            found = holds if found is None else arith.andi(found, holds)
        return vector.extract(found, [], [0])

    def _exponents(self, given: ProductBuffers) -> tuple[ir.Value, ir.Value]:
        """The least biased exponent of activations that are not zero, and the largest of all: i32
        [1]."""
        row = self._entry(given, 0) if self.rows.sorted else workgroup(GRID["g"])
        size = 2 * TILE

        def look(block: ir.Value, least: ir.Value, most: ir.Value) -> list[ir.Value]:
            raw = load(given.arrays["A"], [row, block, index(0)], i32(), TILE)
            bits = bitcast(raw, i16(), size) & _MAGNITUDE
            # Zero minus one is the largest unsigned number, so that zeros do not count.
            return [arith.minui(least, bits - 1), arith.maxui(most, bits)]

        steps = index(self.shape.depth // STEP)
        start = [splat(-1, i16(), size), splat(0, i16(), size)]
        with loop(index(0), steps, index(1), start) as (block, (least, most), op):
            scf.YieldOp(look(block, least, most))
        small, large = _of_all(*op.results)
        return (small + 1) >> _MANTISSA, large >> _MANTISSA

    def _bytes(self, given: ProductBuffers) -> tuple[ir.Value, ir.Value]:
        """The least and the largest scale byte of the columns of this workgroup: i32 [1]."""
        assert given.scales is not None
        *experts, panels, blocks, _ = ir.MemRefType(given.scales.type).shape
        size = PANEL * blocks
        total = prod(experts) * panels * size
        flat = ir.MemRefType.get([total], i8())
        bytes = memref.ReinterpretCastOp(flat, given.scales, [], [], [], [0], [total], [1]).result
        width = next(n for n in (CACHE_LINE, CACHE_LINE // 2, PANEL) if n <= size)
        most = self.width // self.halves // PANEL
        first = workgroup(GRID["n"]) * most
        count = arith.minui(index(self.registers) - first, index(most)) * size
        if experts:
            first = first + self._entry(given, self.rows.experts + 1) * panels
        found = [splat(-1, i8(), width), splat(0, i8(), width)]
        for half in range(self.halves):
            begin = (first + half * self.registers) * size
            with loop(index(0), count, index(width), found) as (at, (low, high), op):
                # Bytes may be tested twice where `width` does not divide their number.
                at = arith.minui(at, count - width)
                raw = load(bytes, [begin + at], i8(), width)
                scf.YieldOp([arith.minui(low, raw), arith.maxui(high, raw)])
            found = list(op.results)
        low, high = _of_all(*found)
        return low, high

    def _entry(self, given: ProductBuffers, behind: int) -> ir.Value:
        """Load the entry of the routes that is `behind` entries after that of this workgroup's
        group."""
        at = workgroup(GRID["g"]) + behind
        return arith.index_cast(ir.IndexType.get(), memref.LoadOp(given.arrays["ROUTES"], [at]))


def _of_all(least: ir.Value, most: ir.Value) -> list[ir.Value]:
    """The unsigned minimum over the lanes of `least`, and the maximum over the lanes of `most`:
    each i32 [1]."""
    kind = ir.VectorType(least.type).element_type
    found = (
        vector.reduction(kind, how, values) for how, values in (("minui", least), ("maxui", most))
    )
    return [vector.broadcast(of(i32(), 1), arith.extui(i32(), each)) for each in found]


@dataclass(frozen=True, kw_only=True)
class _RowRegisters(Registers):
    """Emits the statements of one row, whose activations are in scratch as f32."""

    product: TileRow

    def emit(self, do: Do, tile: CurrentTile) -> None:
        """Emit one statement on a tile."""
        if do.out == "a":
            self._widen(tile)
        else:
            super().emit(do, tile)

    def _widen(self, tile: CurrentTile) -> None:
        """Convert the pairs of a step to f32. Store elements 0 of all pairs, then elements 1."""
        (row,), block = self._rows("r", tile), value_of(tile.at["k"] // STEP)
        raw = load(self.memory.arrays["A"], [value_of(row), block, index(0)], i32(), TILE)
        for number, half in enumerate(halves(bitcast(raw, ir.BF16Type.get(), 2 * TILE), TILE)):
            self._keep("a", tile, number, half)

    def activations(self, name: str, row: Number, k: Number, step: int = 0) -> ir.Value:
        """Load an f32 from scratch, and broadcast it to all lanes. Step 2i is element 0 of pair i,
        and step 2i + 1 its element 1."""
        pair, half = divmod(step, 2)
        start = self.places.address(name, {**self.places.begin(name), "k": k})
        place = value_of(start + (half * TILE + pair) * 4)
        one = load(self.places.memory[name], [place], i8(), 4)
        return vector.broadcast(of(f32(), self.lanes), bitcast(one, f32(), 1))

    def steps(
        self, columns: Sequence[Column], number: int, k: Number, ahead: int
    ) -> Iterator[ir.Value]:
        """Yield the operands of a step. Those with scales that are not powers of two are multiplied
        by them."""
        product, memory, column = self.product, self.memory, columns[number]
        weights, block = product.weights, self._block(k)
        early = weights.scaled and not scales_sums(product.shape)
        for part in range(max(1, STEP // weights.elements.block)):
            place = block + part
            steps = self.block_steps(columns, number, place, ahead)
            if not early:
                yield from steps
                continue
            assert memory.scales is not None
            factor = weights.scale(product.isa, memory.scales, column, place)
            for found in steps:
                yield found * factor
