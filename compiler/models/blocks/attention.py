"""The key/value cache, the keys of it that a call looks at, and attention over them.

The cache of a sequence is one tensor [entries, capacity, V, D], of so many entries a layer as its
attention says (`CacheRow`): keys of layer l at 2l, values at 2l + 1; or rows of a latent cache at
l, of which the values are the first elements. It is an argument that the program updates and
returns, so that it stays in place.
Letters: T tokens of this call, V key/value heads, G query heads a key/value head, D head size,
S keys that this call looks at.
"""

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects.attention import Chunk, Reach, attention
from mxc.dialects.generic import constant, element_of, generic, shape_of


@dataclass(frozen=True)
class CacheRow:
    """What the cache keeps of a token in a layer: `entries` times [heads, depth]."""

    entries: int
    heads: int
    depth: int


@dataclass(frozen=True)
class Window:
    """The keys that a call looks at: cache positions first .. first + size - 1.

    `first` is an index value (None: from 0); `size` an int or an index value; `width` what a query
    sees of what came before it.
    """

    first: ir.Value | None
    size: int | ir.Value
    width: Reach


def index(value: int) -> ir.Value:
    """An index constant."""
    return constant(value, ir.IndexType.get())


def sliding_window(position: ir.Value, tokens: int, width: int, capacity: int) -> Window:
    """The window of a layer whose queries see the last `width` positions, themselves included.

    Static in size: `tokens` queries see at most width + tokens - 1 keys.
    """
    size = min(width + tokens - 1, capacity)
    wanted = arith.subi(position, index(width - 1))
    first = arith.maxsi(wanted, index(0))
    return Window(arith.minsi(first, index(capacity - size)), size, width)


def chunk_window(position: ir.Value, tokens: int, chunk: Chunk, capacity: int) -> Window:
    """The window of a layer whose queries see the keys of their own chunk.

    Static in size: the chunk of the first query, and what follows it.
    """
    size = min(chunk.size + tokens - 1, capacity)
    step = index(chunk.size)
    wanted = arith.muli(arith.divui(position, step), step)
    return Window(arith.minsi(wanted, index(capacity - size)), size, chunk)


def full_window(position: ir.Value, tokens: int) -> Window:
    """The window of a layer whose queries see everything before them: position + tokens keys."""
    return Window(None, arith.addi(position, index(tokens)), None)


def as_cached(rows: ir.Value, cache: ir.Value) -> ir.Value:
    """rows [T, V, D] rounded to the type of `cache`."""
    kind = element_of(cache)
    if element_of(rows) == kind:
        return rows
    return generic([(rows, "m h d")], "m h d", kind, lambda x: arith.truncf(kind, x))


def write_cache(cache: ir.Value, entry: int, position: ir.Value, rows: ir.Value) -> ir.Value:
    """cache with rows [T, V, D], of the cache's type, at [entry, position]."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return tensor.insert_slice(
        rows, cache, [position], [], [], [entry, dynamic, 0, 0], [1, *shape_of(rows)], [1] * 4
    )


def hidden_zero() -> ir.Value:
    """An index that is zero, which the optimiser cannot know. Built once, where a function begins.

    A constant entry would be part of the kernels that read the cache, and each layer would have
    kernels of its own that differ in nothing else. A barrier further down would cut the commands
    of a call in two, with a wait between them.
    """
    barrier = ir.Operation.create(
        "util.optimization_barrier", results=[ir.IndexType.get()], operands=[index(0)]
    )
    return barrier.result


def read_cache(
    cache: ir.Value, zero: ir.Value, entry: int, window: Window, depth: int | None = None
) -> ir.Value:
    """The rows [S, V, D] of `window` in cache entry `zero` + `entry` (see `hidden_zero`).

    `depth`: the first elements of a row alone; None: all.
    """
    _, _, heads, whole = shape_of(cache)
    depth = whole if depth is None else depth
    at = arith.addi(zero, index(entry))
    dynamic = ir.ShapedType.get_dynamic_size()
    static = isinstance(window.size, int)
    size = window.size if static else dynamic
    kind = ir.RankedTensorType.get([size, heads, depth], element_of(cache))
    return tensor.extract_slice(
        kind, cache,
        [at] if window.first is None else [at, window.first],
        [] if static else [window.size], [],
        [dynamic, 0 if window.first is None else dynamic, 0, 0], [1, size, heads, depth], [1] * 4,
    )  # fmt: skip


def attend(
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    sinks: ir.Value,
    position: ir.Value,
    window: Window,
    scale: float,
    cap: float | None = None,
) -> ir.Value:
    """Attention of queries at `position` over the keys of `window`: see dialects/attention.py."""
    return attention(
        queries,
        keys,
        values,
        sinks,
        position=position,
        first=window.first,
        width=window.width,
        scale=scale,
        cap=cap,
    )
