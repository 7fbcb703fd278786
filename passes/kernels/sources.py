"""What activations are in the program, before they are prepared for a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.dialects.formats import INT8, ElementFormat, block_format
from mxc.passes.kernels.vectors import f32, i8, i32

#: Elements along K of one pass of a kernel's inner loop.
BLOCK = 32

#: Activations by name: floats, int8 under an f32 scale a block, and MX blocks.
Format = Literal[
    "f32",
    "bf16",
    "f16",
    "int8",
    "mxfp4",
    "mxfp6e2m3",
    "mxfp6e3m2",
    "mxfp8e4m3",
    "mxfp8e5m2",
    "mxint8",
]


@dataclass(frozen=True)
class Source:
    """`format` of the activations. `rounded`: they are f32 in memory, and bf16 by meaning."""

    format: Format
    rounded: bool = False

    @property
    def name(self) -> str:
        """For symbols."""
        return f"{self.format}r" if self.rounded else self.format

    @property
    def is_float(self) -> bool:
        """Whether they have no scale."""
        return self.format in ("f32", "bf16", "f16")

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers of few bits, times a unit."""
        return self.format in ("int8", "mxint8", "mxfp4")

    @property
    def memory(self) -> ir.Type:
        """The element type of floats in memory."""
        return f32() if self.rounded else ir.Type.parse(self.format)

    @property
    def element(self) -> ElementFormat:
        """The element of a block."""
        return INT8 if self.format == "int8" else block_format(self.format).element

    @property
    def unit(self) -> float:
        """What the integer one of a quad is worth."""
        return 1.0 if self.format == "int8" else self.element.min_positive

    @property
    def block_bytes(self) -> int:
        """Bytes of a block's elements."""
        return BLOCK * self.element.bits // 8

    def memrefs(self, rows: int, blocks: int) -> list[ir.Type]:
        """Types of the elements, and of the scales if any."""
        if self.is_float:
            return [ir.MemRefType.get([rows, blocks, BLOCK], self.memory)]
        scale = f32() if self.format == "int8" else i8()
        return [
            ir.MemRefType.get([rows, blocks, self.block_bytes], i8()),
            ir.MemRefType.get([rows, blocks], scale),
        ]

    def scale(self, scales: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        """The scale of a block as f32. E8M0: byte 0 (2^-127) becomes zero, 255 is NaN."""
        raw = memref.LoadOp(scales, list(at)).result
        if self.format == "int8":
            return raw
        wide = arith.extui(i32(), raw)
        bits = arith.shli(wide, _i32(23))
        is_nan = arith.cmpi(arith.CmpIPredicate.eq, wide, _i32(255))
        return arith.bitcast(f32(), arith.select(is_nan, _i32(0x7FC00000), bits))


def _i32(value: int) -> ir.Value:
    return arith.ConstantOp(i32(), ir.IntegerAttr.get(i32(), value)).result
