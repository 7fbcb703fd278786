"""Kernels that rotate queries and keys, and write keys and values to their pages.

A workgroup takes one row, in runs of consecutive elements of a head; on a GPU its threads share the
runs. All elements of a run are real parts, or imaginary parts, or both alternating, or not rotated.
For pages of floats a run is one register. For packed pages a thread takes all runs of a block of 32
elements, because it needs the largest of them for the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.artifact.pages import PAGE_BLOCK, stored_positions
from mxc.dialects.amdgpu import no_reordering, thread
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
from mxc.passes.kernels.rotations import LEAST, Rotation
from mxc.passes.kernels.vectors import (
    concat,
    f32,
    i8,
    i32,
    index,
    lanes_of,
    load,
    loop,
    of,
    parts_of,
)

#: Types of pools of floats; lanes of a workgroup on a GPU.
_FLOATS, _THREADS = ("bf16", "f16", "f32"), 256
#: Elements of a block that a GPU quantizes together. The conditions of each element take scalar
#: registers. Cosines and sines may take 64 of these: for heads of 64, they are the same for all
#: blocks, so for all lanes.
_TOGETHER = 8
#: A buffer of rows, and the first column of the queries, keys or values in it.
_Columns = tuple[ir.Value, ir.Value]
#: Number of operands with queries, keys and values; places of the slots and of the pool among the
#: operands after these, which begin with the cosines.
_PARTS, _SLOTS, _POOL = 3, 2, 3
#: Attribute of a dispatch: the number of its result that has zeros, for kernels that count their
#: workgroups.
_ZEROS = "mxc.zeros"


def rotary_lowering(lanes: int, wave: int | None = None) -> Lowering[RotaryWrite, RotaryKernel]:
    """The lowering of `rotary_write` to kernels for registers of `lanes` f32. `wave`: lanes of a
    wave of a GPU, None for a CPU."""
    return Lowering(rotary_writes, lambda call: RotaryKernel.of(call, lanes, wave), _dispatch)


def _dispatch(calls: Calls, call: RotaryWrite, kernel: RotaryKernel) -> Sequence[ir.Value]:
    entry, pages = entry_and_pages(call)
    scalars = [entry, value_of(size_of(call.queries, 0)), pages]
    operands = list(call.op.operands)
    sources = [columns_in(each) for each in operands[: len(kernel.columns)]]
    assert kernel.columns == tuple((shape_of(each)[1], first) for each, first in sources)
    operands[: len(sources)] = [each for each, _ in sources]
    updated = pool_after(_PARTS)
    made = calls.dispatch(kernel.name, kernel, operands, scalars, kernel.threads, updated=[updated])
    return results_of(made, kernel, _PARTS, list(made.results))


def entry_and_pages(call: RotaryWrite) -> list[ir.Value]:
    """The entry of keys, and the number of pages, as index values at the insertion point."""
    return [constant(call.entry, ir.IndexType.get()), value_of(size_of(call.pool, 0))]


def pool_after(tables: int) -> int:
    """The number of the operand that is the pool, if cosines are operand number `tables`."""
    return tables + _POOL


def results_of(
    made: ir.Operation, kernel: RotaryKernel, tables: int, results: Sequence[ir.Value]
) -> list[ir.Value]:
    """Return the results of a `rotary_write`, queries and pool, that the dispatch `made` computes,
    and attach to `made` what it reads of the pool and which result has zeros. `tables`: the number
    of the operand with cosines. `results`: those of the dispatch, queries first, the pool last."""
    entries, positions = kernel.pool
    read = {"operand": pool_after(tables), "runs": tables + _SLOTS}
    PoolRead(**read, part=2, of=entries * positions).write(made)
    if kernel.wave is not None:
        made.attributes[_ZEROS] = ir.IntegerAttr.get(ir.IndexType.get(), 1)
    return [results[0], results[-1]]


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


@dataclass(frozen=True, kw_only=True)
class RotaryKernel(Sized):
    """The kernel for `queries` query heads and `heads` key/value heads, rotated by `rotation`.

    `pool`: entries and positions of a page. `element`: type of the pool, floats or a format of
    packed pages. `scaled`: whether keys, and whether values, have scales, one for each head.
    `wave`: lanes of a wave, None on a CPU. On a GPU the kernel also writes a zero for each query
    head of each row, for the counters of the attention that follows. `columns`: for queries, keys
    and values, the width of the rows that they are part of, and their first column. The `entry` of
    keys, the number of `rows`, and the `pages` of the pool come with the call.
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
                f"kernels take parts of {lanes if call.format is None else LEAST} or multiples"
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
        name, depth = f"mxc_rotary_write_{self.heads_name}", self.rotation.depth
        whole = [number * depth for number in (self.queries, self.heads, self.heads)]
        if self.columns == tuple((width, 0) for width in whole):
            return name
        return "_".join([name, *(f"{first}of{width}" for width, first in self.columns)])

    @property
    def heads_name(self) -> str:
        """The part of a symbol that states heads and pages, but not where the rows are read."""
        (entries, positions), depth = self.pool, self.rotation.depth
        heads = f"{self.queries}x{self.heads}x{depth}{self.rotation.name}"
        name = f"{heads}_{self.element}_{entries}x{positions}"
        if any(self.scaled):
            name += "_over_" + "".join(
                part for part, has in zip("kv", self.scaled, strict=True) if has
            )
        return name

    @property
    def in_blocks(self) -> bool:
        """Whether pages have blocks with scales of their own."""
        format = page_format(self.element)
        return format is not None and not format.unit_scales

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
        """Queries, keys and values; then what is given beside them, and what is made."""
        rows = [Buffer([self.rows, width], f32()) for width, _ in self.columns]
        return [*rows, *self.beside, *self.made]

    @property
    def beside(self) -> list[Buffer]:
        """Cosines, sines, slots, the pool, and scales."""
        entries, positions = self.pool
        table = Buffer([self.rows, self.rotation.pairs], f32())
        packed = page_format(self.element) is not None
        kind = i8() if packed else ir.Type.parse(self.element)
        stored = stored_positions(self.element, positions) if packed else positions
        pool = [self.pages, entries, stored, self.heads, self.rotation.depth]
        slots = Buffer([self.rows], i32())
        scales = [Buffer([self.heads], f32())] * sum(self.scaled)
        return [table, table, slots, Buffer(pool, kind), *scales]

    @property
    def made(self) -> list[Buffer]:
        """The rotated queries, and on a GPU zeros."""
        asked = Buffer([self.rows, self.queries * self.rotation.depth], f32())
        zeros = [] if self.wave is None else [Buffer([self.rows, self.queries], i32())]
        return [asked, *zeros]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        _Body(self, buffers).build()


