"""mxc-set-gpu-schedule: set tiles of contractions without a scaled matrix instruction from IREE.

A weight-only contraction, one of mixed formats, or one with few rows gets no matrix instruction
from IREE. Its default tiles then promote whole rows of decoded weights to shared memory, which do
not fit at real sizes, and use scratch memory. This pass gives each lane one column and some rows:
the lane decodes a block of its row of weights in registers, once for all these rows.

One row of f32 times bf16 or f16 weights also gets a schedule, because IREE's own gives wrong
numbers, and so does one row of 16-bit elements where IREE's own spills (rewriting/row_products.py).
So do two to eight rows of 16-bit elements where IREE crashes while choosing a schedule
(rewriting/few_rows.py).

before:
    linalg.generic {..} ins(%x, %w, %s) outs(%zero) { scaling_extf, mulf, addf }
after:
    linalg.generic {.., compilation_info = #iree_codegen.compilation_info<
        lowering_config = #iree_gpu.lowering_config<{reduction = [0, 0, 0, 1, 32],
          thread = [1, 8, 1, 0, 0], workgroup = [1, 8, 64, 0, 0]}>,
        translation_info = <pipeline = #iree_gpu.pipeline<TileAndFuse>
          workgroup_size = [64, 1, 1] subgroup_size = 64>>}

Leaves alone: operations that have a `compilation_info`; contractions of mxfp4 on both sides, in
blocks of 32 or more, with at least `matrix-rows` rows, for which IREE selects the scaled matrix
instruction itself. IREE would select it for 8-bit elements too, but with the scales of other rows
(tests/simulator shows it): these are decoded here, and the report says so. Refuses 6-bit elements,
which IREE cannot load on any target, and without `f8` 8-bit elements, except FNUZ elements, whose
conversions mxc-expand-fnuz replaces by integers.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.passes.base import Pass
from mxc.passes.rewriting.few_rows import schedule_few_rows
from mxc.passes.rewriting.rebuild import linalg_operations
from mxc.passes.rewriting.row_products import schedule_row_product
from mxc.passes.set_cpu_schedule import ATTRIBUTE, refuse_elements

#: Elements per scale of the scaled matrix instruction. IREE selects the instruction for shorter
#: blocks too, and fails.
BLOCK = 32
#: Why 8-bit elements are computed without a matrix instruction.
WRONG_SCALES = Reason(
    "IREE 3.13 gives the scaled matrix instruction the scales of other rows where elements have 8 "
    "bits; they are decoded in registers"
)


@dataclass(frozen=True)
class SetGpuSchedule(Pass):
    """Write tile sizes for GPUs on each scaled contraction without a matrix instruction, and on
    products of few rows.

    `rows`: rows that a lane accumulates. `subgroup`: lanes of a wave, and of a workgroup.
    `matrix_rows`: the smallest M for which IREE selects the scaled matrix instruction, 0 where it
    never does. `f8`: whether IREE can extend 8-bit elements on the target.
    """

    name = "mxc-set-gpu-schedule"
    rows: int = 8
    subgroup: int = 64
    matrix_rows: int = 0
    f8: bool = True

    def run(self, module: ir.Operation) -> None:
        """Set the schedule of every scaled contraction that needs one."""
        for op in linalg_operations(module):
            refuse_elements(op, f8=self.f8)
            if schedule_row_product(op, self.subgroup) or schedule_few_rows(op, self.subgroup):
                continue
            found = match_scaled_contraction(op)
            if isinstance(found, Reason) or ATTRIBUTE in op.attributes:
                continue
            if self._has_instruction(found):
                if not isinstance(found.lhs_type, ir.Float4E2M1FNType):
                    write_reason(op, WRONG_SCALES)
                elif found.block % BLOCK == 0:
                    continue
            op.attributes[ATTRIBUTE] = self._schedule(found)

    def _has_instruction(self, found: ScaledContraction) -> bool:
        both = found.lhs_scale is not None and found.rhs_scale is not None
        same = both and found.lhs_type == found.rhs_type
        return same and 0 < self.matrix_rows <= found.m

    def _schedule(self, found: ScaledContraction) -> ir.Attribute:
        batch = len(found.batch)
        rows = self.rows if found.m < 0 else min(self.rows, found.m)
        lane = [1] * batch + [rows, 1, 0, 0]
        group = [1] * batch + [rows, self.subgroup, 0, 0]
        reduction = [0] * (batch + 2) + [1, found.block]
        return ir.Attribute.parse(
            "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{"
            f"reduction = {reduction}, thread = {lane}, workgroup = {group}}}>, "
            "translation_info = #iree_codegen.translation_info<"
            "pipeline = #iree_gpu.pipeline<TileAndFuse> "
            f"workgroup_size = [{self.subgroup}, 1, 1] subgroup_size = {self.subgroup}>>"
        )
