"""Pairs sorted into groups of one expert, on GPUs: one workgroup, a lane an expert.

A lane goes over all pairs twice, which the lanes bring to shared memory together. First it counts
those of its expert; the groups of the experts before its own say where its slots begin. Then it
writes the slot of each of its pairs, and the pair of each of its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects.amdgpu import barrier, shared, thread
from mxc.dialects.expert_groups import GroupingCall, grouping_calls
from mxc.dialects.generic import constant
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import size_of
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Threads
from mxc.passes.kernels.extents import Buffer, Size, Sized, named, product, value_of
from mxc.passes.kernels.gpu.lanes import at_most, below, divided, long, plus, short, times
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.vectors import i32, index, load, loop

#: Lanes of a workgroup at least, which bring as many pairs at once, and at most.
_LEAST, _MOST = 256, 1024
#: Pairs that are looked at at once.
_TOGETHER = 4


@dataclass(frozen=True)
class Grouping(Sized):
    """`pairs` pairs of `experts` experts, in `groups` groups of `rows` slots.

    Where `pairs` and `groups` are None, they are index scalars of each call. `wave`: lanes of one.
    """

    experts: int
    rows: int
    wave: int
    pairs: Size = None
    groups: Size = None

    @staticmethod
    def of(experts: int, rows: int, wave: int) -> Grouping | Reason:
        """The kernel, or why there is none."""
        if experts > _MOST:
            return Reason(f"there are {experts} experts; kernels take up to {_MOST}")
        return Grouping(experts, rows, wave)

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        return f"mxc_groups_of_{self.rows}_{named(self.pairs)}_of_{self.experts}"

    @property
    def threads(self) -> Threads:
        """Threads of a workgroup."""
        waves = -(-self.experts // self.wave)
        return Threads(max(waves * self.wave, _LEAST), self.wave)

    @property
    def workgroups(self) -> list[Size]:
        """One."""
        return [1]

    @property
    def buffers(self) -> list[Buffer]:
        """The experts of pairs; then those of groups, the pairs of slots and the slots of pairs."""
        sizes = (self.pairs, self.groups, product(self.groups, self.rows), self.pairs)
        return [Buffer([size], i32()) for size in sizes]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        chosen, owners, pairs, slots = buffers
        own, zero = thread(), constant(0, i32())
        memory = shared([self.threads.count], i32())

        def counted(here: ir.Value, _: ir.Value, before: ir.Value) -> ir.Value:
            return plus(before, arith.extui(i32(), here))

        count = self._over_pairs(chosen, memory, counted)
        filled = divided(plus(count, self.rows - 1), self.rows)
        memref.StoreOp(filled, memory, [own])
        barrier()
        with loop(index(0), index(self.experts), index(1), [zero, zero]) as (at, sums, op):
            number = memref.LoadOp(memory, [at]).result
            earlier = arith.select(below(at, own), number, zero)
            scf.YieldOp([plus(sums[0], earlier), plus(sums[1], number)])
        first, needed = (long(found) for found in op.results)
        barrier()
        start = times(first, self.rows)

        def placed(here: ir.Value, pair: ir.Value, before: ir.Value) -> ir.Value:
            with ir.InsertionPoint(scf.IfOp(here).then_block):
                slot = plus(start, long(before))
                memref.StoreOp(short(slot), slots, [pair])
                memref.StoreOp(short(pair), pairs, [slot])
                scf.YieldOp([])
            return counted(here, pair, before)

        self._over_pairs(chosen, memory, placed)
        behind = plus(first, long(filled))
        _fill(owners, first, behind, 1, short(own))
        _fill(pairs, plus(start, long(count)), times(behind, self.rows), 1, zero)
        lanes, groups = self.threads.count, value_of(self.groups)
        last = constant(self.experts - 1, i32())
        _fill(owners, plus(needed, own), groups, lanes, last)
        rest = plus(times(needed, self.rows), own)
        _fill(pairs, rest, times(groups, self.rows), lanes, zero)

    def _over_pairs(
        self,
        chosen: ir.Value,
        memory: ir.Value,
        step: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
    ) -> ir.Value:
        """What `step` makes of an i32, which is 0 at first, from pair to pair: of whether the pair
        is one of this lane's expert, the pair, and the i32."""
        own, pairs, lanes = thread(), value_of(self.pairs), self.threads.count
        with loop(index(0), pairs, index(lanes), [constant(0, i32())]) as (base, carried, outer):
            place = plus(base, own)
            expert = memref.LoadOp(chosen, [at_most(place, arith.subi(pairs, index(1)))]).result
            expert = arith.select(below(place, pairs), expert, constant(-1, i32()))
            memref.StoreOp(expert, memory, [own])
            barrier()
            end = at_most(arith.subi(pairs, base), lanes)
            with loop(index(0), end, index(_TOGETHER), carried) as (at, (found,), inner):
                several = load(memory, [at], i32(), _TOGETHER)
                for number in range(_TOGETHER):
                    each = vector.extract(several, [], [number])
                    here = arith.cmpi(arith.CmpIPredicate.eq, each, short(own))
                    found = step(here, plus(plus(base, at), number), found)
                scf.YieldOp([found])
            barrier()
            scf.YieldOp(list(inner.results))
        return outer.results[0]


def grouping_lowering(wave: int) -> Lowering[GroupingCall, Grouping]:
    """The sorting of rows by expert becomes kernels for waves of so many lanes."""
    return Lowering(
        grouping_calls, lambda call: Grouping.of(call.experts, call.rows, wave), _dispatch
    )


def _dispatch(calls: Calls, call: GroupingCall, kernel: Grouping) -> Sequence[ir.Value]:
    chosen, groups, _ = call.op.operands
    scalars = [value_of(size_of(each, 0)) for each in (chosen, groups)]
    made = calls.dispatch(kernel.name, kernel, [chosen], scalars, kernel.threads)
    return list(made.results)


def _fill(into: ir.Value, first: ir.Value, behind: ir.Value, step: int, value: ir.Value) -> None:
    """`value` at first, first + step, .. before `behind`."""
    with loop(first, behind, index(step)) as (at, _, _):
        memref.StoreOp(value, into, [at])
        scf.YieldOp([])