class RotaryRow:
    """A row of a call: loads its cosines and sines, and stores its queries, keys and values.

    `buffers`: those of the kernel from the cosines on.
    """

    def __init__(self, kernel: RotaryKernel, buffers: Sequence[ir.Value], row: ir.Value) -> None:
        """Load the slot of the row, at the insertion point."""
        self._kernel, self._row = kernel, row
        cos, sin, slots, self._pool, *rest = buffers
        self._tables = cos, sin
        self._scales = [rest.pop(0) if has else None for has in kernel.scaled]
        self._queries, *self._zeros = rest
        slot = arith.index_castui(ir.IndexType.get(), memref.LoadOp(slots, [row]).result)
        positions = index(kernel.pool[1])
        self._page, self._at = slot // positions, slot % positions
        entry = value_of(kernel.entry)
        self._entries = entry, entry + 1

    def angles(self, pair: ir.Value, count: int) -> list[ir.Value]:
        """Load cosines and sines of the pairs from `pair` on: f32 [count] each."""
        return [load(table, [self._row, pair], f32(), count) for table in self._tables]

    def store_query(self, head: ir.Value, element: ir.Value, value: ir.Value) -> None:
        """Store a run of the rotated queries."""
        first = head * self._kernel.rotation.depth
        vector.store(value, self._queries, [self._row, first + element])

    def zero(self, head: ir.Value) -> None:
        """Store the zero of a query, if the kernel has zeros."""
        for zeros in self._zeros:
            memref.StoreOp(constant(0, i32()), zeros, [self._row, head])

    def store_in_page(self, part: int, head: ir.Value, element: ir.Value, value: ir.Value) -> None:
        """Store a run, or a block, of a key (`part` 0) or a value (1) in its page."""
        kernel, run = self._kernel, lanes_of(value)
        at = self._in_page(part, head, element)
        format = page_format(kernel.element)
        if format is None:
            kind = ir.Type.parse(kernel.element)
            rounded = value if kernel.element == "f32" else arith.truncf(of(kind, run), value)
            vector.store(rounded, self._pool, at)
            return
        if format.unit_scales:
            scales = self._scales[part]
            scale = None if scales is None else memref.LoadOp(scales, [head]).result
            self._store_codes(value, at, lambda each: fp8_code(each, _spread(scale, each)))
            return
        sizes = as_bits(value)
        sizes = sizes & like(sizes, MAGNITUDE)
        largest = vector.reduction(i32(), vector.CombiningKind.MAXSI, sizes)
        byte = scale_byte(largest, format.element, RECIPE)

        def coded(values: ir.Value) -> ir.Value:
            bits = as_bits(values)
            codes = element_code(bits, vector.broadcast(bits.type, byte), format.element)
            return arith.trunci(of(i8(), lanes_of(codes)), codes)

        self._store_codes(value, at, coded)
        self.store_scale(part, head, element, byte)

    def store_bytes(self, part: int, head: ir.Value, element: ir.Value, codes: ir.Value) -> None:
        """Store bytes of a block, i8 [n], in its page, from element `element` of a head on."""
        vector.store(codes, self._pool, self._in_page(part, head, element))

    def store_scale(self, part: int, head: ir.Value, element: ir.Value, byte: ir.Value) -> None:
        """Store the scale of a block, a byte as i32, in its page."""
        kernel, at = self._kernel, self._in_page(part, head, element)
        place = place_of_scale(kernel.heads, kernel.rotation.depth, kernel.pool[1], at)
        memref.StoreOp(arith.trunci(i8(), byte), self._pool, place)

    def _in_page(self, part: int, head: ir.Value, element: ir.Value) -> list[ir.Value]:
        return [self._page, self._entries[part], self._at, head, element]

    def _store_codes(
        self, value: ir.Value, at: list[ir.Value], coded: Callable[[ir.Value], ir.Value]
    ) -> None:
        """Store f32 [n] as the bytes that `coded` makes of them."""
        *place, element = at
        on_gpu, count = self._kernel.wave is not None, lanes_of(value)
        together = min(_TOGETHER, count) if on_gpu else count
        for number, part in enumerate(parts_of(value, together)):
            vector.store(coded(part), self._pool, [*place, element + number * together])
            if on_gpu:
                no_reordering()


