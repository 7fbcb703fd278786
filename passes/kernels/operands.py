"""Find the tensors that the activations of a contraction come from, whatever shape they have there.

Kernels read activations in any shape, round f32 to bf16 and repeat rows by themselves. So these
operations between the tensor and the contraction are looked through:

    %r = tensor.expand_shape %x       [4, 2880] -> [4, 90, 32]
    %b = linalg.generic truncf %r     f32 -> bf16
    %p = linalg.generic %b            [4, 90, 32] -> [4, 8, 90, 32], each row for 8 experts
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from iree.compiler import ir

from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import RESHAPES
from mxc.formats.formats import E2M1, E4M3, E8M0, FORMATS
from mxc.passes.kernels.sources import BLOCK, ActivationSource, Format
from mxc.passes.kernels.values import is_filled

#: OCP MX formats by their elements.
_MX: dict[str, Format] = {
    FORMATS[name].element.mlir: name
    for name in get_args(Format)
    if name in FORMATS and FORMATS[name].scale == E8M0
}
_FNUZ: tuple[Format, ...] = ("f8E4M3FNUZ", "f8E5M2FNUZ")

#: Types of quantized activations and of their scales -> format. Elements of all MX and FNUZ formats
#: may have E8M0 or f32 scales; i8 under f32 is int8, and under E8M0 mxint8.
_FORMATS: dict[tuple[str, str], Format] = (
    {(element, E8M0.mlir): name for element, name in _MX.items()}
    | {(element, "f32"): name for element, name in _MX.items()}
    | {(name, scale): name for name in _FNUZ for scale in (E8M0.mlir, "f32")}
    | {("i8", "f32"): "int8", (E2M1.mlir, E4M3.mlir): "nvfp4"}
)


@dataclass(frozen=True)
class ScaledOperand:
    """The activations of a contraction as a kernel reads them.

    `source`: their form. `tensors`: elements, and scales if any, in any shape with the same number
    of elements. `share`: number of consecutive rows of the contraction that have the same
    activations, which are in `tensors` once.
    """

    source: ActivationSource
    tensors: tuple[ir.Value, ...]
    share: int


def operand(
    elements: ir.Value,
    scales: ir.Value | None,
    depth: int,
    formats: Mapping[tuple[str, str], Format] = _FORMATS,
    floats: Sequence[Format] = ("f32", "bf16", "f16"),
    *,
    block: int = BLOCK,
    ones: bool = False,
    to: str = "",
    rounds: bool = True,
) -> ScaledOperand | Reason:
    """The activations of a contraction, or the reason why no kernel takes them.

    `scales`: None for floats. `depth`: elements of a row, K. `formats`: formats that the kernel
    takes, by the types of their elements and scales. `floats`: float types that it takes. `block`:
    elements per scale. `ones`: whether the kernel needs no scales in memory if all are one. `to`:
    the type to which the program rounds scaled elements, "" for none. `rounds`: whether the kernel
    may read f32 and do a rounding to bf16 itself.
    """
    kind = str(element_of(elements))
    row_bits = depth * _width(elements)
    if scales is None:
        if kind not in floats:
            return Reason(f"activations are {kind}; kernels take {', '.join(floats)}")
        value, rounded, share = _look_through(elements, row_bits, as_bytes=False, rounds=rounds)
        format = next(format for format in floats if format == kind)
        return ScaledOperand(ActivationSource(format, rounded), (value,), share)
    quantized = formats.get((kind, str(element_of(scales))))
    if quantized is None:
        known = ", ".join(f"{element} under {scale}" for element, scale in formats)
        return Reason(
            f"activations are {kind} under scales of {element_of(scales)}; kernels take {known}"
        )
    scale_bits = depth // block * _width(scales)
    value, _, share = _look_through(elements, row_bits, as_bytes=True)
    if ones and has_scales_of_one(scales):
        return ScaledOperand(
            ActivationSource(quantized, block=block, scales="one", to=to), (value,), share
        )
    wide = isinstance(element_of(scales), ir.F32Type)
    factor, _, scale_share = _look_through(scales, scale_bits, as_bytes=not wide)
    if share != scale_share:
        value, factor, share = elements, scales, 1
    scale: Literal["own", "f32"] = "f32" if wide and kind != "i8" else "own"
    source = ActivationSource(quantized, block=block, scales=scale, to=to)
    return ScaledOperand(source, (value, factor), share)


def has_scales_of_one(scales: ir.Value) -> bool:
    """Whether scales are E8M0 and filled with 1, as mxc-unit-scales adds them to elements without
    scales.

    f32 scales do not count: for i8, their type distinguishes int8 from mxint8.
    """
    return isinstance(element_of(scales), ir.Float8E8M0FNUType) and is_filled(scales, 1.0)


def _look_through(
    value: ir.Value, row_bits: int, *, as_bytes: bool, rounds: bool = False
) -> tuple[ir.Value, bool, int]:
    """Return the tensor from which `value` is made by reshapes, at most one rounding of f32 to bf16
    and at most one repetition of rows; whether there is the rounding; and how often each row is
    repeated.

    `row_bits`: bits of a row of `value`. `as_bytes`: whether bitcasts are looked through, because
    the kernel reads bytes: outside of contractions, 4-bit elements are bytes. `rounds`: whether a
    rounding is looked through.
    """
    rounded, share = False, 1
    while not isinstance(value, ir.BlockArgument):
        op = value.owner
        if op.name in RESHAPES or (as_bytes and op.name == "flow.tensor.bitcast"):
            value = op.operands[0]
        elif rounds and not rounded and _is_rounding(op):
            value, rounded = op.operands[0], True
            row_bits *= 2
        elif share == 1 and (repeats := _repeats(op, row_bits)) > 1:
            value, share = op.operands[0], repeats
        else:
            break
    return value, rounded, share


def _width(value: ir.Value) -> int:
    return int(element_of(value).width)


def _is_rounding(op: ir.Operation) -> bool:
    """Whether `op` only rounds each f32 of its one input to bf16."""
    if op.name != "linalg.generic" or len(op.operands) != 2 or not is_elementwise(op):
        return False
    maps = indexing_maps(op)
    names = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    return (
        names == ["arith.truncf", "linalg.yield"]
        and maps[0] == maps[1]
        and isinstance(element_of(op.operands[0]), ir.F32Type)
        and isinstance(element_of(op.results[0]), ir.BF16Type)
    )


def _repeats(op: ir.Operation, row_bits: int) -> int:
    """How often (j) a copy [m, k..] -> [m, j, k..] repeats each row, which has `row_bits`; 1 for
    other operations."""
    if op.name != "linalg.generic" or len(op.operands) != 2 or not is_elementwise(op):
        return 1
    names = [inner.operation.name for inner in op.regions[0].blocks[0].operations]
    source, result = (dims(affine) for affine in indexing_maps(op))
    rank = len(result)
    if names != ["linalg.yield"] or list(result) != list(range(rank)):
        return 1
    yielded = next(iter(op.regions[0].blocks[0].operations)).operands[0]
    if yielded != op.regions[0].blocks[0].arguments[0]:
        return 1
    if list(source) != [0, *range(2, rank)]:
        return 1
    _, *row = shape_of(op.operands[0])
    return shape_of(op.results[0])[1] if math.prod(row) * _width(op.operands[0]) == row_bits else 1
