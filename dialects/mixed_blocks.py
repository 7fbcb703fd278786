"""Split two scaled operands with different block sizes, such as mxfp8 by nvfp4, to the finer
blocks.

    lhs [M, K / 32, 32], scales [M, K / 32]    ->    [M, K / 32, 2, 16], scales as they are
    rhs [N, K / 16, 16], scales [N, K / 16]    ->    [N, K / 32, 2, 16], scales [N, K / 32, 2]
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.sizes import split_dimension


def in_common_blocks(
    lhs: ir.Value, lhs_scale: ir.Value, rhs: ir.Value, rhs_scale: ir.Value
) -> tuple[tuple[int, int], ir.Value, ir.Value, ir.Value, ir.Value]:
    """Reshape scaled operands [.., KO, KB], where one KB is a multiple of the other, to [.., KO,
    KI, KB].

    The first result has a 1 for the side with the finer scales, [.., KO, KI]. Where the block sizes
    are equal, or not multiples, both are 0 and nothing is changed.
    """
    first, second = (int(ir.RankedTensorType(side.type).shape[-1]) for side in (lhs, rhs))
    if first == second or min(first, second) < 1 or max(first, second) % min(first, second):
        return (0, 0), lhs, lhs_scale, rhs, rhs_scale
    ratio = max(first, second) // min(first, second)
    if first > second:
        fine = split_dimension(rhs, -2, ratio), split_dimension(rhs_scale, -1, ratio)
        return (0, 1), split_dimension(lhs, -1, second), lhs_scale, *fine
    fine = split_dimension(lhs, -2, ratio), split_dimension(lhs_scale, -1, ratio)
    return (1, 0), *fine, split_dimension(rhs, -1, first), rhs_scale
