"""mxc-unit-scales: give elements without a scale the scale one.

A product of 8-bit floats, or of integers, whose scales multiply the result is a scaled contraction
in which every block has the scale 1, so kernels of scaled contractions can compute it. CPU kernels
do not read scales that are filled with one.

before:
    linalg.generic {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (n, k), (m, n, k) -> (m, n)]}
      ins(%x : tensor<MxKxf32>, %w : tensor<NxKxf8E4M3FN>) outs(%acc) { mulf(%x, extf(%w)), addf }
after:
    %one = linalg.fill ins(1.0) outs(..) -> tensor<NxKOxf8E8M0FNU>
    linalg.generic {indexing_maps = [.., (m, n, k) -> (n, k floordiv 32), (m, n, k) -> (m, n)]}
      ins(%x, %w, %one) outs(%acc) { mulf(%x, scaling_extf(%w, %one)), addf }

Where the other side has scales, the blocks are those of that side; otherwise they have 32 elements.

Leaves alone: elements with a scale; a K that is dynamic or not a multiple of 32; products in other
types than f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dequantize import extend, is_code, is_integer, iterators
from mxc.dialects.generic import fill
from mxc.dialects.indexing import dim_of, loop_ranges
from mxc.dialects.product import f32_operands
from mxc.dialects.quantize import BLOCK
from mxc.dialects.scalar_nodes import loops_of
from mxc.dialects.sizes import size_of
from mxc.passes.base import Pass
from mxc.passes.rewriting.generics import (
    generic_like,
    read_map,
    yielded,
)
from mxc.passes.rewriting.rebuild import (
    OperandRead,
    clone_scalar,
    replace,
    sums_of_elements,
    sweep,
)


@dataclass(frozen=True)
class UnitScales(Pass):
    """Give elements without a scale the scale one."""

    name = "mxc-unit-scales"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every product with a side that is an element extended to f32, without a scale."""
        for op in sums_of_elements(module):
            if op.name == "linalg.generic":
                _rewrite(op)
        sweep(module)


def _rewrite(op: ir.Operation) -> None:
    block = op.regions[0].blocks[0]
    *arguments, acc = block.arguments
    terms = [v for v in f32_operands(yielded(op), "arith.addf") or () if v != acc]
    sides = f32_operands(terms[0], "arith.mulf") if len(terms) == 1 else None
    if sides is None:
        return
    bare = [_bare(side) for side in sides]
    blocks = _blocks(op, arguments)
    if not any(bare) or blocks is None:
        return
    inputs = [OperandRead(op.operands[a.arg_number], read_map(op, a)) for a in arguments]
    scales = [_ones(op, each, blocks) if each is not None else None for each in bare]

    def body(scalars: Sequence[ir.Value]) -> ir.Value:
        at = dict(zip(arguments, scalars, strict=False))
        ones = list(scalars[len(arguments) : -1])
        factors = [
            clone_scalar(side, at) if each is None else extend(at[each], ones.pop(0))
            for side, each in zip(sides, bare, strict=True)
        ]
        return scalars[-1] + arith.mulf(*factors)

    reads = [*inputs, *(scale for scale in scales if scale is not None)]
    replace(op, generic_like(op, reads, op.operands[len(op.operands) - 1], body))


def _bare(side: ir.Value) -> ir.Value | None:
    """The element that a side extends to f32; None for other sides."""
    if isinstance(side, ir.BlockArgument) or side.owner.name not in ("arith.extf", "arith.sitofp"):
        return None
    element = side.owner.operands[0]
    return element if is_code(element.type) and isinstance(element, ir.BlockArgument) else None


def _blocks(op: ir.Operation, arguments: Sequence[ir.Value]) -> list[ir.AffineExpr] | None:
    """The indices along K of a scale: those of an existing scale, else for blocks of 32 elements.
    None where K is dynamic or no multiple of 32."""
    kinds, ranges = iterators(op), loop_ranges(op)
    reduced = [i for i, kind in enumerate(kinds) if "reduction" in str(kind)]
    found: list[list[ir.AffineExpr]] = []
    for argument in arguments:
        along = [
            e for e in read_map(op, argument).results if set(reduced).intersection(loops_of([e]))
        ]
        if (len(along) == 1 and dim_of(along[0]) is None) or len(along) == len(reduced) - 1:
            found.append(along)
    if found:
        return found[0]
    if len(reduced) == 1:
        size = ranges[reduced[0]]
        if size is None or size % BLOCK:
            return None
        loop = ir.AffineDimExpr.get(reduced[0])
        return [ir.AffineExpr.get_floor_div(loop, BLOCK).maybe_downcast()]
    return [ir.AffineDimExpr.get(loop) for loop in reduced[:-1]]


def _ones(op: ir.Operation, element: ir.Value, blocks: Sequence[ir.AffineExpr]) -> OperandRead:
    """Build a fill with scales of one before `op`, by the rows of `element` and by `blocks`, and
    return how to read it."""
    affine, ranges = read_map(op, element), loop_ranges(op)
    source = op.operands[element.arg_number]
    own = loops_of(blocks)
    rows = [
        (axis, e)
        for axis, e in enumerate(affine.results)
        if dim_of(e) is not None and dim_of(e) not in own and not _is_reduced(op, e)
    ]
    f32 = ir.F32Type.get()
    kind = f32 if is_integer(element.type) else ir.Type.parse("f8E8M0FNU")
    with ir.InsertionPoint(op), op.location:
        sizes = [size_of(source, axis) for axis, _ in rows]
        sizes += [_extent(e, ranges) for e in blocks]
        ones = fill(sizes, kind, 1.0)
    return OperandRead(ones, ir.AffineMap.get(affine.n_dims, 0, [*(e for _, e in rows), *blocks]))


def _is_reduced(op: ir.Operation, expression: ir.AffineExpr) -> bool:
    kinds = iterators(op)
    return any("reduction" in str(kinds[loop]) for loop in loops_of([expression]))


def _extent(expression: ir.AffineExpr, ranges: Sequence[int | None]) -> int:
    """Number of values of an index that is a loop or a quotient of a loop."""
    if isinstance(expression, ir.AffineFloorDivExpr):
        return _extent(expression.lhs.maybe_downcast(), ranges) // int(expression.rhs.value)
    loop = dim_of(expression)
    return (ranges[loop] or 0) if loop is not None else 0
