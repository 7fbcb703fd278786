"""Recognize quantization in a program, as built by quantize.py, by the computation.

The signature of the computation, from the floats to the elements, is compared with the signature of
what the builders emit for a tensor of the same rank. Sizes, and places of constants, are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.dialects.dequantize import is_made_by
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.quantize import (
    BLOCK,
    MX_FORMATS,
    NARROW,
    mx_integers,
    quantize_int8,
    quantize_nvfp4,
)
from mxc.dialects.sizes import RESHAPES
from mxc.formats.formats import FORMATS, BlockFormat
from mxc.formats.recipes import ScaleRecipe


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """An instance in a program of what `quantize_mx` builds.

    `x`: the floats, f32, bf16 or f16, of any shape whose rows hold whole blocks of 32; `codes`:
    elements as integers [.., KO, 32], or as bytes i8 [.., KO, 8, 3] for 6 bits; `scales`: i8 [..,
    KO].
    """

    x: ir.Value
    format: BlockFormat
    recipe: ScaleRecipe
    codes: ir.Operation
    scales: ir.Operation


def match_quantization(op: ir.Operation) -> Quantization | None:
    """The quantization whose codes `op` computes; None for other operations."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return None
    if str(element_of(op.results[0])) not in ("i4", "i8"):
        return None
    leaves: list[ir.Value] = []
    found = _signature(op.results[0], leaves)
    sources = [source_of(leaf) for leaf in leaves]
    if not sources or any(source != sources[0] for source in sources):
        return None
    # The last leaf is the blocks whose amax is computed: x, with one more axis.
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
    return Quantization(x=sources[0], format=format, recipe=recipe, codes=op, scales=scales)


@dataclass(frozen=True, kw_only=True)
class Int8Quantization:
    """An instance of what `quantize_int8` builds: its input, and the operations of its results."""

    x: ir.Value
    codes: ir.Operation
    scales: ir.Operation


