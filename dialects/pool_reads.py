"""The part of a pool that a kernel reads: the pages or states of its runs, of one layer.

    flow.dispatch @mxc_attention_..(%queries, %pool, %sinks, %runs, %lists, ..)
        {mxc.pool = {operand = 1, part = 2, of = 48, runs = 3, lists = 4, page = 64, reach = 128,
                     queries = 0, mixed = 64}}

The body of such a kernel does not show which part it reads, and its operand is the whole pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from iree.compiler import ir

from mxc.dialects.samples import Sizes

ATTRIBUTE = "mxc.pool"


@dataclass(frozen=True, kw_only=True)
class PoolRead:
    """`operand`: the pool [items, ..]. The kernel reads `part` of the `of` equal parts of an item.

    `runs`: the operand [S, ..] with the runs. Without `lists`, each run reads one item, its state.
    With `lists` [S, P], the operand with the pages of each run, it reads pages of `page` positions:
    those with the last `reach` positions of each row, or all (0). `page` is 0 where the third size
    of the pool is the page size. Only attention has the other fields. `queries`: the operand [T, V,
    G, D]. `mixed`: elements of a value. `causal`: whether a row attends to no later position.
    `products`: the products of parts of floats that the kernel computes for one multiplication.
    """

    operand: int
    part: int
    of: int
    runs: int
    lists: int = -1
    page: int = 1
    reach: int = 0
    queries: int = -1
    mixed: int = 0
    causal: int = 1
    products: int = 1

    def write(self, op: ir.Operation) -> None:
        """Write this record to a dispatch."""
        i64 = ir.IntegerType.get_signless(64)
        op.attributes[ATTRIBUTE] = ir.DictAttr.get(
            {each.name: ir.IntegerAttr.get(i64, getattr(self, each.name)) for each in fields(self)}
        )

    def bytes(self, op: ir.Operation, sizes: Sizes) -> int | None:
        """Bytes of the pool that the dispatch `op` reads; None where sizes are not known."""
        pool, items = sizes.operand(op, self.operand), self._items(op, sizes)
        if pool is None or items is None:
            return None
        segments = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        kind = ir.RankedTensorType(list(op.operands)[segments[0] + self.operand].type)
        width: int = kind.element_type.width
        return items * math.prod(pool[1:]) * self.part // self.of * width // 8

    def flops(self, op: ir.Operation, sizes: Sizes) -> int | None:
        """Twice the multiplications of attention, over the keys that queries attend to; 0 for other
        kernels, None where sizes are not known."""
        if self.queries < 0:
            return 0
        queries, lists = sizes.operand(op, self.queries), sizes.operand(op, self.lists)
        if queries is None or lists is None:
            return None
        tokens, heads, group, depth = queries
        runs, pages = lists
        rows, positions = tokens // runs, pages * self.page
        if not self.page:
            pool = sizes.operand(op, self.operand)
            if pool is None:
                return None
            positions = pages * pool[2]
        first = positions - rows if self.causal else positions - 1
        last = (max(at, first) for at in range(positions - rows, positions))
        seen = (min(at + 1, self.reach or at + 1) for at in last)
        return 2 * runs * sum(seen) * heads * group * (depth + self.mixed)

    def _items(self, op: ir.Operation, sizes: Sizes) -> int | None:
        runs = sizes.operand(op, self.runs)
        if runs is None or self.lists < 0:
            return None if runs is None else runs[0]
        lists, queries = sizes.operand(op, self.lists), sizes.operand(op, self.queries)
        if lists is None or queries is None:
            return None
        count, pages = lists
        if not self.reach:
            return count * pages
        rows = queries[0] // count
        return count * min(pages, -(-(self.reach + rows - 1) // self.page))


def read_pool(op: ir.Operation) -> PoolRead | None:
    """The record on a dispatch; None where there is none."""
    if ATTRIBUTE not in op.attributes:
        return None
    said = ir.DictAttr(op.attributes[ATTRIBUTE])
    return PoolRead(**{each.name: ir.IntegerAttr(each.attr).value for each in said})
