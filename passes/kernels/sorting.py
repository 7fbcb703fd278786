"""Sort rows on CPUs and GPUs: a workgroup a row, a bitonic network of comparisons.

    a row of 8:   0-1 2-3 4-5 6-7 | 0-3 1-2 4-7 5-6 | 0-1 2-3 4-5 6-7 | 0-7 1-6 2-5 3-4 | 0-2 1-3 ..

A step compares pairs of places, and leaves the lesser element at the lower place. Of a row whose
length is no power of two, pairs that reach past its end are left out, as if its end were the
greatest. A row of n takes about log2(n)^2 / 2 steps of n / 2 pairs each.

What the comparison does not tell apart stays in its order: places are sorted along with the
elements, and compared last. Elements are exchanged and never copied, so that each is there once in
the end, whatever a comparison says. Source: K. E. Batcher, Sorting networks and their applications,
1968.
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

#: Threads of a workgroup at most, and where a length comes with the call.
_MOST, _DYNAMIC = 1024, 256
#: Bytes of shared memory of a workgroup that every GPU has.
_SHARED = 65536
#: Comparisons of floats that are false for NaN -> those that are true for it; and which of the two
#: numbers is not NaN in a pair whose order is meant. arith.CmpFPredicate: OGT, OGE, OLT, OLE.
_WITH_NAN = {
    2: (arith.CmpFPredicate.UGT, 1),
    3: (arith.CmpFPredicate.UGT, 1),
    4: (arith.CmpFPredicate.ULT, 0),
    5: (arith.CmpFPredicate.ULT, 0),
}


@dataclass(frozen=True)
class SortOrder:
    """The region of a sort: whether the first of each pair of elements goes before the second.

    Regions that say "before or equal" are taken as well. Truth values come as bytes. Where floats
    are compared and nothing else, NaN is the greatest number, as in torch and numpy.
    """

    block: ir.Block

    @property
    def signature(self) -> str:
        """Text that is equal for comparisons with the same code."""
        names = {value: f"%{number}" for number, value in enumerate(self.block.arguments)}
        kinds = [str(value.type) for value in self.block.arguments]
        return "; ".join([*kinds, *body_text(self.block, names)])

    def holds(self, first: Sequence[ir.Value], second: Sequence[ir.Value]) -> ir.Value:
        """Build the comparison of an element of each operand with another one of it."""
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
                if operand not in at:  # a constant outside
                    clone_over(operand.owner, at)
            if op is not end:
                clone_over(op, at)
        return at[end.operands[0]]


def _with_nan(predicate: int, first: ir.Value, second: ir.Value) -> ir.Value:
    how, number = _WITH_NAN[predicate]
    known = (first, second)[number]
    is_number = arith.cmpf(arith.CmpFPredicate.ORD, known, known)
    return arith.cmpf(how, first, second) & is_number


@dataclass(frozen=True)
class Sort(Sized):
    """Sort tensors [outer, length, inner] along `length`, all by one order.

    `elements`: of each tensor. Sizes that are None are index scalars of each call. `wave`: lanes of
    one on a GPU, 0 on a CPU.
    """

    outer: Size
    length: Size
    inner: Size
    elements: tuple[ir.Type, ...]
    order: SortOrder
    wave: int

    @property
    def name(self) -> str:
        """The symbol of the kernel, but for its order."""
        sizes = "x".join(map(named, (self.outer, self.length, self.inner)))
        return f"mxc_sort_{sizes}_{'_'.join(map(str, self.elements))}"

    @property
    def threads(self) -> Threads | None:
        """Threads of a workgroup on a GPU: one for each pair, as far as there are as many."""
        if not self.wave:
            return None
        wanted = (self.length + 1) // 2 if isinstance(self.length, int) else _DYNAMIC
        return Threads(min(_MOST, max(1, -(-wanted // self.wave)) * self.wave), self.wave)

    @property
    def workgroups(self) -> list[Size]:
        """One for each row."""
        return [self.inner, self.outer]

    @property
    def is_shared(self) -> bool:
        """Whether rows are sorted in shared memory of a GPU."""
        size = sum(element_bits(each) // 8 for each in (*self.elements, i32()))
        return self.wave > 0 and isinstance(self.length, int) and self.length * size <= _SHARED

    @property
    def buffers(self) -> list[Buffer]:
        """The tensors, the sorted ones, and the places of these if memory has to hold them."""
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
        """Emit a loop over the numbers below `count`; the lanes of a GPU share them, and wait for
        each other at the end."""
        threads = self.threads
        first, step = (thread(), threads.count) if threads else (index(0), 1)
        with loop(first, count, index(step)) as (at, _, _):
            yield at
        if threads:
            gpu.barrier()

    def _sort(self, rows: Sequence[_Row], length: ir.Value) -> None:
        """Build the network. The last row has the places."""
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
        """Leave what goes first at the lower of two places."""
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
    """A row of a buffer, which has `before` and `after` as indices around that of an element."""

    buffer: ir.Value
    before: tuple[ir.Value, ...] = ()
    after: tuple[ir.Value, ...] = ()

    def load(self, at: ir.Value) -> ir.Value:
        """An element."""
        return memref.LoadOp(self.buffer, [*self.before, at, *self.after]).result

    def store(self, value: ir.Value, at: ir.Value) -> None:
        """Overwrite an element."""
        memref.StoreOp(value, self.buffer, [*self.before, at, *self.after])
