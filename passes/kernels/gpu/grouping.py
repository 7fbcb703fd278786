"""Sort pairs of a token and an expert into groups of one expert, on GPUs. A workgroup has a group,
and a lane of it an expert.

    count pairs     all pairs pass through LDS, and each lane counts those of its expert
    first slot      a lane adds up the groups that the experts before its own need
    place pairs     all pairs pass through LDS again; the lane whose expert the group belongs to
                    stores the slots of its pairs in the group, and lists these pairs in LDS
    copy rows       all lanes together copy the row of each listed pair

Each workgroup sorts all pairs for itself, because workgroups do not exchange results. No two of
them write the same element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects.amdgpu import barrier, shared, thread, uniform
from mxc.dialects.expert_groups import COPIED, GroupingCall, grouping_calls
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import size_of
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, named, product, value_of
from mxc.passes.kernels.gpu.lanes import at_most, long, short, unknown_zero
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.vectors import below, equal, i32, index, load, loop, signed_below, when

#: Least and most lanes of a workgroup. Each brings one pair to LDS at a time. The least are also
#: the most rows of a group, and the most are the most experts.
_LEAST_LANES, _MOST_LANES = 256, 1024
#: Pairs that a lane reads from LDS at once; pieces of rows that it loads before it stores the
#: first.
_TOGETHER, _AHEAD = 4, 6
#: Experts whose numbers of groups are read at once. Those after the last expert are zero.
_EXPERTS = 16


@dataclass(frozen=True)
class Grouping(Sized):
    """The kernel that sorts `pairs` pairs of `experts` experts into `groups` groups of `rows`
    slots.

    For each slot, `width` elements of type `element` are copied from one of `tokens` rows; none if
    `width` is 0. Where `rows`, `pairs`, `groups` and `tokens` are None, they are index scalars of
    each call. `most_rows`: the greatest possible `rows`. `wave`: lanes of a wave.
    """

    experts: int
    rows: Size
    most_rows: int
    wave: int
    width: int = 0
    element: str = "i8"
    pairs: Size = None
    groups: Size = None
    tokens: Size = None

    @staticmethod
    def of(call: GroupingCall, wave: int) -> Grouping | Reason:
        """Return the kernel of a call, or why there is none."""
        if call.experts > _MOST_LANES or call.most_rows > _LEAST_LANES:
            return Reason(
                f"there are {call.experts} experts, of groups of {call.most_rows}; kernels take up "
                f"to {_MOST_LANES}, of up to {_LEAST_LANES}"
            )
        kernel = Grouping(call.experts, call.rows, call.most_rows, wave)
        if call.copied is None:
            return replace(kernel, tokens=0)
        width, element = shape_of(call.copied)[1], element_of(call.copied)
        if width * element.width % (8 * COPIED):
            return Reason(f"rows are {width} {element}; kernels copy multiples of {COPIED} bytes")
        return replace(kernel, width=width, element=str(element))

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        copied = f"_with_{self.width}_{self.element}" if self.width else ""
        sizes = f"{named(self.rows)}_{named(self.pairs)}_of_{self.experts}"
        return f"mxc_groups_of_{sizes}{copied}"

    @property
    def threads(self) -> Threads:
        """Threads of a workgroup."""
        if self.width:
            return Threads(_MOST_LANES, self.wave)
        return Threads(max(self._searching, _LEAST_LANES), self.wave)

    @property
    def _searching(self) -> int:
        """Lanes of those waves in which some lane has an expert."""
        return -(-self.experts // self.wave) * self.wave

    @property
    def workgroups(self) -> list[Size]:
        """One workgroup per group."""
        return [self.groups]

    @property
    def buffers(self) -> list[Buffer]:
        """The expert of each pair, and the rows to copy, if any; then the results: the expert of
        each group, the pair of each slot, the slot of each pair, and the copied rows, if any."""
        slots, kind = product(self.groups, self.rows), ir.Type.parse(self.element)
        copied = [Buffer([size, self.width], kind) for size in (self.tokens, slots)]
        copied = copied if self.width else []
        chosen, *made = (Buffer([n], i32()) for n in (self.pairs, self.groups, slots, self.pairs))
        return [chosen, *copied[:1], *made, *copied[1:]]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        if self.width:
            chosen, source, owners, pairs, slots, copies = buffers
        else:
            chosen, owners, pairs, slots = buffers
        own, group, zero = thread(), workgroup(0), constant(0, i32())
        rows = value_of(self.rows)
        memory, listed = shared([self.threads.count], i32()), shared([self.most_rows], i32())
        with when(below(own, rows)):
            memref.StoreOp(zero, listed, [own])

        def counted(here: ir.Value, _: ir.Value, before: ir.Value) -> ir.Value:
            return before + arith.extui(i32(), here)

        count = self._over_pairs(chosen, memory, counted)
        filled = (count + short(rows - 1)) // short(rows)
        memref.StoreOp(filled, memory, [own])
        barrier()
        # If LLVM knew the number of experts, it would load the numbers of all of them first.
        end = uniform(unknown_zero() + self.experts)
        with loop(index(0), end, index(_EXPERTS), [zero, zero]) as (at, (before, every), op):
            several = load(memory, [at], i32(), _EXPERTS)
            for number in range(_EXPERTS):
                each = vector.extract(several, [], [number])
                earlier = arith.select(below(at + number, own), each, zero)
                before, every = before + earlier, every + each
            scf.YieldOp([before, every])
        first, needed = (long(found) for found in op.results)
        barrier()
        begin = group * rows
        # The slot of this group that the first pair of the lane's expert has; negative if that pair
        # is in an earlier group.
        place = first * rows - begin
        has = signed_below(place, 1) & signed_below(begin, (first + long(filled)) * rows)
        has = has & below(own, self.experts)
        with when(has):
            memref.StoreOp(short(own), owners, [group])
        # A group that no pair needs gets `experts`, which is no expert.
        spare = arith.cmpi(arith.CmpIPredicate.ule, needed, group)
        only = spare & equal(own, 0)
        with when(only):
            memref.StoreOp(constant(self.experts, i32()), owners, [group])

        def placed(here: ir.Value, pair: ir.Value, before: ir.Value) -> ir.Value:
            slot = place + long(before)
            inside = here & has & below(slot, rows)
            with when(inside):
                memref.StoreOp(short(begin + slot), slots, [pair])
                memref.StoreOp(short(pair), listed, [slot])
            return counted(here, pair, before)

        self._over_pairs(chosen, memory, placed)
        with when(below(own, rows)):
            memref.StoreOp(memref.LoadOp(listed, [own]).result, pairs, [begin + own])
        if self.width:
            self._copy(source, copies, listed, begin)

    def _copy(self, source: ir.Value, copies: ir.Value, listed: ir.Value, begin: ir.Value) -> None:
        """Copy the rows of the pairs in the slots of the group. `listed`: the pair of each slot, in
        LDS; `begin`: the first slot."""
        kind = ir.Type.parse(self.element)
        run = 8 * COPIED // kind.width
        pieces, lanes = self.width // run, self.threads.count
        end = value_of(self.rows) * pieces
        choices = short(value_of(self.pairs) // value_of(self.tokens))
        with loop(index(0), end, index(lanes * _AHEAD)) as (base, _, _):
            found = []
            for step in range(_AHEAD):
                piece = base + thread() + step * lanes
                at = at_most(piece, end - 1)
                slot, column = at // pieces, at % pieces * run
                row = long(memref.LoadOp(listed, [slot]).result // choices)
                found.append((piece, slot, column, load(source, [row, column], kind, run)))
            for piece, slot, column, value in found:
                with when(below(piece, end)):
                    vector.store(value, copies, [begin + slot, column])

    def _over_pairs(
        self,
        chosen: ir.Value,
        memory: ir.Value,
        step: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
    ) -> ir.Value:
        """Go over all pairs, which pass through `memory` in LDS, and return an i32 of each lane.

        The i32 is 0 at first. For each pair in order, `step` gets whether the pair has this lane's
        expert, the number of the pair, and the i32, and returns the new i32.
        """
        own, pairs, lanes = thread(), value_of(self.pairs), self.threads.count
        with loop(index(0), pairs, index(lanes), [constant(0, i32())]) as (base, carried, outer):
            place = base + own
            expert = memref.LoadOp(chosen, [at_most(place, pairs - 1)]).result
            expert = arith.select(below(place, pairs), expert, constant(-1, i32()))
            memref.StoreOp(expert, memory, [own])
            barrier()
            end = at_most(pairs - base, lanes)
            # Waves without experts skip the search.
            end = arith.select(below(own, self._searching), end, index(0))
            with loop(index(0), end, index(_TOGETHER), carried) as (at, (found,), inner):
                several = load(memory, [at], i32(), _TOGETHER)
                for number in range(_TOGETHER):
                    each = vector.extract(several, [], [number])
                    here = equal(each, short(own))
                    found = step(here, base + at + number, found)
                scf.YieldOp([found])
            barrier()
            scf.YieldOp(list(inner.results))
        return outer.results[0]


def grouping_lowering(wave: int) -> Lowering[GroupingCall, Grouping]:
    """Return the lowering of `group_by_expert` to kernels for waves of `wave` lanes."""
    return Lowering(grouping_calls, lambda call: Grouping.of(call, wave), _dispatch)


def _dispatch(calls: Calls, call: GroupingCall, kernel: Grouping) -> Sequence[ir.Value]:
    chosen, groups, _, rows, *copied = call.op.operands
    scalars = [rows] if kernel.rows is None else []
    scalars += [value_of(size_of(each, 0)) for each in (chosen, groups, *copied)]
    made = calls.dispatch(kernel.name, kernel, [chosen, *copied], scalars, kernel.threads)
    return list(made.results)
