"""mxc-lower-grouping-to-gpu-kernels: rows are sorted by expert in one kernel.

IREE compiles the reference to a kernel for each of its sums, two of which go over all pairs for
each pair or slot. Here one workgroup does all (passes/kernels/gpu/grouping.py).

before:
    %owner, %pairs, %slots = util.call @mxc.group_by_expert(%chosen, %groups, %rows)
after:
    stream.executable private @mxc_groups_of_16_D_of_32 { .. }
    %owner, %pairs, %slots = flow.dispatch @mxc_groups_of_16_D_of_32(%chosen, %P, %G)

Leaves alone: more than 1024 experts.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects import named_operations
from mxc.dialects.expert_groups import grouping_calls
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import size_of, value_of
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.gpu.grouping import Grouping
from mxc.passes.rewriting.rebuild import sweep
from mxc.passes.rewriting.worklist import replace_op
from mxc.targets.amd import known_gpu


@dataclass(frozen=True)
class LowerGroupingToGpuKernels(Pass):
    """Give the sorting of rows by expert to kernels for the waves of `target`."""

    name = "mxc-lower-grouping-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every call. PassError for an unknown target."""
        wave, calls = known_gpu(self.target).matrix.lanes, Calls(module)
        for call in grouping_calls(module):
            kernel = Grouping.of(call.experts, call.rows, wave)
            if isinstance(kernel, Reason):
                write_reason(call.op, kernel)
                continue
            chosen, groups, _ = call.op.operands
            with ir.InsertionPoint(call.op), call.op.location:
                scalars = [value_of(size_of(each, 0)) for each in (chosen, groups)]
                made = calls.dispatch(kernel.name, kernel, [chosen], scalars, kernel.threads)
            replace_op(call.op, made.results)
        sweep(module)
        named_operations.erase_unused(module)
