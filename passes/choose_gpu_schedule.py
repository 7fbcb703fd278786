"""mxc-choose-gpu-schedule: choose a schedule for each contraction that a kernel computes.

The schedule that is cheapest by a time model (passes/kernels/gpu/cost.py) is written on the
contraction as an attribute, which mxc-lower-to-gpu-kernels reads. `file` names a file with
schedules of the user, which take precedence (passes/kernels/given_schedules.py):

    [{"m": 16, "rhs": "mxfp4",
      "schedule": {"instruction": 16, "tiles": [1, 1], "waves": [1, 1, 4]}}]

Rings may have `splits`: workgroups along K for a tile of the result.

Where the number of rows is known only at the call, there are several schedules. `schedule` in the
file may also be a list, in which all but the last have `below`: the number of rows from which on
the next one is used.

before:
    %y = linalg.generic ins(%x, %w, %p, %s) outs(%zero) { scaling_extf, scaling_extf, mulf, addf }
after:
    %y = linalg.generic .. attrs = {mxc.schedule = {instruction = 32 : i64, k_steps = 2 : i64,
        stages = 4 : i64, tiles = array<i64: 2, 8>, transport = "ring",
        waves = array<i64: 4, 1, 1>}}

Leaves alone: contractions that no kernel computes, and those that have a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.contractions import is_contraction
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.named_operations import is_inside
from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.kernels.given_schedules import GivenSchedules
from mxc.passes.kernels.gpu.calls import GpuContractionCall, match
from mxc.passes.kernels.gpu.choice import TRANSPORTS, choose, choose_by_rows
from mxc.passes.kernels.gpu.problem_of_call import problem_of
from mxc.passes.kernels.gpu.results import Results
from mxc.passes.kernels.gpu.ring.decoded_kernel import DecodedRing
from mxc.passes.kernels.gpu.ring.float_kernel import FloatRing
from mxc.passes.kernels.gpu.ring.summed_kernel import SummedRing
from mxc.passes.kernels.gpu.schedule import (
    ATTRIBUTE,
    Schedules,
    schedules_of,
    write_schedules,
)
from mxc.passes.rewriting.rebuild import linalg_operations
from mxc.targets.amd import known_gpu
from mxc.targets.gpu import Gpu


@dataclass(frozen=True)
class ChooseGpuSchedule(Pass):
    """Write a schedule on each contraction that a GPU kernel computes.

    `file`: schedules of the user, which take precedence over those that the cost model chooses.
    `target`: the GPU, which must have a record (targets/amd/).
    """

    name = "mxc-choose-gpu-schedule"
    file: str = ""
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Choose for every contraction without a schedule. PassError for an unknown target."""
        gpu = known_gpu(self.target)
        given = GivenSchedules(self.file)
        for op in linalg_operations(module):
            if ATTRIBUTE in op.attributes:
                continue
            call = match(op, gpu.matrix)
            if isinstance(call, Reason):
                # Contractions in the body of a named operation get a reason where it is lowered.
                if is_contraction(op) and not is_inside(op):
                    write_reason(op, call)
                continue
            entry = given.take(call.of)
            if entry is not None:
                schedule = entry["schedule"]
                several = schedule if isinstance(schedule, list) else [schedule]
                write_schedules(op, schedules_of(several, self.file, gpu.matrix))
            else:
                write_schedules(op, _chosen(call, gpu))
        given.require_taken()


def _chosen(call: GpuContractionCall, gpu: Gpu) -> Schedules:
    """The cheapest schedules that can compute the call together with its epilogue."""
    results, transports = Results.of(call, gpu.matrix), TRANSPORTS
    if call.sums_blocks:
        transports = ("stream",)
        if gpu.matrix.converts and SummedRing.takes(call.left, call.right):
            transports += ("ring",)
        if call.decodes and DecodedRing.run_of(call.left, call.right) is not None:
            transports += ("decoded",)
    elif call.is_dense and results.blocks is not None:
        # The result becomes blocks; a ring has tiles of half a block, which cannot be quantized.
        transports = ("stream",)
    elif call.decodes and not FloatRing.takes(call.left, call.right):
        transports = ("stream", "decoded")
    problem = problem_of(call, results, gpu.matrix)
    if call.of.m is None:
        return choose_by_rows(
            problem,
            chosen_experts=call.ids is not None,
            device=gpu,
            transports=transports,
        )
    return Schedules([choose(problem, device=gpu, transports=transports)])
