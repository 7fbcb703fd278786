"""Requantize MX blocks: to another format or recipe, or along the other axis.

    x        = elements * scales                   f32: exact, as `reference.dequantize`
    mx_cast: x quantized again, along the same axis
    transpose_requantize: x transposed, then quantized, along what were the rows

x is a tensor in the program, but a kernel that computes all of it does not store it.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.dialects.dequantize import extend, read_factor
from mxc.dialects.generic import element_of, generic, shape_of
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.quantize import quantize_mx
from mxc.formats.formats import E8M0, FORMATS, BlockFormat
from mxc.formats.recipes import ScaleRecipe


def mx_cast(
    elements: ir.Value, scales: ir.Value, to: BlockFormat | str, recipe: ScaleRecipe | str
) -> tuple[ir.Value, ir.Value]:
    """Requantize elements [.., KO, 32] with f8E8M0FNU scales [.., KO] to the format `to`, in the
    same shape.

    Raises ValueError where elements and scales do not match, or KO is dynamic; FormatError for an
    unknown format or recipe.
    """
    return quantize_mx(_rows(_dequantized(elements, scales)), to, recipe)


def transpose_requantize(
    elements: ir.Value, scales: ir.Value, to: BlockFormat | str, recipe: ScaleRecipe | str
) -> tuple[ir.Value, ir.Value]:
    """Requantize elements [M, KO, 32], scales [M, KO], to [K, M / 32, 32], scales [K, M / 32]; K =
    32 KO.

    Raises as `mx_cast`, and ValueError where M is not a static multiple of 32.
    """
    if len(shape_of(elements)) != 3:
        raise ValueError(f"wanted elements [M, KO, 32] to transpose, got {elements.type}")
    x = _rows(_dequantized(elements, scales))
    return quantize_mx(
        generic([(x, "m k")], "k m", ir.F32Type.get(), lambda value: value), to, recipe
    )


def _dequantized(elements: ir.Value, scales: ir.Value) -> ir.Value:
    """The values of the blocks, f32 [.., KO, 32]."""
    *blocks, size = shape_of(elements)
    if size < 0 or shape_of(scales) != blocks or str(element_of(scales)) != E8M0.mlir:
        raise ValueError(
            f"wanted elements [.., KO, 32] and {E8M0.mlir} scales [.., KO], got {elements.type} "
            f"and {scales.type}"
        )
    loops = " ".join(f"d{axis}" for axis in range(len(blocks)))
    inner = f"{loops} kb"
    return generic([(elements, inner), (scales, loops)], inner, ir.F32Type.get(), extend)


def _rows(x: ir.Value) -> ir.Value:
    """Reshape [.., KO, 32] to [.., K]."""
    *lead, blocks, size = shape_of(x)
    if blocks < 0:
        raise ValueError(f"wanted a static number of blocks, got {x.type}")
    kind = ir.RankedTensorType.get([*lead, blocks * size], element_of(x))
    groups = [*([axis] for axis in range(len(lead))), [len(lead), len(lead) + 1]]
    return tensor.collapse_shape(kind, x, groups)


@dataclass(frozen=True, kw_only=True)
class Dequantized:
    """The blocks whose values a tensor holds: `elements` [.., KO, 32] and `scales` [.., KO]."""

    elements: ir.Value
    scales: ir.Value
    format: BlockFormat


def match_dequantized(value: ir.Value, kind: str = "f32") -> Dequantized | None:
    """The blocks whose values, rounded once to `kind`, are `value` [.., KO, 32]; else None."""
    if isinstance(value, ir.BlockArgument) or str(element_of(value)) != kind:
        return None
    op = value.owner
    if op.name != "linalg.generic" or len(op.operands) != 3:
        return None
    *_, end = op.regions[0].blocks[0].operations
    factor = read_factor(end.operands[0])
    if factor is None or factor.scale is None or not (factor.exact or factor.rounded == kind):
        return None
    maps = [dims(affine) for affine in indexing_maps(op)]
    loops = list(range(len(maps[-1])))
    if list(maps[factor.element]) != loops or list(maps[-1]) != loops:
        return None
    elements, scales = op.operands[factor.element], op.operands[factor.scale]
    named = (str(element_of(elements)), str(element_of(scales)), shape_of(elements)[-1])
    for format in FORMATS.values():
        known = (format.element.mlir, format.scale.mlir, format.block)
        if named == known and list(maps[factor.scale]) == loops[:-1] and not format.tensor_scale:
            return Dequantized(elements=elements, scales=scales, format=format)
    return None


def match_transposed(value: ir.Value) -> ir.Value | None:
    """The matrix [M, K] whose transpose is the tensor `value` [K, M]; else None."""
    op = None if isinstance(value, ir.BlockArgument) else value.owner
    if op is None or op.name != "linalg.generic" or len(op.operands) != 2:
        return None
    body = op.regions[0].blocks[0]
    (end, *more) = body.operations
    maps = [dims(affine) for affine in indexing_maps(op)]
    moves = not more and end.operands[0] == body.arguments[0]
    return op.operands[0] if moves and maps == [[1, 0], [0, 1]] else None
