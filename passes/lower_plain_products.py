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
different floats are extended to f32 in registers, where the GPU has an instruction for it. A
sum may start from a number for each row, each column or each product, as from a bias; what else it
starts from is added after it.

A convolution is a product whose sum has several loops: channels, and those of the window. Weights
of which neither channel lies side by side are copied first, so that those of the sum do.

Leaves alone: products of one type with known sizes; one row or one column, for which memory is the
limit; types for which the target has no instruction; convolutions of images of dynamic sizes, and
of each channel alone; sums of integers that start from other numbers than zero, integers without a
sign, and any other body than a product that is added.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, prod

from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.dispatches import element_bits
from mxc.dialects.generic import element_of, generic, shape_of
from mxc.dialects.indexing import dim_of, indexing_maps, loop_ranges, trace
from mxc.dialects.indexing import dims as loops_of
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import axes_of, size_of, value_of
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls, take_over
from mxc.passes.kernels.epilogues import NOTHING, Epilogue, epilogue
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.plain.body import PlainProduct
from mxc.passes.kernels.gpu.plain.shape import REACH, TILE, OperandLayout
from mxc.passes.kernels.values import is_zero
from mxc.passes.rewriting.merged_loops import merged, with_loops
from mxc.passes.rewriting.plain_products import (
    FLOATS,
    ProductLoops,
    Terms,
    is_plain_product,
    product_loops,
)
from mxc.passes.rewriting.rebuild import linalg_operations, sweep
from mxc.passes.rewriting.starts import add_after, fill_start
from mxc.targets.amd import known_gpu
from mxc.targets.matrix_unit import MatrixUnit

_FAR = Reason(f"rows lie further apart than buffers reach, which is less than {BEYOND} bytes")
#: A loop along which elements lie side by side is preferred for tiles from this many iterations on.
_FEW = 16
#: Iterations that a dynamic loop of a convolution, of images, is taken to have.
_BATCH = 7


@dataclass(frozen=True)
class LowerPlainProducts(Pass):
    """Lower products to kernels of `target`, which must have a record."""

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
                    kernels.lower(op, loops, element)
        sweep(module)


def _element(op: ir.Operation, unit: MatrixUnit) -> str | None:
    """The element type of both sides in registers; None where no matrix instruction takes it."""
    lhs, rhs = (str(element_of(value)) for value in list(op.operands)[:2])
    if lhs != rhs and not {lhs, rhs} <= FLOATS:
        return None
    element = lhs if lhs == rhs else "f32"
    return None if unit.layout(element) is None else element


def _loops(op: ir.Operation) -> ProductLoops | None:
    """The loops of a product; None where IREE has an instruction, or no kernel takes it."""
    ranges = loop_ranges(op)
    lhs, rhs, start = op.operands
    if None not in ranges and element_of(lhs) == element_of(rhs):
        return None
    found = product_loops(op, ranges)
    if found is None or not (found.rows and found.columns and found.sums):
        return None
    is_float = isinstance(element_of(start), ir.FloatType)
    return found if is_float or is_zero(start) else None


@dataclass(frozen=True)
class _Read:
    """An operand of a product. `dims`: the index of each dimension as a sum of loops."""

    value: ir.Value
    dims: tuple[Terms, ...]

    @property
    def last(self) -> int | None:
        """The loop along which elements lie side by side: the index of the last dimension; None if
        that is not a single loop."""
        terms = self.dims[-1]
        return terms[0][0] if len(terms) == 1 and terms[0][1] == 1 else None


@dataclass(frozen=True)
class _Plan:
    """A product `op` as a kernel computes it.

    `reads`: of both sides and the result. `order`: the loops of `op` in the order of the kernel;
    the first `outer` of them are of the sum. `ranges`: iterations of the loops of `op`, None if
    dynamic. `start`: the place of a loop in `order`, and a tensor with the number from which sums
    start for each of its iterations; None for zero.
    """

    op: ir.Operation
    reads: Sequence[_Read]
    order: Sequence[int]
    ranges: Sequence[int | None]
    outer: int
    start: tuple[int, ir.Value] | None


