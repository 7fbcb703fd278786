"""Attention over slices of a cache: where the keys and values lie, which a token sees, the call.

A kernel reads the cache itself, from the entry and for the keys that the slices named. Where there
are too few rows for many workgroups the keys are shared out in pieces, whose number is the workload
of the dispatch; a second kernel, NAME_joined, puts their results together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.attention import (
    NO_ATTENTION,
    Chunk,
    MatchedAttention,
    Reach,
    match_attention,
    products_of,
)
from mxc.dialects.dispatches import element_bits, mark_reads
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.executables import dispatch
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.kernels.roundings import rounding_of
from mxc.passes.kernels.vectors import index
from mxc.passes.rewriting.rebuild import linalg_operations, replace, sweep

#: Keys of a piece, at least.
PIECE_KEYS = 128


class Kernel(Protocol):
    """Sizes of a kernel, as far as its name and its calls need them."""

    @property
    def tokens(self) -> int:
        """Of a call."""

    @property
    def heads(self) -> int:
        """Key/value heads."""

    @property
    def group(self) -> int:
        """Query heads of each."""

    @property
    def depth(self) -> int:
        """Elements of a key."""

    @property
    def mixed(self) -> int:
        """Elements of a value."""

    @property
    def keys(self) -> Sequence[int]:
        """Sizes of the memref that has the keys, [.., S, V, D]."""

    @property
    def element(self) -> str:
        """Type of keys and values."""

    @property
    def result(self) -> str:
        """Type of the result."""

    @property
    def width(self) -> Reach:
        """The sliding window, in tokens, or the chunks."""

    @property
    def pieces(self) -> int | None:
        """Into how many pieces the keys are cut at most; None: they are not."""

    @property
    def block_keys(self) -> int:
        """Keys that a piece has a multiple of."""

    def result_shape(self) -> list[int]:
        """Of the first kernel's result."""


K = TypeVar("K", bound=Kernel)


def lower_attention(
    module: ir.Operation,
    kernel: Callable[[MatchedAttention, tuple[CacheSlice, CacheSlice]], K | Reason],
    build: Callable[[str, K], None],
) -> None:
    """Replace each attention over slices of a cache by calls of the kernel for it, if there is one.

    Where there is none the reason is written on both products.
    `build`: the executables of a kernel, once, at the insertion point. A kernel whose result is no
    f32 stands for the rounding behind the attention too.
    """
    names: dict[K, str] = {}
    for op in linalg_operations(module):
        found = match_attention(op)
        if isinstance(found, Reason):
            if found != NO_ATTENTION:
                _refuse(products_of(op), found)
            continue
        slices = _slices(found)
        if isinstance(slices, Reason):
            _refuse(found.products, slices)
            continue
        shape = kernel(found, slices)
        if isinstance(shape, Reason):
            _refuse(found.products, shape)
            continue
        if shape not in names:
            names[shape] = _name(shape, set(names.values()))
            with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
                build(names[shape], shape)
        last = op if shape.result == "f32" else rounding_of(op)
        assert last is not None
        with ir.InsertionPoint(last), op.location:
            made = _call(names[shape], shape, found, *slices)
            replace(last, reshape(made, shape_of(last.results[0])))
    sweep(module)


def _refuse(products: Sequence[ir.Operation], reason: Reason) -> None:
    for product in products:
        write_reason(product, reason)


def _name(shape: Kernel, taken: set[str]) -> str:
    sizes = "x".join(str(n) for n in (shape.tokens, shape.heads, shape.group, shape.depth))
    sizes += "" if shape.mixed == shape.depth else f"to{shape.mixed}"
    name = f"mxc_attention_{sizes}_{shape.element}_of_{shape.keys[-3]}"
    if shape.width is not None:
        kind = "chunks" if isinstance(shape.width, Chunk) else "near"
        name += f"_{kind}_{_size(shape.width)}"
    name += "" if shape.result == "f32" else f"_as_{shape.result}"
    same = sum(1 for other in taken if other == name or other.startswith(f"{name}_v"))
    return name if not same else f"{name}_v{same}"


@dataclass(frozen=True)
class CacheSlice:
    """[size, V, D] of `source`: at `place`, from key `first`, of each row the first elements."""

    source: ir.Value
    place: list[ir.Value]
    first: ir.Value | int
    size: ir.Value | int


def _slices(found: MatchedAttention) -> tuple[CacheSlice, CacheSlice] | Reason:
    """Where keys and values lie, or why no kernel can read them there."""
    keys, values = _slice(found.keys), _slice(found.values)
    if isinstance(keys, Reason):
        return keys
    if isinstance(values, Reason):
        return values
    if (keys.first, keys.size) != (values.first, values.size):
        return Reason("the slices of keys and of values have different entries")
    absolute = keys.first == 0 if found.first is None else keys.first == found.first
    if isinstance(found.width, Chunk) and not absolute:
        return Reason("chunks are not counted from the start of the cache")
    types = [element_of(each.source) for each in (keys, values)]
    if types[0] != types[1]:
        return Reason(f"keys are {types[0]} and values {types[1]}; kernels take one type")
    return keys, values


