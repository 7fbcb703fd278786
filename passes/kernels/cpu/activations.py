"""Prepare activations in the order in which kernels multiply them: one dispatch, whose result many
kernels read.

A prepared row has, for each block of a kernel, the operands of the block, one dword per step.
Quantized activations have the scale of the block after them, as f32. For quads the start of the
integer sum follows: -offset * the sum of the elements, because `offset` is added to every weight to
make it unsigned.

    [rows, blocks | 1, dwords] i32

The number of blocks is made odd, so that different rows do not fall into the same cache sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, vector

from mxc.passes.kernels.cpu.codes import codes_of, floats_of_codes
from mxc.passes.kernels.cpu.isa import Kind
from mxc.passes.kernels.cpu.quantize.blocks import BlockQuantizer
from mxc.passes.kernels.cpu.scales import Scales
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, named, plus, quotient_up, value_of
from mxc.passes.kernels.narrow_floats import rounded
from mxc.passes.kernels.sources import BLOCK, ActivationSource
from mxc.passes.kernels.vectors import (
    bitcast,
    f32,
    i8,
    i16,
    i32,
    index,
    load,
    loop,
    of,
    splat,
    unequal,
)

#: Elements per dword of operands.
_IN_A_DWORD: dict[Kind, int] = {"pairs": 2, "quads": 4, "floats": 1}

#: Approximate number of elements per workgroup: enough that a dispatch is worth its cost.
_ELEMENTS_A_WORKGROUP = 8192


@dataclass(frozen=True)
class Prepared:
    """The layout of prepared rows, as kernels of `kind` read them.

    `scaled`: whether blocks have a scale. `order`: the elements of each step. `unit`: the value of
    an integer operand of 1. `offset`: number added to every weight to make it unsigned.
    `weight_unit`: the value of an integer weight of 1, which the scales of the rows include;
    otherwise products could overflow under the largest scale of a weight. `folded`: scales are
    multiplied into the operands, which bf16 holds. `planes`: number of bf16 whose sum is an f32,
    the highest first; in a block, the operands of a plane follow those of the previous one.
    `padding`: number of rows past the last one, which are read but do not reach results.
    """

    kind: Kind
    scaled: bool
    order: tuple[tuple[int, ...], ...]
    unit: float = 1.0
    offset: int = 0
    weight_unit: float = 1.0
    folded: bool = False
    planes: int = 1
    padding: int = 0

    @property
    def block(self) -> int:
        """Number of elements of a block."""
        return sum(map(len, self.order))

    @property
    def steps(self) -> int:
        """Number of dwords of the operands of a block."""
        return self.block // _IN_A_DWORD[self.kind] * self.planes

    @property
    def dwords(self) -> int:
        """Number of dwords of a block."""
        return self.steps + self.scaled + (self.kind == "quads")

    @property
    def scale_at(self) -> int:
        """The index of the dword in a block that holds its scale."""
        return self.steps

    @property
    def start_at(self) -> int:
        """The index of the dword in a block that holds the start of its sum."""
        return self.steps + self.scaled

    def buffer(self, rows: Size, blocks: int) -> Buffer:
        """The buffer of rows of `blocks` blocks."""
        rows = plus(rows, self.padding) if self.padding else rows
        return Buffer([rows, blocks | 1, self.dwords], i32())


@dataclass(frozen=True)
class Prepare(Sized):
    """The kernel that prepares `rows` rows of `blocks` blocks, with one scale per block.
    `quantizer`: if set, the kernel reads floats, and quantizes them to the format of `source`."""

    source: ActivationSource
    prepared: Prepared
    rows: Size
    blocks: int
    quantizer: BlockQuantizer | None = None

    @property
    def name(self) -> str:
        """The symbol of the kernel, equal for kernels that do the same."""
        order = "".join(f"{k:x}." for step in self.prepared.order[:3] for k in step)
        kind = f"{self.prepared.kind}{self.prepared.offset}"
        kind += f"u{1 / self.prepared.weight_unit:g}" if self.prepared.weight_unit != 1 else ""
        kind += "_folded" if self.prepared.folded else ""
        kind += f"_{self.prepared.planes}planes" if self.prepared.planes > 1 else ""
        kind += f"_and{self.prepared.padding}" if self.prepared.padding else ""
        halved = f"by{self._size}_" if self._size != BLOCK else ""
        size = f"{named(self.rows)}x{self.blocks * self._size}"
        source = self.source.name if self.quantizer is None else self.quantizer.name
        return f"mxc_prepare_{source}_{kind}_{halved}{order}{size}"

    @property
    def _size(self) -> int:
        """Number of elements of a block."""
        return self.prepared.block

    @property
    def _block_bytes(self) -> int:
        """Bytes of the elements of a block of quantized activations."""
        return self._size * self.source.element.bits // 8

    @property
    def _scales(self) -> Scales | None:
        """The storage of the scales of the source; None without scales."""
        kind = self.source.scale
        return None if kind is None else Scales(kind, self.source.block, self._size)

    @property
    def _rows_a_workgroup(self) -> int:
        return max(1, _ELEMENTS_A_WORKGROUP // (self.blocks * self._size))

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along the rows."""
        return [quotient_up(self.rows, self._rows_a_workgroup)]

    @property
    def buffers(self) -> list[Buffer]:
        """Elements, scales if any, and the prepared rows."""
        scales, result = self._scales, self.prepared.buffer(self.rows, self.blocks)
        if self.source.is_float or self.quantizer is not None:
            memory = self.source.memory if self.quantizer is None else self.quantizer.memory
            return [Buffer([self.rows, self.blocks, self._size], memory), result]
        elements = Buffer([self.rows, self.blocks, self._block_bytes], i8())
        if scales is None:
            return [elements, result]
        return [elements, Buffer([self.rows, self.blocks // scales.steps], scales.memory), result]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        elements, *scales, result = buffers
        height = index(self._rows_a_workgroup)
        first = workgroup(0) * height
        last = arith.minui(first + height, value_of(self.rows))
        with (
            loop(first, last, index(1)) as (row, _, _),
            loop(index(0), index(self.blocks), index(1)) as (block, _, _),
        ):
            self._block(elements, scales, result, row, block)

    def _block(
        self,
        elements: ir.Value,
        scales: Sequence[ir.Value],
        result: ir.Value,
        row: ir.Value,
        block: ir.Value,
    ) -> None:
        """Prepare one block of a row."""
        if self.quantizer is not None:
            codes, scale = self.quantizer.block(elements, [row, block, index(0)])
            values = self._of_codes(codes)
        else:
            values = self._operands(elements, row, block)
            scale = splat(1.0, f32(), 1)
            if self._scales is not None:
                scale = self._scale(self._scales, scales[0], row, block)
        if self.source.to or self.prepared.folded:
            values = self._scaled(values, scale)
        kind = ir.VectorType(values.type).element_type
        order = [k for step in self.prepared.order for k in step]
        planes = [values] if self.prepared.planes == 1 else bf16_planes(values)
        steps = self.prepared.steps // self.prepared.planes
        for number, plane in enumerate(planes):
            ordered = vector.shuffle(plane, plane, order)
            at = [row, block, index(number * steps)]
            vector.store(bitcast(ordered, i32(), steps), result, at)
        if self.prepared.scaled:
            worth = self.prepared.unit * self.prepared.weight_unit
            if worth != 1.0:
                # A power of two: exact.
                scale = scale * worth
            at = [row, block, index(self.prepared.scale_at)]
            vector.store(bitcast(scale, i32(), 1), result, at)
        if self.prepared.kind == "quads":
            assert kind == i8()
            wide = arith.extsi(of(i32(), self._size), values)
            total = vector.reduction(i32(), "add", wide)
            start = vector.broadcast(of(i32(), 1), total)
            start = start * -self.prepared.offset
            vector.store(start, result, [row, block, index(self.prepared.start_at)])

    def _scaled(self, values: ir.Value, scale: ir.Value) -> ir.Value:
        """Elements times their scale, rounded to the type `source.to` if it is set: as f32, or as
        bf16 for pairs, which holds them exactly."""
        wide = of(f32(), self._size)
        values = values if values.type == wide else arith.extf(wide, values)
        every = vector.broadcast(wide, vector.extract(scale, [], [0]))
        found = values * every
        if self.source.to:
            found = rounded(found, ir.Type.parse(self.source.to))
        return _narrow(found, self.prepared.kind)

    def _scale(self, scales: Scales, source: ir.Value, row: ir.Value, block: ir.Value) -> ir.Value:
        """Load the scale of a block, as a vector of one f32."""
        at = [row, block // scales.steps if scales.steps > 1 else block]
        return scales.floats(load(source, at, scales.memory, 1), 1)

    def _operands(self, elements: ir.Value, row: ir.Value, block: ir.Value) -> ir.Value:
        """Load the elements of a block as bf16, i8 or f32, in memory order."""
        at = [row, block, index(0)]
        kind, source, size = self.prepared.kind, self.source, self._size
        if source.is_float:
            values = load(elements, at, source.memory, size)
            if kind == "pairs" and self.prepared.planes == 1:
                bf16 = of(ir.BF16Type.get(), size)
                return values if values.type == bf16 else arith.truncf(bf16, values)
            if source.memory != f32():
                return arith.extf(of(f32(), size), values)
            return _rounded(values) if source.rounded else values
        raw = load(elements, at, i8(), self._block_bytes)
        if source.element.mlir == "i8":
            if kind == "quads":
                return raw
            return self._of_codes(arith.extsi(of(i32(), size), raw))
        return self._of_codes(codes_of(raw, source.element))

    def _of_codes(self, codes: ir.Value) -> ir.Value:
        """Convert codes i32 to operands. int8 is sign-extended; other codes may have any bits above
        them."""
        kind, source, size = self.prepared.kind, self.source, self._size
        if source.element.mlir == "i8":
            if kind == "quads":
                return arith.trunci(of(i8(), size), codes)
            whole = arith.sitofp(of(f32(), size), codes)
            return _narrow(whole * source.unit, kind)
        values = floats_of_codes(codes, source.element, size)
        if kind != "quads":
            return _narrow(values, kind)
        whole = values * (1 / self.prepared.unit)
        return arith.trunci(of(i8(), size), arith.fptosi(of(i32(), size), whole))


def bf16_planes(values: ir.Value) -> list[ir.Value]:
    """Split f32 into three bf16 whose sum it is, the highest first: each is the upper half of what
    is left.

    For infinities and NaN the other two are zero, so that they add nothing.
    """
    (lanes,) = ir.VectorType(values.type).shape
    upper, exponent = (splat(n, i32(), lanes) for n in (-65536, 0x7F800000))
    nothing = splat(0.0, f32(), lanes)
    bits = bitcast(values, i32(), lanes)
    finite = unequal(bits & exponent, exponent)
    is_nan = arith.cmpf(arith.CmpFPredicate.UNO, values, values)
    # The upper half of a NaN may be that of an infinity.
    quiet = bitcast(bits | 0x400000, f32(), lanes)
    left = arith.select(is_nan, quiet, values)
    found = []
    for _ in range(3):
        high = bitcast(bitcast(left, i32(), lanes) & upper, f32(), lanes)
        half = bitcast(left, i32(), lanes) >> 16
        narrow = arith.trunci(of(i16(), lanes), half)
        found.append(bitcast(narrow, ir.BF16Type.get(), lanes))
        left = arith.select(finite, left - high, nothing)
    return found


def _narrow(values: ir.Value, kind: Kind) -> ir.Value:
    """f32 values that bf16 holds exactly, as the type of `kind`: bf16 for pairs, else f32."""
    (lanes,) = ir.VectorType(values.type).shape
    return arith.truncf(of(ir.BF16Type.get(), lanes), values) if kind == "pairs" else values


def _rounded(values: ir.Value) -> ir.Value:
    """f32 rounded to bf16, as f32, by integers: IREE would remove an extf of a truncf."""
    (lanes,) = ir.VectorType(values.type).shape
    narrow = arith.truncf(of(ir.BF16Type.get(), lanes), values)
    wide = arith.extui(of(i32(), lanes), bitcast(narrow, i16(), lanes))
    return bitcast(wide << 16, f32(), lanes)