class _Kernels:
    def __init__(self, module: ir.Operation, unit: MatrixUnit) -> None:
        self._calls, self._unit = Calls(module), unit
        self._epilogues: dict[str, int] = {}

    def lower(self, op: ir.Operation, loops: ProductLoops, element: str) -> None:
        """Replace a product by a kernel, or record why its rows are too far apart. `element`: of
        both sides in registers."""
        ranges = loop_ranges(op)
        kinds = (loops.sums, loops.batch, loops.rows, loops.columns)
        if loops.reads is None:
            sums, batch, rows, columns = ([[loop] for loop in each] for each in kinds)
        else:
            known = [loop for each in kinds for loop in each]
            sums, batch, rows, columns = (merged(loops.reads, each, known) for each in kinds)
        reads = list(map(_Read, op.operands, loops.dims))
        unknown = _BATCH if loops.reads is None else inf
        k, m, n = (_best(each, reads, ranges, unknown) for each in (sums, rows, columns))
        if not all(_is_near(read, {k[-1], m[-1], n[-1]}) for read in reads):
            write_reason(op, _FAR)
            return
        outer = [group for group in sums if group != k]
        others = [group for group in (*rows, *columns) if group not in (m, n)]
        order = [*outer, *batch, *others, m, n, k]
        start = _started(op, loops.dims[2], order)
        if loops.reads is not None:
            op = with_loops(op, order, loops.reads)
            ranges, order = loop_ranges(op), [[place] for place in range(len(order))]
            reads = [
                _Read(value, tuple(((loop, 1),) for loop in loops_of(affine) if loop is not None))
                for value, affine in zip(op.operands, indexing_maps(op), strict=True)
            ]
        plan = _Plan(op, reads, [group[0] for group in order], ranges, len(outer), start)
        self._replace(plan, element)

    def _replace(self, plan: _Plan, element: str) -> None:
        """Replace the product of a plan, with its epilogue, by a dispatch."""
        op, order, ranges, reads = plan.op, plan.order, plan.ranges, plan.reads
        places = {loop: place for place, loop in enumerate(order)}
        after = _epilogue(op, reads[2], order[-3:-1])
        last, layout = after.last(op), self._unit.layout(element)
        assert layout is not None
        with ir.InsertionPoint(last), op.location:
            sides = [_side(read, order[-3:]) for read in reads[:2]]
            lhs, rhs, out = (_layout(read, ranges, places) for read in (*sides, reads[2]))
            out = replace(out, element=str(element_of(last.results[0])))
            instruction = TileInstruction(TILE, self._unit)
            sizes = tuple(ranges[loop] for loop in order)
            place, numbers = (None, []) if plan.start is None else (plan.start[0], [plan.start[1]])
            kernel = PlainProduct(
                sizes, lhs, rhs, out, element, layout[1], instruction, after, plan.outer, place
            )
            name = kernel.name
            if after.stages:
                number = self._epilogues.setdefault(after.signature, len(self._epilogues))
                name += f"_then_{number}"
            scalars = [_size(sides, loop) for loop in order if ranges[loop] is None]
            beside = [value for _, value in after.operands]
            given = [*(each.value for each in sides), *beside, *numbers]
            made = self._calls.dispatch(name, kernel, given, scalars, kernel.threads)
            _record(kernel, after, op, made)


def _started(
    op: ir.Operation, result: Sequence[Terms], order: Sequence[Sequence[int]]
) -> tuple[int, ir.Value] | None:
    """Let the sums of `op` start from zero, and return what a kernel starts them from instead.

    If the initial value is a broadcast of f32 numbers, one for each iteration of a loop in `order`,
    these are returned, with the place of the loop. Other values but zero are added after `op`.
    `result`: the index of each dimension of the result.
    """
    value = op.operands[2]
    if is_zero(value):
        return None
    loops = [ir.AffineDimExpr.get(axis) for axis in range(len(result))]
    source, at = trace(value, loops, [n if n >= 0 else None for n in shape_of(value)])
    axis = dim_of(at[0]) if len(at) == 1 else None
    if axis is not None and str(element_of(source)) == "f32":
        group = [loop for loop, _ in result[axis]]
        if group in order and shape_of(source)[0] == shape_of(value)[axis]:
            fill_start(op)
            return order.index(group), source
    add_after(op)
    return None


