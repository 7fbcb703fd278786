"""The delta rule on GPUs: eight lanes compute one column of a head for all rows of a run, in order.

The state of a head is a matrix with K rows. A lane holds K / 8 elements of a column of it in
registers, from the first row of the run to the last:

    known   = sum over i of k[i] state[i]                   # over the eight lanes
    change  = beta (v - decay known)
    state   = k[i] change + decay state[i]
    result  = sum over i of q[i] state[i]                   # over the eight lanes

A workgroup has adjacent columns, so that it reads whole cache lines. Its waves do not wait for each
other. Rows of the run are loaded some rows before they are needed.

If each row of the state has its own decay, the first sum is over k[i] decay[i] state[i], without a
decay of the sum, and the new state is k[i] change + decay[i] state[i].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf, vector

from mxc.dialects.amdgpu import thread
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Size
from mxc.passes.kernels.gpu.sums import OF_EIGHT, over_lanes, sum_of
from mxc.passes.kernels.recurrences.shape import DeltaRule, RunRows, rows_of_run
from mxc.passes.kernels.vectors import below, f32, index, load, loop, splat, when

#: Lanes that share a column; most lanes of a workgroup.
_PARTS, _THREADS = 8, 256
#: Most elements of the state in a lane: with queries and keys of the prefetched rows they fill its
#: registers.
_MOST = 32
#: Rows that are prefetched: loads are issued this many rows ahead.
_AHEAD = 2

#: Several vectors of f32, which together are the elements of a lane.
Vectors = list[ir.Value]


class GpuDeltaRule(DeltaRule):
    """The kernel for GPUs with `lanes` lanes in a wave."""

    def checked(self) -> Self | Reason:
        """Return the kernel, or why lanes cannot hold states of this size."""
        columns, most = self.lanes // _PARTS, _MOST * _PARTS
        if self.key_depth % _PARTS or self.key_depth > most or self.depth % columns:
            return Reason(
                f"a state is {self.key_depth}x{self.depth}; kernels take multiples of "
                f"{_PARTS}x{columns}, and {most} rows at most"
            )
        return self

    @property
    def threads(self) -> Threads:
        """Threads of a workgroup."""
        return Threads(self.columns * _PARTS, self.lanes)

    @property
    def columns(self) -> int:
        """Columns that a workgroup computes."""
        count = _THREADS // _PARTS
        while self.depth % count:
            count //= 2
        return count

    @property
    def workgroups(self) -> list[Size]:
        """Workgroups along columns, along heads, and along runs."""
        return [self.depth // self.columns, self.heads, self.runs]

    @property
    def elements(self) -> int:
        """Elements of the state that a lane holds."""
        return self.key_depth // _PARTS

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        *rows, pool, runs, places, result = buffers
        block, head, number = (workgroup(n) for n in range(3))
        run = rows_of_run(runs, places, number)
        part = thread() % _PARTS
        column = block * self.columns + thread() // _PARTS
        lane = _Lane(
            kernel=self,
            rows=rows,
            run=run,
            head=head,
            key_head=head // self.group,
            first=part * self.elements,
            column=column,
        )
        state = lane.state(pool)
        held = state, [lane.row(run.first + n) for n in range(_AHEAD)]
        with loop(run.first, run.behind, index(1), values_of(held)) as (row, values, op):
            state, (own, *ahead) = with_values(held, values)
            following = lane.row(row + _AHEAD)
            state, found = own.step(state)
            with when(below(part, 1)):
                memref.StoreOp(found, result, [row, head, column])
            scf.YieldOp(values_of((state, [*ahead, following])))
        state, _ = with_values(held, op.results)
        lane.store(state, pool)


@dataclass(frozen=True, kw_only=True)
class _Lane:
    """What a lane computes: the elements of `column` from `first` on, for the rows of `run`.
    `rows`: the buffers of queries, keys, values, decay and beta."""

    kernel: GpuDeltaRule
    rows: Sequence[ir.Value]
    run: RunRows
    head: ir.Value
    key_head: ir.Value
    first: ir.Value
    column: ir.Value

    @property
    def _width(self) -> int:
        """Elements of a vector."""
        return next(n for n in (4, 2, 1) if self.kernel.elements % n == 0)

    def _places(self) -> list[list[ir.Value]]:
        """The indices in the pool of the lane's elements."""
        own = [self.first + n for n in range(self.kernel.elements)]
        layer = self.kernel.layer
        return [[self.run.place, layer, self.head, i, self.column] for i in own]

    def state(self, pool: ir.Value) -> Vectors:
        """Load the lane's elements of the state before the run; zeros for a fresh run."""
        found = [memref.LoadOp(pool, place).result for place in self._places()]
        zeros = splat(0.0, f32(), self._width)
        return [
            arith.select(
                self.run.fresh, zeros, vector.from_elements(zeros.type, found[n : n + self._width])
            )
            for n in range(0, len(found), self._width)
        ]

    def store(self, state: Vectors, pool: ir.Value) -> None:
        """Store the lane's elements of the state after the run."""
        values = [vector.extract(v, [], [n]) for v in state for n in range(self._width)]
        for value, place in zip(values, self._places(), strict=True):
            memref.StoreOp(value, pool, place)

    def row(self, number: ir.Value) -> _Row:
        """Load what the lane needs of row `number`, or of the last row of the run if that is past
        it."""
        last = self.run.behind - 1
        row = arith.minui(number, last)
        queries, keys, values, decay, beta = self.rows

        def vectors(source: ir.Value, head: ir.Value) -> Vectors:
            return [
                load(source, [row, head, self.first + n], f32(), self._width)
                for n in range(0, self.kernel.elements, self._width)
            ]

        q, k = (vectors(source, self.key_head) for source in (queries, keys))
        if self.kernel.each:
            left = vectors(decay, self.head)
        else:
            left = [memref.LoadOp(decay, [row, self.head]).result]
        value = memref.LoadOp(values, [row, self.head, self.column]).result
        return _Row(q, k, left, value, memref.LoadOp(beta, [row, self.head]).result)


@dataclass(frozen=True)
class _Row:
    """What a lane has loaded of a row. `decay`: a single f32, or vectors if each row of the state
    has its own."""

    queries: Vectors
    keys: Vectors
    decay: Vectors
    value: ir.Value
    beta: ir.Value

    def step(self, state: Vectors) -> tuple[Vectors, ir.Value]:
        """Return the state after the row, and the result of the row: an f32, the same in the eight
        lanes of the column."""
        kind = state[0].type
        decay, keys, alone = self.decay, self.keys, None
        if isinstance(decay[0].type, ir.VectorType):
            keys = [k * left for k, left in zip(keys, decay, strict=True)]
        else:
            alone = decay[0]
            decay = [vector.broadcast(kind, alone)] * len(state)
        known = _product(keys, state)
        if alone is not None:
            known = alone * known
        change = self.beta * (self.value - known)
        wide = vector.broadcast(kind, change)
        state = [
            math.fma(k, wide, left * s) for k, left, s in zip(self.keys, decay, state, strict=True)
        ]
        return state, _product(self.queries, state)


def _product(x: Vectors, y: Vectors) -> ir.Value:
    """The sum of the products of x and y over the eight lanes of a column. It is added up over the
    vectors first, then over the places of a vector, then over the lanes."""
    total = x[0] * y[0]
    for a, b in zip(x[1:], y[1:], strict=True):
        total = math.fma(a, b, total)
    return over_lanes(sum_of(total), OF_EIGHT)
