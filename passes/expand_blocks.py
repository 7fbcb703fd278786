"""mxc-expand-blocks: give each block of a reduction its own loop.

A contraction over rank-2 operands finds its scale by a division. Each loop that is divided becomes
two loops, over blocks and within a block, and operands that were indexed by the whole loop are
reshaped. No data moves.

before:
    linalg.generic {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (n, k),
                    (m, n, k) -> (n, k floordiv 32), (m, n, k) -> (m, n)]}
      ins(%x : tensor<MxKxf32>, %w : tensor<NxKxf4E2M1FN>, %s : tensor<NxKOxf8E8M0FNU>)
after:
    %x4 = tensor.expand_shape %x [[0], [1, 2]] : tensor<MxKxf32> into tensor<MxKOx32xf32>
    %w4 = tensor.expand_shape %w [[0], [1, 2]]
    linalg.generic {indexing_maps = [(m, n, ko, kb) -> (m, ko, kb), (m, n, ko, kb) -> (n, ko, kb),
                    (m, n, ko, kb) -> (n, ko), (m, n, ko, kb) -> (m, n)]} ins(%x4, %w4, %s)

Scales for 32 elements of one side and for 16 of the other split one loop into three.

Leaves alone: operations that read no elements of a block format, and integers without scales.
Refuses a loop that is not a whole number of blocks, is dynamic, or is divided by two sizes of which
neither is a multiple of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import is_element
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.product import read_product
from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import OperandRead, linalg_operations, rebuild, sweep
from mxc.passes.rewriting.split_loops import is_plain


@dataclass(frozen=True)
class ExpandBlocks(Pass):
    """Split the loops that are divided by a block size, and reshape the operands to match."""

    name = "mxc-expand-blocks"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every generic that reads elements through an index that is not a single loop."""
        for op in linalg_operations(module):
            tensors = [v for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
            if op.name != "linalg.generic":
                continue
            elements = any(is_element(value.type.element_type) for value in tensors)
            if not elements and not _sums_integers(op):
                continue
            maps = indexing_maps(op)
            if not all(is_plain(affine) for affine in maps):
                reads = [OperandRead(v, a) for v, a in zip(op.operands, maps, strict=True)]
                rebuild(op, reads[:-1], split=True)
        sweep(module)


def _sums_integers(op: ir.Operation) -> bool:
    """Whether the operation is a sum of products, with a side of integers that have scales."""
    found = read_product(op)
    return not isinstance(found, Reason) and any(side.scale is not None for side in found)
