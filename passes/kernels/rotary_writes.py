"""Kernels that rotate queries and keys, and write keys and values to their pages.

A workgroup takes one row, in runs of consecutive elements of a head; on a GPU its threads share the
runs. All elements of a run are real parts, or imaginary parts, or both alternating, or not rotated.
For pages of floats a run is one register. For packed pages a thread takes all runs of a block of 32
elements, because it needs the largest of them for the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.artifact.pages import PAGE_BLOCK, stored_positions
from mxc.dialects.amdgpu import thread
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.pages import RECIPE, fp8_code, page_format, place_of_scale, positions_of
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.quantize_scalars import MAGNITUDE, as_bits, element_code, like, scale_byte
from mxc.dialects.reasons import Reason
from mxc.dialects.rotary_writes import RotaryWrite, rotary_writes
from mxc.dialects.sizes import size_of
from mxc.dialects.slices import columns_in
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, value_of
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.vectors import below, f32, i1, i8, i32, index, joined, load, loop, of, table

#: Types of pools of floats; lanes of a workgroup on a GPU.
_FLOATS, _THREADS = ("bf16", "f16", "f32"), 256
#: Elements of a run of a block of packed pages, at least.
_LEAST = 8
#: A buffer of rows, and the first of the columns that are meant.
_Columns = tuple[ir.Value, ir.Value]
#: Numbers of the slots and of the pool among the operands of a kernel.
_SLOTS, _POOL = 5, 6
#: Attribute of a call: the result that has zeros, for kernels that count their workgroups.
_ZEROS = "mxc.zeros"


def rotary_lowering(lanes: int, wave: int | None = None) -> Lowering[RotaryWrite, RotaryKernel]:
    """The lowering of `rotary_write` to kernels for registers of `lanes` f32."""
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
    """The zeros, i32 [T, Q] for T rows of Q queries, of the kernel that wrote `pool`, if they are
    unused; else None."""
    made = pool.owner
    while isinstance(made, ir.Operation | ir.OpView) and made.operation.name == "tensor.cast":
        made = made.operation.operands[0].owner
    if not isinstance(made, ir.Operation | ir.OpView) or _ZEROS not in made.operation.attributes:
        return None
    zeros = made.operation.results[ir.IntegerAttr(made.operation.attributes[_ZEROS]).value]
    return None if list(zeros.uses) else zeros


@dataclass(frozen=True)
class Rotation:
    """`pairs` of elements of a head of `depth` that are rotated, their parts `distance` apart (1:
    interleaved; see dialects/rotary_writes.py), taken in runs of `run` elements."""

    depth: int
    pairs: int
    distance: int
    run: int

    @staticmethod
    def of(call: RotaryWrite, lanes: int) -> Rotation | None:
        """The rotation of a call; None where its elements cannot be cut into runs.

        A run has `lanes` elements for pages of floats. For packed pages it is as long as possible,
        from _LEAST elements to a block.
        """
        depth, pairs = shape_of(call.pool)[-1], shape_of(call.cos)[1]
        ends = [depth, 2 * pairs] if call.distance == 1 else [depth, pairs, call.distance]
        whole = gcd(*ends)
        run = lanes if call.format is None else gcd(whole, PAGE_BLOCK)
        least = lanes if call.format is None else _LEAST
        if whole % run or run < least:
            return None
        return Rotation(depth, pairs, call.distance, run)

    @property
    def name(self) -> str:
        """For symbols: none where all of a head is rotated, the real parts first."""
        whole = self.pairs == self.distance == self.depth // 2
        return "" if whole else f"_{self.pairs}by{self.distance}"

    def rotated(
        self,
        element: ir.Value,
        elements: Callable[[ir.Value], ir.Value],
        tables: Sequence[Callable[[ir.Value, int], ir.Value]],
    ) -> ir.Value:
        """Build the rotated run that begins with `element` of a head: f32 [run].

        `elements` loads the run of the head that begins with an element. `tables` load cosines and
        sines: so many, from that of a pair on.
        """
        own, nowhere = elements(element), index(0)
        if self.distance == 1:
            places = range(self.run)
            inside = below(element, 2 * self.pairs)
            pair = arith.select(inside, element // 2, nowhere)
            c, s = (
                vector.shuffle(found, found, [place // 2 for place in places])
                for found in (read(pair, self.run // 2) for read in tables)
            )
            other = vector.shuffle(own, own, [place ^ 1 for place in places])
            second = table(np.arange(self.run) % 2 == 1, i1())
        else:
            apart = index(self.distance)
            first = below(element, self.distance)
            pair = arith.select(first, element, element - apart)
            inside = below(pair, self.pairs)
            beside = arith.select(first, element + apart, pair)
            other = elements(arith.select(inside, beside, element))
            pair = arith.select(inside, pair, nowhere)
            c, s = (read(pair, self.run) for read in tables)
            second = first ^ 1
        kept, added = own * c, other * s
        value = arith.select(second, kept + added, kept - added)
        return arith.select(inside, value, own)


@dataclass(frozen=True, kw_only=True)
class RotaryKernel(Sized):
    """`queries` and `heads` heads, rotated by `rotation`, into pages of `pool` (entries, positions)
    of `element`: floats, or a format of packed pages. `scaled`: whether keys, and values, have
    scales, one for each head. `wave`: lanes of one, None on a CPU. On a GPU it has a zero for each
    query of each row too, for the attention that follows. `columns`: of queries, keys and values,
    how wide the rows are that they are part of, and where they begin.

    `lanes`: elements of a register. `wave`: lanes of a wave, None on a CPU. On a GPU the kernel
    also writes a zero for each query of each row, for the attention that follows. `columns`: for
    queries, keys and values, the width of the rows that they are part of, and their first column.
    The `entry` of keys, the number of rows, and the pages of the pool are known at the call.
    """

    queries: int
    heads: int
    rotation: Rotation
    pool: tuple[int, int]
    element: str
    scaled: tuple[bool, ...]
    wave: int | None
    columns: tuple[tuple[int, int], ...]
    entry: Size = None
    rows: Size = None
    pages: Size = None

    @staticmethod
    def of(call: RotaryWrite, lanes: int, wave: int | None) -> RotaryKernel | Reason:
        """The kernel of a call, or why there is none."""
        _, entries, _, heads, depth = shape_of(call.pool)
        element = call.format or str(element_of(call.pool))
        if call.format is None and element not in _FLOATS:
            return Reason(f"pages are {element}; kernels take {', '.join(_FLOATS)}")
        rotation = Rotation.of(call, lanes)
        if rotation is None:
            return Reason(
                f"heads have {depth} elements, of which {2 * shape_of(call.cos)[1]} are rotated; "
                f"kernels take parts of {lanes if call.format is None else _LEAST} or multiples"
            )
        return RotaryKernel(
            queries=shape_of(call.queries)[1] // depth,
            heads=heads,
            rotation=rotation,
            pool=(entries, positions_of(call.pool, call.format)),
            element=element,
            scaled=tuple(scale is not None for scale in call.scales),
            wave=wave,
            columns=tuple(
                (shape_of(source)[1], first)
                for source, first in map(columns_in, (call.queries, call.keys, call.values))
            ),
        )

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        (entries, positions), depth = self.pool, self.rotation.depth
        heads = f"{self.queries}x{self.heads}x{depth}{self.rotation.name}"
        name = f"mxc_rotary_write_{heads}_{self.element}_{entries}x{positions}"
        if any(self.scaled):
            name += "_over_" + "".join(
                part for part, has in zip("kv", self.scaled, strict=True) if has
            )
        whole = [number * depth for number in (self.queries, self.heads, self.heads)]
        if self.columns == tuple((width, 0) for width in whole):
            return name
        return "_".join([name, *(f"{first}of{width}" for width, first in self.columns)])

    @property
    def together(self) -> int:
        """Elements of a key or a value that are stored at once: a run of floats, or a block."""
        return self.rotation.run if page_format(self.element) is None else PAGE_BLOCK

    @property
    def threads(self) -> Threads | None:
        """Threads of a workgroup, on a GPU."""
        return None if self.wave is None else Threads(_THREADS, self.wave)

    @property
    def workgroups(self) -> list[Size]:
        """One workgroup per row."""
        return [self.rows]

    @property
    def buffers(self) -> list[Buffer]:
        """Queries, keys, values, cos, sin, slots, the pool, and scales; then the rotated queries,
        and zeros."""
        entries, positions = self.pool
        asked = Buffer([self.rows, self.queries * self.rotation.depth], f32())
        rows = [Buffer([self.rows, width], f32()) for width, _ in self.columns]
        table = Buffer([self.rows, self.rotation.pairs], f32())
        packed = page_format(self.element) is not None
        kind = i8() if packed else ir.Type.parse(self.element)
        stored = stored_positions(self.element, positions) if packed else positions
        pool = [self.pages, entries, stored, self.heads, self.rotation.depth]
        slots = Buffer([self.rows], i32())
        scales = [Buffer([self.heads], f32())] * sum(self.scaled)
        zeros = [] if self.wave is None else [Buffer([self.rows, self.queries], i32())]
        return [*rows, table, table, slots, Buffer(pool, kind), *scales, asked, *zeros]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        _Body(self, buffers).build()


class _Body:
    """The values of a body while it is built."""

    def __init__(self, kernel: RotaryKernel, buffers: Sequence[ir.Value]) -> None:
        """At the insertion point."""
        self.kernel, self.rotation = kernel, kernel.rotation
        (*given, cos, sin, slots, pool), rest = buffers[: _POOL + 1], list(buffers[_POOL + 1 :])
        begins = (index(first) for _, first in kernel.columns)
        self.queries, self.keys, self.values = zip(given, begins, strict=True)
        self.tables, self.pool = (cos, sin), pool
        self.scales = [rest.pop(0) if has else None for has in kernel.scaled]
        self.result, *self.zeros = rest
        self.row = workgroup(0)
        slot = arith.index_castui(ir.IndexType.get(), memref.LoadOp(slots, [self.row]).result)
        positions = index(kernel.pool[1])
        self.page, self.at = slot // positions, slot % positions
        entry = value_of(kernel.entry)
        self.entries = entry, entry + 1

    def build(self) -> None:
        """The whole body."""
        kernel, depth = self.kernel, self.rotation.depth
        run = self.rotation.run
        self._over(kernel.queries, depth // run, self._rotate_query)
        self._over(kernel.heads, depth // kernel.together, self._keep)
        for each in self.zeros:
            with loop(thread(), index(kernel.queries), index(_THREADS)) as (place, _, _):
                memref.StoreOp(constant(0, i32()), each, [self.row, place])

    def _over(self, heads: int, count: int, body: Callable[[ir.Value, ir.Value], None]) -> None:
        """`body` of the head, and of a number below `count`."""
        on_gpu = self.kernel.wave is not None
        first, step = (thread(), _THREADS) if on_gpu else (index(0), 1)
        with loop(first, index(heads * count), index(step)) as (each, _, _):
            body(each // count, each % count)

    def _rotate_query(self, head: ir.Value, number: ir.Value) -> None:
        element = number * self.rotation.run
        self._answer(head, element, self._rotated(self.queries, head, element))

    def _keep(self, head: ir.Value, number: ir.Value) -> None:
        element = number * self.kernel.together
        for part, (source, read) in enumerate(
            ((self.keys, self._rotated), (self.values, self._run))
        ):
            runs = [
                read(source, head, element + start)
                for start in range(0, self.kernel.together, self.rotation.run)
            ]
            self._store(part, head, element, joined(runs))

    def _rotated(self, source: _Columns, head: ir.Value, element: ir.Value) -> ir.Value:
        """f32 [run] of a head from an element on, rotated."""

        def reader(values: ir.Value) -> Callable[[ir.Value, int], ir.Value]:
            return lambda pair, count: load(values, [self.row, pair], f32(), count)

        return self.rotation.rotated(
            element, lambda at: self._run(source, head, at), [reader(each) for each in self.tables]
        )

    def _run(self, source: _Columns, head: ir.Value, element: ir.Value) -> ir.Value:
        """f32 [run] of a head from an element on."""
        rows, begin = source
        first = begin + head * self.rotation.depth
        return load(rows, [self.row, first + element], f32(), self.rotation.run)

    def _answer(self, head: ir.Value, element: ir.Value, value: ir.Value) -> None:
        """Store a run of the rotated queries."""
        first = head * self.rotation.depth
        vector.store(value, self.result, [self.row, first + element])

    def _store(self, part: int, head: ir.Value, element: ir.Value, value: ir.Value) -> None:
        """Store a run, or a block, of a key (`part` 0) or a value (1) in its page."""
        kernel, run = self.kernel, self.kernel.together
        at = [self.page, self.entries[part], self.at, head, element]
        format = page_format(kernel.element)
        if format is None:
            kind = ir.Type.parse(kernel.element)
            rounded = value if kernel.element == "f32" else arith.truncf(of(kind, run), value)
            vector.store(rounded, self.pool, at)
            return
        if format.unit_scales:
            scales = self.scales[part]
            scale = None
            if scales is not None:
                scale = vector.broadcast(of(f32(), run), memref.LoadOp(scales, [head]).result)
            vector.store(fp8_code(value, scale), self.pool, at)
            return
        bits = as_bits(value)
        sizes = bits & like(bits, MAGNITUDE)
        largest = vector.reduction(i32(), vector.CombiningKind.MAXSI, sizes)
        byte = scale_byte(largest, format.element, RECIPE)
        codes = element_code(bits, vector.broadcast(bits.type, byte), format.element)
        vector.store(arith.trunci(of(i8(), run), codes), self.pool, at)
        place = place_of_scale(kernel.heads, self.rotation.depth, kernel.pool[1], at)
        memref.StoreOp(arith.trunci(i8(), byte), self.pool, place)
