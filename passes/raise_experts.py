"""mxc-raise-experts: products with matrices that are looked up by number choose among experts.

A program with a mixture of experts looks up a matrix for each pair of a token and an expert, and
multiplies a row by it. Written out, that is a copy of a weight for each pair. A kernel reads the
matrices where they are. It takes a gather by a list of numbers, and rows of the sum.

before:
    %w = linalg.generic ins(%ids : tensor<?x4xi64>) { tensor.extract %table } -> tensor<?x4xNxKxf32>
    %y = linalg.generic {indexing_maps = [(t, e, n, k) -> (t, e, n, k), (t, e, n, k) -> (t, k),
                         (t, e, n, k) -> (t, e, n)]} ins(%w, %x) outs(%zero) { mulf, addf }
after:
    %w = iree_linalg_ext.gather dimension_map = [0] ins(%table, %flat) -> tensor<?xNxKxf32>
    %r = linalg.generic {indexing_maps = [(g, m, n, k) -> (g, m, k), (g, m, n, k) -> (g, n, k),
                         (g, m, n, k) -> (g, m, n)]} ins(%rows, %w) outs(%zero) { mulf, addf }
    tensor.expand_shape %r [[0, 1], [2], [3]], without the loop m of one iteration

Rows are repeated for each pair. A table [E, K, N] is transposed; the bytes of a parameter are put
in order when the program is compiled.

Leaves alone: matrices that something else than a sum of products reads, tables of rows or of
dynamic size, and sums that do not start from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dequantize import iterators
from mxc.dialects.generic import element_of, generic, shape_of, to_f32
from mxc.dialects.indexing import dim_of, indexing_maps, loop_ranges, plus, times, trace
from mxc.dialects.linalg_ext import gather
from mxc.dialects.product import read_product
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import Size, product, size_of, sizes_of, split
from mxc.passes.base import Pass
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.kernels.values import is_zero, producer
from mxc.passes.rewriting.digits import arranged, number_of, simplified
from mxc.passes.rewriting.lookups import Lookup, Numbers, lookup_of
from mxc.passes.rewriting.rebuild import discardable, linalg_operations, replace, sums_floats, sweep
from mxc.passes.rewriting.split_loops import is_divided_evenly, plan_split

_FLOATS = ("f32", "bf16", "f16")
#: Operands of a product: two sides and the initial value of the sum.
_OPERANDS = 3


@dataclass(frozen=True)
class RaiseExperts(Pass):
    """Rewrite products with matrices that are looked up in a table."""

    name = "mxc-raise-experts"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every sum of products of which one side is looked up."""
        numbers = Numbers()
        for op in linalg_operations(module):
            found = _chosen(op)
            if found is None:
                continue
            with ir.InsertionPoint(op), op.location:
                made = found.build(numbers)
            if made is not None:
                replace(op, made)
        sweep(module)


@dataclass(frozen=True)
class _ChosenProduct:
    """A product `op` of matrices that `lookup` looks up, and of the other `side`.

    `ranges`: iterations of the loops of the product after splits, None if dynamic. `pairs`: the
    loops that index the numbers of the lookup. `rows`, `columns`, `sums`: the other loops.
    `matrix`, `x`, `result`: the loops that index each dimension of a looked up matrix, of the other
    side, and of the result.
    """

    op: ir.Operation
    lookup: Lookup
    side: ir.Value
    ranges: Sequence[int | None]
    pairs: Sequence[int]
    rows: Sequence[int]
    columns: Sequence[int]
    sums: Sequence[int]
    matrix: Sequence[Sequence[int]]
    x: Sequence[Sequence[int]]
    result: Sequence[Sequence[int]]

    def build(self, numbers: Numbers) -> ir.Value | None:
        """Build the product with gathered matrices; None where an operand has an order of
        dimensions that is not followed. `numbers`: shares lists of numbers among lookups."""
        experts = len(self.ranges)
        weights = arranged(
            self.lookup.table,
            self._at([[experts], *self.matrix]),
            [[experts], self.columns, self.sums],
            self._all_ranges,
        )
        rows = self._repeated()
        if weights is None or rows is None:
            return None
        chosen = gather(weights, numbers.of(self.lookup))
        made = generic(
            [(rows, "g m k"), (chosen, "g n k")],
            "g m n",
            ir.F32Type.get(),
            lambda x, w, total: arith.addf(total, arith.mulf(to_f32(x), to_f32(w))),
        )
        for name in discardable(self.op):
            made.owner.attributes[name] = self.op.attributes[name]
        at = self._at([self.pairs, self.rows, self.columns])
        return arranged(made, at, self.result, self.ranges)

    @property
    def _all_ranges(self) -> list[int | None]:
        """`ranges`, and behind them that of a loop over the experts of the table."""
        return [*self.ranges, shape_of(self.lookup.table)[0]]

    def _at(self, groups: Sequence[Sequence[int]]) -> list[ir.AffineExpr]:
        return [number_of(group, self._all_ranges) for group in groups]

    def _repeated(self) -> ir.Value | None:
        """Build the other side as [pairs, rows, sums]: it is repeated along the loops of pairs that
        it does not have. None where its order of dimensions is not followed."""
        read = {loop for group in self.x for loop in group}
        own = [loop for loop in self.pairs if loop in read]
        groups = [*([loop] for loop in own), self.rows, self.sums]
        x = arranged(self.side, self._at(self.x), groups, self.ranges)
        if x is None:
            return None
        pairs = self._sizes_of_pairs()
        if own != list(self.pairs):
            letters = {loop: f"p{loop}" for loop in self.pairs}
            sizes = {letters[loop]: size for loop, size in pairs.items() if loop not in own}
            read_by = [*(letters[loop] for loop in own), "m", "k"]
            write = " ".join([*letters.values(), "m", "k"])
            x = generic([(x, " ".join(read_by))], write, element_of(x), lambda e: e, sizes=sizes)
        depth = len(shape_of(x))
        inner = [size_of(x, axis) for axis in (depth - 2, depth - 1)]
        return reshape(x, *split([product(list(pairs.values())), *inner]))

    def _sizes_of_pairs(self) -> dict[int, Size]:
        """The sizes of the loops of pairs, by loop. One loop may run over all dimensions of the
        numbers."""
        sizes = sizes_of(self.lookup.op.operands[0])
        sizes = [product(sizes)] if len(self.pairs) == 1 else sizes
        return dict(zip(self.pairs, sizes, strict=True))