class _Body:
    """The values of a body while it is built."""

    def __init__(self, kernel: RotaryKernel, buffers: Sequence[ir.Value]) -> None:
        """At the insertion point."""
        self.kernel, self.rotation = kernel, kernel.rotation
        begins = (index(first) for _, first in kernel.columns)
        self.queries, self.keys, self.values = zip(buffers[:_PARTS], begins, strict=True)
        self.row = workgroup(0)
        self.target = RotaryRow(kernel, buffers[_PARTS:], self.row)

    def build(self) -> None:
        """Rotate the queries, rotate and store keys, store values, and on a GPU store zeros."""
        kernel, depth = self.kernel, self.rotation.depth
        run = self.rotation.run
        self._over(kernel.queries, depth // run, self._rotate_query)
        self._over(kernel.heads, depth // kernel.together, self._keep)
        if kernel.wave is not None:
            self._over(kernel.queries, 1, lambda head, number: self.target.zero(head))

    def _over(self, heads: int, count: int, body: Callable[[ir.Value, ir.Value], None]) -> None:
        """Emit `body(head, number)` for all `heads` and all numbers below `count`. The threads of a
        workgroup share them."""
        on_gpu = self.kernel.wave is not None
        first, step = (thread(), _THREADS) if on_gpu else (index(0), 1)
        with loop(first, index(heads * count), index(step)) as (each, _, _):
            body(each // count, each % count)

    def _rotate_query(self, head: ir.Value, number: ir.Value) -> None:
        element = number * self.rotation.run
        self.target.store_query(head, element, self._rotated(self.queries, head, element))

    def _keep(self, head: ir.Value, number: ir.Value) -> None:
        element = number * self.kernel.together
        for part, (source, read) in enumerate(
            ((self.keys, self._rotated), (self.values, self._run))
        ):
            runs = [
                read(source, head, element + start)
                for start in range(0, self.kernel.together, self.rotation.run)
            ]
            self.target.store_in_page(part, head, element, concat(runs))

    def _rotated(self, source: _Columns, head: ir.Value, element: ir.Value) -> ir.Value:
        """Load f32 [run] of a head from an element on, rotated."""
        return self.rotation.rotated(
            element, lambda at: self._run(source, head, at), self.target.angles
        )

    def _run(self, source: _Columns, head: ir.Value, element: ir.Value) -> ir.Value:
        """Load f32 [run] of a head from an element on."""
        rows, begin = source
        first = begin + head * self.rotation.depth
        return load(rows, [self.row, first + element], f32(), self.rotation.run)


def _spread(scale: ir.Value | None, values: ir.Value) -> ir.Value | None:
    """A scale for each of the values, if there is one."""
    return None if scale is None else vector.broadcast(values.type, scale)
