"""mxc-set-cpu-schedule: set the tile sizes of scaled contractions.

IREE chooses tile sizes only for a contraction alone. With gathers or an epilogue in the same
dispatch it chooses none for the block loops, and then refuses its own vectors ("large vector
sizes"). This pass writes the schedule on the operation: the tile of a workgroup, the register tile,
and the step of the reduction. One block of one row of weights is decoded at a time, in registers.

before:
    linalg.generic {..} ins(%x, %w, %s) outs(%zero) { scaling_extf, mulf, addf }
after:
    linalg.generic {.., compilation_info = #iree_codegen.compilation_info<
        lowering_config = #iree_cpu.lowering_config<distribution = [1, 16, 64, 0, 0],
          vector_common_parallel = [1, 8, 4, 0, 0], vector_reduction = [0, 0, 0, 1, 32]>,
        translation_info = <pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>}

Leaves alone: operations that have a `compilation_info` already. Refuses 6-bit elements: with no
tile size can IREE load a vector of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.kernel_calls import read_reasons
from mxc.dialects.locations import place_of
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import ScaledContraction, match_scaled_contraction
from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import linalg_operations

ATTRIBUTE = "compilation_info"


@dataclass(frozen=True)
class SetCpuSchedule(Pass):
    """Write tile sizes for llvm-cpu on each scaled contraction.

    `rows` x `columns` is the tile of a workgroup, `register_rows` x `register_columns` that of the
    inner loop; each is clamped to the size of its loop.
    """

    name = "mxc-set-cpu-schedule"
    rows: int = 16
    columns: int = 64
    register_rows: int = 8
    register_columns: int = 4

    def run(self, module: ir.Operation) -> None:
        """Set the schedule of every scaled contraction that has none."""
        for op in linalg_operations(module):
            refuse_elements(op)
            if ATTRIBUTE in op.attributes:
                continue
            found = match_scaled_contraction(op)
            if not isinstance(found, Reason):
                op.attributes[ATTRIBUTE] = self._schedule(found)

    def _schedule(self, found: ScaledContraction) -> ir.Attribute:
        batch = len(found.batch)

        def cut(wanted: int, size: int) -> int:
            return wanted if size < 0 else min(wanted, size)

        def tile(rows: int, columns: int) -> list[int]:
            return [1] * batch + [cut(rows, found.m), cut(columns, found.n), 0, 0]

        return _tiles(
            tile(self.rows, self.columns),
            tile(self.register_rows, self.register_columns),
            [0] * (batch + 2) + [1, found.block],
        )


def _tiles(workgroup: list[int], register: list[int], reduction: list[int]) -> ir.Attribute:
    return ir.Attribute.parse(
        "#iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<"
        f"distribution = {workgroup}, vector_common_parallel = {register}, "
        f"vector_reduction = {reduction}>, translation_info = "
        "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
    )


def refuse_elements(op: ir.Operation, *, f8: bool = True) -> None:
    """Raise PassError where `op` reads elements that IREE cannot load or extend.

    6-bit elements are refused everywhere, 8-bit elements on some GPUs (`f8` false). FNUZ types are
    not refused: mxc-expand-fnuz replaces their conversions by integer arithmetic.
    """
    for value in op.operands:
        if not isinstance(value.type, ir.RankedTensorType):
            continue
        element = value.type.element_type
        if not isinstance(element, ir.FloatType) or isinstance(element, ir.Float8E8M0FNUType):
            continue
        if str(element).endswith("FNUZ"):
            continue
        if not f8 and element.width == 8:
            raise _refused(
                op, value, "IREE cannot extend elements of 8 bits on this GPU", "mxfp4, or gfx950"
            )
        if element.width == 6:
            raise _refused(
                op,
                value,
                "no code generator can load elements of 6 bits yet",
                "a format of 4 or 8 bits",
            )


def _refused(op: ir.Operation, value: ir.Value, why: str, instead: str) -> PassError:
    reasons = read_reasons(op.location)
    ours = f"no kernel of mxc takes it ({reasons[0]}), and " if reasons else ""
    return PassError(f"reads {value.type}: {ours}{why}; use {instead}", place_of(op.location))
