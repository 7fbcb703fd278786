"""The parts of paged attention that CPU and GPU kernels share: buffers, executables and calls.

The rows of a run, R = count * G query heads of its tokens, are split into blocks of rows, and
positions into pieces of `piece_keys` at absolute places: [0, n), [n, 2n), .. Where a call has few
rows and many keys, each piece has its own workgroup, which writes its partial result to `parts`,
and a second kernel, NAME_merged, combines them. Where a call has many rows, a workgroup loops over
all pieces and writes the result, and NAME_merged does nothing. Alternatively the kernel counts the
workgroups that are done with a row, and the last one combines the pieces, without a second kernel.

Either way, the result of a row is the sum of its pieces, in order, by the same formula. The bits of
a row thus depend only on its own position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.artifact.pages import PAGE_FORMATS, stored_positions
from mxc.dialects.attention import AttentionCall, AttentionChunk, Reach, attention_calls
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.kernel_calls import write_choice
from mxc.dialects.pages import page_format
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import size_of
from mxc.formats.formats import BlockFormat
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Cases, Threads
from mxc.passes.kernels.extents import Buffer, Size, Sized, quotient, value_of
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.reshapes import as_tensor, reshape
from mxc.passes.kernels.roundings import rounding_of
from mxc.passes.kernels.runs import reach_size
from mxc.passes.kernels.vectors import f32, i8, i32, index

#: Types of keys and values, and formats of packed ones.
FLOATS = ("bf16", "f16", "f32")
_PACKED = tuple(PAGE_FORMATS)
#: The window of a call without one: longer than any sequence.
NO_WINDOW = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class PagedAttention(Sized, ABC):
    """Attention of V = `heads` key/value heads of G = `group` query heads each.

    A key has `depth` elements, a value `mixed`, of E `entries` of B `positions` a page; `element`
    is their type, or their packed format; `sinks` is the type of the sinks. Scores are multiplied
    by `scale` and bounded by `cap`; `reach` is the sliding window in tokens, or the chunks.
    `result`: f32, or bf16 where the kernel rounds it. `counts`: whether it counts its workgroups,
    so that the last one adds pieces up.

    `choice`: why the kernel does not use the best unit of the machine; empty if it does.

    `dense`: each run has one page with all of its positions, and values are in a pool of their own.
    Its tokens are at the positions 0, 1, .. if `causal`, else each attends to all keys. `mask`, if
    there is one: how many runs share it (0: all), and whether it differs among heads and tokens; a
    number of at most `replaces` in it is the score itself.

    With each call come T `tokens`, S `runs`, P `pages` of the longest list, N pages of the pool
    (`all_pages`), the entries of `keys` and of `values`, the positions of dense keys if they are
    dynamic, the `window` if it is None, so that layers with and without one share a kernel, and how
    many `pieces` are computed apart: 1 for none.
    """

    heads: int
    group: int
    depth: int
    mixed: int
    entries: int
    element: str
    sinks: str
    scale: float
    cap: float | None
    reach: Reach
    result: str = "f32"
    counts: bool = False
    dense: bool = False
    causal: bool = True
    mask: tuple[int, bool, bool] | None = None
    replaces: float | None = None
    tokens: Size = None
    runs: Size = None
    pages: Size = None
    all_pages: Size = None
    keys: Size = None
    values: Size = None
    positions: Size = None
    window: Size = 0
    pieces: Size = None
    choice: str = field(default="", compare=False)

    @property
    def page(self) -> int:
        """Positions of a page, where their number is static."""
        assert isinstance(self.positions, int)
        return self.positions

    @property
    def packed(self) -> BlockFormat | None:
        """The packed format of the pool; None for floats."""
        return page_format(self.element)

    @property
    def scaled(self) -> bool:
        """Whether a page has scales: one per block in an MX format."""
        return self.packed is not None and not self.packed.unit_scales

    @property
    def pool_type(self) -> ir.Type:
        """The MLIR type of the elements of the pool."""
        return ir.Type.parse(self.element) if self.packed is None else i8()

    @property
    def threads(self) -> Threads | None:
        """Threads of a workgroup, on a GPU."""
        return None

    @property
    def on_tiles(self) -> bool:
        """Whether products are on AMX tiles."""
        return False

    @property
    def products(self) -> int:
        """Products of parts of floats that make one multiplication."""
        return 1

    @property
    def cases(self) -> Cases | None:
        """The cases of a body that is a switch on `pieces`, else None."""
        return None

    @property
    def merge_threads(self) -> Threads | None:
        """Threads of a workgroup of the second kernel, on a GPU."""
        return None

    @property
    @abstractmethod
    def pieces_apart(self) -> Size:
        """Number of pieces with their own workgroup, 1 for none; does not use `pieces`."""

    @property
    @abstractmethod
    def parts(self) -> list[Size]:
        """Sizes of the f32 memory for partial results, none of them zero."""

    @property
    @abstractmethod
    def workgroups(self) -> list[Size]:
        """Up to three counts of workgroups."""

    @property
    @abstractmethod
    def merge_workgroups(self) -> list[Size]:
        """Up to three counts of workgroups of the second kernel."""

    @abstractmethod
    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""

    @abstractmethod
    def merge(self, *buffers: ir.Value) -> None:
        """Build the body of the second kernel, over the memrefs of `merged_buffers`."""

    @property
    def buffers(self) -> list[Buffer]:
        """Queries, pool, sinks, runs and lists; counters if the kernel `counts`, of which it uses
        those of the first row of each tile; the pool of values if it is `dense`; the mask if there
        is one; then parts and result, which the kernel writes."""
        counters = [Buffer([self.tokens, self.heads * self.group], i32())]
        rows = self.positions
        if isinstance(rows, int) and self.packed is not None:
            rows = stored_positions(self.element, rows)
        pool = [self.all_pages, self.entries, rows, self.heads]
        parts, sinks, runs, result = self.merged_buffers
        return [
            Buffer([self.tokens, self.heads, self.group, self.depth], f32()),
            Buffer([*pool, self.depth], self.pool_type),
            sinks,
            runs,
            Buffer([self.runs, self.pages], i32()),
            *(counters if self.counts else []),
            *([Buffer([*pool, self.mixed], self.pool_type)] if self.dense else []),
            *([] if self.mask is None else [self._mask_buffer(*self.mask)]),
            parts,
            result,
        ]

    def _mask_buffer(self, shared: int, of_heads: bool, of_tokens: bool) -> Buffer:
        tokens: Size = None
        if self.tokens is not None and self.runs is not None:
            tokens = value_of(self.tokens) // value_of(self.runs)
        masks = quotient(self.runs, shared) if shared else 1
        heads = self.heads * self.group if of_heads else 1
        return Buffer([masks, heads, tokens if of_tokens else 1, self.positions], f32())

    @property
    def merged_buffers(self) -> list[Buffer]:
        """Parts, sinks, runs, and the result, which the second kernel completes in place."""
        result = [self.tokens, self.heads, self.group, self.mixed]
        return [
            Buffer(self.parts, f32()),
            Buffer([self.heads, self.group], ir.Type.parse(self.sinks)),
            Buffer([self.runs, 3], i32()),
            Buffer(result, ir.Type.parse(self.result)),
        ]


@dataclass(frozen=True)
class _Merged:
    """The second kernel of attention, which adds pieces up."""

    of: PagedAttention

    @property
    def scalars(self) -> int:
        """Number of scalars: those of the first kernel."""
        return self.of.scalars

    def given(self, scalars: Sequence[ir.Value]) -> _Merged:
        """The kernel of one call."""
        return _Merged(self.of.given(scalars))

    @property
    def buffers(self) -> list[Buffer]:
        """See `merged_buffers`."""
        return self.of.merged_buffers

    @property
    def workgroups(self) -> list[Size]:
        """Workgroups of a call."""
        return self.of.merge_workgroups

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        self.of.merge(*buffers)


def paged_sizes_of(call: AttentionCall) -> dict[str, Any] | Reason:
    """The fields of a kernel that follow from a call, or the reason why no kernel reads it."""
    _, heads, group, depth = shape_of(call.queries)
    element = call.pages.format or str(element_of(call.pages.pool))
    sinks = str(element_of(call.sinks))
    if str(element_of(call.queries)) != "f32":
        return Reason(f"queries are {element_of(call.queries)}; kernels take f32")
    if element not in (*FLOATS, *_PACKED) or sinks not in FLOATS:
        return Reason(
            f"keys are {element}, sinks {sinks}; kernels take {', '.join(FLOATS)}, and keys in "
            f"{', '.join(_PACKED)}"
        )
    return {
        "heads": heads,
        "group": group,
        "depth": depth,
        "mixed": call.mixed,
        "entries": shape_of(call.pages.pool)[1],
        "positions": call.pages.positions,
        "element": element,
        "sinks": sinks,
        "scale": call.scale,
        "cap": call.cap,
        "reach": call.reach,
    }


K = TypeVar("K", bound=PagedAttention)


#: Returns unused zeros i32 [T, V * G] to serve as the counters of a call, or None.
Counters = Callable[[AttentionCall], ir.Value | None]


def attention_lowering(
    kernel: Callable[[AttentionCall], K | Reason], counters: Counters = lambda call: None
) -> Lowering[AttentionCall, K]:
    """The lowering of attention over pages.

    A kernel whose result is no f32 stands for the rounding after the attention too.
    """
    names: dict[K, str] = {}

    def last(call: AttentionCall, kernel: K) -> ir.Operation:
        found = call.op if kernel.result == "f32" else rounding_of(call.op)
        assert found is not None
        return found

    def dispatch(calls: Calls, call: AttentionCall, kernel: K) -> Sequence[ir.Value]:
        scalars = scalars_of(kernel, call)
        given = counters(call) if kernel.counts else None
        made = call_kernel(calls, named(kernel, names), kernel, call, scalars, listed(given))
        # Cast the result to the shape of the attention, then to that of the replaced operation.
        shape, wanted = (shape_of(op.results[0]) for op in (call.op, last(call, kernel)))
        whole = tensor.CastOp(ir.RankedTensorType.get(shape, element_of(made)), made).result
        return [reshape(whole, wanted, scalars[:1] * sum(size < 0 for size in wanted))]

    return Lowering(attention_calls, kernel, dispatch, last)


def listed(value: ir.Value | None) -> list[ir.Value]:
    """A list of an operand that may be absent."""
    return [] if value is None else [value]


def named(kernel: K, names: dict[K, str]) -> str:
    """Return the name of a kernel. `names` has the kernels that have a name; a new one is added."""
    if kernel not in names:
        names[kernel] = _name(kernel, set(names.values()))
    return names[kernel]


def _name(kernel: PagedAttention, taken: set[str]) -> str:
    sizes = "x".join(str(n) for n in (kernel.heads, kernel.group, kernel.depth))
    sizes += "" if kernel.mixed == kernel.depth else f"to{kernel.mixed}"
    name = f"mxc_attention_{sizes}_{kernel.element}"
    if kernel.reach is not None:
        chunks = isinstance(kernel.reach, AttentionChunk)
        name += f"_{'chunks' if chunks else 'near'}_{reach_size(kernel.reach)}"
    name += "" if kernel.cap is None else "_capped"
    name += "_tiles" if kernel.on_tiles else ""
    if kernel.dense:
        name += "_dense" + ("_causal" if kernel.causal else "")
        name += "" if kernel.mask is None else "_masked"
    name += "" if kernel.result == "f32" else f"_as_{kernel.result}"
    same = sum(1 for other in taken if other == name or other.startswith(f"{name}_v"))
    return name if not same else f"{name}_v{same}"


def scalars_of(kernel: PagedAttention, call: AttentionCall) -> list[ir.Value]:
    """The scalars of a call, at the insertion point."""
    sized = (call.queries, 0), (call.rows.runs, 0), (call.pages.lists, 1), (call.pages.pool, 0)
    found = [value_of(size_of(value, axis)) for value, axis in sized]
    found += [call.keys, call.values]
    if kernel.positions is None:
        found.append(value_of(size_of(call.pages.pool, 2)))
    if kernel.window is None:
        assert call.reach is None or isinstance(call.reach, int)
        found.append(index(call.reach or NO_WINDOW))
    return [*found, value_of(kernel.given([*found, None]).pieces_apart)]


def call_kernel(
    calls: Calls,
    name: str,
    kernel: PagedAttention,
    call: AttentionCall,
    scalars: Sequence[ir.Value],
    others: Sequence[ir.Value],
) -> ir.Value:
    """Dispatch @name and, if it does not count, @name_merged. Returns the result.

    `others`: the operands after the lists.
    """
    operands = [call.queries, call.pages.pool, call.sinks, call.rows.runs, call.pages.lists]
    operands += others
    tensors = [
        tensor.CastOp(as_tensor(buffer.memref), value).result
        for buffer, value in zip(kernel.buffers, operands, strict=False)
    ]
    updated = [len(tensors) - 1] if kernel.counts else []
    made = calls.dispatch(name, kernel, tensors, scalars, kernel.threads, kernel.cases, updated)
    entries = {
        ir.IntegerAttr(each.owner.attributes["value"]).value for each in (call.keys, call.values)
    }
    PoolRead(
        operand=1,
        part=len(entries),
        of=kernel.entries,
        runs=3,
        lists=4,
        page=kernel.positions if isinstance(kernel.positions, int) else 0,
        reach=0 if call.reach is None else reach_size(call.reach),
        queries=0,
        mixed=kernel.mixed,
        causal=int(kernel.causal),
        products=kernel.products,
    ).write(made)
    if kernel.choice:
        write_choice(made, kernel.choice)
    left, whole, *_ = made.results
    if kernel.counts:
        return whole
    given = [left, *tensors[2:4], whole]
    name, threads = f"{name}_merged", kernel.merge_threads
    return calls.dispatch(name, _Merged(kernel), given, scalars, threads, updated=[3]).results[0]
