"""mxc-lower-recurrences-to-cpu-kernels: recurrences become kernels that update their pool.

The rows of a run are gone over in their order, with a part of its state in the L1 cache or in
registers (passes/kernels/cpu/recurrences/). The state is read once from the pool and written once,
where it lies; nothing else of the size of the pool is in memory. A workgroup is a run and some
columns of a state, which do not depend on each other.

before:
    %y, %after = util.call @mxc.delta_rule(%q, %k, %v, %decay, %beta, %pool, %layer, %runs, %places)
after:
    stream.executable private @mxc_delta_rule_16x32x128x128_of_36 { .. }
    %y, %after = flow.dispatch @mxc_delta_rule_..(%q, %k, %v, %decay, %beta, %pool, ..) -> .., %pool

Leaves alone: states whose rows are no multiple of `lanes`, or that have no multiple of 8 rows;
convolutions of columns that are no multiple of `lanes`, of one token or more than 8, or with
weights that are not bf16, f16 or f32.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.kernels.cpu.recurrences.convolution import CpuConvolution
from mxc.passes.kernels.cpu.recurrences.delta_rule import CpuDeltaRule
from mxc.passes.kernels.recurrences.calls import Kernel, Shape, lower_recurrences
from mxc.passes.kernels.recurrences.shape import RuleShape


@dataclass(frozen=True)
class LowerRecurrencesToCpuKernels(Pass):
    """Give recurrences to kernels of registers of `lanes` f32: 16 AVX-512, 8 AVX2, 4 NEON."""

    name = "mxc-lower-recurrences-to-cpu-kernels"
    lanes: int = 16

    def run(self, module: ir.Operation) -> None:
        """Lower every call of a recurrence."""
        lower_recurrences(module, self._kernel)

    def _kernel(self, shape: Shape) -> Kernel | Reason:
        if isinstance(shape, RuleShape):
            return CpuDeltaRule.of(shape, self.lanes)
        return CpuConvolution.of(shape, self.lanes)
