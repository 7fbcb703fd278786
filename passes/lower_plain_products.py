"""mxc-lower-plain-products: products of computed tensors become kernels of a GPU's matrix unit.

IREE chooses a matrix instruction only where all sizes are known and both sides are one type. Else
its own schedule multiplies number by number, and loads two or four bytes at a time. The kernel here
takes any sizes in any layout (passes/kernels/gpu/plain/body.py), and elementwise operations that
follow, as other kernels do (passes/kernels/epilogues.py).

before:
    %y = linalg.generic {..} ins(%p, %v : tensor<?x8x?x?xf32>, tensor<?x?x8x64xf32>)
        outs(%zero : tensor<?x8x?x64xf32>) { mulf, addf }
after:
    stream.executable private @mxc_product_Dx8xDx64xD_f32_g0g1mk_f32_g0kg1n_f32_g0g1mn { .. }
    %y = flow.dispatch @mxc_product_..(%p, %v) {mxc.contraction = {..}}

Loops that are neighbours in all operands become one, and those of one iteration go. Sides that are
different floats are extended to f32 in registers, where the GPU has an instruction for it.

Leaves alone: products of one type with known sizes; one row or one column, for which memory is the
limit; types for which the target has no instruction; several loops of the sum that are not
neighbours; accumulators other than zero, integers without a sign, and any other body than a product
that is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.generic import element_of
from mxc.dialects.indexing import dims, indexing_maps, loop_ranges
from mxc.dialects.sizes import Size, size_of, value_of
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls, take_over
from mxc.passes.kernels.epilogues import NOTHING, Epilogue, epilogue
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.plain.body import PlainProduct
from mxc.passes.kernels.gpu.plain.shape import TILE, OperandLayout
from mxc.passes.kernels.values import is_zero
from mxc.passes.rewriting.merged_loops import merged, with_loops
from mxc.passes.rewriting.plain_products import FLOATS, is_plain_product
from mxc.passes.rewriting.rebuild import linalg_operations, sweep
from mxc.targets.amd import known_gpu
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True)
class LowerPlainProducts(Pass):
    """Lower products of dynamic sizes to kernels of `target`, which must have a record."""

    name = "mxc-lower-plain-products"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower each product that a kernel takes. PassError for a target without a record."""
        unit = known_gpu(self.target).matrix
        kernels = _Kernels(module, unit)
        for op in linalg_operations(module):
            if is_plain_product(op):
                element, loops = _element(op, unit), _loops(op)
                if element is not None and loops is not None:
                    kernels.lower(with_loops(op, loops), element)
        sweep(module)


def _element(op: ir.Operation, unit: MatrixUnit) -> str | None:
    """What both sides are in registers; None where there is no instruction for it."""
    lhs, rhs = (str(element_of(value)) for value in list(op.operands)[:2])
    if lhs != rhs and not {lhs, rhs} <= FLOATS:
        return None
    element = lhs if lhs == rhs else "f32"
    return None if unit.layout(element) is None else element


def _loops(op: ir.Operation) -> list[list[int]] | None:
    """The loops with several iterations, in groups: those that say which product it is, then rows,
    columns and the sum. None where IREE has an instruction, or no kernel takes the product."""
    ranges = loop_ranges(op)
    lhs, rhs, _ = map(element_of, op.operands)
    if None not in ranges and lhs == rhs:
        return None
    found = linalg.infer_contraction_dimensions(op)
    several = [loop for loop, size in enumerate(ranges) if size != 1]
    batch, rows, columns, sums = (
        merged(op, [loop for loop in each if loop in several], several)
        for each in (found.batch, found.m, found.n, found.k)
    )
    from_zero = is_zero(op.operands[len(op.operands) - 1])
    if not (rows and columns and len(sums) == 1 and from_zero):
        return None
    own = [_longest(each, ranges) for each in (rows, columns)]
    others = [group for group in (*rows, *columns) if group not in own]
    return [*batch, *others, *own, *sums]


def _longest(groups: Sequence[list[int]], ranges: Sequence[int | None]) -> list[int]:
    """The group with most iterations, the last one where several may have most."""

    def count(group: Sequence[int]) -> float:
        return prod(float("inf") if (size := ranges[loop]) is None else size for loop in group)

    return max(reversed(groups), key=count)


class _Kernels:
    def __init__(self, module: ir.Operation, unit: MatrixUnit) -> None:
        self._calls, self._unit = Calls(module), unit
        self._epilogues: dict[str, int] = {}

    def lower(self, op: ir.Operation, element: str) -> None:
        """Replace a product over loops g.., m, n, k."""
        maps, ranges = [dims(affine) for affine in indexing_maps(op)], loop_ranges(op)
        after = _epilogue(op, maps[-1], len(ranges) - 2)
        stored = after.last(op).results[0]
        lhs, rhs, out = (
            OperandLayout(str(element_of(value)), tuple(loop for loop in each if loop is not None))
            for value, each in zip((*list(op.operands)[:2], stored), maps, strict=True)
        )
        layout = self._unit.layout(element)
        assert layout is not None
        instruction = TileInstruction(TILE, self._unit)
        kernel = PlainProduct(tuple(ranges), lhs, rhs, out, element, layout[1], instruction, after)
        name = kernel.name
        if after.stages:
            number = self._epilogues.setdefault(after.signature, len(self._epilogues))
            name += f"_then_{number}"
        with ir.InsertionPoint(after.last(op)), op.location:
            sides = list(op.operands)[:2]
            scalars = [
                value_of(_size(sides, maps, loop))
                for loop, size in enumerate(ranges)
                if size is None
            ]
            given = [*sides, *(value for _, value in after.operands)]
            made = self._calls.dispatch(name, kernel, given, scalars, kernel.threads)
            *groups, m, n, k = ranges
            known = [size for size in groups if size is not None]
            of = Contraction(
                batch=prod(known) if len(known) == len(groups) else None,
                m=m,
                n=-1 if n is None else n,
                k=-1 if k is None else k,
                lhs=OperandFormat(lhs.element),
                rhs=OperandFormat(rhs.element),
                out=OperandFormat(out.element),
                any_sizes=True,
            )
            take_over(made, of, op, after, None, kind="matrix")


def _epilogue(op: ir.Operation, result: Sequence[int | None], n: int) -> Epilogue:
    """What the kernel computes after a product, whose columns are the loop `n` and rows the one
    before. Nothing for integers, and where a lane has a single element of each row of the result.
    """
    is_float = str(element_of(op.results[0])) == "f32"
    return epilogue(op, 0) if is_float and result[-1] in (n - 1, n) else NOTHING


def _size(sides: Sequence[ir.Value], maps: Sequence[Sequence[int | None]], loop: int) -> Size:
    """The size of a loop, from a side that has it."""
    value, axes = next(pair for pair in zip(sides, maps, strict=False) if loop in pair[1])
    return size_of(value, axes.index(loop))
