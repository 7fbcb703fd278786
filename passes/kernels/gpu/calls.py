"""Match the contractions that GPU kernels compute, and describe their operands."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import get_args

from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.attention import ATTENTION
from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.named_operations import is_call
from mxc.dialects.reasons import Reason
from mxc.dialects.repeated_rows import RepeatedRows, match_repeated_rows
from mxc.dialects.row_norms import ROW_NORM
from mxc.formats.formats import (
    E4M3FNUZ,
    E5M2FNUZ,
    E8M0,
    F32,
    FORMATS,
    INT4,
    BlockFormat,
    ElementFormat,
    with_block,
)
from mxc.passes.kernels.described import Described, Gathered, described, gathered, stored
from mxc.passes.kernels.epilogues import epilogue
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.float_scales import blocks_of_scale, sums_of
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import BLOCK, SMALLEST_TILE, TileInstruction
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.operands import ScaledOperand, operand
from mxc.passes.kernels.reshapes import scalars_of
from mxc.passes.kernels.roundings import rounding_of
from mxc.passes.kernels.sources import Format
from mxc.passes.kernels.values import producer
from mxc.targets.amd import GFX950
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True, kw_only=True)
class GpuContractionCall:
    """The contraction `op`, which a kernel can compute, with its description `of` and its operands.

    `rhs`: elements, and scales if any. With experts they are those of all experts: `ids` has the
    expert of each group, and without `ids` group i has expert i. `left`, `right`: the formats of
    lhs and rhs in memory. `decoded`: the float type that both sides have in registers; None if
    scaled instructions take the elements. `parameter`: the name of the parameter with the elements
    of rhs, None if they are no parameter; `chain`: the operations from `op` back to it.
    """

    op: ir.Operation
    of: Contraction
    lhs: ScaledOperand
    rhs: tuple[ir.Value, ...]
    ids: ir.Value | None
    left: ScaledBlocks | FloatBlocks
    right: ScaledBlocks | FloatBlocks
    decoded: Register | None
    parameter: str | None = None
    chain: tuple[ir.Operation, ...] = ()

    def scalars(self) -> list[ir.Value]:
        """Build the numbers of groups and of rows, as far as they come with the call, at the
        insertion point."""
        return scalars_of(self.op.results[0], self.of.batch, self.of.m)

    @property
    def sums_blocks(self) -> bool:
        """Whether partial sums of blocks along K are multiplied by f32 scales."""
        return any(
            isinstance(each, ScaledBlocks) and each.has_f32_scales
            for each in (self.left, self.right)
        )

    @property
    def bits(self) -> tuple[int, int]:
        """Bits of an element in memory, for lhs and rhs."""
        return self.left.bits, self.right.bits

    @property
    def decodes(self) -> bool:
        """Whether packed elements become floats in registers."""
        return self.decoded is not None and not self.is_dense

    @property
    def is_dense(self) -> bool:
        """Whether neither side has scales."""
        return isinstance(self.right, FloatBlocks)


#: Name -> format that a lane can decode: the known block formats, and FNUZ elements, which no
#: scaled instruction takes.
_KNOWN = {**FORMATS, **{e.mlir: BlockFormat(e.mlir, e) for e in (E4M3FNUZ, E5M2FNUZ)}}
#: Element type -> name of its format under E8M0 scales.
_FORMATS: dict[str, Format] = {
    _KNOWN[name].element.mlir: name
    for name in get_args(Format)
    if name in _KNOWN and _KNOWN[name].scale == E8M0
}
#: (element type, scale type) -> name of the format of activations.
_ACTIVATIONS: dict[tuple[str, str], Format] = {
    (_KNOWN[name].element.mlir, _KNOWN[name].scale.mlir): name
    for name in get_args(Format)
    if name in _KNOWN
} | {(element, F32.mlir): name for element, name in _FORMATS.items()}
#: Element type -> elements that may have f32 scales.
_UNDER_F32 = {type: _KNOWN[name].element for type, name in _FORMATS.items()} | {INT4.mlir: INT4}
#: Reason why a gated product has no kernel, with the bytes of its weights.
_GATE_TOO_LARGE = (
    "weights have {size} bytes, of which a gate reads two halves; "
    f"a buffer reaches less than {BEYOND}"
)
#: Activations without scales.
_FLOATS: tuple[Format, ...] = ("f32", "f16", "bf16")


def match(op: ir.Operation, unit: MatrixUnit = GFX950.matrix) -> GpuContractionCall | Reason:
    """Return the call that computes `op` with the instructions of `unit`, or why no kernel does."""
    found = described(op)
    if isinstance(found, Reason):
        return found
    of = found.of
    if found.rhs_scale is None:
        return _dense(found)
    rounded = (of.lhs.rounded, of.rhs.rounded)
    if any(rounded) and not unit.converts:
        # Without conversions, elements that are decoded to bf16 are truncated, not rounded.
        return Reason(
            "a side is dequantized to a type that does not hold every value of the format"
        )
    lhs = _activations(found)
    if isinstance(lhs, Reason):
        return lhs
    scales = _scales(found.rhs_scale)
    of = replace(of, rhs=replace(of.rhs, rows=scales.rows))
    right = _side(of.rhs, of.k, unit)
    if isinstance(right, Reason):
        return right
    left = _side(of.lhs, of.k, unit) if of.lhs.scale else FloatBlocks.of(lhs.source, right.blocks)
    if isinstance(left, Reason):
        return left
    if any(rounded) and (right.is_fnuz or (isinstance(left, ScaledBlocks) and left.is_fnuz)):
        return Reason("FNUZ elements are rounded under their scales before they are multiplied")
    if any(rounded) and _sums(left, right):
        return Reason("elements under f32 scales are rounded before they are multiplied")
    if _parts(left, right, unit) > 1 and not all(_is_divided(side) for side in (left, right)):
        return Reason(
            "an f32 scale is for fewer than 128 elements, and the other side has 6 bits or two "
            "scales for 32 elements"
        )
    if not _have_common_type(left, rounded):
        return Reason("one side is rounded to f16 and the other is not")
    size = of.n * of.k * right.bits // 8
    if _too_far(op, size):
        return Reason(_GATE_TOO_LARGE.format(size=size))
    elements, source = gathered(found.rhs), _source(found)
    return GpuContractionCall(
        op=op,
        of=of,
        lhs=lhs,
        rhs=(elements.tensor, scales.source),
        ids=elements.ids,
        left=left,
        right=right,
        decoded=_decoded(left, right, rounded, unit),
        parameter=source.parameter,
        chain=source.chain,
    )


def _dense(found: Described) -> GpuContractionCall | Reason:
    """Return the call of a product without scales, or why no kernel computes it."""
    of, weights = found.of, found.of.rhs.element
    register = next((each for each in get_args(Register) if each == weights), None)
    if register is None:
        return Reason(f"weights are {weights}; kernels take {', '.join(get_args(Register))}")
    if of.lhs.scale:
        return Reason("weights have no scale, and activations do")
    if of.k % BLOCK:
        return Reason(f"K = {of.k} is no multiple of {BLOCK}")
    lhs = _activations(found)
    if isinstance(lhs, Reason):
        return lhs
    left = FloatBlocks.of(lhs.source, of.k // BLOCK)
    if register == "f16" and (left.memory != "f16" or left.rounded):
        return Reason(f"weights are f16 and activations {of.lhs.element}; kernels take both as f16")
    right = FloatBlocks(weights, False, of.k // BLOCK)
    size = of.n * of.k * right.bits // 8
    if _too_far(found.op, size):
        return Reason(_GATE_TOO_LARGE.format(size=size))
    read, source = gathered(found.rhs), _source(found)
    return GpuContractionCall(
        op=found.op,
        of=of,
        lhs=lhs,
        rhs=(read.tensor,),
        ids=read.ids,
        left=left,
        right=right,
        decoded=register,
        parameter=source.parameter,
        chain=source.chain,
    )


def _scales(value: ir.Value) -> RepeatedRows:
    """Return the scales of the weights of all experts, before the program repeats them for the rows
    that share them, and the number of these rows."""
    repeated = match_repeated_rows(value)
    if repeated is not None:
        return replace(repeated, source=gathered(repeated.source).tensor)
    whole = gathered(value).tensor
    return match_repeated_rows(whole) or RepeatedRows(whole, 1)


def _source(found: Described) -> Gathered:
    """Return where the elements of the weights come from: the parameter that has them, if any."""
    source = stored(found.rhs)
    return gathered(found.rhs) if isinstance(source, Reason) else source


def _activations(found: Described) -> ScaledOperand | Reason:
    """Return the activations of a product: MX blocks or floats."""
    of, known = found.of, _ACTIVATIONS if found.of.rhs.scale else {}

    def read(*, rounds: bool) -> ScaledOperand | Reason:
        block = of.lhs.block or BLOCK
        return operand(found.lhs, found.lhs_scale, of.k, known, _FLOATS, block=block, rounds=rounds)

    lhs = read(rounds=True)
    if isinstance(lhs, ScaledOperand) and lhs.source.rounded and _is_fused(lhs.tensors[0]):
        # The dispatch that computes the f32 stores them as bf16 too, which are half of the bytes.
        return read(rounds=False)
    return lhs


def _too_far(op: ir.Operation, size: int) -> bool:
    """Whether a workgroup needs both halves of weights of `size` bytes, for a gate, but one buffer
    does not reach them."""
    return size >= BEYOND and epilogue(op, 16, keeps=True).gated


def _is_fused(value: ir.Value) -> bool:
    """Whether a rounding of `value` becomes a part of the dispatch that computes `value`.

    This is not so for arguments, and for the results of named operations except norms, and
    attention whose result nothing else reads.
    """
    op = producer(value)
    if op is None or op.name != "util.call":
        return op is not None
    return is_call(op, ROW_NORM) or (is_call(op, ATTENTION) and rounding_of(op) is not None)


def _side(side: OperandFormat, k: int, unit: MatrixUnit) -> ScaledBlocks | Reason:
    """Return the format of a scaled side in memory, or why no kernel reads it."""
    names, block = (side.element, side.scale), side.block
    if side.element in _UNDER_F32 and side.scale == F32.mlir:
        return _under_f32(_UNDER_F32[side.element], k, side, unit)
    known = [f for f in _KNOWN.values() if (f.element.mlir, f.scale.mlir) == names]
    if not known:
        formats = sorted({f"{f.element.mlir} under {f.scale.mlir}" for f in _KNOWN.values()})
        return Reason(f"a side is {' under '.join(names)}; kernels take {', '.join(formats)}")
    if not ScaledBlocks.takes(block):
        return Reason(f"a scale is for {block} elements; kernels take powers of two from 16 on")
    if k % BLOCK:
        return Reason(f"K = {k} is no multiple of {BLOCK}")
    if known[0].scale != E8M0 and block != known[0].block:
        return Reason(
            f"{' under '.join(names)} has a scale for {block} elements; kernels take "
            f"{known[0].block}"
        )
    return ScaledBlocks(with_block(known[0], block), k // BLOCK)


def _under_f32(
    element: ElementFormat, k: int, side: OperandFormat, unit: MatrixUnit
) -> ScaledBlocks | Reason:
    """Return the format of a side with f32 scales, or why no kernel multiplies sums by them."""
    if isinstance(found := blocks_of_scale(element, side.block, unit), Reason):
        return found
    name = f"{element.mlir}_by_f32x{side.block}" + (f"x{side.rows}" if side.rows > 1 else "")
    format = BlockFormat(name, element, side.block, F32, rows=side.rows)
    return ScaledBlocks(format, k // BLOCK)


def _sums(left: ScaledBlocks | FloatBlocks, right: ScaledBlocks) -> bool:
    """Whether a side has f32 scales, which multiply partial sums."""
    return right.has_f32_scales or (isinstance(left, ScaledBlocks) and left.has_f32_scales)


def _parts(left: ScaledBlocks | FloatBlocks, right: ScaledBlocks, unit: MatrixUnit) -> int:
    """Partial sums of the longest k-step, each under other f32 scales; 1 without such scales."""
    sides = [
        side for side in (left, right) if isinstance(side, ScaledBlocks) and side.has_f32_scales
    ]
    # The instruction of the smallest tile has the most blocks along K.
    return sums_of(TileInstruction(SMALLEST_TILE, unit).groups, *(side.shared for side in sides))


def _is_divided(side: ScaledBlocks | FloatBlocks) -> bool:
    """Whether a lane may have only a part of each block of a side."""
    return isinstance(side, FloatBlocks) or (side.bits != 6 and side.scales == 1)


def _have_common_type(left: ScaledBlocks | FloatBlocks, rounded: tuple[str, str]) -> bool:
    """Whether one float type holds both sides: a side that is rounded to f16 needs f16 beside
    it."""
    f16 = isinstance(left, FloatBlocks) and left.memory == "f16"
    return "f16" not in rounded or f16 or rounded == ("f16", "f16")


def _decoded(
    left: ScaledBlocks | FloatBlocks,
    right: ScaledBlocks,
    rounded: tuple[str, str],
    unit: MatrixUnit,
) -> Register | None:
    """Return the float type of both sides in registers; None if scaled instructions take them."""
    whole = (
        isinstance(left, ScaledBlocks)
        and left.fits_scaled_instruction
        and right.fits_scaled_instruction
    )
    # A scaled instruction computes one sum of all its blocks.
    whole = whole and _parts(left, right, unit) == 1
    if whole and unit.takes(left.bits, right.bits) and not any(rounded):
        return None
    if any(rounded):
        return "f16" if "f16" in rounded else "bf16"
    of_f16 = isinstance(left, FloatBlocks) and left.memory == "f16"
    return "f16" if of_f16 and unit.converts and _fits_f16(right) else "bf16"


def _fits_f16(side: ScaledBlocks) -> bool:
    """Whether f16 holds all values of a side and conversions produce f16: E8M0 scales have a
    greater range, and FNUZ elements have no conversion."""
    return side.format.scale != E8M0 and not side.is_fnuz
