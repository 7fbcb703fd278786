"""Recurrences on GPUs: the kernel of each shape."""

from __future__ import annotations

from mxc.dialects.reasons import Reason
from mxc.passes.kernels.gpu.recurrences.convolution import GpuConvolution
from mxc.passes.kernels.gpu.recurrences.delta_rule import GpuDeltaRule
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.recurrences.calls import (
    Call,
    Kernel,
    Recurrence,
    Shape,
    recurrence_lowering,
)
from mxc.passes.kernels.recurrences.shape import RuleShape


def recurrence_kernels(wave: int) -> Lowering[Call, Recurrence]:
    """Recurrences become kernels for waves of so many lanes."""

    def kernel(shape: Shape) -> Kernel | Reason:
        if isinstance(shape, RuleShape):
            return GpuDeltaRule.of(shape, wave)
        return GpuConvolution(shape, wave)

    return recurrence_lowering(kernel)
