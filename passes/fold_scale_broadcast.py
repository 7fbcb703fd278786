"""mxc-fold-scale-broadcast: read block scales through the indexing map.

A frontend that has no block dimension copies each scale to every element of its block. The copy
costs as much memory as the elements. This pass lets the reader of the copy read the scale itself.
The copy may be a linalg.broadcast or a generic, and reshapes may lie before and behind it.

before:
    %big = linalg.broadcast ins(%s : tensor<NxKOxf8E8M0FNU>) outs(..) dimensions = [2]
    linalg.generic {indexing_maps = [.., (n, ko, kb) -> (n, ko, kb), ..]} ins(.., %big ..)
after:
    linalg.generic {indexing_maps = [.., (n, ko, kb) -> (n, ko), ..]} ins(.., %s ..)

Leaves alone: a broadcast of anything but a float of 8 bits or less, and one whose reader is no
linalg operation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.indexing import indexing_maps, loop_ranges, trace
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import Read, linalg_operations, rebuild, sweep


@dataclass(frozen=True)
class FoldScaleBroadcast(Pass):
    """Read block scales through the indexing map instead of from a broadcast copy."""

    name = "mxc-fold-scale-broadcast"

    def run(self, module: ir.Operation) -> None:
        """Fold in every linalg operation, readers first, so that a folded copy is dead."""
        for op in reversed(linalg_operations(module)):
            if op.name != "linalg.generic":
                continue
            reads = [
                Read(value, affine)
                for value, affine in zip(op.operands, indexing_maps(op), strict=True)
            ][:-1]
            folded = [_fold(op, read) for read in reads]
            if folded != reads:
                rebuild(op, folded)
        sweep(module)


def _fold(op: ir.Operation, read: Read) -> Read:
    if not isinstance(read.value.type, ir.RankedTensorType):
        return read
    element = read.value.type.element_type
    if not isinstance(element, ir.FloatType) or element.width > 8:
        return read
    source, indices = trace(read.value, list(read.map.results), loop_ranges(op))
    if _elements(source) >= _elements(read.value):
        return read
    return Read(source, ir.AffineMap.get(read.map.n_dims, 0, indices))


def _elements(value: ir.Value) -> int:
    """Product of the static sizes: copies keep the dynamic ones."""
    return math.prod(size for size in value.type.shape if size >= 0)
