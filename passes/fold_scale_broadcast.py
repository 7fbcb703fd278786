"""mxc-fold-scale-broadcast: read block scales through the indexing map.

A frontend without a block dimension copies each scale to every element of its block. The copy takes
as much memory as the elements. This pass lets the reader of the copy read the scale itself. The
copy may be a linalg.broadcast or a generic, with reshapes before and after it.

before:
    %big = linalg.broadcast ins(%s : tensor<NxKOxf8E8M0FNU>) outs(..) dimensions = [2]
    linalg.generic {indexing_maps = [.., (n, ko, kb) -> (n, ko, kb), ..]} ins(.., %big ..)
after:
    linalg.generic {indexing_maps = [.., (n, ko, kb) -> (n, ko), ..]} ins(.., %s ..)

Leaves alone: a broadcast whose reader is not a linalg operation, and a broadcast of other types
than floats of 8 bits or fewer. A wider float is folded only beside elements of such a type, and
only if it is the same for several steps of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import is_element, iterators
from mxc.dialects.indexing import indexing_maps, loop_ranges, trace
from mxc.dialects.scalar_nodes import loops_of
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import OperandRead, linalg_operations, rebuild, sweep


@dataclass(frozen=True)
class FoldScaleBroadcast(Pass):
    """Read block scales through the indexing map instead of from a broadcast copy."""

    name = "mxc-fold-scale-broadcast"

    def run(self, module: ir.Operation) -> None:
        """Fold into every linalg.generic, readers first, so that a folded copy is dead."""
        for op in reversed(linalg_operations(module)):
            if op.name != "linalg.generic":
                continue
            reads = [
                OperandRead(value, affine)
                for value, affine in zip(op.operands, indexing_maps(op), strict=True)
            ][:-1]
            folded = [_fold(op, read) for read in reads]
            if folded != reads:
                rebuild(op, folded)
        sweep(module)


def _fold(op: ir.Operation, read: OperandRead) -> OperandRead:
    """The read of the source of a copy that repeats scales, in place of `read` of the copy; other
    reads as they are."""
    if not isinstance(read.value.type, ir.RankedTensorType):
        return read
    element = read.value.type.element_type
    wide = isinstance(element, ir.FloatType) and element.width > 8
    if not isinstance(element, ir.FloatType) or (wide and not _decodes(op)):
        return read
    source, indices = trace(read.value, list(read.map.results), loop_ranges(op))
    if _elements(source) >= _elements(read.value):
        return read
    if wide and _is_of_each_element(op, source, indices):
        return read
    return OperandRead(source, ir.AffineMap.get(read.map.n_dims, 0, indices))


def _decodes(op: ir.Operation) -> bool:
    """Whether `op` reads elements that a float beside them may scale."""
    return any(is_element(argument.type) for argument in op.regions[0].blocks[0].arguments)


def _is_of_each_element(
    op: ir.Operation, source: ir.Value, indices: Sequence[ir.AffineExpr]
) -> bool:
    """Whether `source` has a different element for each iteration of the sum, unlike scales."""
    summed = {n for n, kind in enumerate(iterators(op)) if "reduction" in str(kind)}
    ranges = loop_ranges(op)
    steps = [ranges[number] for number in summed]
    if not steps:
        return False
    along: list[int] = [
        size
        for size, index in zip(source.type.shape, indices, strict=True)
        if set(loops_of([index])) & summed
    ]
    known = [size for size in steps if size is not None]
    if len(known) < len(steps) or min(along, default=1) < 0:
        return True
    return math.prod(along) >= math.prod(known)


def _elements(value: ir.Value) -> int:
    """The product of the static sizes. Copies keep dynamic sizes, so that these cancel out."""
    return math.prod(size for size in value.type.shape if size >= 0)
