"""Activations in the order in which a kernel multiplies them: one dispatch, read by many kernels.

A prepared row has for each block of 32 elements its operands, a dword for each step, then, where
they are quantised, the scale of the block as f32, and for quads what the integer sum begins with:
-offset * the sum of the elements, since the weights are unsigned there.

    [rows, blocks | 1, dwords] i32; with an odd number of blocks, rows do not share cache sets
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects.generic import constant
from mxc.passes.kernels.cpu.codes import floats_of_codes
from mxc.passes.kernels.cpu.isa import Kind
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.sources import BLOCK, Source
from mxc.passes.kernels.vectors import bitcast, f32, i8, i16, i32, index, load, loop, of, splat

#: Dwords of a block's operands.
_STEPS: dict[Kind, int] = {"pairs": 16, "quads": 8, "floats": 32}

#: Blocks that a workgroup prepares, about: enough to be worth a dispatch.
_BLOCKS_A_WORKGROUP = 256


@dataclass(frozen=True)
class Prepared:
    """Rows as kernels of `kind` read them. `order`: the elements of each step; `unit`: what a one
    of the operands is worth; `offset`: what the weights have too much; `weight_unit`: what a one of
    the weights is worth, which the scales of the rows bring in: so nothing overflows on the way
    under the largest scale of a weight that does not in the end."""

    kind: Kind
    scaled: bool
    order: tuple[tuple[int, ...], ...]
    unit: float = 1.0
    offset: int = 0
    weight_unit: float = 1.0

    @property
    def dwords(self) -> int:
        """Of a block."""
        return _STEPS[self.kind] + self.scaled + (self.kind == "quads")

    @property
    def scale_at(self) -> int:
        """The dword of a block's scale."""
        return _STEPS[self.kind]

    @property
    def start_at(self) -> int:
        """The dword of what a block's sum begins with."""
        return _STEPS[self.kind] + self.scaled

    def memref(self, rows: int, blocks: int) -> ir.Type:
        """The buffer's type."""
        return ir.MemRefType.get([rows, blocks | 1, self.dwords], i32())


@dataclass(frozen=True)
class Prepare:
    """The kernel that prepares `rows` rows of `blocks` blocks."""

    source: Source
    prepared: Prepared
    rows: int
    blocks: int

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        order = "".join(f"{k:x}." for step in self.prepared.order[:3] for k in step)
        kind = f"{self.prepared.kind}{self.prepared.offset}"
        kind += f"u{1 / self.prepared.weight_unit:g}" if self.prepared.weight_unit != 1 else ""
        return f"mxc_prepare_{self.source.name}_{kind}_{order}{self.rows}x{self.blocks * BLOCK}"

    @property
    def _rows_a_workgroup(self) -> int:
        return max(1, _BLOCKS_A_WORKGROUP // self.blocks)

    @property
    def workgroups(self) -> list[int]:
        """Along the rows."""
        return [-(-self.rows // self._rows_a_workgroup)]

    @property
    def buffers(self) -> list[ir.Type]:
        """Memref types: elements, scales if any, the prepared rows."""
        types = self.source.memrefs(self.rows, self.blocks)
        return [*types, self.prepared.memref(self.rows, self.blocks)]

    def body(self, elements: ir.Value, *rest: ir.Value) -> None:
        """Build the body at the insertion point."""
        *scales, result = rest
        height = index(self._rows_a_workgroup)
        first = arith.muli(workgroup(0), height)
        last = arith.minui(arith.addi(first, height), index(self.rows))
        with loop(first, last, index(1)) as (row, _, _):
            with loop(index(0), index(self.blocks), index(1)) as (block, _, _):
                self._block(elements, scales, result, row, block)
                scf.YieldOp([])
            scf.YieldOp([])

    def _block(
        self,
        elements: ir.Value,
        scales: Sequence[ir.Value],
        result: ir.Value,
        row: ir.Value,
        block: ir.Value,
    ) -> None:
        values = self._operands(elements, row, block)
        kind = ir.VectorType(values.type).element_type
        order = [k for step in self.prepared.order for k in step]
        ordered = vector.shuffle(values, values, order)
        steps = _STEPS[self.prepared.kind]
        vector.store(bitcast(ordered, i32(), steps), result, [row, block, index(0)])
        if self.prepared.scaled:
            scale = self.source.scale(scales[0], [row, block])
            worth = self.prepared.unit * self.prepared.weight_unit
            if worth != 1.0:
                # A power of two: exact.
                scale = arith.mulf(scale, constant(worth, f32()))
            bits = arith.bitcast(i32(), scale)
            memref.StoreOp(bits, result, [row, block, index(self.prepared.scale_at)])
        if self.prepared.kind == "quads":
            assert kind == i8()
            wide = arith.extsi(of(i32(), BLOCK), values)
            total = vector.reduction(i32(), "add", wide)
            start = arith.muli(total, _i32(-self.prepared.offset))
            memref.StoreOp(start, result, [row, block, index(self.prepared.start_at)])

    def _operands(self, elements: ir.Value, row: ir.Value, block: ir.Value) -> ir.Value:
        """The 32 elements of a block as bf16, i8 or f32, in their order."""
        at = [row, block, index(0)]
        kind, source = self.prepared.kind, self.source
        if source.is_float:
            values = load(elements, at, source.memory, BLOCK)
            if kind == "pairs":
                bf16 = of(ir.BF16Type.get(), BLOCK)
                return values if values.type == bf16 else arith.truncf(bf16, values)
            if source.memory != f32():
                return arith.extf(of(f32(), BLOCK), values)
            return _rounded(values) if source.rounded else values
        raw = load(elements, at, i8(), source.block_bytes)
        if source.element.mlir == "i8":
            if kind == "quads":
                return raw
            whole = arith.sitofp(of(f32(), BLOCK), arith.extsi(of(i32(), BLOCK), raw))
            values = arith.mulf(whole, splat(source.unit, f32(), BLOCK))
            return _narrow(values, kind)
        codes = arith.extui(of(i32(), source.block_bytes), raw)
        if source.element.bits == 4:
            high = arith.shrui(codes, splat(4, i32(), BLOCK // 2))
            codes = vector.interleave(codes, high)
        values = floats_of_codes(codes, source.element, BLOCK)
        if kind != "quads":
            return _narrow(values, kind)
        whole = arith.mulf(values, splat(1 / self.prepared.unit, f32(), BLOCK))
        return arith.trunci(of(i8(), BLOCK), arith.fptosi(of(i32(), BLOCK), whole))


def _narrow(values: ir.Value, kind: Kind) -> ir.Value:
    """f32 that bf16 holds exactly, in the type of `kind`."""
    return arith.truncf(of(ir.BF16Type.get(), BLOCK), values) if kind == "pairs" else values


def _rounded(values: ir.Value) -> ir.Value:
    """f32 rounded to bf16, as f32. Through integers: IREE takes extf of truncf for nothing."""
    narrow = arith.truncf(of(ir.BF16Type.get(), BLOCK), values)
    wide = arith.extui(of(i32(), BLOCK), bitcast(narrow, i16(), BLOCK))
    return bitcast(arith.shli(wide, splat(16, i32(), BLOCK)), f32(), BLOCK)


def _i32(value: int) -> ir.Value:
    return arith.ConstantOp(i32(), ir.IntegerAttr.get(i32(), value)).result
