"""The counters of products whose workgroups share K: zeros, which each product leaves as zeros.

    %zeros = flow.tensor.splat %zero : tensor<Nxi32>
    %y, %parts, %after = flow.dispatch @product(.., %zeros)     %after in place of %zeros
    flow.dispatch @next(.., %after)

So a block of operations has one fill, and two of its products never count at the same time.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.generic import constant
from mxc.dialects.split_sums import read_split_sums
from mxc.passes.kernels.gpu.ring.split import COUNTERS
from mxc.passes.kernels.vectors import i32


class Counters:
    """The counters of each block of operations."""

    def __init__(self) -> None:
        """Start without any."""
        self._zeros: dict[ir.Block, ir.Value] = {}

    def of(self, block: ir.Block) -> ir.Value:
        """Return the counters for a product of a block: zeros, i32 [N].

        Call `chain` after the last product.
        """
        if block not in self._zeros:
            with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
                kind = ir.RankedTensorType.get([COUNTERS], i32())
                zero = constant(0, i32())
                made = ir.Operation.create("flow.tensor.splat", results=[kind], operands=[zero])
            self._zeros[block] = made.result
        return self._zeros[block]

    def chain(self) -> None:
        """Let each product take the counters that the product before it in the block returns."""
        for block, zeros in self._zeros.items():
            last = zeros
            for op in block.operations:
                for place, operand in enumerate(op.operands):
                    if operand == zeros:
                        op.operation.operands[place] = last
                        split = read_split_sums(op.operation)
                        assert split is not None
                        last = op.results[split.counted]
