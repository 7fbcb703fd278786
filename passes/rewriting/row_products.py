"""One row times a matrix of bf16 or f16 weights on a GPU: a schedule that gives right results.

IREE 3.13 gives a lane several elements of a row of weights. If the other operand is wider (f32), it
adds up the rows of a workgroup and stores one of them. With one element per lane, each row has its
own sum. IREE drops schedules where it drops unit loops, so unit loops are dropped here first.

If the other operand has the type of the weights, the sums are right. But IREE takes 64 rows of
weights per workgroup where there are few rows, and the depth is not a power of two times the
elements that the lanes take at once. The sums then do not fit in registers (1024 x 5120: 1.4 KB of
scratch). Here a workgroup takes as many rows as IREE takes for other sizes.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.dequantize import iterators
from mxc.dialects.indexing import dims, indexing_maps, loop_ranges
from mxc.passes.rewriting.merged_loops import with_loops
from mxc.passes.rewriting.rebuild import reads_index

ATTRIBUTE = "compilation_info"
#: Most rows of weights per workgroup, as in IREE's schedule.
_ROWS = 8
#: Elements that a lane takes at once where both operands have one type.
_AT_ONCE = 8
#: Most rows of weights for which IREE takes 64 per workgroup.
_FEW = 4096
_NARROW = ("bf16", "f16")


def schedule_row_product(op: ir.Operation, subgroup: int) -> bool:
    """Rebuild `op` as a product of a vector and a matrix, with a schedule. Return whether it was
    done. `subgroup`: lanes of a wave of the target.

    Returns False, and changes nothing, for other operations, and for sizes for which IREE's own
    schedule gives a lane one element or needs no scratch.
    """
    loops = _loops(op)
    if loops is None:
        return False
    n, k = loops
    ranges = loop_ranges(op)
    columns, depth = ranges[n] or 0, ranges[k] or 0
    wide = any(_element(value) == "f32" for value in op.operands[:2])
    if columns < 2 or depth % (2 * subgroup) or not (wide or _spills(columns, depth, subgroup)):
        return False
    schedule = _schedule(columns, subgroup, 1 if wide else _AT_ONCE)
    with_loops(op, [[loop] for loop in loops]).attributes[ATTRIBUTE] = schedule
    return True


def _loops(op: ir.Operation) -> tuple[int, int] | None:
    """The loops n and k of f32 or narrow [.. k] times narrow [.. n, k], if all others have one
    iteration; else None."""
    if op.name != "linalg.generic" or ATTRIBUTE in op.attributes or len(op.operands) != 3:
        return None
    if reads_index(op):
        return None
    ranges, maps = loop_ranges(op), [dims(affine) for affine in indexing_maps(op)]
    if any(loop is None for read in maps for loop in read):
        return None
    real = [[loop for loop in read if ranges[loop or 0] != 1] for read in maps]
    wide, narrow = (0, 1) if len(real[0]) < len(real[1]) else (1, 0)
    if [len(read) for read in (real[wide], real[narrow], real[2])] != [1, 2, 1]:
        return None
    (k,), (n,) = real[wide], real[2]
    kinds = [str(kind) for kind in iterators(op)]
    others = [loop for loop in range(len(ranges)) if ranges[loop] != 1]
    if n is None or k is None or real[narrow] != [n, k] or sorted(others) != sorted({n, k}):
        return None
    if "reduction" not in kinds[k] or "reduction" in kinds[n]:
        return None
    types = [_element(value) for value in op.operands]
    known = types[narrow] in _NARROW and types[wide] in ("f32", types[narrow])
    return (n, k) if known and types[2] == "f32" else None


def _element(value: ir.Value) -> str:
    return str(ir.RankedTensorType(value.type).element_type)


def _spills(columns: int, depth: int, subgroup: int) -> bool:
    """Whether IREE's own schedule needs scratch memory where both operands have one type."""
    steps, rest = divmod(depth, _AT_ONCE * subgroup)
    return columns <= _FEW and columns % _ROWS == 0 and not rest and bool(steps & (steps - 1))


def _schedule(columns: int, subgroup: int, lane: int) -> ir.Attribute:
    rows = next(rows for rows in (_ROWS, 4, 2, 1) if columns % rows == 0)
    return ir.Attribute.parse(
        "#iree_codegen.compilation_info<lowering_config = #iree_gpu.lowering_config<{"
        f"lane_basis = [[1, {subgroup}], [0, 1]], partial_reduction = [0, {lane * subgroup}], "
        f"subgroup_basis = [[1, 1], [0, 1]], thread = [0, {lane}], workgroup = [{rows}, 0]}}>, "
        "translation_info = #iree_codegen.translation_info<"
        "pipeline = #iree_gpu.pipeline<VectorDistribute> "
        f"workgroup_size = [{subgroup}, 1, 1] subgroup_size = {subgroup}>>"
    )
