"""Kernels that turn queries and keys, and write keys and values to their pages.

A workgroup has a row. It goes over pieces of `lanes` elements of each half of a head, on a GPU a
thread over every so many of them: what is turned together is in two registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.amdgpu import thread
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.reasons import Reason
from mxc.dialects.rotary_writes import RotaryWrite, rotary_writes
from mxc.dialects.sizes import size_of
from mxc.dialects.slices import columns_in
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, value_of
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.vectors import f32, i32, index, load, loop, of

#: Types of pools; lanes of a workgroup on a GPU.
_FLOATS, _THREADS = ("bf16", "f16", "f32"), 256
#: A buffer of rows, and the first of the columns that are meant.
_Columns = tuple[ir.Value, ir.Value]
#: Places of the slots and of the pool among the operands of a kernel.
_SLOTS, _POOL = 5, 6
#: Buffers up to the queries of the result.
_RESULT = 8
#: Attribute of a call: the result that has zeros, for kernels that count their workgroups.
_ZEROS = "mxc.zeros"


def rotary_lowering(lanes: int, wave: int | None = None) -> Lowering[RotaryWrite, RotaryKernel]:
    """Calls of `rotary_write` become kernels of registers of `lanes` f32."""
    return Lowering(rotary_writes, lambda call: RotaryKernel.of(call, lanes, wave), _dispatch)


def _dispatch(calls: Calls, call: RotaryWrite, kernel: RotaryKernel) -> Sequence[ir.Value]:
    entry = constant(call.entry, ir.IndexType.get())
    scalars = [entry, *(value_of(size_of(each, 0)) for each in (call.queries, call.pool))]
    operands = list(call.op.operands)
    sources = [columns_in(each) for each in operands[: len(kernel.columns)]]
    assert kernel.columns == tuple((shape_of(each)[1], first) for each, first in sources)
    operands[: len(sources)] = [each for each, _ in sources]
    made = calls.dispatch(kernel.name, kernel, operands, scalars, kernel.threads, updated=_POOL)
    entries, positions = kernel.pool
    PoolRead(operand=_POOL, part=2, of=entries * positions, runs=_SLOTS).write(made)
    if kernel.wave is not None:
        made.attributes[_ZEROS] = ir.IntegerAttr.get(ir.IndexType.get(), 1)
    return [made.results[0], made.results[len(made.results) - 1]]


def zeros_beside(pool: ir.Value) -> ir.Value | None:
    """The zeros, i32 [T, Q], that the kernel of T rows of Q queries wrote which wrote to `pool`, if
    nothing has used them yet."""
    made = pool.owner
    while isinstance(made, ir.Operation | ir.OpView) and made.operation.name == "tensor.cast":
        made = made.operation.operands[0].owner
    if not isinstance(made, ir.Operation | ir.OpView) or _ZEROS not in made.operation.attributes:
        return None
    zeros = made.operation.results[ir.IntegerAttr(made.operation.attributes[_ZEROS]).value]
    return None if list(zeros.uses) else zeros


@dataclass(frozen=True, kw_only=True)
class RotaryKernel(Sized):
    """`queries` and `heads` heads of `depth` elements, into pages of `pool` (entries, positions) of
    `element`; `lanes`: elements of a register. `wave`: lanes of one, None on a CPU. On a GPU it has
    a zero for each query of each row too, for the attention that follows. `columns`: of queries,
    keys and values, how wide the rows are that they are part of, and where they begin.

    With each call come the `entry` of keys, the number of rows, and the pages of the pool.
    """

    queries: int
    heads: int
    depth: int
    pool: tuple[int, int]
    element: str
    lanes: int
    wave: int | None
    columns: tuple[tuple[int, int], ...]
    entry: Size = None
    rows: Size = None
    pages: Size = None

    @staticmethod
    def of(call: RotaryWrite, lanes: int, wave: int | None) -> RotaryKernel | Reason:
        """The kernel of a call, or why there is none."""
        _, entries, positions, heads, depth = shape_of(call.pool)
        element, half = str(element_of(call.pool)), depth // 2
        if element not in _FLOATS:
            return Reason(f"pages are {element}; kernels take {', '.join(_FLOATS)}")
        if half % lanes:
            return Reason(f"half of a head has {half} elements; kernels take multiples of {lanes}")
        return RotaryKernel(
            queries=shape_of(call.queries)[1] // depth,
            heads=heads,
            depth=depth,
            pool=(entries, positions),
            element=element,
            lanes=lanes,
            wave=wave,
            columns=tuple(
                (shape_of(source)[1], first)
                for source, first in map(columns_in, (call.queries, call.keys, call.values))
            ),
        )

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        entries, positions = self.pool
        heads = f"{self.queries}x{self.heads}x{self.depth}"
        name = f"mxc_rotary_write_{heads}_{self.element}_{entries}x{positions}"
        whole = [number * self.depth for number in (self.queries, self.heads, self.heads)]
        if self.columns == tuple((width, 0) for width in whole):
            return name
        return "_".join([name, *(f"{first}of{width}" for width, first in self.columns)])

    @property
    def threads(self) -> Threads | None:
        """Threads of a workgroup, on a GPU."""
        return None if self.wave is None else Threads(_THREADS, self.wave)

    @property
    def workgroups(self) -> list[Size]:
        """Along the rows."""
        return [self.rows]

    @property
    def buffers(self) -> list[Buffer]:
        """Queries, keys, values, cos, sin, slots, the pool, and the turned queries; zeros."""
        asked = Buffer([self.rows, self.queries * self.depth], f32())
        rows = [Buffer([self.rows, width], f32()) for width, _ in self.columns]
        table = Buffer([self.rows, self.depth // 2], f32())
        pool = [self.pages, *self.pool, self.heads, self.depth]
        kind = ir.Type.parse(self.element)
        slots = Buffer([self.rows], i32())
        zeros = [] if self.wave is None else [Buffer([self.rows, self.queries], i32())]
        return [*rows, table, table, slots, Buffer(pool, kind), asked, *zeros]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        (*given, cos, sin, slots, pool, result), zeros = buffers[:_RESULT], buffers[_RESULT:]
        begins = (index(first) for _, first in self.columns)
        queries, keys, values = zip(given, begins, strict=True)
        row, half = workgroup(0), self.depth // 2
        slot = arith.index_castui(ir.IndexType.get(), memref.LoadOp(slots, [row]).result)
        positions = index(self.pool[1])
        page, at = arith.divui(slot, positions), arith.remui(slot, positions)
        entry = value_of(self.entry)
        next_entry = arith.addi(entry, index(1))

        def turned(source: _Columns, head: ir.Value, column: ir.Value) -> list[ir.Value]:
            re, im = self._halves(source, row, head, column)
            c, s = (load(table, [row, column], f32(), self.lanes) for table in (cos, sin))
            real = arith.subf(arith.mulf(re, c), arith.mulf(im, s))
            return [real, arith.addf(arith.mulf(im, c), arith.mulf(re, s))]

        def ask(head: ir.Value, column: ir.Value) -> None:
            first = arith.addi(arith.muli(head, index(self.depth)), column)
            for part, value in enumerate(turned(queries, head, column)):
                vector.store(value, result, [row, arith.addi(first, index(part * half))])

        def keep(head: ir.Value, column: ir.Value) -> None:
            for place, found in (
                (entry, turned(keys, head, column)),
                (next_entry, self._halves(values, row, head, column)),
            ):
                for part, value in enumerate(found):
                    column_of_part = arith.addi(column, index(part * half))
                    where = [page, place, at, head, column_of_part]
                    vector.store(self._rounded(value), pool, where)

        self._over_pieces(self.queries, ask)
        self._over_pieces(self.heads, keep)
        for each in zeros:
            with loop(thread(), index(self.queries), index(_THREADS)) as (place, _, _):
                memref.StoreOp(constant(0, i32()), each, [row, place])

    def _over_pieces(self, heads: int, body: Callable[[ir.Value, ir.Value], None]) -> None:
        """`body` of the head and the first element of each piece of one half."""
        pieces = self.depth // 2 // self.lanes
        on_gpu = self.wave is not None
        first, step = (thread(), _THREADS) if on_gpu else (index(0), 1)
        with loop(first, index(heads * pieces), index(step)) as (piece, _, _):
            column = arith.muli(arith.remui(piece, index(pieces)), index(self.lanes))
            body(arith.divui(piece, index(pieces)), column)

    def _halves(
        self, source: _Columns, row: ir.Value, head: ir.Value, column: ir.Value
    ) -> list[ir.Value]:
        """The elements from `column` on of both halves of a head."""
        rows, begin = source
        first = arith.addi(arith.addi(begin, arith.muli(head, index(self.depth))), column)
        places = (first, arith.addi(first, index(self.depth // 2)))
        return [load(rows, [row, place], f32(), self.lanes) for place in places]

    def _rounded(self, value: ir.Value) -> ir.Value:
        """As an element of the pool."""
        if self.element == "f32":
            return value
        return arith.truncf(of(ir.Type.parse(self.element), self.lanes), value)
