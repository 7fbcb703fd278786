"""Which contractions a kernel for GPUs computes, and what it needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.formats.formats import E8M0, F32, FORMATS, INT4, BlockFormat, ElementFormat, with_block
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.float_scales import blocks_of_scale, sums_of
from mxc.passes.kernels.gpu.floats import Floats
from mxc.passes.kernels.gpu.fragments import BLOCK, Instruction
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.operands import Operand, operand
from mxc.passes.kernels.reshapes import scalars_of
from mxc.passes.kernels.sources import Format
from mxc.passes.kernels.values import is_zero, producer
from mxc.targets.amd import GFX950
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True, kw_only=True)
class Call:
    """What computes `of`, and its operands.

    `rhs`: elements and scales, of all experts if `ids` chooses one a group, else if each group has
    its own. `left`, `right`: what the sides are in memory. `decoded`: what both are in registers;
    None where they stay as they are.
    """

    op: ir.Operation
    of: Contraction
    lhs: Operand
    rhs: tuple[ir.Value, ir.Value]
    ids: ir.Value | None
    left: Scaled | Floats
    right: Scaled
    decoded: Register | None

    def scalars(self) -> list[ir.Value]:
        """Groups and rows, of those that come with the call, at the insertion point."""
        return scalars_of(self.op.results[0], self.of.batch, self.of.m)

    @property
    def sums_blocks(self) -> bool:
        """Whether sums of blocks along K are multiplied by f32 scales."""
        return _sums(self.left, self.right)

    @property
    def bits(self) -> tuple[int, int]:
        """Of an element in memory."""
        return self.left.bits, self.right.bits


#: Element type -> format of what a lane can decode.
_FORMATS: dict[str, Format] = {
    FORMATS[name].element.mlir: name
    for name in get_args(Format)
    if name in FORMATS and FORMATS[name].scale == E8M0
}
#: Types of elements and of their scales -> format.
_ACTIVATIONS: dict[tuple[str, str], Format] = {
    (FORMATS[name].element.mlir, FORMATS[name].scale.mlir): name
    for name in get_args(Format)
    if name in FORMATS
} | {(element, F32.mlir): name for element, name in _FORMATS.items()}
#: Elements that may be under f32, by type.
_UNDER_F32 = {type: FORMATS[name].element for type, name in _FORMATS.items()} | {INT4.mlir: INT4}
#: Rows of the instructions whose turn is the longest.
_LEAST = 16
#: Dimensions of rows of blocks, without a batch.
_RANK = 3
#: Activations without scales.
_FLOATS: tuple[Format, ...] = ("f32", "f16", "bf16")


def match(op: ir.Operation, unit: MatrixUnit = GFX950.matrix) -> Call | Reason:
    """The call that computes `op` by the instructions of `unit`, or why no kernel does."""
    # Without conversions what is decoded to bf16 is cut off, not rounded.
    found = match_scaled_contraction(op, rounded=unit.converts, mixed=True)
    if isinstance(found, Reason):
        return found
    shape = _shape(found)
    if isinstance(shape, Reason):
        return shape
    groups, rows, rhs_scale = shape
    block = found.blocks[0]
    lhs = operand(found.lhs, found.lhs_scale, found.k, _ACTIVATIONS, _FLOATS, block=block)
    if isinstance(lhs, Reason):
        return lhs
    right = _side(found.rhs, rhs_scale, found.k, found.blocks[1], unit)
    if isinstance(right, Reason):
        return right
    left = _left(lhs, right.blocks, found, unit)
    if isinstance(left, Reason):
        return left
    if any(found.rounded) and _sums(left, right):
        return Reason("elements under f32 scales are rounded before they are multiplied")
    if _parts(left, right, unit) > 1 and not all(_is_divided(side) for side in (left, right)):
        return Reason(
            "an f32 scale is for fewer than 128 elements, and the other side has 6 bits or two "
            "scales for 32 elements"
        )
    if not _is_multiplied(left, found.rounded):
        return Reason("one side is rounded to f16 and the other is not")
    elements, ids, experts = _chosen(found.rhs)
    scales, same, _ = _chosen(rhs_scale)
    own = len(found.maps[1].results) > _RANK + len(found.loops.ki)
    if ids != same:
        return Reason("elements and scales of the weights are gathered by different ids")
    if ids is not None and not own:
        return Reason("its weights are gathered, and it has no batch")
    if not is_zero(found.acc):
        return Reason("the accumulator is not zero")
    if own and ids is None:
        if groups is None:
            return Reason("each group has weights of its own, and their number comes with the call")
        experts = groups
    if not own:
        # One weight for all: their rows are those of one product.
        rows = None if groups is None or rows is None else groups * rows
        groups = 1
    size = found.n * found.k * right.bits // 8
    if size >= BEYOND:
        return Reason(f"weights have {size} bytes; a buffer reaches less than {BEYOND}")
    return Call(
        op=found.op,
        of=Contraction(
            batch=groups,
            m=rows,
            n=found.n,
            k=found.k,
            lhs=lhs.source.operand_format
            if isinstance(left, Floats)
            else OperandFormat.of(left.format, found.rounded[0]),
            rhs=OperandFormat.of(right.format, found.rounded[1]),
            out=OperandFormat("f32"),
            experts=experts,
            chosen=ids is not None,
        ),
        lhs=lhs,
        rhs=(elements, scales),
        ids=ids,
        left=left,
        right=right,
        decoded=_decoded(left, right, found.rounded, unit),
    )


def _shape(found: ScaledContraction) -> tuple[int | None, int | None, ir.Value] | Reason:
    """Groups and rows, None where they come with the call, and the scales of the weights."""
    if found.rhs_scale is None:
        return Reason("its weights have no scales")
    if len(found.batch) > 1:
        return Reason(f"it has {len(found.batch)} batch dimensions; kernels take one")
    if not (found.is_canonical or found.loops.ki or any(found.rounded)):
        return Reason("its operands, loops or body are not in canonical order")
    rank = len(found.batch) + _RANK + len(found.loops.ki)
    if not found.is_row_major or len(found.maps[0].results) != rank:
        return Reason("an operand has its dimensions in another order than batch, row, block")
    if min(found.n, found.k) <= 0 or 0 in (found.m, *found.batch):
        sizes = "x".join("?" if size < 0 else str(size) for size in (found.m, found.n, found.k))
        return Reason(f"M x N x K = {sizes}; kernels take positive sizes, and know N and K")
    groups, rows = (None if size < 0 else size for size in ((found.batch or (1,))[0], found.m))
    return groups, rows, found.rhs_scale


def _side(
    elements: ir.Value, scales: ir.Value, k: int, block: int, unit: MatrixUnit
) -> Scaled | Reason:
    """What a scaled side is, or why no lane reads it."""
    names = str(element_of(elements)), str(element_of(scales))
    if names[0] in _UNDER_F32 and names[1] == F32.mlir:
        return _under_f32(_UNDER_F32[names[0]], k, block, unit)
    known = [f for f in FORMATS.values() if (f.element.mlir, f.scale.mlir) == names]
    if not known:
        formats = sorted({f"{f.element.mlir} under {f.scale.mlir}" for f in FORMATS.values()})
        return Reason(f"a side is {' under '.join(names)}; kernels take {', '.join(formats)}")
    if not Scaled.takes(block):
        return Reason(f"a scale is for {block} elements; kernels take powers of two from 16 on")
    if k % BLOCK:
        return Reason(f"K = {k} is no multiple of {BLOCK}")
    if known[0].scale != E8M0 and block != known[0].block:
        return Reason(
            f"{' under '.join(names)} has a scale for {block} elements; kernels take "
            f"{known[0].block}"
        )
    return Scaled(with_block(known[0], block), k // BLOCK)


def _under_f32(element: ElementFormat, k: int, block: int, unit: MatrixUnit) -> Scaled | Reason:
    """A side whose scales are f32, or why no kernel multiplies sums by them."""
    if isinstance(found := blocks_of_scale(element, block, unit), Reason):
        return found
    name = f"{element.mlir}_by_f32x{block}"
    return Scaled(BlockFormat(name, element, block, F32), k // BLOCK)


def _sums(left: Scaled | Floats, right: Scaled) -> bool:
    """Whether f32 scales multiply sums."""
    return right.multiplies_sums or (isinstance(left, Scaled) and left.multiplies_sums)


def _parts(left: Scaled | Floats, right: Scaled, unit: MatrixUnit) -> int:
    """Sums of the longest turn that f32 scales multiply; 1 where there are no such scales."""
    sides = [side for side in (left, right) if isinstance(side, Scaled) and side.multiplies_sums]
    return sums_of(Instruction(_LEAST, unit).groups, *(side.shared for side in sides))


def _is_divided(side: Scaled | Floats) -> bool:
    """Whether lanes may have a part of a block each."""
    return isinstance(side, Floats) or (side.bits != 6 and side.scales == 1)


def _left(
    lhs: Operand, blocks: int, found: ScaledContraction, unit: MatrixUnit
) -> Scaled | Floats | Reason:
    if found.lhs_scale is None:
        return Floats.of(lhs.source, blocks)
    return _side(found.lhs, found.lhs_scale, found.k, found.blocks[0], unit)


def _is_multiplied(left: Scaled | Floats, rounded: tuple[str, str]) -> bool:
    """Whether there are registers that hold both sides: what is rounded to f16 wants f16 beside."""
    f16 = isinstance(left, Floats) and left.memory == "f16"
    return "f16" not in rounded or f16 or rounded == ("f16", "f16")


def _decoded(
    left: Scaled | Floats, right: Scaled, rounded: tuple[str, str], unit: MatrixUnit
) -> Register | None:
    """What both sides are in registers, None where scaled instructions take them."""
    whole = isinstance(left, Scaled) and left.is_whole and right.is_whole
    # A scaled instruction is one sum.
    whole = whole and _parts(left, right, unit) == 1
    if whole and unit.takes(left.bits, right.bits) and not any(rounded):
        return None
    f16 = "f16" in rounded or (unit.converts and not any(rounded) and _fits_f16(left, right))
    return "f16" if f16 else "bf16"


def _fits_f16(left: Scaled | Floats, right: Scaled) -> bool:
    """Whether f16 holds all values of both sides: E8M0 scales alone have a greater range."""
    own = left.memory == "f16" if isinstance(left, Floats) else left.format.scale != E8M0
    return own and right.format.scale != E8M0


def _chosen(value: ir.Value) -> tuple[ir.Value, ir.Value | None, int]:
    """The tensor that a gather takes experts of, its ids and the number of experts."""
    op = producer(value)
    if op is None or op.name != GATHER:
        return value, None, 0
    ids = op.operands[1]
    first = list(ir.DenseI64ArrayAttr(op.attributes["dimension_map"])) == [0]
    if not first or str(element_of(ids)) != "i32" or len(shape_of(ids)) != 1:
        return value, None, 0
    return op.operands[0], ids, shape_of(op.operands[0])[0]
