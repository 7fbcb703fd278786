"""Reshape tensors so that each digit of the indices that read them has a dimension of its own.

An index over loops, such as 32 * d0 + d1 where d1 < 32, has the digits (d0, d1): the dimension that
it reads can be expanded to one dimension for each. After that, each loop reads one dimension, and
the tensor can be transposed to any order of digits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from iree.compiler import ir

from mxc.dialects.generic import shape_of
from mxc.dialects.indexing import bound, dim_of, plus, quotient, remainder, times
from mxc.dialects.sizes import Size, product, size_of, split
from mxc.dialects.sizes import quotient as divided
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.rewriting.transposes import transposed

#: Numbers of iterations of loops; None if dynamic. A loop with one iteration is not a digit.
Ranges = Sequence[int | None]


def simplified(index: ir.AffineExpr, ranges: Ranges) -> ir.AffineExpr:
    """Simplify an index: divisions whose dividend is always less than the divisor are removed."""
    if not isinstance(index, ir.AffineBinaryExpr):
        return index
    left, right = (simplified(each.maybe_downcast(), ranges) for each in (index.lhs, index.rhs))
    if isinstance(index, ir.AffineAddExpr):
        return plus(left, right)
    assert isinstance(right, ir.AffineConstantExpr), "indices are multiplied by numbers"
    if isinstance(index, ir.AffineMulExpr):
        return times(left, right.value)
    whole = isinstance(index, ir.AffineFloorDivExpr)
    if bound(left, ranges) < right.value:
        return ir.AffineConstantExpr.get(0) if whole else left
    return (quotient if whole else remainder)(left, right.value, ranges)


def number_of(digits: Sequence[int], ranges: Ranges) -> ir.AffineExpr:
    """The index whose digits are these loops, the most significant first."""
    found: ir.AffineExpr = ir.AffineConstantExpr.get(0)
    for digit in digits:
        size = ranges[digit]
        if size is None:
            assert digit == digits[0], "a dynamic digit is the most significant"
            found = ir.AffineDimExpr.get(digit)
        elif size != 1:
            found = plus(times(found, size), ir.AffineDimExpr.get(digit))
    return found


def digits_of(index: ir.AffineExpr, ranges: Ranges) -> list[int] | None:
    """The loops that are the digits of an index, the most significant first.

    None for an index that is no sum of multiples of loops, or does not take all numbers from 0 on.
    """
    terms = _terms(simplified(index, ranges))
    if terms is None:
        return None
    factors = {loop: factor for loop, factor in terms.items() if ranges[loop] != 1}
    found = sorted(factors, key=factors.__getitem__, reverse=True)
    stride: int | None = 1
    for loop in reversed(found):
        if factors[loop] != stride:
            return None
        size = ranges[loop]
        stride = None if size is None else stride * size
    return found


def split_digits(
    value: ir.Value, at: Sequence[ir.AffineExpr], ranges: Ranges
) -> tuple[ir.Value, list[int]] | None:
    """Reshape a tensor that is read at the indices `at` to one dimension for each digit. Return it
    and the digits.

    Dimensions of size one are dropped. Returns None where a dimension has more elements than are
    read, or a digit is in two dimensions.
    """
    groups = [digits_of(index, ranges) for index in at]
    found: list[int] = []
    for size, group in zip(shape_of(value), groups, strict=True):
        if group is None:
            return None
        sizes = [ranges[loop] for loop in group]
        whole = -1 if None in sizes else math.prod(each or 1 for each in sizes)
        if max(size, -1) != whole:
            return None
        found += group
    if len(set(found)) != len(found):
        return None
    extents: list[Size] = []
    for axis, group in enumerate(groups):
        for loop in group or ():
            extent = ranges[loop]
            # A dynamic digit is the first of its dimension.
            rest = math.prod(ranges[each] or 1 for each in (group or ())[1:])
            extents.append(divided(size_of(value, axis), rest) if extent is None else extent)
    return reshape(value, *split(extents)), found


def arranged(
    value: ir.Value,
    at: Sequence[ir.AffineExpr],
    groups: Sequence[Sequence[int]],
    ranges: Ranges,
) -> ir.Value | None:
    """Transpose and reshape a tensor that is read at the indices `at`, so that it has a dimension
    for each of `groups`, whose index has the loops of the group as digits.

    Returns None where the indices have other digits than the groups.
    """
    found = split_digits(value, at, ranges)
    if found is None:
        return None
    value, digits = found
    wanted = [loop for group in groups for loop in group if ranges[loop] != 1]
    if sorted(wanted) != sorted(digits):
        return None
    order = [digits.index(loop) for loop in wanted]
    if order != sorted(order):
        value = transposed(value, order)
    places = {loop: axis for axis, loop in enumerate(wanted)}
    sizes = [
        product([size_of(value, places[loop]) for loop in group if loop in places])
        for group in groups
    ]
    return reshape(value, *split(sizes))


def _terms(index: ir.AffineExpr) -> dict[int, int] | None:
    """The factor of each loop in a sum of multiples of loops; None for another expression."""
    loop = dim_of(index)
    if loop is not None:
        return {loop: 1}
    if isinstance(index, ir.AffineConstantExpr):
        return {} if index.value == 0 else None
    if isinstance(index, ir.AffineAddExpr):
        left, right = (_terms(each.maybe_downcast()) for each in (index.lhs, index.rhs))
        if left is None or right is None or left.keys() & right.keys():
            return None
        return left | right
    if isinstance(index, ir.AffineMulExpr):
        inner, factor = index.lhs.maybe_downcast(), index.rhs.maybe_downcast()
        terms = _terms(inner)
        if terms is None or not isinstance(factor, ir.AffineConstantExpr):
            return None
        return {loop: each * factor.value for loop, each in terms.items()}
    return None