def _slice(value: ir.Value) -> CacheSlice | Reason:
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "tensor.extract_slice":
        return Reason(f"{value.type} is no slice of a cache")
    source, shape = op.operands[0], shape_of(op.operands[0])
    segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
    dynamic = ir.ShapedType.get_dynamic_size()
    given = list(op.operands)
    parts: list[list[ir.Value | int]] = []
    for number, name in enumerate(("static_offsets", "static_sizes", "static_strides"), start=1):
        begin = sum(segments[:number])
        values = iter(given[begin : begin + segments[number]])
        static = ir.DenseI64ArrayAttr(op.attributes[name])
        parts.append([next(values) if size == dynamic else size for size in static])
    offsets, sizes, strides = parts
    whole = shape[-2:-1] == sizes[-2:-1] and offsets[-2:] == [0, 0]
    one = all(size == 1 for size in (*sizes[:-3], *strides))
    if len(shape) < 3 or min(shape) < 0 or not whole or not one or len(shape_of(value)) != 3:
        return Reason(
            f"the slice {value.type} of {source.type} is not [keys, heads, depth] of one place of "
            "a cache [.., keys, heads, depth] of static sizes"
        )
    with ir.InsertionPoint(op), op.location:
        place = [_index(offset) for offset in offsets[:-3]]
    return CacheSlice(source, place, offsets[-3], sizes[-3])


def _index(value: ir.Value | int) -> ir.Value:
    return constant(value, ir.IndexType.get()) if isinstance(value, int) else value


@dataclass(frozen=True)
class Seen:
    """Which keys a token sees: of `begin` .. `end` - 1 those at or before it, in `width`.

    Keys are counted in the cache, tokens in the call, whose first token is at `position`.
    """

    position: ir.Value
    begin: ir.Value
    end: ir.Value
    width: Reach

    def first(self, token: ir.Value) -> ir.Value:
        """The first key that `token` sees."""
        if self.width is None:
            return self.begin
        own = arith.addi(self.position, token)
        if isinstance(self.width, Chunk):
            size = index(self.width.size)
            oldest = arith.muli(arith.divui(own, size), size)
        else:
            oldest = arith.subi(own, index(self.width - 1))
        return arith.maxsi(self.begin, oldest)

    def behind(self, token: ir.Value) -> ir.Value:
        """The key behind the last one that `token` sees."""
        after = arith.addi(arith.addi(self.position, token), index(1))
        return arith.minsi(self.end, after)


def _size(width: int | Chunk) -> int:
    return width.size if isinstance(width, Chunk) else width


def _call(
    name: str, shape: Kernel, found: MatchedAttention, keys: CacheSlice, values: CacheSlice
) -> ir.Value:
    """Dispatch @name over queries, keys, values and sinks, then position, first, size, keys of a
    piece, places of keys and values; and @name_joined over the pieces, the sinks and their number.
    """
    first, size = _index(keys.first), _index(keys.size)
    position = _index(0) if found.position is None else found.position
    # The body counts keys from the start of the source, the attention from where it likes.
    if found.first is not None and found.first != keys.first:
        position = arith.subi(position, found.first)
    if found.first is None or found.first != keys.first:
        position = position if keys.first == 0 else arith.addi(position, first)
    piece = size
    if shape.pieces is not None:
        # Whole blocks, so that only the last one of all is ragged.
        blocks = arith.ceildivsi(size, _index(shape.pieces * shape.block_keys))
        piece = arith.maxsi(arith.muli(blocks, _index(shape.block_keys)), _index(PIECE_KEYS))
    operands = [found.queries, keys.source, values.source, found.sinks]
    operands += [position, first, size, piece, *keys.place, *values.place]
    wanted = ir.RankedTensorType.get(shape_of(found.op.results[0]), ir.Type.parse(shape.result))
    # Values that are part of the rows of keys are read with them.
    same = (keys.source, keys.place) == (values.source, values.place)
    read = [-1, _most_bytes(shape, keys), 0 if same else _most_bytes(shape, values)]
    if shape.pieces is None:
        made = dispatch(name, operands, wanted)
        mark_reads(made.owner.operation, read)
        return made
    pieces = arith.ceildivsi(size, piece)
    kind = ir.RankedTensorType.get(shape.result_shape(), ir.F32Type.get())
    parts = dispatch(name, operands, kind, [pieces])
    mark_reads(parts.owner.operation, read)
    return dispatch(f"{name}_joined", [parts, found.sinks, pieces], wanted)


def _most_bytes(shape: Kernel, cache: CacheSlice) -> int:
    """Bytes of the keys, or values, that the tokens of a call see at most."""
    held, *row = shape_of(cache.source)[-3:]
    size = cache.size if isinstance(cache.size, int) else held
    seen = size if shape.width is None else min(size, _size(shape.width) + shape.tokens - 1)
    return seen * math.prod(row) * element_bits(element_of(cache.source)) // 8
