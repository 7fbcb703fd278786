"""mxc-set-row-schedule: set tile sizes of reductions along rows of a number that a call decides.

IREE reduces eight rows at a time, with masks for missing rows. Masked loads and stores of unmapped
memory are slow: the norm of one row of 2880 elements took 170 to 400 us on a Zen 5, that of one of
8192 elements 1.2 ms on a Zen 4. Reducing one row at a time takes 5 and 10 us.

Runs at IREE's flow phase, where the operations of a dispatch are known: an elementwise operation
beside the reduction gets tiles of its own. Without them it takes all of a row as one vector, which
IREE refuses from 32 KiB on.

before:
    %s = linalg.generic ins(%x : tensor<?x2880xf32>) .. ["parallel", "reduction"]
    %y = linalg.generic ins(%x, %s, %w) .. ["parallel", "parallel"]
after:
    %s = linalg.generic .. distribution = [8, 0], vector_common_parallel = [1, 0],
                           vector_reduction = [0, 16]
    %y = linalg.generic .. vector_common_parallel = [1, 0], vector_inner_parallel = [0, 16]

Leaves alone: dispatches without such a reduction, and operations that have a schedule already.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import iterators
from mxc.dialects.dispatches import walk
from mxc.dialects.indexing import indexing_maps, loop_ranges
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import has_reduction
from mxc.passes.set_cpu_schedule import ATTRIBUTE

#: Tile sizes of an operation that is not the root of its dispatch.
_CONFIG = "lowering_config"
_REDUCTION = "#linalg.iterator_type<reduction>"
#: Elements of a row that are loaded at once; instruction sets with shorter registers split them.
_LANES = 16


@dataclass(frozen=True)
class SetRowSchedule(Pass):
    """Reduce one row at a time, `rows` per workgroup."""

    name = "mxc-set-row-schedule"
    rows: int = 8

    def run(self, module: ir.Operation) -> None:
        """Set the schedules of every dispatch that reduces rows."""
        for function in [op for op in walk(module) if op.name == "func.func"]:
            loops = [op for op in walk(function) if op.name == "linalg.generic"]
            reductions = [op for op in loops if _is_reduction_of_rows(op)]
            if any(set(each.attributes) & {ATTRIBUTE, _CONFIG} for each in loops):
                continue
            for op in reductions:
                op.attributes[ATTRIBUTE] = self._reduction(op)
            for op in loops if reductions else ():
                if not has_reduction(op) and len(iterators(op)) > 1:
                    op.attributes[_CONFIG] = _tiles(op, "vector_inner_parallel")

    def _reduction(self, op: ir.Operation) -> ir.Attribute:
        tiles = _tiles(op, "vector_reduction", f"distribution = {[self.rows, *_zeros(op)]}, ")
        return ir.Attribute.parse(
            f"#iree_codegen.compilation_info<lowering_config = {tiles}, translation_info = "
            "#iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<DoubleTilingExpert>>>"
        )


def _zeros(op: ir.Operation) -> list[int]:
    return [0] * (len(iterators(op)) - 1)


def _tiles(op: ir.Operation, along_row: str, distribution: str = "") -> ir.Attribute:
    """The tile sizes for one row at a time. `along_row`: the name under which the tile size along a
    row is given."""
    zeros = _zeros(op)
    one, tile = [1] * len(zeros), min(_LANES, loop_ranges(op)[-1] or _LANES)
    return ir.Attribute.parse(
        f"#iree_cpu.lowering_config<{distribution}vector_common_parallel = {[*one, 0]}, "
        f"{along_row} = {[*zeros, tile]}>"
    )


def _is_reduction_of_rows(op: ir.Operation) -> bool:
    """Whether the operation reduces along its last loop, and only its first loop is dynamic."""
    parallel = [str(each) != _REDUCTION for each in iterators(op)]
    if len(parallel) < 2:
        return False
    rows, *others = loop_ranges(op)
    whole = ir.AffineMap.get_identity(len(parallel))
    return (
        parallel == [True] * (len(parallel) - 1) + [False]
        and rows is None
        and None not in others
        and whole in indexing_maps(op)[:-1]
    )
