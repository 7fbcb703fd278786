"""mxc-expand-vectors: contract a vector as a matrix with one row.

Decoding one token multiplies a vector by a matrix, and a frontend may write it so. The canonical
form has rows on both sides. The added row loop has one iteration and moves no data.

before:
    linalg.generic {indexing_maps = [(n, ko, kb) -> (ko, kb), (n, ko, kb) -> (n, ko, kb),
                    (n, ko, kb) -> (n, ko), (n, ko, kb) -> (n)]} ins(%x, %w, %s) outs(%acc)
after:
    %x3 = tensor.expand_shape %x [[0, 1], [2]]
    %acc2 = tensor.expand_shape %acc [[0, 1]]
    %r = linalg.generic {indexing_maps = [(n, ko, kb, m) -> (m, ko, kb), ..,
                         (n, ko, kb, m) -> (m, n)]} ins(%x3, %w, %s) outs(%acc2)
    tensor.collapse_shape %r [[0, 1]]

Leaves alone: contractions with rows on both sides, and products of two vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.dialects.dequantize import iterators
from mxc.dialects.indexing import dims, indexing_maps, loop_ranges
from mxc.dialects.product import read_product
from mxc.dialects.reasons import Reason
from mxc.dialects.scaled import NO_ROWS, match_scaled_contraction
from mxc.passes.base import Pass
from mxc.passes.rewriting.rebuild import discardable, linalg_operations, replace, sweep
from mxc.passes.rewriting.split_loops import LoopSplit, reassociation, reshape


@dataclass(frozen=True)
class ExpandVectors(Pass):
    """Contract a vector as a matrix with one row."""

    name = "mxc-expand-vectors"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every scaled contraction of which one side is a vector."""
        for op in linalg_operations(module):
            if match_scaled_contraction(op, rounded=True, mixed=True) == NO_ROWS:
                _expand(op)
        sweep(module)


def _expand(op: ir.Operation) -> None:
    factors = read_product(op, rounded=True)
    maps = indexing_maps(op)
    written = [loop for loop in dims(maps[-1]) if loop is not None]
    if isinstance(factors, Reason):
        return
    reads = [set(dims(maps[factor.element])) for factor in factors]
    own = [[loop for loop in written if loop not in reads[1 - side]] for side in (0, 1)]
    if not any(own):
        return
    vector = factors[0] if not own[0] else factors[1]
    row = maps[-1].n_dims
    # The unit row of the vector and of the result goes behind their last batch dimension.
    rows_of_matrix = own[0] or own[1]
    batch = [loop for loop in written if loop not in rows_of_matrix]
    digits = []
    for number, affine in enumerate(maps):
        groups = [[loop] for loop in dims(affine) if loop is not None]
        if number in (vector.element, vector.scale, len(maps) - 1):
            behind = sum(group[0] in batch for group in groups)
            if behind:
                groups[behind - 1].append(row)
            else:
                groups[0].insert(0, row)
        digits.append(groups)
    sizes = [*loop_ranges(op), 1]
    if any(group[0] == row and sizes[group[1]] is None for groups in digits for group in groups):
        return  # an expansion cannot put a static row before a dynamic dimension
    kinds = [*iterators(op), ir.Attribute.parse("#linalg.iterator_type<parallel>")]
    loops: list[ir.AffineExpr] = [ir.AffineDimExpr.get(loop) for loop in range(row)]
    plan = LoopSplit(kinds, sizes, digits, loops)
    with ir.InsertionPoint(op), op.location:
        values = [reshape(v, d, sizes) for v, d in zip(op.operands, digits, strict=True)]
        new = linalg.GenericOp(
            [values[-1].type],
            values[:-1],
            values[-1:],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in plan.maps()]),
            ir.ArrayAttr.get(plan.kinds),
        )
        op.regions[0].blocks[0].append_to(new.regions[0])
        result = tensor.CollapseShapeOp(
            op.results[0].type, new.results[0], reassociation(digits[-1])
        ).result
    for name in discardable(op):
        new.attributes[name] = op.attributes[name]
    replace(op, result)
