"""Activations to blocks of 32 at run time: amax of a block, its scale, its elements, in linalg.

    amax      = largest magnitude of a block, as the integer of its bits: NaN orders above Inf
    scales    = f(amax), one a block
    elements  = g(x, scales)

The first two become one dispatch, the third another, where no kernel of ours takes them all.
Elements of 6 bits are made as bytes, four elements in three: IREE stores them wrongly on CPUs.

All roundings are spelled out in integer operations and additions: `arith.scaling_truncf` rounds
wrongly on CPUs, and IREE's workers read subnormal numbers as zero. So what is computed is, bit for
bit, what reference.py says for MX formats, subnormal inputs included; for int8 see `quantise_int8`.

What a block with a NaN becomes has a NaN scale, and makes every product with it NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, flow, linalg, tensor

from mxc.dialects.boundary import unpack
from mxc.dialects.generic import constant, element_of, generic, shape_of
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.quantise_scalars import (
    MAGNITUDE,
    as_bits,
    block_scale,
    element_code,
    i32,
    int8_element,
    int8_scale,
    row_scale,
    scale_byte,
)
from mxc.dialects.sizes import dynamic_sizes
from mxc.errors import FormatError
from mxc.formats.formats import E8M0, FORMATS, BlockFormat, block_format
from mxc.formats.recipes import ScaleRecipe, scale_recipe

#: Elements of a block of int8, as of every MX format.
BLOCK = 32

#: What `quantise_mx` writes.
MX_FORMATS = tuple(name for name, format in FORMATS.items() if format.scale == E8M0)

#: What the operations of `quantise_nvfp4` are called, for which there are no kernels of ours.
QUANTISING = "quantise"

#: The E8M0 byte of the scale one.
_ONE = 127

#: Floats that are quantised as the f32 that they are exactly.
_NARROW = ("bf16", "f16")


def quantise_int8(x: ir.Value, block: int = BLOCK) -> tuple[ir.Value, ir.Value]:
    """x f32 [.., K] -> elements i8 [.., K / block, block] and scales f32 [.., K / block].

    scale = amax / 127 and element = x * (1 / scale), to nearest, ties to even, within +-127; both
    quotients and the product are f32. Where amax / 127 is below 2^-125, the block is zeros under
    the scale 0. Where amax is Inf or NaN, the scale is NaN and the elements are zeros.

    Raises ValueError where x is not f32 or K not a static multiple of the block.
    """
    blocks = _blocks(x, [block])
    amax = _amax(blocks)
    lead = _loops(amax)
    f32 = ir.F32Type.get()
    scales = generic([(amax, lead)], lead, f32, int8_scale)
    inner, byte = f"{lead} kb", _integer(8)

    def element(value: ir.Value, scale: ir.Value) -> ir.Value:
        return arith.trunci(byte, int8_element(value, scale))

    return generic([(blocks, inner), (scales, lead)], inner, byte, element), scales


def quantise_mx(
    x: ir.Value, format: BlockFormat | str, recipe: ScaleRecipe | str
) -> tuple[ir.Value, ir.Value]:
    """x [.., K] -> elements [.., K / 32, 32] of the MX `format` and f8E8M0FNU [.., K / 32].

    x is f32, or bf16 or f16, which are widened. Equal to `reference.quantize` in every bit. Raises
    ValueError where x is none of them, or K not a static multiple of 32, FormatError for an unknown
    format or recipe, or a format that is not in `MX_FORMATS`.
    """
    format, recipe = block_format(format), scale_recipe(recipe)
    if format.name not in MX_FORMATS:
        raise FormatError(
            f"activations cannot be quantised to {format}; choose {', '.join(MX_FORMATS)}"
        )
    codes, scales = mx_integers(x, format, recipe)
    if format.element.bits == 6:
        rank = len(shape_of(codes))
        groups = [*([axis] for axis in range(rank - 2)), [rank - 2, rank - 1]]
        *lead, words, size = shape_of(codes)
        packed = ir.RankedTensorType.get([*lead, words * size], _integer(8))
        packed = tensor.collapse_shape(packed, codes, groups)
        return unpack(packed, ir.Type.parse(format.element.mlir)), _renamed(scales, E8M0.mlir)
    return _renamed(codes, format.element.mlir), _renamed(scales, E8M0.mlir)


def mx_integers(x: ir.Value, format: BlockFormat, recipe: ScaleRecipe) -> tuple[ir.Value, ir.Value]:
    """What `quantise_mx` gives, as integers: elements i8 [.., K / 32, 32], i4 where they have 4
    bits, where they have 6 bytes [.., K / 32, 8, 3]; and scales i8 [.., K / 32]."""
    return _codes(_widened(x), format, recipe)


def quantise_nvfp4(x: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """x f32 [.., K] -> f4E2M1FN [.., K / 16, 16], f8E4M3FN [.., K / 16] and f32 [..].

    The second level of scales is of each row and not of the tensor: what a row becomes does not
    depend on the rows beside it. Each row is, bit for bit, what nvfp4.py makes of it as a tensor;
    the scale of one with a NaN or an Inf is NaN. Raises ValueError where x is not f32 or K not a
    static multiple of 16.
    """
    format, f32, byte = FORMATS["nvfp4"], ir.F32Type.get(), _integer(8)
    blocks = _blocks(x, [format.block])
    with ir.Location.name(QUANTISING):
        amax = _amax(blocks)
        lead = _loops(amax)
        rows = lead.rpartition(" ")[0]
        most = generic([(amax, lead)], rows, _integer(32), arith.maxsi)
        wholes = generic([(most, rows)], rows, f32, lambda bits: row_scale(bits, format))
        codes = generic(
            [(amax, lead), (wholes, rows)], lead, byte,
            lambda bits, whole: arith.trunci(byte, block_scale(bits, whole, format)),
        )  # fmt: skip
        scales = _renamed(codes, format.scale.mlir)

        def element(value: ir.Value, scale: ir.Value, whole: ir.Value) -> ir.Value:
            unit = arith.divf(constant(1.0, f32), whole)
            unit = arith.divf(unit, arith.extf(f32, scale))
            scaled = as_bits(arith.mulf(value, unit))
            one = i32(_ONE)
            return arith.trunci(_integer(4), element_code(scaled, one, format.element))

        inner = f"{lead} kb"
        reads = [(blocks, inner), (scales, lead), (wholes, rows)]
        elements = generic(reads, inner, _integer(4), element)
    return _renamed(elements, format.element.mlir), scales, wholes


def _codes(x: ir.Value, format: BlockFormat, recipe: ScaleRecipe) -> tuple[ir.Value, ir.Value]:
    """Codes and scale bytes of x f32: integers [.., KO, 32], bytes i8 [.., KO, 8, 3] of 6 bits."""
    element, byte = format.element, _integer(8)
    blocks = _blocks(x, [format.block])
    amax = _amax(blocks)
    lead = _loops(amax)

    def scale(largest: ir.Value) -> ir.Value:
        return arith.trunci(byte, scale_byte(largest, element, recipe))

    def code(value: ir.Value, scale: ir.Value) -> ir.Value:
        return element_code(as_bits(value), arith.extui(_integer(32), scale), element)

    def word(value: ir.Value, scale: ir.Value, others: ir.Value) -> ir.Value:
        place = arith.index_cast(_integer(32), linalg.IndexOp(len(shape_of(amax)) + 1).result)
        shift = arith.muli(place, i32(element.bits))
        return arith.ori(others, arith.shli(code(value, scale), shift))

    def part(word: ir.Value) -> ir.Value:
        place = arith.index_cast(_integer(32), linalg.IndexOp(len(shape_of(amax)) + 1).result)
        return arith.trunci(byte, arith.shrui(word, arith.muli(place, i32(8))))

    scales = generic([(amax, lead)], lead, byte, scale)
    if element.bits == 6:
        inner = f"{lead} kw"
        fours = (_blocks(x, [format.block // 4, 4]), f"{inner} kb")
        words = generic([fours, (scales, lead)], inner, _integer(32), word)
        return generic([(words, inner)], f"{inner} kn", byte, part, sizes={"kn": 3}), scales
    inner, kind = f"{lead} kb", _integer(element.bits)
    pair = [(blocks, inner), (scales, lead)]
    return generic(pair, inner, kind, lambda x, s: arith.trunci(kind, code(x, s))), scales


def _widened(x: ir.Value) -> ir.Value:
    """f32 of bf16 and f16; anything else as it is."""
    if str(element_of(x)) not in _NARROW:
        return x
    loops, f32 = _loops(x), ir.F32Type.get()
    return generic([(x, loops)], loops, f32, lambda narrow: arith.extf(f32, narrow))


def _blocks(x: ir.Value, inner: Sequence[int]) -> ir.Value:
    """x f32 [.., K] as [.., KO, inner..]."""
    *lead, depth = shape_of(x)
    block = int(np.prod(inner))
    if element_of(x) != ir.F32Type.get() or depth < 0 or depth % block:
        raise ValueError(f"wanted f32 [.., K] with K a multiple of {block}, got {x.type}")
    sizes = [*lead, depth // block, *inner]
    dynamic = dynamic_sizes(x)
    groups = [*([axis] for axis in range(len(lead))), list(range(len(lead), len(sizes)))]
    kind = ir.RankedTensorType.get(sizes, ir.F32Type.get())
    return tensor.expand_shape(kind, x, groups, dynamic, sizes)


def _amax(blocks: ir.Value) -> ir.Value:
    """The bits of the largest magnitudes of blocks f32 [.., KO, block]: i32 [.., KO]."""
    loops = _loops(blocks)

    def largest(value: ir.Value, acc: ir.Value) -> ir.Value:
        magnitude = arith.andi(arith.bitcast(_integer(32), value), i32(MAGNITUDE))
        return arith.maxsi(magnitude, acc)

    return generic([(blocks, loops)], loops.rpartition(" ")[0], _integer(32), largest)


@dataclass(frozen=True, kw_only=True)
class Quantisation:
    """What `quantise_mx` builds, found in a program.

    `x`: the floats, f32, bf16 or f16, of any shape with blocks of 32 in a row; `codes`: elements as
    integers [.., KO, 32], or as bytes i8 [.., KO, 8, 3]; `scales`: i8 [.., KO].
    """

    x: ir.Value
    format: BlockFormat
    recipe: ScaleRecipe
    codes: ir.Operation
    scales: ir.Operation


def match_quantisation(op: ir.Operation) -> Quantisation | None:
    """The quantisation whose codes `op` computes, or None where it computes something else."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return None
    if str(element_of(op.results[0])) not in ("i4", "i8"):
        return None
    leaves: list[ir.Value] = []
    found = _signature(op.results[0], leaves)
    sources = [source_of(leaf) for leaf in leaves]
    if not sources or any(source != sources[0] for source in sources):
        return None
    # The last leaf are the blocks whose amax is taken: x, with one axis more.
    known = _known(len(shape_of(leaves[-1])) - 1).get(found)
    if known is None or shape_of(leaves[-1])[-1] != BLOCK:
        return None
    format, recipe = known
    inner = op
    if format.element.bits == 6:
        inner = op.operands[0].owner
        if shape_of(leaves[0])[-2:] != [BLOCK // 4, 4] or shape_of(op.results[0])[-1] != 3:
            return None
    scales = inner.operands[1].owner
    return Quantisation(x=sources[0], format=format, recipe=recipe, codes=op, scales=scales)


@dataclass(frozen=True, kw_only=True)
class Int8Quantisation:
    """What `quantise_int8` builds, found in a program: its x, and the operations of its results."""

    x: ir.Value
    codes: ir.Operation
    scales: ir.Operation


def match_int8_quantisation(op: ir.Operation) -> Int8Quantisation | None:
    """The quantisation to int8 whose elements `op` computes, or None."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return None
    leaves: list[ir.Value] = []
    found = _int8_signature(op.results[0], leaves)
    if len(leaves) != 3 or shape_of(leaves[0])[-1] != BLOCK or leaves[0] != leaves[2]:
        return None
    if found != _known_int8(len(shape_of(leaves[0])) - 1):
        return None
    return Int8Quantisation(x=source_of(leaves[0]), codes=op, scales=leaves[1].owner)


@cache
def _known_int8(rank: int) -> str:
    """The signature of int8 of x of `rank` dimensions."""
    with ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
        elements, _ = quantise_int8(tensor.empty([1] * (rank - 1) + [BLOCK], ir.F32Type.get()))
        return _int8_signature(elements, [])


def _int8_signature(elements: ir.Value, leaves: list[ir.Value]) -> str:
    """Of elements [.., KO, 32]; leaves: the blocks, the scales, the blocks behind the scales."""
    found = _computation(elements, leaves)
    return f"{found}; {_computation(leaves[1], leaves)}" if len(leaves) == 2 else found


@cache
def _known(rank: int) -> dict[str, tuple[BlockFormat, ScaleRecipe]]:
    """The signatures of the codes of x of `rank` dimensions, in every format and recipe."""
    found = {}
    module = ir.Module.create(ir.Location.unknown())
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        x = tensor.empty([1] * (rank - 1) + [BLOCK], ir.F32Type.get())
        for name in MX_FORMATS:
            for recipe in ScaleRecipe:
                codes, _ = _codes(x, FORMATS[name], recipe)
                found[_signature(codes, [])] = (FORMATS[name], recipe)
    return found


def _signature(value: ir.Value, leaves: list[ir.Value]) -> str:
    """What computes a tensor of integers, from floats on, which go to `leaves`: equal for equal
    computations, wherever their constants stand and however large they are."""
    if isinstance(element_of(value), ir.FloatType):
        leaves.append(value)
        return "x"
    return _computation(value, leaves)


def _computation(value: ir.Value, leaves: list[ir.Value]) -> str:
    """What makes a tensor of `_signature`s."""
    op = None if isinstance(value, ir.BlockArgument) else value.owner
    if op is None or op.name != "linalg.generic":
        return "unknown"
    *inputs, start = op.operands
    fills = not isinstance(start, ir.BlockArgument) and start.owner.name == "linalg.fill"
    begins = _constant(start.owner.operands[0]) if fills else "anything"
    body = op.regions[0].blocks[0]
    names = {argument: f"%{number}" for number, argument in enumerate(body.arguments)}
    lines = [str(affine) for affine in indexing_maps(op)] + [begins]
    for view in body.operations:
        inner = view.operation
        if inner.name == "arith.constant":
            continue
        read = [names.get(v) or _constant(v) for v in inner.operands]
        kinds = [str(result.type) for result in inner.results]
        attributes = [f"{name} {inner.attributes[name]}" for name in sorted(inner.attributes)]
        lines.append(f"{inner.name} {read} {attributes} {kinds}")
        names |= {result: f"%{len(lines)}:{kinds}" for result in inner.results}
    return "; ".join(lines + [f"({_signature(given, leaves)})" for given in inputs])


def _constant(value: ir.Value) -> str:
    """The number that a value is, if it is a constant."""
    constant = not isinstance(value, ir.BlockArgument) and value.owner.name == "arith.constant"
    return str(value.owner.attributes["value"]) if constant else "unknown"


def source_of(value: ir.Value) -> ir.Value:
    """The floats behind reshapes and what widens them: elements in the same order."""
    while not isinstance(value, ir.BlockArgument):
        op = value.owner
        if op.name not in ("tensor.expand_shape", "tensor.collapse_shape") and not _widens(op):
            break
        value = op.operands[0]
    return value


def _widens(op: ir.Operation) -> bool:
    """Whether `op` is bf16 or f16 -> f32, each element in its place."""
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return False
    source, result = indexing_maps(op)
    names = [view.operation.name for view in op.regions[0].blocks[0].operations]
    narrow, wide = (str(element_of(value)) for value in op.operands)
    identity = source == result == ir.AffineMap.get_identity(source.n_dims)
    widens = names == ["arith.extf", "linalg.yield"] and narrow in _NARROW and wide == "f32"
    return identity and widens


def _renamed(value: ir.Value, element: str) -> ir.Value:
    """The tensor with integers read as another type of their width."""
    kind = ir.Type.parse(element)
    if kind == element_of(value):
        return value
    target = ir.RankedTensorType.get(shape_of(value), kind)
    sizes = dynamic_sizes(value)
    return flow.TensorBitCastOp(target, value, sizes, sizes).result


def _loops(value: ir.Value) -> str:
    return " ".join(f"d{axis}" for axis in range(len(shape_of(value))))


def _integer(width: int) -> ir.Type:
    return ir.IntegerType.get_signless(width)
