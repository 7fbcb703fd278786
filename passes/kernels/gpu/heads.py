"""Results of a product that are queries, keys and values: rotated, and kept in pages.

The two elements of a rotary pair are half a head apart. So a kernel computes the columns in halves,
as for a gate, and a lane has both elements of its pairs:

    column c of the result    heads of D elements; pair c % (D / 2) of head c / (D / 2)
    its columns of rhs        c / (D / 2) * D + c % (D / 2), and D / 2 more

Heads are those of queries, then of keys, then of values, which are not rotated. What is rotated and
stored is the same as in the kernel of rows (rotary_writes.py), to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir

from mxc.dialects.rotary_writes import RotaryWrite, rotary_write_of
from mxc.dialects.slices import columns_in
from mxc.passes.kernels.gpu.fragments import BLOCK, QUAD
from mxc.passes.kernels.rotary_writes import RotaryKernel, RotaryRow
from mxc.passes.kernels.vectors import below, choose, equal, when


def heads_of(value: ir.Value, wave: int) -> tuple[RotaryWrite, RotaryKernel] | None:
    """The only reader of a result [T, N], if it is a rotary embedding of heads that a kernel of the
    product can have, and what it computes; else None. `wave`: lanes of one."""
    readers = {use.owner.operation for part in _slices(value) for use in part.uses}
    write = rotary_write_of(readers.pop()) if len(readers) == 1 else None
    if write is None:
        return None
    kernel = RotaryKernel.of(write, QUAD, wave)
    if not isinstance(kernel, RotaryKernel) or write.format is not None:
        return None
    rotation, counts = kernel.rotation, (kernel.queries, kernel.heads, kernel.heads)
    firsts = [sum(counts[:part]) * rotation.depth for part in range(len(counts))]
    parts = [columns_in(each) for each in (write.queries, write.keys, write.values)]
    whole = sum(counts) * rotation.depth == ir.RankedTensorType(value.type).shape[-1]
    apart = 2 * rotation.distance == 2 * rotation.pairs == rotation.depth
    if parts != [(value, first) for first in firsts] or not whole or not apart:
        return None
    # Halves of a head are whole tiles of each instruction.
    return None if rotation.distance % BLOCK else (write, kernel)


def _slices(value: ir.Value) -> list[ir.Value]:
    """The slices that are read of a tensor; empty if it has another reader."""
    readers = [use.owner.operation for use in value.uses]
    if any(each.name != "tensor.extract_slice" for each in readers):
        return []
    return [each.results[0] for each in readers]


class HeadQuad:
    """Four columns of a row of the result, from `column` on. `buffers`: what `kernel` has beside
    the rows, and makes."""

    def __init__(
        self, kernel: RotaryKernel, buffers: Sequence[ir.Value], row: ir.Value, column: ir.Value
    ) -> None:
        """At the insertion point."""
        self._kernel, half = kernel, kernel.rotation.distance
        self._head, self._pair = column // half, column % half
        self._row = RotaryRow(kernel, buffers, row)
        # Loaded for values too, beside what the epilogue loads, which is waited for once.
        self._angles = self._row.angles(self._pair, QUAD)

    def store(self, pair: Sequence[ir.Value]) -> None:
        """Store the first and the second elements of pairs, f32 [4] each."""
        kernel, head = self._kernel, self._head
        queries, heads = kernel.queries, kernel.heads

        def rotated() -> tuple[ir.Value, ir.Value]:
            return kernel.rotation.of_pairs(pair, self._angles)

        turned = choose(below(head, queries + heads), rotated, pair)
        halves = [self._pair, self._pair + kernel.rotation.distance]
        is_query = below(head, queries)
        with when(is_query):
            for element, value in zip(halves, turned, strict=True):
                self._row.store_query(head, element, value)
            with when(equal(self._pair, 0)):
                self._row.zero(head)
        for part in range(2):
            own = head - (queries + part * heads)
            # Unsigned: a head before the first of these is none of them.
            with when(below(own, heads)):
                for element, value in zip(halves, turned, strict=True):
                    self._row.store_in_page(part, own, element, value)
