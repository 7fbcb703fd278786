"""What the kernel of a product computes after the product: an epilogue, and a quantization or a
rotary write of its result."""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.generic import shape_of
from mxc.dialects.quantizations import Quantization
from mxc.dialects.rotary_writes import RotaryWrite
from mxc.passes.kernels.epilogues import Epilogue, epilogue
from mxc.passes.kernels.gpu.calls import GpuContractionCall
from mxc.passes.kernels.gpu.fragments import SMALLEST_TILE
from mxc.passes.kernels.gpu.heads import heads_of
from mxc.passes.kernels.quantized import quantized_result
from mxc.passes.kernels.rotary_writes import RotaryKernel
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True)
class Results:
    """The epilogue `after`, then at most one of: `blocks`, a quantization to MX blocks; `write`, a
    rotary embedding of queries and keys with the writing of keys and values, described by the
    kernel `rotary`."""

    after: Epilogue
    blocks: Quantization | None = None
    write: RotaryWrite | None = None
    rotary: RotaryKernel | None = None

    @staticmethod
    def of(call: GpuContractionCall, unit: MatrixUnit) -> Results:
        """Return what the kernel of a call computes with the instructions of `unit`."""
        after = epilogue(call.op, SMALLEST_TILE, keeps=True)
        value = after.last(call.op).results[0]
        if after.stores != "f32" or after.kept is not None:
            return Results(after)
        blocks = quantized_result(value) if unit.converts else None
        if blocks is not None or after.gated or not _is_one_product(call, value):
            return Results(after, blocks)
        return Results(after, None, *(heads_of(value, unit.lanes) or ()))

    def last(self, op: ir.Operation) -> ir.Operation:
        """The last operation that the kernel of the contraction `op` computes, not counting a
        quantization."""
        return self.after.last(op) if self.write is None else self.write.op

    @property
    def in_blocks(self) -> bool:
        """Whether all columns of a block of 32 are stored together, because they become MX
        blocks."""
        return self.blocks is not None or (self.rotary is not None and self.rotary.in_blocks)

    @property
    def halves(self) -> int:
        """2 if the columns of rhs are computed in two halves, for a gate or rotary pairs; else
        1."""
        return 2 if self.after.gated or self.rotary is not None else 1


def _is_one_product(call: GpuContractionCall, value: ir.Value) -> bool:
    """Whether the result is [rows, columns] without experts, and one buffer reaches the weights."""
    size = call.of.n * call.of.k * call.right.bits // 8
    return len(shape_of(value)) == 2 and not call.of.experts and size < BEYOND
