"""Two to eight rows times a matrix of 16-bit weights on a GPU: a schedule that compiles.

IREE 3.13 divides by zero and crashes when it chooses a schedule for such products with a depth that
is a multiple of 128, if there are more than four rows or few columns (tests/sentinels). This module
sets the schedule that IREE uses for four rows and many columns: a workgroup sums one column.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.dequantize import iterators
from mxc.dialects.indexing import dims, indexing_maps, loop_ranges

ATTRIBUTE = "compilation_info"
#: Numbers of rows for which IREE crashes; with more rows it uses a matrix instruction.
_ROWS = range(2, 9)
#: The depth whose multiples are affected.
_DEPTH = 128
#: Lanes per wave of the affected targets.
_SUBGROUP = 64
#: Most elements that a lane loads at once.
_AT_ONCE = 8
_NARROW = ("bf16", "f16")


def schedule_few_rows(op: ir.Operation, subgroup: int) -> bool:
    """Set a schedule on `op` and return True if it is a product for which IREE crashes; otherwise
    return False. `subgroup`: lanes of a wave of the target."""
    if (
        subgroup != _SUBGROUP
        or op.name != "linalg.generic"
        or ATTRIBUTE in op.attributes
        or len(op.operands) != 3
    ):
        return False
    kinds = ["reduction" in str(kind) for kind in iterators(op)]
    if kinds != [False, False, True]:
        return False
    rows, _, depth = loop_ranges(op)
    types = [str(ir.RankedTensorType(value.type).element_type) for value in op.operands]
    left, right, out = (dims(affine) for affine in indexing_maps(op))
    if rows not in _ROWS or not depth or depth % _DEPTH:
        return False
    if left != [0, 2] or sorted(map(str, right)) != ["1", "2"] or out != [0, 1]:
        return False
    if types[0] not in _NARROW or types[1] != types[0] or types[2] != "f32":
        return False
    lane = next(n for n in (_AT_ONCE, 4, 2) if depth % (n * subgroup) == 0)
    op.attributes[ATTRIBUTE] = ir.Attribute.parse(
        "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{"
        f"lane_basis = [[1, 1, {subgroup}], [0, 1, 2]], "
        f"partial_reduction = [0, 0, {lane * subgroup}], "
        "subgroup_basis = [[1, 1, 1], [0, 1, 2]], "
        f"thread = [0, 0, {lane}], workgroup = [{rows}, 1, 0]}}>, "
        "translation_info = #iree_codegen.translation_info<"
        "pipeline = #iree_gpu.pipeline<VectorDistribute> "
        f"workgroup_size = [{subgroup}, 1, 1] subgroup_size = {subgroup}>>"
    )
    return True
