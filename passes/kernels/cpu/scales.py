"""Convert scales of blocks to f32 from any type in memory.

f8E8M0FNU    2^(byte - 127): the byte is the exponent of an f32; 255 is NaN. Byte 0 (2^-127)
             becomes zero, as a machine that flushes subnormals makes it anyway
f8E4M3FN     the scales of nvfp4, with sign, subnormals and NaN
f32          unchanged
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.formats.formats import E4M3
from mxc.passes.kernels.cpu.codes import floats_of_codes
from mxc.passes.kernels.sources import BLOCK, ScaleType
from mxc.passes.kernels.vectors import bitcast, equal, f32, i8, i32, of, splat


@dataclass(frozen=True)
class Scales:
    """The scales of a weight or of activations: one of `type` per `block` elements along K, which
    are 16 or a multiple of 32. `step`: number of elements that a kernel processes at once; they
    have one scale on each side."""

    type: ScaleType
    block: int = BLOCK
    step: int = BLOCK

    @property
    def memory(self) -> ir.Type:
        """The type of a scale in memory."""
        return f32() if self.type == "f32" else i8()

    @property
    def steps(self) -> int:
        """Number of steps per scale."""
        return self.block // self.step

    def floats(self, raw: ir.Value, lanes: int) -> ir.Value:
        """Convert scales, as stored, to f32 [lanes]."""
        if self.type == "f32":
            return raw
        wide = arith.extui(of(i32(), lanes), raw)
        if self.type == "f8E4M3FN":
            return floats_of_codes(wide, E4M3, lanes)
        power = bitcast(wide << 23, f32(), lanes)
        is_nan = equal(wide, splat(255, i32(), lanes))
        return arith.select(is_nan, splat(float("nan"), f32(), lanes), power)


def fits(block: int) -> bool:
    """Whether a kernel supports blocks of this size: 16, or a multiple of 32."""
    return block == BLOCK // 2 or (block > 0 and block % BLOCK == 0)
