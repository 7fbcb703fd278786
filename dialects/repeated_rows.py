"""Scales that several rows share, repeated for each of them: the builder and the matcher.

    %r = linalg.generic {indexing_maps = [(.., n, ko) -> (.., n floordiv 128, ko),
                                          (.., n, ko) -> (.., n, ko)]}
      ins(%scales : tensor<2x4xf32>) { yield } -> tensor<256x4xf32>
or
    %q = linalg.generic {indexing_maps = [(.., p, q, ko) -> (.., p, ko),
                                          (.., p, q, ko) -> (.., p, q, ko)]}
      ins(%scales : tensor<2x4xf32>) { yield } -> tensor<2x128x4xf32>
    %r = tensor.collapse_shape %q [.., [p, q], [ko]] into tensor<256x4xf32>

A canonical contraction has a scale for each row and block. A kernel that knows how many rows share
a scale reads %scales itself; for other kernels IREE computes the repetition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.dialects.dispatches import owner
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import dims, indexing_maps

_PARALLEL = linalg.IteratorType.parallel


@dataclass(frozen=True)
class RepeatedRows:
    """Scales `source` [.., ceil(N / rows), KO] of N rows, of which each `rows` share one scale."""

    source: ir.Value
    rows: int


def repeat_rows(source: ir.Value, count: int, rows: int) -> ir.Value:
    """`source` [.., ceil(count / rows), KO] as [.., count, KO], at the insertion point; `source`
    itself where each row has its own."""
    if rows == 1:
        return source
    *lead, few, blocks = shape_of(source)
    if few != -(-count // rows):
        raise ValueError(
            f"{count} rows, {rows} with the same scale, are not those of {source.type}"
        )
    each = [ir.AffineDimExpr.get(axis) for axis in range(len(lead) + 2)]
    reads = [*each[:-2], ir.AffineExpr.get_floor_div(each[-2], rows), each[-1]]
    return read_at(source, reads, [*lead, count, blocks])


def read_at(source: ir.Value, reads: Sequence[ir.AffineExpr], sizes: Sequence[int]) -> ir.Value:
    """A tensor of these sizes with the elements of `source` at `reads`, at the insertion point."""
    rank = len(sizes)
    maps = [ir.AffineMap.get(rank, 0, list(reads)), ir.AffineMap.get_identity(rank)]
    init = tensor.empty(list(sizes), element_of(source))
    return linalg.generic([source], [init], maps, [_PARALLEL] * rank)(lambda value, _: value)


def match_repeated_rows(value: ir.Value) -> RepeatedRows | None:
    """The scales that `value` repeats for the rows that share them; None for another value."""
    op, merged = owner(value), False
    if op is not None and op.name == "tensor.collapse_shape":
        merged = _merges_rows(op)
        op = owner(op.operands[0]) if merged else None
    if op is None or not _copies(op):
        return None
    read, written = indexing_maps(op)
    every, own = list(range(written.n_dims)), dims(read)
    if dims(written) != every or len(every) < 2:
        return None
    row = len(every) - 2
    others = [loop for loop in every if loop != row]
    rows = None
    if merged and own == others:
        rows = shape_of(op.results[0])[row]
    elif not merged and [*own[:row], *own[row + 1 :]] == others:
        rows = _divisor(read.results[row], row)
    if rows is None or rows <= 0:
        return None
    # `source` may have more rows than are read: then `value` is no repetition of it.
    few, count = shape_of(op.operands[0])[-2], shape_of(value)[-2]
    return RepeatedRows(op.operands[0], rows) if few == -(-count // rows) > 0 else None


def _copies(op: ir.Operation) -> bool:
    """Whether an operation yields elements of its operand unchanged."""
    if op.name != "linalg.generic" or len(op.operands) != 2:
        return False
    block = op.regions[0].blocks[0]
    (*others, last) = block.operations
    return not others and bool(last.operation.operands[0] == block.arguments[0])


def _merges_rows(op: ir.Operation) -> bool:
    """Whether a reshape merges the two dimensions before the last one, and no others."""
    before, after = shape_of(op.operands[0]), shape_of(op.results[0])
    return len(before) == len(after) + 1 and before[:-3] + before[-1:] == after[:-2] + after[-1:]


def _divisor(expression: ir.AffineExpr, loop: int) -> int | None:
    """n of `loop floordiv n`; None for another expression."""
    if not isinstance(expression, ir.AffineFloorDivExpr):
        return None
    divided, by = expression.lhs, expression.rhs
    if not isinstance(by, ir.AffineConstantExpr) or not isinstance(divided, ir.AffineDimExpr):
        return None
    return int(by.value) if divided.position == loop else None
