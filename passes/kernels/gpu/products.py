"""The two ways to multiply what was loaded: scaled matrix instructions, or those of bf16 and f16.

Both keep their totals in the same lanes: the sides are swapped, so that a lane has a row of lhs and
quads of consecutive columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import mfma, scaled_mfma, scaled_wmma, wmma
from mxc.passes.kernels.gpu.floats import FloatSide
from mxc.passes.kernels.gpu.fragments import FRAGMENT, TURNS, Instruction
from mxc.passes.kernels.gpu.sides import Loaded, ScaledSide
from mxc.passes.kernels.vectors import of


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
        for turn in range(self.instruction.turns):
            right = [self.rhs.fragment(rhs, n, turn) for n in columns]
            for m in range(len(self.lhs.rows)):
                left = self.lhs.fragment(lhs, m, turn)
                for n in columns:
                    at = m * len(columns) + n
                    scales = (self.rhs.scales(rhs, n), self.lhs.scales(lhs, m))
                    totals[at] = self._multiply(right[n], left, totals[at], scales, turn)
        return totals

    def _multiply(
        self, a: ir.Value, b: ir.Value, c: ir.Value, scales: tuple[ir.Value, ir.Value], turn: int
    ) -> ir.Value:
        shape = self.instruction.shape
        if self.instruction.unit.family == "wmma":
            # The four scales are those of the lanes of one group, whose blocks these are.
            return scaled_wmma(shape, a, b, c, scales, turn * self.instruction.rows)
        return scaled_mfma(shape, a, b, c, scales, (turn, turn))


@dataclass(frozen=True)
class DecodedProduct:
    """Floats, or elements that become floats in registers, by elements that do."""

    instruction: Instruction
    lhs: FloatSide | ScaledSide
    rhs: ScaledSide

    def multiply(self, totals: list[ir.Value], lhs: Loaded, rhs: Loaded) -> list[ir.Value]:
        """The totals, tile rows times tile columns, with a step added."""
        totals = list(totals)
        columns = range(len(self.rhs.rows))
        for turn in range(TURNS):
            right = [self._cut(self.rhs.floats(rhs, n, turn)) for n in columns]
            for m in range(len(self.lhs.rows)):
                left = self._left(lhs, m, turn)
                for n in columns:
                    at = m * len(columns) + n
                    for fragment, parts in zip(right[n], left, strict=True):
                        for part in reversed(parts):  # the least first
                            totals[at] = self._multiply(fragment, part, totals[at])
        return totals

    def _left(self, loaded: Loaded, tile: int, turn: int) -> list[list[ir.Value]]:
        """Of each fragment the bf16 that add up to it."""
        if isinstance(self.lhs, FloatSide):
            split = self.lhs.parts(loaded, tile, turn)
            by_part = [self._cut(list(part)) for part in zip(*split, strict=True)]
            return [list(parts) for parts in zip(*by_part, strict=True)]
        return [[run] for run in self._cut(self.lhs.floats(loaded, tile, turn))]

    def _cut(self, runs: list[ir.Value]) -> list[ir.Value]:
        """Runs of 8 along K as fragments of what an instruction takes of a lane."""
        size = self.instruction.fragment
        kind = of(ir.VectorType(runs[0].type).element_type, size)
        if size > FRAGMENT:
            return [
                vector.shuffle(*runs[at : at + 2], list(range(size)))
                for at in range(0, len(runs), 2)
            ]
        return [
            run if size == FRAGMENT else vector.extract_strided_slice(kind, run, [at], [size], [1])
            for run in runs
            for at in range(0, FRAGMENT, size)
        ]

    def _multiply(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        rows, unit = self.instruction.rows, self.instruction.unit
        multiply = {"mfma": mfma, "wmma": wmma}[unit.family]
        return multiply((rows, rows, self.instruction.form.depth), a, b, c)
