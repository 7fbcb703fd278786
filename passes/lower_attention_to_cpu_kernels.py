"""mxc-lower-attention-to-cpu-kernels: attention over a cache becomes kernels that read it in place.

Scores, softmax and values of all heads become one dispatch of a hand-scheduled body
(passes/kernels/attention/), for any number of keys, known or not when the program is compiled.
The slices of the cache go away: the body reads the cache itself, from the entry and for the keys
that the slices named. Nothing of the size of tokens times keys is in memory. Where there are too
few rows for many workgroups, a token that is decoded, the keys are shared out in pieces, and a
second dispatch puts their results together.

Products and sums are f32, keys and values are extended exactly. Exponentials are within 1 ulp.

before:
    %k = tensor.extract_slice %cache[%entry, %first, 0, 0] [1, %size, V, D] ..
    %v = tensor.extract_slice %cache[%next, %first, 0, 0] [1, %size, V, D] ..
    %products = linalg.generic ins(%queries, %k) { mulf, addf }
    %scores = linalg.generic ins(%products) { index, cmpi, select }
    ..
    %y = linalg.generic ins(%mixed, %total) { divf }
after:
    stream.executable private @mxc_attention_1x8x8x64_bf16_of_4096 { .. }
    %y = flow.dispatch @mxc_attention_..(%queries, %cache, %cache, %sinks, %position, %first,
                                         %size, %entry, %next)

Leaves alone: attention in another form than dialects/attention.py builds; queries that are not
f32; keys, values or sinks of other types than bf16, f16 and f32; keys and values that are no slices
of static tensors, or slices at other keys than each other; head sizes that are no multiple of 16,
or more than 128 with 16 lanes, 256 with 8, 512 with 4.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.attention import MatchedAttention, match_attention
from mxc.dialects.generic import constant, element_of, shape_of
from mxc.passes.base import Pass
from mxc.passes.kernels.attention.kernel import attention
from mxc.passes.kernels.attention.pieces import join_pieces, pieces_buffers
from mxc.passes.kernels.attention.shape import MOST_STAGED, PIECE_KEYS, Attention, most_pieces
from mxc.passes.kernels.executables import dispatch, executable
from mxc.passes.rewriting.rebuild import linalg_operations, replace, sweep

#: Types that are extended to f32 exactly, on the way to the registers.
_FLOATS = ("bf16", "f16", "f32")


@dataclass(frozen=True)
class LowerAttentionToCpuKernels(Pass):
    """Give attention to kernels of registers of `lanes` f32: 16 AVX-512, 8 AVX2, 4 NEON."""

    name = "mxc-lower-attention-to-cpu-kernels"
    lanes: int = 16

    def run(self, module: ir.Operation) -> None:
        """Lower every attention over slices of a cache."""
        names: dict[Attention, str] = {}
        for op in linalg_operations(module):
            found = match_attention(op)
            slices = None if found is None else _slices(found)
            if found is None or slices is None:
                continue
            keys, values = slices
            shape = _shape(found, keys, values, self.lanes)
            if shape is None:
                continue
            if shape not in names:
                names[shape] = _name(shape, set(names.values()))
                with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
                    _build(names[shape], shape)
            with ir.InsertionPoint(op), op.location:
                replace(op, _call(names[shape], shape, found, keys, values))
        sweep(module)


@dataclass(frozen=True)
class _Slice:
    """[size, V, D] of `source`: at `place`, from key `first`."""

    source: ir.Value
    place: list[ir.Value]
    first: ir.Value | int
    size: ir.Value | int


def _slices(found: MatchedAttention) -> tuple[_Slice, _Slice] | None:
    keys, values = _slice(found.keys), _slice(found.values)
    if keys is None or values is None:
        return None
    same = (keys.first, keys.size) == (values.first, values.size)
    return (keys, values) if same and element_of(keys.source) == element_of(values.source) else None


def _slice(value: ir.Value) -> _Slice | None:
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if op is None or op.name != "tensor.extract_slice":
        return None
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
    whole = shape[-2:] == list(sizes[-2:]) and offsets[-2:] == [0, 0]
    one = all(size == 1 for size in (*sizes[:-3], *strides))
    if len(shape) < 3 or min(shape) < 0 or not whole or not one or len(shape_of(value)) != 3:
        return None
    with ir.InsertionPoint(op), op.location:
        place = [_index(offset) for offset in offsets[:-3]]
    return _Slice(source, place, offsets[-3], sizes[-3])


def _index(value: ir.Value | int) -> ir.Value:
    return constant(value, ir.IndexType.get()) if isinstance(value, int) else value


def _shape(found: MatchedAttention, keys: _Slice, values: _Slice, lanes: int) -> Attention | None:
    tokens, heads, group, depth = shape_of(found.queries)
    element = str(element_of(keys.source))
    static = min(shape_of(found.queries)) > 0
    sinks = str(element_of(found.sinks))
    if not static or str(element_of(found.queries)) != "f32":
        return None
    if element not in _FLOATS or sinks not in _FLOATS:
        return None
    if depth % 16 or 2 * lanes * depth * 4 > MOST_STAGED:
        return None
    most = keys.size if isinstance(keys.size, int) else shape_of(keys.source)[-3]
    return Attention(
        tokens=tokens,
        heads=heads,
        group=group,
        depth=depth,
        keys=tuple(shape_of(keys.source)),
        values=tuple(shape_of(values.source)),
        element=element,
        sinks=sinks,
        scale=found.scale,
        width=found.width,
        pieces=most_pieces(tokens, heads, group, most, lanes),
        lanes=lanes,
    )


def _name(shape: Attention, taken: set[str]) -> str:
    sizes = "x".join(str(n) for n in (shape.tokens, shape.heads, shape.group, shape.depth))
    name = f"mxc_attention_{sizes}_{shape.element}_of_{shape.keys[-3]}"
    name += "" if shape.width is None else f"_near_{shape.width}"
    same = sum(1 for other in taken if other == name or other.startswith(f"{name}_v"))
    return name if not same else f"{name}_v{same}"


def _build(name: str, shape: Attention) -> None:
    buffers = shape.buffers()

    def body(*values: ir.Value) -> None:
        attention(shape, values[: len(buffers)], values[len(buffers) :])

    executable(name, buffers, shape.workgroups, body, shape.scalars)
    if shape.pieces is None:
        return
    joined = pieces_buffers(shape)

    def join(*values: ir.Value) -> None:
        join_pieces(shape, values[: len(joined)], values[len(joined)])

    executable(f"{name}_joined", joined, (shape.heads, shape.tokens), join, 1)


def _call(
    name: str, shape: Attention, found: MatchedAttention, keys: _Slice, values: _Slice
) -> ir.Value:
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
    kind = ir.RankedTensorType.get(shape.result_shape(), ir.F32Type.get())
    if shape.pieces is None:
        return dispatch(name, operands, kind)
    pieces = arith.ceildivsi(size, piece)
    parts = dispatch(name, operands, kind, [pieces])
    return dispatch(f"{name}_joined", [parts, found.sinks, pieces], found.op.results[0].type)
