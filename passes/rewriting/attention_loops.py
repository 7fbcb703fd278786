"""Express the loops of the second contraction of attention by the loops of attention:

n v g     sequence, key/value head, query head of it
t s       query, key
d m       element of a key, of a value
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from iree.compiler import ir

from mxc.dialects.generic import shape_of
from mxc.dialects.indexing import dim_of, indexing_maps, loop_ranges, moved, quotient, remainder
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_nodes import loops_of
from mxc.passes.rewriting.between_products import reduced_loop
from mxc.passes.rewriting.digits import number_of

#: Numbers of the loops of attention, as above.
N, V, G, T, S, D, M = range(7)

_COLLAPSE = "tensor.collapse_shape"
_SEVERAL = Reason("it has several loops of queries")


def index_of(number: int) -> ir.AffineExpr:
    """The index of a loop as an affine expression."""
    return ir.AffineDimExpr.get(number)


@dataclass(frozen=True)
class AttentionLoops:
    """What the loops of the second contraction are.

    `ranges`: iterations of each loop of attention, None if dynamic; that of D is set later, from
    the first contraction. `places`: for each loop of the contraction, its index over the loops of
    attention. `inner`: whether heads lie inside of keys, [N, S, V, ..], instead of outside,
    [N, V, S, ..].
    """

    ranges: list[int | None]
    places: list[ir.AffineExpr]
    inner: bool


def attention_loops(
    op: ir.Operation, weights: int, values: int, *, traced: bool, grouped: bool
) -> AttentionLoops | Reason:
    """The loops of attention whose second contraction is `op`, or why they are not known.

    `weights`, `values`: the numbers of its operands. `traced`, `grouped`: see attention_form.
    """
    return _Loops(op, weights, values, traced, grouped).found()


@dataclass
class _Loops:
    op: ir.Operation
    weights: int
    values: int
    traced: bool
    grouped: bool
    ranges: list[int | None] = field(default_factory=lambda: [None] * 7)
    inner: bool = False

    def found(self) -> AttentionLoops | Reason:
        op = self.op
        maps, sizes, over = indexing_maps(op), loop_ranges(op), reduced_loop(op)
        read = [set(loops_of(each.results)) for each in maps]
        parallel = [loop for index in maps[2].results if (loop := dim_of(index)) is not None]
        batch = [i for i in parallel if i in read[self.weights] and i in read[self.values]]
        rows = [i for i in parallel if i not in read[self.values]]
        columns = [i for i in parallel if i not in read[self.weights]]
        if len(rows) > 2 or len(columns) != 1 or over is None:
            return _SEVERAL
        # A dynamic loop is the most significant of the digits.
        batch.sort(key=lambda loop: sizes[loop] is not None)
        known = [sizes[each] or 1 for each in batch]
        if None in [sizes[loop] for loop in batch[1:]]:
            return Reason("the number of its heads is dynamic")
        self.ranges[S], self.ranges[M] = sizes[over], sizes[columns[0]]
        stride = math.prod(known)
        self._divide(stride, over, dynamic=bool(batch) and sizes[batch[0]] is None)
        found: dict[int, ir.AffineExpr] = {over: index_of(S), columns[0]: index_of(M)}
        whole = number_of([N, V, G], self.ranges)
        for loop, size in zip(batch, known, strict=True):
            stride //= size
            index = quotient(whole, stride, self.ranges) if stride > 1 else whole
            found[loop] = index if loop == batch[0] else remainder(index, size, self.ranges)
        queries = self._rows(rows)
        if queries is None:
            return _SEVERAL
        found |= queries
        return AttentionLoops(self.ranges, [found[i] for i in range(len(sizes))], self.inner)

    def _rows(self, rows: list[int]) -> dict[int, ir.AffineExpr] | None:
        """Map the one or two loops that values do not have: queries, and query heads outside of
        them. None where there are query heads already, or their number is dynamic."""
        sizes = loop_ranges(self.op)
        order = list(map(dim_of, indexing_maps(self.op)[self.weights].results))
        rows.sort(key=lambda loop: (sizes[loop] is None, order.index(loop)))
        self.ranges[T] = sizes[rows[-1]] if rows else 1
        if len(rows) < 2:
            return {row: self._queries(row) for row in rows}
        if self.ranges[G] != 1 or sizes[rows[0]] is None:
            return None
        self.ranges[G] = sizes[rows[0]]
        return {rows[0]: index_of(G), rows[1]: index_of(T)}

    def _divide(self, count: int, over: int, *, dynamic: bool) -> None:
        """Divide the batch into sequences (N), key/value heads (V) and query heads of each (G).

        `count`: the size of the batch; if it is `dynamic`, the product of its static sizes. `over`:
        the loop of keys. Key/value heads are the last dimension of the values that is neither keys
        nor elements, in the tensor from which values are copied if `traced`.
        """
        op, maps = self.op, indexing_maps(self.op)
        weights = set(loops_of(maps[self.weights].results)) - {over}
        value, at = op.operands[self.values], list(maps[self.values].results)
        shape, loops = shape_of(value), [set(loops_of([index])) for index in at]
        read = at
        while self.traced and not isinstance(value, ir.BlockArgument):
            step = moved(value.owner, at, loop_ranges(op))
            if step is None:
                break
            value, at = step
            found = [set(loops_of([index])) for index in at]
            # A shape that mixes heads with elements, as [N, S, V * M], is passed over.
            if all(len(own) < 2 or own <= weights for own in found):
                shape, loops, read = shape_of(value), found, at
        batch = [i for i, own in enumerate(loops) if own <= weights]
        self.ranges[N], self.ranges[V], self.ranges[G] = count, 1, 1
        if dynamic:
            self.ranges[N], self.ranges[V] = None, count
            # Numbers of the batch with one index along the dynamic dimension are one sequence: 32
            # heads if that index is `.. floordiv 32`.
            count *= math.prod(_divisor(read[i]) for i in batch if shape[i] < 0)
            batch = [i for i in batch if shape[i] >= 0]
        pairs = math.prod(shape[axis] for axis in batch)
        if count % pairs == 0 and (batch or dynamic):
            heads = pairs if dynamic else shape[batch[-1]]
            self.ranges[V], self.ranges[G] = heads, count // pairs
            if not dynamic:
                self.ranges[N] = pairs // heads
            self.inner = bool(batch) and any(over in own for own in loops[: batch[-1]])

    def _queries(self, row: int) -> ir.AffineExpr:
        """The index of the loop `row`: queries; or query heads and the queries of each, if the loop
        is collapsed from both dimensions and `grouped`."""
        value, at = self.op.operands[self.weights], indexing_maps(self.op)[self.weights].results
        made = None if isinstance(value, ir.BlockArgument) else value.owner.operation
        rows = self.ranges[T]
        if not self.grouped or rows is None or made is None or made.name != _COLLAPSE:
            return index_of(T)
        group = ir.ArrayAttr(made.attributes["reassociation"])[list(map(dim_of, at)).index(row)]
        sizes = [shape_of(made.operands[0])[ir.IntegerAttr(axis).value] for axis in group]
        if len(sizes) == 2 and self.ranges[G] == 1:
            self.ranges[G], self.ranges[T] = sizes
        return number_of([G, T], self.ranges)


def _divisor(index: ir.AffineExpr) -> int:
    """The divisor c of an index `.. floordiv c`; 1 for other indices."""
    if isinstance(index, ir.AffineFloorDivExpr):
        by = index.rhs.maybe_downcast()
        return int(by.value) if isinstance(by, ir.AffineConstantExpr) else 1
    return 1