def _chosen(op: ir.Operation) -> _ChosenProduct | None:
    """The product that `op` computes, if matrices of one side are looked up."""
    if len(op.operands) != _OPERANDS or not sums_floats(op) or not is_zero(op.operands[2]):
        return None
    factors = read_product(op)
    if isinstance(factors, Reason) or any(each.scale is not None for each in factors):
        return None
    sides = list(op.operands)[:2]
    if not all(isinstance(side.type, ir.RankedTensorType) for side in sides):
        return None
    if not all(str(element_of(side)) in _FLOATS for side in sides):
        return None
    for weights, other in ((0, 1), (1, 0)):
        affine, ranges = indexing_maps(op)[weights], loop_ranges(op)
        source, read = trace(sides[weights], list(affine.results), ranges)
        at = [simplified(index, ranges) for index in read]
        made_by = producer(source)
        lookup = None if made_by is None else lookup_of(made_by)
        found = None if lookup is None else _loops(op, lookup, at, other)
        if found is not None:
            return found
    return None


def _number(at: Sequence[ir.AffineExpr], sizes: Sequence[int]) -> ir.AffineExpr:
    """The row-major linear index of the indices `at` in a shape `sizes`."""
    found, *inner = at
    for index, size in zip(inner, sizes[1:], strict=True):
        found = plus(times(found, size), index)
    return found


def _loops(
    op: ir.Operation, lookup: Lookup, at: Sequence[ir.AffineExpr], other: int
) -> _ChosenProduct | None:
    """The product `op` with its loops in groups, or None if they do not fit. `at`: the indices at
    which it reads the result of the lookup. `other`: the number of the other side."""
    maps, lead = indexing_maps(op), len(shape_of(lookup.op.operands[0]))
    pair = _number(at[:lead], shape_of(lookup.op.operands[0]))
    if dim_of(pair) is not None:
        at, lead = [pair, *at[lead:]], 1
    reads = [ir.AffineMap.get(maps[0].n_dims, 0, list(at)), maps[other], maps[2]]
    ranges = loop_ranges(op)
    plan = None
    if is_divided_evenly(reads, ranges):
        plan = plan_split(reads, iterators(op), ranges, op.location)
    if plan is None:
        return None
    looked_up, x, result = plan.digits
    pairs = [loop for group in looked_up[:lead] for loop in group]
    if any(len(group) != 1 for group in looked_up[:lead]):
        return None
    # Loops with one iteration are ignored.
    moving = [loop for loop, size in enumerate(plan.sizes) if size != 1]
    inside, of_side, written = (
        [loop for group in groups for loop in group if loop in moving]
        for groups in (looked_up[lead:], x, result)
    )
    sums = [loop for loop in inside if loop not in written]
    columns = [loop for loop in inside if loop in written]
    rows = [loop for loop in of_side if loop in written and loop not in pairs]
    if not (columns and sums) or set(columns) & set(of_side):
        return None
    if {*pairs, *rows, *columns, *sums} & set(moving) != set(moving):
        return None
    if not set(pairs) & set(moving) <= set(written):
        return None
    return _ChosenProduct(
        op=op,
        lookup=lookup,
        side=op.operands[other],
        ranges=plan.sizes,
        pairs=pairs,
        rows=rows,
        columns=columns,
        sums=sums,
        matrix=looked_up[lead:],
        x=x,
        result=result,
    )
