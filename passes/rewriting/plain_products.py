"""Recognize operations that are products of two tensors and nothing else, and sort their loops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.indexing import dim_of, indexing_maps

#: A sum of loops, each multiplied by a number: (loop, number) of each term.
Terms = tuple[tuple[int, int], ...]

#: Floats that matrix instructions of GPUs multiply.
FLOATS = {"f32", "bf16", "f16"}
#: The two operations of a body besides extensions: a product, which is added, of floats or of
#: integers with a sign.
_BODIES = ({"arith.mulf", "arith.addf"}, {"arith.muli", "arith.addi"})
_EXTENSIONS = {"arith.extf", "arith.extsi"}


def is_plain_product(op: ir.Operation) -> bool:
    """Whether an operation is a contraction or a convolution that does no more than extend,
    multiply, and add in 32 bits."""
    if str(element_of(op.results[0])) not in ("f32", "i32"):
        return False
    if not linalg.isa_contraction_op(op) and not linalg.isa_convolution_op(op):
        return False
    names = [each.operation.name for each in op.regions[0].blocks[0].operations][:-1]
    work = [name for name in names if name not in _EXTENSIONS]
    return len(work) == len(_BODIES[0]) and set(work) in _BODIES


@dataclass(frozen=True)
class ProductLoops:
    """The loops with several iterations of a sum of lhs[..] * rhs[..].

    `batch`: those that index both sides and the result. `rows`: lhs and the result. `columns`: rhs
    and the result. `sums`: both sides, but not the result. `dims`: for lhs, rhs and the result, the
    index of each dimension as a sum of loops. `reads`: the same with the one loop of each
    dimension; None if a dimension has another index than one loop that reads all of it.
    """

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    sums: tuple[int, ...]
    dims: tuple[tuple[Terms, ...], ...]
    reads: tuple[tuple[int, ...], ...] | None


def product_loops(op: ir.Operation, ranges: Sequence[int | None]) -> ProductLoops | None:
    """The loops of a plain product. `ranges`: iterations of each loop, None if dynamic.

    None where a loop of the sum indexes one side alone, where an index is no sum of multiples of
    loops, or where a dynamic dimension has another index than one loop that reads all of it.
    """
    dims: list[tuple[Terms, ...]] = []
    simple = True
    for value, affine in zip(op.operands, indexing_maps(op), strict=True):
        own = [_terms(each, ranges) for each in affine.results]
        dims.append(tuple(terms for terms in own if terms is not None))
        if len(dims[-1]) < len(own):
            return None
        for terms, size in zip(dims[-1], shape_of(value), strict=True):
            whole = len(terms) == 1 and terms[0][1] == 1
            whole = whole and ranges[terms[0][0]] == (size if size >= 0 else None)
            if not whole and size < 0:
                return None
            simple = simple and whole
    if len(dims) != 3:
        return None
    lhs, rhs, out = ({loop for terms in each for loop, _ in terms} for each in dims)
    several = [loop for loop, size in enumerate(ranges) if size != 1]
    sums = tuple(loop for loop in several if loop not in out)
    parallel = [loop for loop in several if loop in out]
    if not set(sums) <= lhs & rhs or not set(parallel) <= lhs | rhs:
        return None
    return ProductLoops(
        batch=tuple(loop for loop in parallel if loop in lhs & rhs),
        rows=tuple(loop for loop in parallel if loop not in rhs),
        columns=tuple(loop for loop in parallel if loop not in lhs),
        sums=sums,
        dims=tuple(dims),
        reads=tuple(tuple(terms[0][0] for terms in each) for each in dims) if simple else None,
    )


def _terms(expression: ir.AffineExpr, ranges: Sequence[int | None]) -> Terms | None:
    """The terms of an index, without loops of one iteration; if all have one, the first term. None
    for an index that is no sum of multiples of loops."""
    terms = _sum(expression.maybe_downcast())
    if terms is None:
        return None
    kept = tuple(term for term in terms if ranges[term[0]] != 1)
    return kept or terms[:1]


def _sum(expression: ir.AffineExpr) -> Terms | None:
    """The terms of an index that is a sum of multiples of loops; None for another one."""
    loop = dim_of(expression)
    if loop is not None:
        return ((loop, 1),)
    if isinstance(expression, ir.AffineAddExpr):
        left, right = _sum(expression.lhs.maybe_downcast()), _sum(expression.rhs.maybe_downcast())
        return None if left is None or right is None else left + right
    if isinstance(expression, ir.AffineMulExpr):
        loop = dim_of(expression.lhs.maybe_downcast())
        number = expression.rhs.maybe_downcast()
        if loop is not None and isinstance(number, ir.AffineConstantExpr):
            return ((loop, int(number.value)),)
    return None
