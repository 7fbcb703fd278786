"""Split two scaled operands with different block sizes, such as mxfp8 by nvfp4, to the finer
blocks.

    lhs [M, K / 32, 32], scales [M, K / 32]    ->    [M, K / 32, 2, 16], scales as they are
    rhs [N, K / 16, 16], scales [N, K / 16]    ->    [N, K / 32, 2, 16], scales [N, K / 32, 2]
"""

from __future__ import annotations

from iree.compiler import ir
from iree.compiler.dialects import tensor

from mxc.dialects.sizes import sizes_of, split


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
        fine = _split(rhs, -2, ratio), _split(rhs_scale, -1, ratio)
        return (0, 1), _split(lhs, -1, second), lhs_scale, *fine
    fine = _split(lhs, -2, ratio), _split(lhs_scale, -1, ratio)
    return (1, 0), *fine, _split(rhs, -1, first), rhs_scale


def _split(value: ir.Value, axis: int, size: int) -> ir.Value:
    """Split a dimension, counted from the end, into two, the inner one of `size`."""
    kind = ir.RankedTensorType(value.type)
    axis += kind.rank
    shape = sizes_of(value)
    whole = kind.shape[axis]
    if whole < 0 or whole % size:
        raise ValueError(f"dimension {axis} of {value.type} holds no blocks of {size}")
    sizes = [*shape[:axis], whole // size, size, *shape[axis + 1 :]]
    groups = [[at + (at > axis)] for at in range(kind.rank)]
    groups[axis].append(axis + 1)
    static, dynamic = split(sizes)
    made = ir.RankedTensorType.get(static, kind.element_type)
    return tensor.expand_shape(made, value, groups, dynamic, static)
