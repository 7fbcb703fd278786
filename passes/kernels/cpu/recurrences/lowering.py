"""Lowering of recurrences on CPUs: the kernel for each shape."""

from __future__ import annotations

from mxc.dialects.reasons import Reason
from mxc.passes.kernels.cpu.recurrences.convolution import CpuConvolution
from mxc.passes.kernels.cpu.recurrences.delta_rule import CpuDeltaRule
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.recurrences.calls import (
    Call,
    Kernel,
    Recurrence,
    Shape,
    recurrence_lowering,
)
from mxc.passes.kernels.recurrences.shape import RuleShape


def recurrence_kernels(lanes: int) -> Lowering[Call, Recurrence]:
    """The lowering of recurrences to kernels for registers of `lanes` f32."""

    def kernel(shape: Shape) -> Kernel | Reason:
        if isinstance(shape, RuleShape):
            return CpuDeltaRule.of(shape, lanes)
        return CpuConvolution.of(shape, lanes)

    return recurrence_lowering(kernel)
