"""mxc-merge-loops: merge loops that always index operands together.

A weight with scales for squares of 128 x 128 elements is written [N / 128, 128, ..]. After
mxc-float-scales each row has its own scale, so the two row loops are not needed, and the canonical
form has one. No data moves. Two reductions are merged only if one has a single iteration: a vector
[1, K] that was reshaped to [K] leaves such a loop.

before:
    linalg.generic {indexing_maps = [(m, no, nb, k) -> (m, k), (m, no, nb, k) -> (no, nb, k),
                    (m, no, nb, k) -> (m, no, nb)]} ins(%x, %w) outs(%acc)
after:
    %w2 = tensor.collapse_shape %w [[0, 1], [2]]
    %acc2 = tensor.collapse_shape %acc [[0], [1, 2]]
    %r = linalg.generic {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (n, k),
                         (m, n, k) -> (m, n)]} ins(%x, %w2) outs(%acc2)
    tensor.expand_shape %r [[0], [1, 2]]

Leaves alone: operations that sum no elements of 8 bits or fewer or whose body reads the number of
an iteration, loops of dynamic size, and loops that some operand has in another order, or of which
it has only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import iterators
from mxc.dialects.indexing import dims, indexing_maps, loop_ranges
from mxc.passes.base import Pass
from mxc.passes.rewriting.merged_loops import with_loops
from mxc.passes.rewriting.rebuild import (
    reads_index,
    sums_of_elements,
    sweep,
)
from mxc.passes.rewriting.split_loops import is_plain


@dataclass(frozen=True)
class MergeLoops(Pass):
    """Merge loops that always index operands together."""

    name = "mxc-merge-loops"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every contraction of elements with such loops."""
        for op in sums_of_elements(module):
            plain = all(is_plain(affine) for affine in indexing_maps(op))
            if op.name == "linalg.generic" and plain and not reads_index(op):
                groups = _groups(op)
                if any(len(group) > 1 for group in groups):
                    with_loops(op, groups)
        sweep(module)


def _groups(op: ir.Operation) -> list[list[int]]:
    """All loops in groups to be merged, in the order of the first loop of each group."""
    kinds, ranges = iterators(op), loop_ranges(op)
    reads = [dims(affine) for affine in indexing_maps(op)]
    groups: list[list[int]] = []
    for loop in range(len(kinds)):
        last = next((g for g in groups if _follows(loop, g[-1], reads)), None)
        static = ranges[loop] is not None and last is not None and ranges[last[-1]] is not None
        if last is not None and static and _may_merge(last[-1], loop, kinds, ranges):
            last.append(loop)
        else:
            groups.append([loop])
    return groups


def _may_merge(
    before: int, loop: int, kinds: Sequence[ir.Attribute], ranges: Sequence[int | None]
) -> bool:
    """Whether both loops are parallel, or both are reductions and one has a single iteration."""
    if kinds[before] != kinds[loop]:
        return False
    return "parallel" in str(kinds[loop]) or 1 in (ranges[before], ranges[loop])


def _follows(loop: int, before: int, reads: Sequence[Sequence[int | None]]) -> bool:
    """Whether every operand indexed by one of two loops is indexed by both, consecutively."""
    for places in reads:
        if (loop in places) != (before in places):
            return False
        if loop in places and places.index(loop) != places.index(before) + 1:
            return False
    return True