def match_int8_quantization(op: ir.Operation) -> Int8Quantization | None:
    """The quantization to int8 whose elements `op` computes; None for other operations."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return None
    leaves: list[ir.Value] = []
    found = _int8_signature(op.results[0], leaves)
    if len(leaves) != 3 or shape_of(leaves[0])[-1] != BLOCK or leaves[0] != leaves[2]:
        return None
    if found != _known_int8(len(shape_of(leaves[0])) - 1):
        return None
    return Int8Quantization(x=source_of(leaves[0]), codes=op, scales=leaves[1].owner)


@cache
def _known_int8(rank: int) -> str:
    """The signature of the quantization to int8 of a tensor of `rank` dimensions."""
    with ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
        elements, _ = quantize_int8(tensor.empty([1] * (rank - 1) + [BLOCK], ir.F32Type.get()))
        return _int8_signature(elements, [])


def _int8_signature(elements: ir.Value, leaves: list[ir.Value]) -> str:
    """The signature of elements [.., KO, 32]. Appends to `leaves`: the blocks, the scales, and the
    blocks that the scales are computed from."""
    found = _computation(elements, leaves)
    return f"{found}; {_computation(leaves[1], leaves)}" if len(leaves) == 2 else found


@dataclass(frozen=True, kw_only=True)
class RowQuantization:
    """An instance in a program of what `quantize_nvfp4` builds: its input and the operations of its
    results.

    `codes`: elements i4 [.., K / 16, 16]; `scales`: bytes i8 [.., K / 16]; `rows`: f32 [..]. `x`
    has the same elements in the same order, in any shape.
    """

    x: ir.Value
    codes: ir.Operation
    scales: ir.Operation
    rows: ir.Operation


def match_row_quantization(op: ir.Operation) -> RowQuantization | None:
    """The quantization to nvfp4 whose elements `op` computes; None for other operations."""
    if op.name != "linalg.generic" or len(op.results) != 1:
        return None
    if str(element_of(op.results[0])) != "i4" or len(op.operands) != 4:
        return None
    leaves: list[ir.Value] = []
    found = _row_signature(op.results[0], leaves)
    if len(leaves) != 6 or shape_of(leaves[0])[-1] != FORMATS["nvfp4"].block:
        return None
    blocks, scales, rows, *others = leaves
    if others != [blocks, rows, blocks] or found != _known_rows(len(shape_of(blocks)) - 1):
        return None
    codes = _behind_name(scales).owner
    return RowQuantization(x=source_of(blocks), codes=op, scales=codes, rows=rows.owner)


@cache
def _known_rows(rank: int) -> str:
    """The signature of the quantization to nvfp4 of a tensor of `rank` dimensions."""
    with ir.Location.unknown(), ir.InsertionPoint(ir.Module.create().body):
        x = tensor.empty([1] * (rank - 1) + [FORMATS["nvfp4"].block], ir.F32Type.get())
        elements, _, _ = quantize_nvfp4(x)
        return _row_signature(_behind_name(elements), [])


def _row_signature(elements: ir.Value, leaves: list[ir.Value]) -> str:
    """The signature of elements [.., KO, 16]. Appends to `leaves`: blocks, scales, rows, then the
    inputs of the scales (blocks and rows) and of the rows (blocks)."""
    found = [_computation(elements, leaves)]
    if len(leaves) == 3:
        _, scales, rows = leaves
        found += [_computation(_behind_name(each), leaves) for each in (scales, rows)]
    return "; ".join(found)


def _behind_name(value: ir.Value) -> ir.Value:
    """The integers that a tensor of narrow floats is bitcast from."""
    while is_made_by(value, "flow.tensor.bitcast"):
        value = value.owner.operands[0]
    return value


@cache
def _known(rank: int) -> dict[str, tuple[BlockFormat, ScaleRecipe]]:
    """The signatures of the codes of a tensor of `rank` dimensions, for every format and recipe."""
    found = {}
    module = ir.Module.create(ir.Location.unknown())
    with ir.InsertionPoint(module.body), ir.Location.unknown():
        x = tensor.empty([1] * (rank - 1) + [BLOCK], ir.F32Type.get())
        for name in MX_FORMATS:
            for recipe in ScaleRecipe:
                codes, _ = mx_integers(x, FORMATS[name], recipe)
                found[_signature(codes, [])] = (FORMATS[name], recipe)
    return found


def _signature(value: ir.Value, leaves: list[ir.Value]) -> str:
    """The computation of a tensor of integers from floats, which are appended to `leaves`. Equal
    for equal computations, wherever their constants are and whatever the sizes."""
    if isinstance(element_of(value), ir.FloatType):
        leaves.append(value)
        return "x"
    return _computation(value, leaves)


def _computation(value: ir.Value, leaves: list[ir.Value]) -> str:
    """The signature of the operation that makes a tensor, with those of its inputs."""
    op = None if isinstance(value, ir.BlockArgument) else value.owner
    if op is None or op.name != "linalg.generic":
        return "unknown"
    *inputs, start = op.operands
    fills = is_made_by(start, "linalg.fill")
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
    """The number of a constant, else "unknown"."""
    constant = is_made_by(value, "arith.constant")
    return str(value.owner.attributes["value"]) if constant else "unknown"


def source_of(value: ir.Value) -> ir.Value:
    """The floats before reshapes and extensions to f32: the same elements in the same order."""
    while not isinstance(value, ir.BlockArgument):
        op = value.owner
        if op.name not in RESHAPES and not _widens(op):
            break
        value = op.operands[0]
    return value


def _widens(op: ir.Operation) -> bool:
    """Whether `op` extends bf16 or f16 to f32 elementwise, without moving elements."""
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return False
    source, result = indexing_maps(op)
    names = [view.operation.name for view in op.regions[0].blocks[0].operations]
    narrow, wide = (str(element_of(value)) for value in op.operands)
    identity = source == result == ir.AffineMap.get_identity(source.n_dims)
    widens = names == ["arith.extf", "linalg.yield"] and narrow in NARROW and wide == "f32"
    return identity and widens
