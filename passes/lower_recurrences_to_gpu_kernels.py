"""mxc-lower-recurrences-to-gpu-kernels: recurrences become kernels that update their pool.

The rows of a run are gone over in their order, with its state in registers from the first to the
last (passes/kernels/gpu/recurrences/). The state is read once from the pool and written once, where
it lies; nothing else of the size of the pool is in memory. A workgroup is a run and some columns of
a state, which do not depend on each other.

before:
    %y, %after = util.call @mxc.delta_rule(%q, %k, %v, %decay, %beta, %pool, %layer, %runs, %places)
after:
    stream.executable private @mxc_delta_rule_16x32x128x128_of_36 { .. }
    %y, %after = flow.dispatch @mxc_delta_rule_..(%q, %k, %v, %decay, %beta, %pool, ..) -> .., %pool

Leaves alone: states whose rows are no multiple of an eighth of a wave, or that have no multiple of
8 rows, or more than 256; convolutions of one token or more than 8, or with weights that are not
bf16, f16 or f32.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.kernels.gpu.recurrences.convolution import GpuConvolution
from mxc.passes.kernels.gpu.recurrences.delta_rule import GpuDeltaRule
from mxc.passes.kernels.recurrences.calls import Kernel, Shape, lower_recurrences
from mxc.passes.kernels.recurrences.shape import RuleShape
from mxc.targets.amd import known_gpu


@dataclass(frozen=True)
class LowerRecurrencesToGpuKernels(Pass):
    """Give recurrences to kernels for the waves of `target`."""

    name = "mxc-lower-recurrences-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every call of a recurrence. PassError for an unknown target."""
        wave = known_gpu(self.target).matrix.lanes

        def kernel(shape: Shape) -> Kernel | Reason:
            if isinstance(shape, RuleShape):
                return GpuDeltaRule.of(shape, wave)
            return GpuConvolution(shape, wave)

        lower_recurrences(module, kernel)
