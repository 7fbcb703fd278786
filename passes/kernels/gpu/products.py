"""Multiplication of loaded sides, by scaled matrix instructions or by those for bf16 and f16.

Under f32 scales, either computes sums of blocks, which are then multiplied by the scales. All keep
their totals in the same lanes: the sides are swapped, so that a lane has a row of lhs and quads of
consecutive columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import mfma, scaled_mfma, scaled_wmma, wmma, zeros
from mxc.passes.kernels.gpu.fragments import FRAGMENT, K_STEPS, TileInstruction
from mxc.passes.kernels.gpu.scaled_side import ScaledSide
from mxc.passes.kernels.gpu.wave_side import Loaded, WaveSide
from mxc.passes.kernels.vectors import parts_of


@dataclass(frozen=True)
class ScaledProduct:
    """Product of two scaled sides by instructions that take elements and scales as they are."""

    instruction: TileInstruction
    lhs: ScaledSide
    rhs: ScaledSide

    @property
    def k_steps(self) -> int:
        """Number of k-steps in a step."""
        return self.instruction.k_steps

    def add(self, totals: list[ir.Value], lhs: Loaded, rhs: Loaded, k_step: int) -> list[ir.Value]:
        """Return `totals`, a vector per tile of the result, with a k-step of the step added."""
        totals = list(totals)
        columns = range(len(self.rhs.rows))
        right = [self.rhs.fragment(rhs, n, k_step) for n in columns]
        for m in range(len(self.lhs.rows)):
            left = self.lhs.fragment(lhs, m, k_step)
            for n in columns:
                at = m * len(columns) + n
                scales = (self.rhs.scales(rhs, n), self.lhs.scales(lhs, m))
                totals[at] = self._multiply(right[n], left, totals[at], scales, k_step)
        return totals

    def _multiply(
        self, a: ir.Value, b: ir.Value, c: ir.Value, scales: tuple[ir.Value, ir.Value], k_step: int
    ) -> ir.Value:
        shape = self.instruction.shape
        if self.instruction.unit.family == "wmma":
            # The four blocks are those whose scales the lanes of group `k_step` have loaded.
            return scaled_wmma(shape, a, b, c, scales, k_step * self.instruction.rows)
        return scaled_mfma(shape, a, b, c, scales, (k_step, k_step))


@dataclass(frozen=True)
class DecodedProduct:
    """Product of sides that are floats in registers: loaded as floats, or decoded to them."""

    instruction: TileInstruction
    lhs: WaveSide
    rhs: WaveSide

    @property
    def k_steps(self) -> int:
        """Number of k-steps in a step."""
        return K_STEPS

    def add(self, totals: list[ir.Value], lhs: Loaded, rhs: Loaded, k_step: int) -> list[ir.Value]:
        """Return `totals`, a vector per tile of the result, with a k-step of the step added."""
        (found,) = self.sums([totals], lhs, rhs, k_step)
        return found

    def sums(
        self, starts: list[list[ir.Value]], lhs: Loaded, rhs: Loaded, k_step: int
    ) -> list[list[ir.Value]]:
        """Multiply a k-step in parts along K, each of which has totals of its own.

        `starts`: the totals of each part, to which its products are added. Returns the new totals
        of each part.
        """
        found, parts = [list(totals) for totals in starts], len(starts)
        columns = range(len(self.rhs.rows))
        right = [self._fragments(self.rhs, rhs, n, k_step) for n in columns]
        for m in range(len(self.lhs.rows)):
            left = self._fragments(self.lhs, lhs, m, k_step)
            for n in columns:
                at = m * len(columns) + n
                for number, ((fragment,), floats) in enumerate(zip(right[n], left, strict=True)):
                    own = found[number * parts // len(left)]
                    for each in reversed(floats):  # the smallest first
                        own[at] = multiply_floats(self.instruction, fragment, each, own[at])
        return found

    def _fragments(
        self, side: WaveSide, loaded: Loaded, tile: int, k_step: int
    ) -> list[list[ir.Value]]:
        """Return the fragments of a tile in a k-step, each as the floats that add up to it.

        Weights have one float for each.
        """
        split = side.parts(loaded, tile, k_step)
        by_part = [self._cut(list(part)) for part in zip(*split, strict=True)]
        return [list(parts) for parts in zip(*by_part, strict=True)]

    def _cut(self, runs: list[ir.Value]) -> list[ir.Value]:
        """Cut or concatenate runs of 8 along K to fragments that an instruction takes of a lane."""
        size = self.instruction.fragment
        if size > FRAGMENT:
            return [
                vector.shuffle(*runs[at : at + 2], list(range(size)))
                for at in range(0, len(runs), 2)
            ]
        return [part for run in runs for part in parts_of(run, size)]


def multiply_floats(
    instruction: TileInstruction, a: ir.Value, b: ir.Value, c: ir.Value
) -> ir.Value:
    """Return c, f32, plus the product of fragments of bf16 or f16."""
    return multiply_tiles(instruction, instruction.form.k, a, b, c)


def multiply_tiles(
    instruction: TileInstruction, k: int, a: ir.Value, b: ir.Value, c: ir.Value
) -> ir.Value:
    """Return c plus the product of fragments.

    It is computed by the instruction with the rows of `instruction`, and with `k` elements along K
    of the type of the fragments.
    """
    multiply = {"mfma": mfma, "wmma": wmma}[instruction.unit.family]
    return multiply((instruction.rows, instruction.rows, k), a, b, c)


@dataclass(frozen=True)
class SummedProduct:
    """Product of sides of which one or both have f32 scales.

    A k-step is `sums` sums, each under one scale of each side that has them:

        sum = product of a part of the k-step, from zero
        totals += sum * (scale of the row * scale of the column)
    """

    product: ScaledProduct | DecodedProduct
    sums: int

    @property
    def k_steps(self) -> int:
        """Number of k-steps in a step."""
        return self.product.k_steps

    def add(self, totals: list[ir.Value], lhs: Loaded, rhs: Loaded, k_step: int) -> list[ir.Value]:
        """Return `totals`, a vector per tile of the result, with a k-step of the step added."""
        left, right = self.product.lhs, self.product.rhs
        kind = totals[0].type
        zero = [zeros(kind)] * len(totals)
        if isinstance(self.product, ScaledProduct):
            parts = [self.product.add(zero, lhs, rhs, k_step)]
        else:
            parts = self.product.sums([zero] * self.sums, lhs, rhs, k_step)
        for number, sums in enumerate(parts):
            rows = _factors(left, lhs, (k_step, number), kind)
            columns = _factors(right, rhs, (k_step, number), kind)
            factors = [_times(row, column) for row in rows for column in columns]
            totals = [vector.fma(*each) for each in zip(sums, factors, totals, strict=True)]
        return totals


def _factors(
    side: WaveSide, loaded: Loaded, place: tuple[int, int], kind: ir.Type
) -> list[ir.Value | None]:
    """Return the f32 scales of a side for each of its tiles, as `kind`, the type of the sums.

    None for each tile if the side has no f32 scales. `place`: a k-step of the step, and the number
    of a sum of it.
    """
    return [
        vector.broadcast(kind, vector.extract(each, [], [0]))
        if each is not None and ir.VectorType(each.type).shape == [1]
        else each
        for each in side.factors_of(loaded, *place)
    ]


def _times(row: ir.Value | None, column: ir.Value | None) -> ir.Value:
    """Return the factor of a tile of the result: the product of both scales, or the only one."""
    if row is None or column is None:
        found = column if row is None else row
        assert found is not None
        return found
    return row * column