def _record(kernel: PlainProduct, after: Epilogue, op: ir.Operation, made: ir.Operation) -> None:
    """Replace a product and its epilogue by the dispatch `made`, and describe it for the report."""
    *groups, m, n, k = (size if isinstance(size, int) else None for size in kernel.sizes)
    sums, batch = groups[: kernel.outer], groups[kernel.outer :]
    depths, counts = ([n for n in each if n is not None] for each in ([*sums, k], batch))
    of = Contraction(
        batch=prod(counts) if len(counts) == len(batch) else None,
        m=m,
        n=-1 if n is None else n,
        k=prod(depths) if len(depths) == len(sums) + 1 else -1,
        lhs=OperandFormat(kernel.lhs.element),
        rhs=OperandFormat(kernel.rhs.element),
        out=OperandFormat(kernel.out.element),
        any_sizes=True,
    )
    take_over(made, of, op, after, None, kind="matrix")


def _best(
    groups: Sequence[list[int]],
    reads: Sequence[_Read],
    ranges: Sequence[int | None],
    unknown: float,
) -> list[int]:
    """The group of loops to tile.

    It is the one with the most iterations among those along which elements of an operand lie side
    by side, and which are dynamic or have at least _FEW iterations; else among all. A dynamic loop
    is taken to have `unknown` iterations.
    """
    lasts = {read.last for read in reads}

    def value(group: Sequence[int]) -> tuple[bool, float]:
        sizes = [ranges[loop] for loop in group]
        count = prod(unknown if size is None else size for size in sizes)
        return group[-1] in lasts and (None in sizes or count >= _FEW), count

    return max(reversed(groups), key=value)


def _is_near(read: _Read, tiled: Collection[int]) -> bool:
    """Whether a buffer reaches all that a wave reads along the `tiled` loops, as far as sizes are
    known."""
    stride = element_bits(element_of(read.value)) // 8
    for terms, size in zip(reversed(read.dims), reversed(shape_of(read.value)), strict=True):
        if any(loop in tiled and REACH * number * stride >= BEYOND for loop, number in terms):
            return False
        if size < 0:
            break
        stride *= size
    return True


def _side(read: _Read, tiled: Sequence[int]) -> _Read:
    """Let the elements of an operand lie side by side along a `tiled` loop, where they do not.

    An operand of static sizes, such as weights, is transposed by a copy, so that K is last. Others
    are returned as they are.
    """
    simple = all(len(terms) == 1 for terms in read.dims)
    loops = [terms[0][0] for terms in read.dims]
    k = tiled[-1]
    if read.last in tiled or not simple or k not in loops or min(shape_of(read.value)) < 0:
        return read
    ordered = [axis for axis, loop in enumerate(loops) if loop != k] + [loops.index(k)]
    axes = axes_of(read.value).split()
    copied = generic(
        [(read.value, " ".join(axes))],
        " ".join(axes[axis] for axis in ordered),
        element_of(read.value),
        lambda element: element,
    )
    return _Read(copied, tuple(read.dims[axis] for axis in ordered))


def _layout(read: _Read, ranges: Sequence[int | None], places: dict[int, int]) -> OperandLayout:
    """The layout of an operand in memory. `places`: the place of each loop in the kernel."""
    dims, extents = [], []
    for terms, size in zip(read.dims, shape_of(read.value), strict=True):
        own = tuple((places[loop], number) for loop, number in terms if loop in places)
        whole = len(own) == len(terms) == 1 and own[0][1] == 1
        whole = whole and ranges[terms[0][0]] == (size if size >= 0 else None)
        dims.append(own)
        extents.append(None if whole else size)
    return OperandLayout(str(element_of(read.value)), tuple(dims), tuple(extents))


def _epilogue(op: ir.Operation, result: _Read, tiled: Sequence[int]) -> Epilogue:
    """The epilogue that a kernel computes after a product. `tiled`: the loops of rows and columns.

    There is none for integers, and where a lane has a single element of each row of the result.
    """
    is_float = isinstance(element_of(op.results[0]), ir.FloatType)
    return epilogue(op, 0) if is_float and result.last in tiled else NOTHING


def _size(sides: Sequence[_Read], loop: int) -> ir.Value:
    """The size of a loop, from a side that has it."""
    return next(
        value_of(size_of(side.value, side.dims.index(((loop, 1),))))
        for side in sides
        if ((loop, 1),) in side.dims
    )
