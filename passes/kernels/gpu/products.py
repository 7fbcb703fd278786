"""The two ways to multiply what was loaded: scaled matrix instructions, or bf16 ones.

Both keep their totals in the same lanes: the sides are swapped, so that a lane has a row of lhs and
quads of consecutive columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import joined, mfma, scaled_mfma
from mxc.passes.kernels.gpu.decode import decode, decode_nvfp4
from mxc.passes.kernels.gpu.floats import FRAGMENT, FloatSide
from mxc.passes.kernels.gpu.fragments import TURNS, Instruction
from mxc.passes.kernels.gpu.sides import Loaded, ScaledSide
from mxc.passes.kernels.vectors import i8, of


@dataclass(frozen=True)
class ScaledProduct:
    """Both sides scaled: the instruction takes elements and scales as they are."""

    instruction: Instruction
    lhs: ScaledSide
    rhs: ScaledSide

    def multiply(self, totals: list[ir.Value], lhs: Loaded, rhs: Loaded) -> list[ir.Value]:
        """The totals, tile rows times tile columns, with a step added."""
        totals = list(totals)
        columns = range(len(self.rhs.rows))
        for turn in range(TURNS):
            right = [self.rhs.fragment(rhs, n, turn) for n in columns]
            for m in range(len(self.lhs.rows)):
                left = self.lhs.fragment(lhs, m, turn)
                for n in columns:
                    at = m * len(columns) + n
                    scales = (self.rhs.scales(rhs, n), self.lhs.scales(lhs, m))
                    totals[at] = scaled_mfma(
                        self.instruction.shape, right[n], left, totals[at], scales, turn
                    )
        return totals


@dataclass(frozen=True)
class DecodedProduct:
    """Floats by scaled elements, which become bf16 in registers."""

    instruction: Instruction
    lhs: FloatSide
    rhs: ScaledSide

    def multiply(self, totals: list[ir.Value], lhs: Loaded, rhs: Loaded) -> list[ir.Value]:
        """The totals, tile rows times tile columns, with a step added."""
        totals = list(totals)
        rows = self.instruction.rows
        shape = rows, rows, FRAGMENT * self.instruction.groups
        columns = range(len(self.rhs.rows))
        for turn in range(TURNS):
            right = [self._decoded(rhs, n, turn) for n in columns]
            for m in range(len(self.lhs.rows)):
                left = self.lhs.parts(lhs, m, turn)
                for n in columns:
                    at = m * len(columns) + n
                    for fragment, parts in zip(right[n], left, strict=True):
                        for part in reversed(parts):  # the least first
                            totals[at] = mfma(shape, fragment, part, totals[at])
        return totals

    def _decoded(self, loaded: Loaded, tile: int, turn: int) -> list[ir.Value]:
        block = joined(self.rhs.parts(loaded, tile, turn))
        scales, count = self.rhs.raw_scales(loaded, tile), self.rhs.kind.scales
        if count > 1:
            kind = of(i8(), count)
            own = vector.extract_strided_slice(kind, scales, [turn * count], [count], [1])
            return decode_nvfp4(block, own)
        return decode(block, vector.extract(scales, [], [turn]), self.rhs.kind.element)
