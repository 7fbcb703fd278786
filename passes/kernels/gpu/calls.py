"""Which contractions a kernel for GPUs computes, and what it needs to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.formats import E8M0, FORMATS
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.passes.kernels.extents import Size, product, value_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.operands import Operand, operand
from mxc.passes.kernels.reshapes import sizes_of
from mxc.passes.kernels.sources import Format
from mxc.passes.kernels.values import is_zero, producer


@dataclass(frozen=True, kw_only=True)
class Call:
    """One contraction: groups x [rows, depth] times [columns, depth] of one of `experts`.

    `groups` and `rows` are None where they are known at run time alone.

    `rhs`: elements and scales, of all experts if `ids` chooses one a group, else if each group has
    its own. `experts`: 0 where there is one rhs for all.
    """

    op: ir.Operation
    lhs: Operand
    rhs: tuple[ir.Value, ir.Value]
    ids: ir.Value | None
    format: str
    groups: int | None
    rows: int | None
    columns: int
    depth: int
    experts: int

    def scalars(self) -> list[ir.Value]:
        """The values of `groups` and `rows`, of those that are None, at the insertion point."""
        value = self.op.operands[len(self.op.operands) - 1]
        sizes = iter(sizes_of(value))
        *groups, rows, _ = [next(sizes) if size < 0 else size for size in shape_of(value)]
        count: Size = groups[0] if groups else 1
        if self.groups == 1:
            count, rows = 1, product(count, rows)
        found = {"groups": count, "rows": rows}
        return [value_of(found[name]) for name in found if getattr(self, name) is None]


#: Element type -> format of what a lane can decode.
_FORMATS: dict[str, Format] = {
    FORMATS[name].element.mlir: name
    for name in get_args(Format)
    if name in FORMATS and FORMATS[name].scale == E8M0
}
#: Those of them that scaled matrix instructions take.
_SCALED = {element: name for element, name in _FORMATS.items() if FORMATS[name].element.exponent}
_ACTIVATIONS = {(element, E8M0.mlir): name for element, name in _SCALED.items()}
#: Two scales for 32 elements.
_NVFP4 = FORMATS["nvfp4"]
#: Dimensions of rows of blocks, without a batch.
_RANK = 3
#: Activations without scales.
_FLOATS: tuple[Format, ...] = ("f32", "f16", "bf16")


def match(op: ir.Operation) -> Call | None:
    """The call that computes `op`, or None where no kernel does."""
    found = match_scaled_contraction(op)
    if found is None or not _has_our_shape(found):
        return None
    assert found.rhs_scale is not None
    format: str | None = _FORMATS.get(str(found.rhs_type))
    if found.block != BLOCK:
        format = _NVFP4.name
    lhs = operand(found.lhs, found.lhs_scale, found.k, _ACTIVATIONS, _FLOATS)
    if format is None or lhs is None:
        return None
    if lhs.source.format not in (*_FLOATS, *_SCALED.values()):
        return None
    if not lhs.source.is_float and format not in _SCALED.values():
        return None
    elements, ids, experts = _chosen(found.rhs)
    scales, same, _ = _chosen(found.rhs_scale)
    own = len(found.maps[1].results) > _RANK
    if ids != same or (ids is not None and not own) or not is_zero(found.acc):
        return None
    groups, rows = (None if size < 0 else size for size in ((found.batch or (1,))[0], found.m))
    if own and ids is None:
        if groups is None:
            return None
        experts = groups
    if not own:
        # One weight for all: their rows are those of one product.
        groups, rows = 1, None if groups is None or rows is None else groups * rows
    if found.n * found.k * FORMATS[format].element.bits // 8 >= BEYOND:
        return None
    return Call(
        op=found.op,
        lhs=lhs,
        rhs=(elements, scales),
        ids=ids,
        format=format,
        groups=groups,
        rows=rows,
        columns=found.n,
        depth=found.k,
        experts=experts,
    )


def _has_our_shape(found: ScaledContraction) -> bool:
    if not found.is_canonical or found.rhs_scale is None or len(found.batch) > 1:
        return False
    scale = str(element_of(found.rhs_scale))
    if (found.block, scale) != (BLOCK, "f8E8M0FNU") and not _is_nvfp4(found, scale):
        return False
    if not found.is_row_major or len(found.maps[0].results) != len(found.batch) + 3:
        return False
    return min(found.n, found.k) > 0 and 0 not in (found.m, *found.batch)


def _is_nvfp4(found: ScaledContraction, scale: str) -> bool:
    """Whether weights are, in whole steps of 32, and activations are floats."""
    kind = (str(found.rhs_type), found.block, scale)
    known = _NVFP4.element.mlir, _NVFP4.block, _NVFP4.scale.mlir
    return kind == known and found.lhs_scale is None and found.k % BLOCK == 0


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
