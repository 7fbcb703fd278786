"""Sort rows on CPUs and GPUs by a bitonic network of comparisons, one row per workgroup.

    a row of 8:   0-1 2-3 4-5 6-7 | 0-3 1-2 4-7 5-6 | 0-1 2-3 4-5 6-7 | 0-7 1-6 2-5 3-4 | 0-2 1-3 ..

A step compares pairs of places, and leaves the lesser element of each at the lower place. Places
past the end of a row, up to the next power of two, count as holding the greatest elements, so that
pairs with them are left out. A row of n takes about log2(n)^2 / 2 steps of n / 2 pairs each.

The sort is stable: the original places are sorted along with the elements, and decide between equal
elements. Elements are exchanged and never copied, so that each is there exactly once in the end,
whatever the comparison of the program says. Source: K. E. Batcher, Sorting networks and their
applications, 1968.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, gpu, math, memref

from mxc.dialects.amdgpu import shared, thread
from mxc.dialects.dispatches import element_bits
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, named, value_of
from mxc.passes.kernels.vectors import below, equal, i32, index, loop, when
from mxc.passes.rewriting.rebuild import body_text, clone_over

#: Most threads of a workgroup on a GPU; threads to ask for if the length comes with each call.
_MOST, _DYNAMIC = 1024, 256
#: Bytes of shared memory of a workgroup that every GPU has.
_SHARED = 65536
#: How to emit a comparison so that NaN is the greatest number. Key: the predicate of the program as
#: an arith.CmpFPredicate (2 OGT, 3 OGE, 4 OLT, 5 OLE). Value: the predicate that is emitted, which
#: is true if an operand is NaN, and the operand (0 or 1) that must also be no NaN.
_WITH_NAN = {
    2: (arith.CmpFPredicate.UGT, 1),
    3: (arith.CmpFPredicate.UGT, 1),
    4: (arith.CmpFPredicate.ULT, 0),
    5: (arith.CmpFPredicate.ULT, 0),
}


@dataclass(frozen=True)
class SortOrder:
    """The order of a sort. `block`: computes whether one element goes before another; its arguments
    are a pair of elements of each operand.

    It may also compute "before or equal". Truth values (i1) are passed as bytes. If it does nothing
    but compare two floats, NaN is the greatest number, as in torch and numpy.
    """

    block: ir.Block

    @property
    def signature(self) -> str:
        """Text that is equal for comparisons with the same code."""
        names = {value: f"%{number}" for number, value in enumerate(self.block.arguments)}
        kinds = [str(value.type) for value in self.block.arguments]
        return "; ".join([*kinds, *body_text(self.block, names)])

    def holds(self, first: Sequence[ir.Value], second: Sequence[ir.Value]) -> ir.Value:
        """Build the comparison whether the elements `first`, one of each operand, go before the
        elements `second`."""
        given = [value for pair in zip(first, second, strict=True) for value in pair]
        at = {
            argument: value if value.type == argument.type else arith.trunci(argument.type, value)
            for argument, value in zip(self.block.arguments, given, strict=True)
        }
        *body, end = (view.operation for view in self.block.operations)
        if len(body) == 1 and body[0].name == "arith.cmpf":
            predicate = ir.IntegerAttr(body[0].attributes["predicate"]).value
            if predicate in _WITH_NAN:
                return _with_nan(predicate, *(at[value] for value in body[0].operands))
        for op in (*body, end):
            for operand in op.operands:
                if operand not in at:  # a constant outside the region
                    clone_over(operand.owner, at)
            if op is not end:
                clone_over(op, at)
        return at[end.operands[0]]


def _with_nan(predicate: int, first: ir.Value, second: ir.Value) -> ir.Value:
    """Build a comparison of floats in which NaN is the greatest number; see _WITH_NAN."""
    how, number = _WITH_NAN[predicate]
    known = (first, second)[number]
    is_number = arith.cmpf(arith.CmpFPredicate.ORD, known, known)
    return arith.cmpf(how, first, second) & is_number


@dataclass(frozen=True)
class Sort(Sized):
    """Sort tensors [outer, length, inner] along `length`, all by one order.

    `elements`: the element type of each tensor. Sizes that are None come with each call. `wave`:
    lanes of a wave on a GPU, 0 on a CPU.
    """

    outer: Size
    length: Size
    inner: Size
    elements: tuple[ir.Type, ...]
    order: SortOrder
    wave: int

    @property
    def name(self) -> str:
        """The symbol of the kernel, to which the caller adds a suffix for its order."""
        sizes = "x".join(map(named, (self.outer, self.length, self.inner)))
        return f"mxc_sort_{sizes}_{'_'.join(map(str, self.elements))}"

    @property
    def threads(self) -> Threads | None:
        """The workgroup on a GPU: one thread per pair of a step, in whole waves, at most _MOST."""
        if not self.wave:
            return None
        wanted = (self.length + 1) // 2 if isinstance(self.length, int) else _DYNAMIC
        return Threads(min(_MOST, max(1, -(-wanted // self.wave)) * self.wave), self.wave)

    @property
    def workgroups(self) -> list[Size]:
        """One workgroup for each row."""
        return [self.inner, self.outer]

    @property
    def is_shared(self) -> bool:
        """Whether rows are sorted in shared memory of a GPU."""
        size = sum(element_bits(each) // 8 for each in (*self.elements, i32()))
        return self.wave > 0 and isinstance(self.length, int) and self.length * size <= _SHARED

    @property
    def buffers(self) -> list[Buffer]:
        """The tensors, the sorted tensors, and where each element of these was, unless this is kept
        in shared memory."""
        places = () if self.is_shared else (i32(),)
        kinds = (*self.elements, *self.elements, *places)
        return [Buffer([self.outer, self.length, self.inner], each) for each in kinds]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        column, group = workgroup(0), workgroup(1)
        rows = [_Row(buffer, (group,), (column,)) for buffer in buffers]
        count, length = len(self.elements), value_of(self.length)
        given, sorted = rows[:count], rows[count:]
        own = sorted
        if self.is_shared:
            assert isinstance(self.length, int)
            own = [_Row(shared([self.length], kind)) for kind in (*self.elements, i32())]
        with self._each(length) as at:
            for row, copy in zip(given, own, strict=False):
                copy.store(row.load(at), at)
            own[-1].store(arith.index_cast(i32(), at), at)
        self._sort(own, length)
        if self.is_shared:
            with self._each(length) as at:
                for row, copy in zip(sorted, own, strict=False):
                    row.store(copy.load(at), at)

    @contextlib.contextmanager
    def _each(self, count: ir.Value) -> Iterator[ir.Value]:
        """Emit a loop over the numbers below `count`. On a GPU they are divided among the threads,
        and a barrier follows the loop."""
        threads = self.threads
        first, step = (thread(), threads.count) if threads else (index(0), 1)
        with loop(first, count, index(step)) as (at, _, _):
            yield at
        if threads:
            gpu.barrier()

    def _sort(self, rows: Sequence[_Row], length: ir.Value) -> None:
        """Build the network. `rows`: of each tensor; the last one has the original places."""
        one = index(1)
        if isinstance(self.length, int):
            bits = index(max(self.length - 1, 0).bit_length())
        else:
            bits = index(64) - math.ctlz(arith.maxui(length, one) - 1)
        half = arith.shrui(arith.shli(one, bits), one)
        with (
            loop(index(0), bits, one) as (level, _, _),
            loop(index(0), level + 1, one) as (step, _, _),
        ):
            distance = arith.shli(one, level - step)
            with self._each(half) as pair:
                within = arith.andi(pair, distance - 1)
                low = pair + pair - within
                # The first step of a level pairs the first place with the last one.
                mirrored = low - within - within + (distance + distance - 1)
                high = arith.select(equal(step, 0), mirrored, low + distance)
                with when(below(high, length)):
                    self._exchange(rows, low, high)

    def _exchange(self, rows: Sequence[_Row], low: ir.Value, high: ir.Value) -> None:
        """Exchange the elements at two places if those at `high` go before those at `low`. If the
        order does not tell, the original places do."""
        first, second = ([row.load(at) for row in rows] for at in (low, high))
        keeps = self.order.holds(first[:-1], second[:-1])
        swaps = self.order.holds(second[:-1], first[:-1])
        later = below(second[-1], first[-1])
        with when(arith.select(equal(keeps, swaps), later, swaps)):
            for row, lower, upper in zip(rows, first, second, strict=True):
                row.store(upper, low)
                row.store(lower, high)


@dataclass(frozen=True)
class _Row:
    """A row of a buffer. `before`, `after`: the indices around that of an element in the row."""

    buffer: ir.Value
    before: tuple[ir.Value, ...] = ()
    after: tuple[ir.Value, ...] = ()

    def load(self, at: ir.Value) -> ir.Value:
        """Load an element."""
        return memref.LoadOp(self.buffer, [*self.before, at, *self.after]).result

    def store(self, value: ir.Value, at: ir.Value) -> None:
        """Store an element."""
        memref.StoreOp(value, self.buffer, [*self.before, at, *self.after])
