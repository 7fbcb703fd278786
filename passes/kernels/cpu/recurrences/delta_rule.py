"""The delta rule on CPUs: a workgroup processes the rows of a run, for some columns of one head.

    tile[i, v] = state[i, v], or zero                            # K x columns, in the L1 cache
    for row in run:
      known[v]   = sum over i of k[i] tile[i, v]                 # i in the order of `_summed`
      change[v]  = beta (v[v] - decay known[v])
      tile[i, v] = k[i] change[v] + decay tile[i, v]
      result[v]  = sum over i of q[i] tile[i, v]                 # in the same loop
    state = tile

A run is consecutive rows of one sequence. Columns of a state are independent. If each row of the
state has its own decay, the first sum uses k[i] decay[i], and tile[i, v] is multiplied by decay[i].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, scf, vector

from mxc.dialects.reasons import Reason
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import Size
from mxc.passes.kernels.recurrences.shape import DeltaRule, rows_of_run
from mxc.passes.kernels.vectors import f32, index, load, loop, of, scratch, splat

#: Most f32 of a tile. With rows of queries and keys, a tile fits in an L1 cache of 32 KiB.
_TILE = 4096
#: Rows of a state per iteration of the loop over i.
_STEP = 8
#: Sums in flight at once: a multiply-add takes four cycles, and two start per cycle.
_CHAINS = 8


class CpuDeltaRule(DeltaRule):
    """The delta rule in registers of `lanes` f32."""

    def checked(self) -> Self | Reason:
        """This kernel, or the reason why it does not support these sizes."""
        if self.key_depth % _STEP or self.depth % self.lanes:
            return Reason(
                f"a state is {self.key_depth}x{self.depth}; kernels take multiples of "
                f"{_STEP}x{self.lanes}"
            )
        return self

    @property
    def columns(self) -> int:
        """Number of columns of a workgroup."""
        return self._registers * self.lanes

    @property
    def _registers(self) -> int:
        """Number of registers per row of the tile."""
        whole = self.depth // self.lanes
        most = max(1, _TILE // (self.key_depth * self.lanes))
        return max(n for n in range(1, min(most, whole, _CHAINS) + 1) if whole % n == 0)

    @property
    def workgroups(self) -> list[Size]:
        """Number of workgroups along columns, heads and runs."""
        return [self.depth // self.columns, self.heads, self.runs]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        *rows, pool, runs, places, result = buffers
        block, head, number = (workgroup(n) for n in range(3))
        run = rows_of_run(runs, places, number)
        first = block * self.columns
        key_head = head // self.group
        tile = scratch([self.key_depth, self.columns], f32())
        columns = [first + n * self.lanes for n in range(self._registers)]
        own = [index(n * self.lanes) for n in range(self._registers)]
        zeros = splat(0.0, f32(), self.lanes)
        with loop(index(0), index(self.key_depth), index(1)) as (i, _, _):
            for place, column in zip(own, columns, strict=True):
                at = [run.place, self.layer, head, i, column]
                value = arith.select(run.fresh, zeros, self._load(pool, at))
                vector.store(value, tile, [i, place])
        with loop(run.first, run.behind, index(1)) as (row, _, _):
            each = _Row(self, tile, own, rows, row, head, key_head)
            for value, column in zip(each.result(columns), columns, strict=True):
                vector.store(value, result, [row, head, column])
        with loop(index(0), index(self.key_depth), index(1)) as (i, _, _):
            for place, column in zip(own, columns, strict=True):
                at = [run.place, self.layer, head, i, column]
                vector.store(self._load(tile, [i, place]), pool, at)

    def _load(self, source: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
        return load(source, at, f32(), self.lanes)


@dataclass(frozen=True)
class _Row:
    """The computation for one row of a run. `own`: the columns of the tile at which its registers
    begin. `rows`: queries, keys, values, decay and beta of all rows."""

    kernel: CpuDeltaRule
    tile: ir.Value
    own: Sequence[ir.Value]
    rows: Sequence[ir.Value]
    row: ir.Value
    head: ir.Value
    key_head: ir.Value

    def result(self, columns: Sequence[ir.Value]) -> list[ir.Value]:
        """Update the tile, and return the result of the row, a register for each of `columns`."""
        _, _, values, decay, beta = self.rows
        lanes, each = self.kernel.lanes, self.kernel.each
        rate = self._wide(_element(beta, [self.row, self.head]))
        kept = None if each else self._wide(_element(decay, [self.row, self.head]))
        changes = []
        for known, column in zip(self._known(), columns, strict=True):
            have = known if kept is None else kept * known
            wanted = load(values, [self.row, self.head, column], f32(), lanes)
            changes.append(rate * (wanted - have))

        def updated(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            key, query = (self._wide(self._of_key(x, i)) for x in (self.rows[1], self.rows[0]))
            left = self._wide(self._decay(i)) if kept is None else kept
            found = []
            for change, place, total in zip(changes, self.own, sums, strict=True):
                state = left * load(self.tile, [i, place], f32(), lanes)
                state = math.fma(key, change, state)
                vector.store(state, self.tile, [i, place])
                found.append(math.fma(query, state, total))
            return found

        return self._summed(updated, _CHAINS // 2)

    def _known(self) -> list[ir.Value]:
        """The sums `known` of the module docstring, one for each register of columns."""

        def products(i: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            key = self._of_key(self.rows[1], i)
            if self.kernel.each:
                key = key * self._decay(i)
            key, lanes = self._wide(key), self.kernel.lanes
            return [
                math.fma(key, load(self.tile, [i, place], f32(), lanes), total)
                for place, total in zip(self.own, sums, strict=True)
            ]

        return self._summed(products, _CHAINS)

    def _summed(
        self, add: Callable[[ir.Value, list[ir.Value]], list[ir.Value]], chains: int
    ) -> list[ir.Value]:
        """The sums over i, to which `add` adds the terms of one i. Each sum is split into parts so
        that `chains` are in flight: part n takes every i that is n modulo the number of parts, and
        parts are added in pairs."""
        count = len(self.own)
        parts = max(1, chains // count)
        parts = max(n for n in (1, 2, 4, 8) if n <= parts)
        zero = splat(0.0, f32(), self.kernel.lanes)
        depth = index(self.kernel.key_depth)
        with loop(index(0), depth, index(_STEP), [zero] * (count * parts)) as (i, sums, op):
            for n in range(_STEP):
                taken = slice(n % parts * count, (n % parts + 1) * count)
                sums[taken] = add(i + n, sums[taken])
            scf.YieldOp(sums)
        found = [list(op.results)[n * count : (n + 1) * count] for n in range(parts)]
        while len(found) > 1:
            found = [
                [a + b for a, b in zip(*pair, strict=True)]
                for pair in zip(found[0::2], found[1::2], strict=True)
            ]
        return found[0]

    def _of_key(self, source: ir.Value, i: ir.Value) -> ir.Value:
        return _element(source, [self.row, self.key_head, i])

    def _decay(self, i: ir.Value) -> ir.Value:
        return _element(self.rows[3], [self.row, self.head, i])

    def _wide(self, value: ir.Value) -> ir.Value:
        return vector.broadcast(of(f32(), self.kernel.lanes), value)


def _element(source: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
    return memref.LoadOp(source, list(at)).result
