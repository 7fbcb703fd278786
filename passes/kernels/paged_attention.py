"""Attention over pages: the kernels of a program, and their calls. What they share is here.

Rows of a run, R = count * G query heads of its tokens, are cut into blocks of rows, and positions
into pieces of `piece_keys` at absolute places: [0, n), [n, 2n), .. Where a call has few rows and
many keys each piece has a workgroup of its own, which writes what it comes to in `parts`, and a
second kernel, NAME_joined, adds them up. Where it has many rows a workgroup goes over all pieces
and writes the result; NAME_joined has nothing to do then. Or the kernel counts the workgroups that
are done with a row, and the last one adds the pieces up: there is no second kernel.

Either way a row's result is the sum of its pieces, in their order, by the same formula. So its bits
depend on its own position alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Protocol, TypeVar

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.artifact.pages import stored_positions
from mxc.dialects.attention import AttentionCall, Chunk, Reach, attention_calls
from mxc.dialects.generic import element_of
from mxc.dialects.pages import page_format
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import size_of
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import (
    Cases,
    Threads,
    dispatch_all,
    executable,
    set_cases,
    switch_below,
)
from mxc.passes.kernels.extents import Buffer, Size, dynamic_of, value_of
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.reshapes import as_tensor, reshape
from mxc.passes.kernels.roundings import rounding_of
from mxc.passes.kernels.runs import reach_size
from mxc.passes.kernels.vectors import f32, i8, i32


@dataclass(frozen=True)
class Scalars:
    """What comes with each call: T tokens, S runs, P pages of the longest list, N pages of the
    pool, the entries of keys and of values, and how many pieces are computed apart: 1 for none.
    """

    tokens: Size
    runs: Size
    pages: Size
    pool: Size
    keys: Size
    values: Size
    pieces: Size

    @property
    def all(self) -> list[ir.Value]:
        """In the order in which they are given."""
        return [value_of(getattr(self, each.name)) for each in fields(self)]


#: Before there is a call.
_UNKNOWN = Scalars(*[None] * len(fields(Scalars)))


class Kernel(Protocol):
    """What a kernel is, as far as its name, its calls and its memory need it. Hashable."""

    @property
    def heads(self) -> int:
        """Key/value heads V."""

    @property
    def group(self) -> int:
        """Query heads of each, G."""

    @property
    def depth(self) -> int:
        """Elements of a key, D."""

    @property
    def mixed(self) -> int:
        """Elements of a value."""

    @property
    def pool(self) -> tuple[int, int]:
        """Entries E of a page, and its positions B."""

    @property
    def element(self) -> str:
        """Type of keys and values, or the format that they are packed in."""

    @property
    def sinks(self) -> str:
        """Type of the sinks."""

    @property
    def result(self) -> str:
        """Type of the result: f32, or bf16 where the kernel rounds it."""

    @property
    def reach(self) -> Reach:
        """The sliding window, in tokens, or the chunks."""

    @property
    def cap(self) -> float | None:
        """Bound of the scores."""

    @property
    def counts(self) -> bool:
        """Whether the kernel counts its workgroups, so that the last one combines pieces."""

    def pieces(self, call: Scalars) -> Size:
        """How many pieces are computed apart, 1 for none; `pieces` of the call is not known."""

    def parts(self, call: Scalars) -> Sequence[Size]:
        """Sizes of the f32 memory in which pieces are left, none of them zero."""

    def workgroups(self, call: Scalars) -> Sequence[Size]:
        """Workgroups of the kernel, up to three counts."""

    def joined_workgroups(self, call: Scalars) -> Sequence[Size]:
        """Workgroups of the kernel that combines pieces."""


K = TypeVar("K", bound=Kernel)


#: The counters of a call: zeros i32 [T, V * G] that nothing else uses, if there are any.
Counters = Callable[[AttentionCall], ir.Value | None]


def attention_lowering(
    kernel: Callable[[AttentionCall], K | Reason],
    build: Callable[[str, K], None],
    counters: Counters = lambda call: None,
) -> Lowering[AttentionCall, K]:
    """Attention over pages becomes calls of the kernel for it.

    `build`: the executables of a kernel, once, at the insertion point: see `executables_of`. A
    kernel whose result is no f32 stands for the rounding after the attention too.
    """
    names: dict[K, str] = {}

    def last(call: AttentionCall, shape: K) -> ir.Operation:
        found = call.op if shape.result == "f32" else rounding_of(call.op)
        assert found is not None
        return found

    def dispatch(calls: Calls, call: AttentionCall, shape: K) -> Sequence[ir.Value]:
        if shape not in names:
            names[shape] = _name(shape, set(names.values()))
        calls.once(names[shape], lambda: build(names[shape], shape))
        wanted = last(call, shape).results[0].type
        return [_call(names[shape], shape, call, counters(call), wanted)]

    return Lowering(attention_calls, kernel, dispatch, last)


def _name(shape: Kernel, taken: set[str]) -> str:
    sizes = "x".join(str(n) for n in (shape.heads, shape.group, shape.depth))
    sizes += "" if shape.mixed == shape.depth else f"to{shape.mixed}"
    name = f"mxc_attention_{sizes}_{shape.element}"
    if shape.reach is not None:
        chunks = isinstance(shape.reach, Chunk)
        name += f"_{'chunks' if chunks else 'near'}_{reach_size(shape.reach)}"
    name += "" if shape.cap is None else "_capped"
    name += "" if shape.result == "f32" else f"_as_{shape.result}"
    same = sum(1 for other in taken if other == name or other.startswith(f"{name}_v"))
    return name if not same else f"{name}_v{same}"


def buffers_of(shape: Kernel, call: Scalars) -> list[Buffer]:
    """Queries, pool, sinks, runs, lists, and where the kernel counts, counters, of which it uses
    that of the first row of each tile; then parts and result, which the kernel writes."""
    integer = i32()
    counters = [Buffer([call.tokens, shape.heads * shape.group], integer)]
    entries, block = shape.pool
    element = pool_type(shape.element)
    rows = block if page_format(shape.element) is None else stored_positions(shape.element, block)
    parts, sinks, runs, result = joined_buffers_of(shape, call)
    return [
        Buffer([call.tokens, shape.heads, shape.group, shape.depth], f32()),
        Buffer([call.pool, entries, rows, shape.heads, shape.depth], element),
        sinks,
        runs,
        Buffer([call.runs, call.pages], integer),
        *(counters if shape.counts else []),
        parts,
        result,
    ]


def pool_type(element: str) -> ir.Type:
    """Type of a pool that has keys and values of this type, or packed in this format."""
    return ir.Type.parse(element) if page_format(element) is None else i8()


def joined_buffers_of(shape: Kernel, call: Scalars) -> list[Buffer]:
    """Parts, sinks, runs; then the result, which @name_joined completes where it lies."""
    return [
        Buffer(shape.parts(call), f32()),
        Buffer([shape.heads, shape.group], ir.Type.parse(shape.sinks)),
        Buffer([call.runs, 3], i32()),
        Buffer([call.tokens, shape.heads, shape.group, shape.mixed], ir.Type.parse(shape.result)),
    ]


#: Builds a body from its memrefs and the scalars of the call.
Build = Callable[[Sequence[ir.Value], Scalars], None]


@dataclass(frozen=True)
class Case:
    """A body for calls of fewer than `pieces` pieces, of `threads`."""

    pieces: int
    body: Build
    threads: Threads


def executables_of(
    name: str,
    shape: Kernel,
    body: Build,
    join: Build,
    threads: Threads | None = None,
    join_threads: Threads | None = None,
    cases: Sequence[Case] = (),
) -> None:
    """Build @name and, where it does not count, @name_joined at the insertion point, of the memrefs
    of `buffers_of` and of `joined_buffers_of`.

    `cases`: bodies for calls of fewer pieces than `body` is for, in their order, on a GPU.
    """
    made = _executable(
        name,
        lambda call: buffers_of(shape, call),
        shape.workgroups,
        _choice(body, cases) if cases else body,
        threads,
    )
    if cases:
        assert threads is not None
        set_cases(
            made,
            Cases(
                workload=[each.name for each in fields(Scalars)].index("pieces"),
                bounds=[case.pieces for case in cases],
                threads=[*(case.threads for case in cases), threads],
            ),
        )
    if shape.counts:
        return
    joined = shape.joined_workgroups
    name = f"{name}_joined"
    _executable(name, lambda call: joined_buffers_of(shape, call), joined, join, join_threads)


def _choice(body: Build, cases: Sequence[Case]) -> Build:
    """A switch on the pieces of a call."""

    def build(buffers: Sequence[ir.Value], call: Scalars) -> None:
        pieces = value_of(call.pieces)
        bodies = (*(case.body for case in cases), body)
        switch_below(
            pieces,
            [case.pieces for case in cases],
            [partial(each, buffers, call) for each in bodies],
        )

    return build


def _executable(
    name: str,
    buffers: Callable[[Scalars], list[Buffer]],
    workgroups: Callable[[Scalars], Sequence[Size]],
    body: Build,
    threads: Threads | None,
) -> ir.Operation:
    memrefs = [buffer.memref for buffer in buffers(_UNKNOWN)]

    def whole(*given: ir.Value) -> None:
        body(given[: len(memrefs)], Scalars(*given[len(memrefs) :]))

    return executable(
        name,
        memrefs,
        lambda given: workgroups(Scalars(*given)),
        whole,
        len(fields(Scalars)),
        threads,
        lambda given: dynamic_of(buffers(Scalars(*given))),
    )


def _call(
    name: str, shape: Kernel, call: AttentionCall, counters: ir.Value | None, wanted: ir.Type
) -> ir.Value:
    """Dispatch @name and, where it does not count, @name_joined; the result, of type `wanted`."""
    queries, pool, runs, lists = call.queries, call.pages.pool, call.rows.runs, call.pages.lists
    given = Scalars(
        tokens=value_of(size_of(queries, 0)),
        runs=value_of(size_of(runs, 0)),
        pages=value_of(size_of(lists, 1)),
        pool=value_of(size_of(pool, 0)),
        keys=call.keys,
        values=call.values,
        pieces=None,
    )
    given = replace(given, pieces=value_of(shape.pieces(given)))
    *read, parts, result = buffers_of(shape, given)
    operands = [queries, pool, call.sinks, runs, lists]
    if shape.counts:
        assert counters is not None
        operands.append(counters)
    tensors = [
        tensor.CastOp(as_tensor(buffer.memref), value).result
        for buffer, value in zip(read, operands, strict=True)
    ]
    scalars = given.all
    made = dispatch_all(
        name,
        [*tensors, *scalars],
        [as_tensor(each.memref) for each in (parts, result, *read[5:])],
        workload=scalars,
        sizes=dynamic_of([*read, parts, result, *read[5:]]),
        tied=[-1, -1, *range(5, len(read))],
    )
    own = {
        ir.IntegerAttr(each.owner.attributes["value"]).value for each in (call.keys, call.values)
    }
    PoolRead(
        operand=1,
        part=len(own),
        of=shape.pool[0],
        runs=3,
        lists=4,
        page=shape.pool[1],
        reach=0 if shape.reach is None else reach_size(shape.reach),
        queries=0,
        mixed=shape.mixed,
    ).write(made)
    left, whole, *counted = made.results
    attention = call.op.results[0].type
    if counted:
        return _as(whole, attention, wanted, value_of(given.tokens))
    joined = dispatch_all(
        f"{name}_joined",
        [left, *tensors[2:4], whole, *scalars],
        [as_tensor(result.memref)],
        workload=scalars,
        sizes=dynamic_of([*joined_buffers_of(shape, given), result]),
        tied=[3],
    )
    return _as(joined.results[0], attention, wanted, value_of(given.tokens))


def _as(value: ir.Value, attention: ir.Type, wanted: ir.Type, tokens: ir.Value) -> ir.Value:
    """A result as the type of the attention, then in the shape `wanted`, whose dynamic size, if
    any, is the number of tokens."""
    shape = list(ir.RankedTensorType(attention).shape)
    whole = tensor.CastOp(ir.RankedTensorType.get(shape, element_of(value)), value).result
    sizes = list(ir.RankedTensorType(wanted).shape)
    return reshape(whole, sizes, [tokens] * sum(size < 0 for size in sizes))
