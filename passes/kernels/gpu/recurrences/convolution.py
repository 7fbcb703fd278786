"""The short convolution on GPUs: a lane computes one column of all rows of a run, in order.

It holds the last W - 1 elements of x in its column in registers. No row needs the result of another
one, so several rows are loaded at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf

from mxc.dialects.amdgpu import thread
from mxc.dialects.generic import constant
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Size
from mxc.passes.kernels.recurrences.shape import Convolution, RunRows, rows_of_run
from mxc.passes.kernels.vectors import below, f32, index, loop, when

#: Lanes of a workgroup; rows that a lane loads at once.
_THREADS, _ROWS = 256, 8


class GpuConvolution(Convolution):
    """The kernel for GPUs with `lanes` lanes in a wave."""

    @property
    def threads(self) -> Threads:
        """Threads of a workgroup."""
        return Threads(_THREADS, self.lanes)

    @property
    def workgroups(self) -> list[Size]:
        """Workgroups along columns, and along runs."""
        return [-(-self.columns // _THREADS), self.runs]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        x, weights, pool, runs, places, result = buffers
        column = workgroup(0) * _THREADS + thread()
        run = rows_of_run(runs, places, workgroup(1))
        with when(below(column, self.columns)):
            lane = _Lane(x, result, column, self._factors(weights, column))
            self._run(lane, run, pool)

    def _factors(self, weights: ir.Value, column: ir.Value) -> list[ir.Value]:
        """Load the weights of a column, as f32."""
        first = column * self.width
        found = [memref.LoadOp(weights, [first + n]).result for n in range(self.width)]
        return found if self.element == "f32" else [arith.extf(f32(), w) for w in found]

    def _run(self, lane: _Lane, run: RunRows, pool: ir.Value) -> None:
        """Load the state from its pool, compute all rows of the run, and store the new state."""
        places = [[run.place, self.layer, index(n), lane.column] for n in range(self.width - 1)]
        zero = constant(0.0, f32())
        kept = [memref.LoadOp(pool, place).result for place in places]
        kept = [arith.select(run.fresh, zero, value) for value in kept]
        count = run.behind - run.first
        whole = count // _ROWS * _ROWS
        middle = run.first + whole
        for begin, end, rows in ((run.first, middle, _ROWS), (middle, run.behind, 1)):
            with loop(begin, end, index(rows), kept) as (row, kept, op):
                scf.YieldOp(lane.rows(row, rows, kept))
            kept = list(op.results)
        for value, place in zip(kept, places, strict=True):
            memref.StoreOp(value, pool, place)


@dataclass(frozen=True)
class _Lane:
    """The `column` of a lane, and its weights, `factors`."""

    x: ir.Value
    result: ir.Value
    column: ir.Value
    factors: list[ir.Value]

    def rows(self, first: ir.Value, count: int, kept: list[ir.Value]) -> list[ir.Value]:
        """Compute `count` rows from row `first` on. `kept`: the elements of x of the W - 1 rows
        before them. Returns those of the last W - 1 rows."""
        places = [[first + n, self.column] for n in range(count)]
        values = [*kept, *(memref.LoadOp(self.x, place).result for place in places)]
        for number, place in enumerate(places):
            total = constant(0.0, f32())
            for value, factor in zip(values[number:], self.factors, strict=False):
                total = math.fma(value, factor, total)
            memref.StoreOp(total, self.result, place)
        return values[count:]
