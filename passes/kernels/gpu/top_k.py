"""The largest elements of each row on GPUs: a workgroup a row, a lane an element.

A lane counts the elements that go before its own; that count is its place in the result:

    goes before = larger, or equal and of a lower index

Elements that are NaN or -inf go after all others, as (-inf, 0). No lane waits for another but for
the copy of the row in shared memory, which all of them read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.dialects.amdgpu import barrier, shared, thread
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.linalg_ext import TOP_K
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import dynamic_sizes
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Threads, workgroup
from mxc.passes.kernels.extents import Buffer, Size, Sized, named
from mxc.passes.kernels.gpu.lanes import short
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.values import is_filled
from mxc.passes.kernels.vectors import below, f32, i32, index, load, loop, when
from mxc.passes.rewriting.rebuild import operations_named

#: Lanes of a workgroup at most; elements that are read at once.
_MOST, _TOGETHER = 1024, 4
_NOTHING = float("-inf")
#: arith.CmpFPredicate.OGT.
_OGT = 2


@dataclass(frozen=True)
class TopK(Sized):
    """The `count` largest of `columns` f32, falling, in each of `rows` rows, and their indices.

    Where `rows` is None, their number is an index scalar of each call. `wave`: lanes of one.
    """

    rows: Size
    columns: int
    count: int
    wave: int

    @staticmethod
    def of(shape: Sequence[int], count: int, wave: int) -> TopK | Reason:
        """The kernel for rows [rows, columns], or why there is none."""
        rows, columns = shape
        if not 0 <= count <= columns <= _MOST:
            return Reason(f"it chooses {count} of {columns}; kernels choose from up to {_MOST}")
        return TopK(rows if rows >= 0 else None, columns, count, wave)

    @property
    def name(self) -> str:
        """The symbol of the kernel: the same for the same work."""
        return f"mxc_top_{self.count}_of_{named(self.rows)}x{self.columns}"

    @property
    def threads(self) -> Threads:
        """Threads of a workgroup."""
        return Threads(-(-self.columns // self.wave) * self.wave, self.wave)

    @property
    def workgroups(self) -> list[Size]:
        """Along the rows."""
        return [self.rows]

    @property
    def buffers(self) -> list[Buffer]:
        """The rows, then values and indices."""
        results = [Buffer([self.rows, self.count], kind) for kind in (f32(), i32())]
        return [Buffer([self.rows, self.columns], f32()), *results]

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        source, values, indices = buffers
        row, own = workgroup(0), thread()
        memory = shared([self.threads.count], f32())
        # Lanes past the last column read that one, and store nothing that counts.
        place = arith.minui(own, index(self.columns - 1))
        inside = below(own, self.columns)
        value, counts = known(memref.LoadOp(source, [row, place]).result, inside)
        memref.StoreOp(value, memory, [own])
        barrier()
        rank = places_before(value, own, memory, self.columns)
        number, zero = short(own), constant(0, i32())
        with when(below(rank, self.count)):
            at = arith.index_castui(ir.IndexType.get(), rank)
            memref.StoreOp(value, values, [row, at])
            memref.StoreOp(arith.select(counts, number, zero), indices, [row, at])


def known(raw: ir.Value, inside: ir.Value | None = None) -> tuple[ir.Value, ir.Value]:
    """An element, -inf for NaN and what is not `inside`, and whether it is greater than that."""
    nothing = constant(_NOTHING, f32())
    counts = _greater(raw, nothing)
    counts = counts if inside is None else counts & inside
    return arith.select(counts, raw, nothing), counts


def places_before(value: ir.Value, own: ir.Value, memory: ir.Value, columns: int) -> ir.Value:
    """How many of so many f32 in shared memory go before the one of lane `own`, i32.

    The memory has a multiple of four of them. All go before a lane past the last one, which has
    -inf and the greater index.
    """
    end = index(-(-columns // _TOGETHER) * _TOGETHER)
    with loop(index(0), end, index(_TOGETHER), [constant(0, i32())]) as (at, (before,), op):
        four = load(memory, [at], f32(), _TOGETHER)
        for step in range(_TOGETHER):
            other = vector.extract(four, [], [step])
            equal = arith.cmpf(arith.CmpFPredicate.OEQ, other, value)
            earlier = below(short(at) + step, short(own))
            first = _greater(other, value) | equal & earlier
            before = before + arith.extui(i32(), first)
        scf.YieldOp([before])
    return op.results[0]


def _greater(x: ir.Value, y: ir.Value) -> ir.Value:
    """Whether x > y; not where one is NaN."""
    return arith.cmpf(arith.CmpFPredicate.OGT, x, y)


@dataclass(frozen=True)
class TopKCall:
    """iree_linalg_ext.topk_v2."""

    op: ir.Operation


def top_k_lowering(wave: int) -> Lowering[TopKCall, TopK]:
    """The choice of the largest elements of rows becomes kernels for waves of so many lanes."""
    return Lowering(_calls, lambda call: _kernel(call, wave), _dispatch)


def _calls(module: ir.Operation) -> Iterator[TopKCall]:
    yield from map(TopKCall, operations_named(module, TOP_K))


def _dispatch(calls: Calls, call: TopKCall, kernel: TopK) -> Sequence[ir.Value]:
    x = call.op.operands[0]
    made = calls.dispatch(kernel.name, kernel, [x], dynamic_sizes(x), kernel.threads)
    return list(made.results)


def _kernel(call: TopKCall, wave: int) -> TopK | Reason:
    """What computes a call, or why no kernel does."""
    op = call.op
    x, *given, values, indices = op.operands
    kinds = [str(element_of(each)) for each in (x, values, indices)]
    if kinds != ["f32", "f32", "i32"]:
        return Reason(f"it chooses {', '.join(kinds)}; kernels choose f32, f32, i32")
    shape, axis = shape_of(x), ir.IntegerAttr(op.attributes["dimension"]).value
    if given or len(shape) != 2 or axis != 1 or shape[1] < 0:
        return Reason("kernels choose from rows [rows, columns] of known columns, without indices")
    if not _falls(op):
        return Reason("kernels choose the greatest")
    if not (is_filled(values, float("-inf")) and is_filled(indices, 0)):
        return Reason("its results begin with others than -inf and 0")
    return TopK.of(shape, shape_of(values)[1], wave)


def _falls(op: ir.Operation) -> bool:
    """Whether an element goes before another where it is greater."""
    block = op.regions[0].blocks[0]
    compare, *others = (each.operation for each in block.operations)
    return (
        len(others) == 1
        and compare.name == "arith.cmpf"
        and ir.IntegerAttr(compare.attributes["predicate"]).value == _OGT
        and list(compare.operands) == list(block.arguments)
    )
