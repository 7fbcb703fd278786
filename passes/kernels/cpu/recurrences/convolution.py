"""The short convolution on CPUs: a workgroup processes the rows of a run, for some columns.

A run is consecutive rows of one sequence. The last W - 1 rows of x are in registers. The weights,
extended to f32 and transposed, are in the L1 cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import arith, math, scf, vector

from mxc.dialects.reasons import Reason
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Size
from mxc.passes.kernels.recurrences.shape import Convolution, rows_of_run
from mxc.passes.kernels.vectors import f32, index, load, loop, of, scratch, splat

#: Registers for the last rows: if there are 32 registers, and if there are 16, as in AVX2.
_KEPT, _KEPT_AVX2 = 12, 6


class CpuConvolution(Convolution):
    """The convolution in registers of `lanes` f32."""

    def checked(self) -> Self | Reason:
        """This kernel, or the reason why it does not support these sizes."""
        found = super().checked()
        if isinstance(found, Reason) or self.columns % self.lanes == 0:
            return found
        return Reason(f"x has {self.columns} columns; kernels take multiples of {self.lanes}")

    @property
    def _together(self) -> int:
        """Number of columns of a workgroup."""
        return self._registers * self.lanes

    @property
    def _registers(self) -> int:
        """Number of registers for a row of the columns of a workgroup."""
        whole = self.columns // self.lanes
        kept = _KEPT_AVX2 if self.lanes == 8 else _KEPT
        most = max(1, kept // (self.width - 1))
        return max(n for n in range(1, min(most, whole) + 1) if whole % n == 0)

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along columns and runs."""
        return [self.columns // self._together, self.runs]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        x, weights, pool, runs, places, result = buffers
        run = rows_of_run(runs, places, workgroup(1))
        first = workgroup(0) * self._together
        columns = [first + n * self.lanes for n in range(self._registers)]
        before = [index(n) for n in range(self.width - 1)]
        states = [[run.place, self.layer, n, column] for n in before for column in columns]
        factors = self._factors(weights, columns)
        zeros = splat(0.0, f32(), self.lanes)
        start = [arith.select(run.fresh, zeros, self._load(pool, at)) for at in states]
        with loop(run.first, run.behind, index(1), start) as (row, kept, op):
            for number, column in enumerate(columns):
                kept.append(self._load(x, [row, column]))
                total = zeros
                for n, value in enumerate(kept[number :: len(columns)]):
                    factor = self._load(factors, [index(n), index(number * self.lanes)])
                    total = math.fma(value, factor, total)
                vector.store(total, result, [row, column])
            scf.YieldOp(kept[len(columns) :])
        for value, at in zip(op.results, states, strict=True):
            vector.store(value, pool, at)

    def _load(self, source: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        return load(source, at, f32(), self.lanes)

    def _factors(self, weights: ir.Value, columns: list[ir.Value]) -> ir.Value:
        """Copy the weights of the columns to scratch f32 [W, columns], extended and transposed."""
        width, lanes = self.width, self.lanes
        memory = scratch([width, self._together], f32())
        element = ir.Type.parse(self.element)
        for number, column in enumerate(columns):
            at = column * width
            whole = vector.load(of(element, lanes * width), weights, [at])
            if self.element != "f32":
                whole = arith.extf(of(f32(), lanes * width), whole)
            for n in range(width):
                taken = vector.shuffle(whole, whole, list(range(n, lanes * width, width)))
                vector.store(taken, memory, [index(n), index(number * lanes)])
        return memory
