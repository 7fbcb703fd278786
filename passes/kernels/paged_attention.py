"""The parts of paged attention that CPU and GPU kernels share: buffers, executables and calls.

The rows of a run, R = count * G query heads of its tokens, are split into blocks of rows, and
positions into pieces of `piece_keys` at absolute places: [0, n), [n, 2n), .. Where a call has few
rows and many keys, each piece has its own workgroup, which writes its partial result to `parts`,
and a second kernel, NAME_joined, combines them. Where a call has many rows, a workgroup loops over
all pieces and writes the result, and NAME_joined does nothing. Alternatively the kernel counts the
workgroups that are done with a row, and the last one combines the pieces, without a second kernel.

Either way, the result of a row is the sum of its pieces, in order, by the same formula. The bits of
a row thus depend only on its own position.
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
    """The scalars of a call: T tokens, S runs, P pages of the longest list, N pages of the pool,
    the entries of keys and of values, and the number of pieces with a workgroup of their own, 1 for
    none."""

    tokens: Size
    runs: Size
    pages: Size
    pool: Size
    keys: Size
    values: Size
    pieces: Size

    @property
    def all(self) -> list[ir.Value]:
        """The values in the order in which a call passes them."""
        return [value_of(getattr(self, each.name)) for each in fields(self)]


#: The scalars before there is a call.
_UNKNOWN = Scalars(*[None] * len(fields(Scalars)))


class Kernel(Protocol):
    """The properties of a kernel that determine its name, its calls and its memory. Hashable."""

    @property
    def heads(self) -> int:
        """Number of key/value heads V."""

    @property
    def group(self) -> int:
        """Number of query heads per key/value head, G."""

    @property
    def depth(self) -> int:
        """Number of elements of a key, D."""

    @property
    def mixed(self) -> int:
        """Number of elements of a value."""

    @property
    def pool(self) -> tuple[int, int]:
        """Entries E of a page, and its positions B."""

    @property
    def element(self) -> str:
        """Type of keys and values, or their packed format."""

    @property
    def sinks(self) -> str:
        """Type of the sinks."""

    @property
    def result(self) -> str:
        """Type of the result: f32, or bf16 where the kernel rounds it."""

    @property
    def reach(self) -> Reach:
        """The sliding window in tokens, the chunks, or None."""

    @property
    def cap(self) -> float | None:
        """Bound of the scores, or None."""

    @property
    def counts(self) -> bool:
        """Whether the kernel counts its workgroups, so that the last one combines pieces."""

    def pieces(self, call: Scalars) -> Size:
        """Number of pieces with their own workgroup, 1 for none; does not use `call.pieces`."""

    def parts(self, call: Scalars) -> Sequence[Size]:
        """Sizes of the f32 memory for partial results, none of them zero."""

    def workgroups(self, call: Scalars) -> Sequence[Size]:
        """Up to three counts of workgroups of the kernel."""

    def joined_workgroups(self, call: Scalars) -> Sequence[Size]:
        """Up to three counts of workgroups of the kernel that combines pieces."""


K = TypeVar("K", bound=Kernel)


#: Returns unused zeros i32 [T, V * G] to serve as the counters of a call, or None.
Counters = Callable[[AttentionCall], ir.Value | None]


def attention_lowering(
    kernel: Callable[[AttentionCall], K | Reason],
    build: Callable[[str, K], None],
    counters: Counters = lambda call: None,
) -> Lowering[AttentionCall, K]:
    """The lowering of attention over pages.

    `build`: builds the executables of a kernel at the insertion point, once: see `executables_of`.
    A kernel whose result is not f32 also replaces the rounding after the attention.
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
    """The buffers of a kernel: queries, pool, sinks, runs, lists, and, if it counts, counters, of
    which it uses the one of the first row of each tile; then parts and result, which the kernel
    writes."""
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
    """Element type of a pool with keys and values of this type or packed format."""
    return ir.Type.parse(element) if page_format(element) is None else i8()


def joined_buffers_of(shape: Kernel, call: Scalars) -> list[Buffer]:
    """Buffers of @name_joined: parts, sinks, runs, and the result, which it completes in place."""
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
    """A body with `threads` for calls with fewer than `pieces` pieces."""

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
    """Build @name and, if it does not count, @name_joined, with the memrefs of `buffers_of` and of
    `joined_buffers_of`, at the insertion point.

    `cases`: on a GPU, bodies for calls with fewer pieces than `body` is for, in order.
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
    """A body that is a switch on the pieces of a call."""

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
    """Dispatch @name and, if it does not count, @name_joined; the result, of type `wanted`."""
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
    """A result cast to the shape of the attention, then reshaped to `wanted`, whose dynamic size,
    if any, is the number of tokens."""
    shape = list(ir.RankedTensorType(attention).shape)
    whole = tensor.CastOp(ir.RankedTensorType.get(shape, element_of(value)), value).result
    sizes = list(ir.RankedTensorType(wanted).shape)
    return reshape(whole, sizes, [tokens] * sum(size < 0 for size in sizes))
