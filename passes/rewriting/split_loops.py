"""Split loops that an indexing map divides, so that each digit of an index has its own loop.

    (m, n, k) -> (n, k floordiv 32, k mod 32)    becomes    (m, n, ko, kb) -> (n, ko, kb)
    (m, n, k) -> (m, k)                          becomes    (m, n, ko, kb) -> (m, ko, kb)

An operand that is indexed by the whole loop is reshaped to have both dimensions. If the loops read
only the first elements of an operand, such as scales with padding, it is sliced to these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from iree.compiler import ir
from iree.compiler.dialects import affine, linalg, tensor

from mxc.dialects.indexing import dim_of, plus, resolve, times
from mxc.dialects.locations import place_of
from mxc.dialects.sizes import size_of, value_of
from mxc.errors import PassError


@dataclass(frozen=True)
class LoopSplit:
    """How loops are split. `kinds`, `sizes`: iterator types and iterations (None if dynamic) of the
    loops after the split. `digits`: for each operand and dimension, the loops after the split that
    index it, the outermost first. `before`: each loop before the split as an expression of those
    after it."""

    kinds: list[ir.Attribute]
    sizes: list[int | None]
    digits: list[list[list[int]]]
    before: list[ir.AffineExpr]

    def maps(self) -> list[ir.AffineMap]:
        """Indexing maps of the reshaped operands."""
        return [
            ir.AffineMap.get(
                len(self.sizes), 0, [ir.AffineDimExpr.get(i) for group in groups for i in group]
            )
            for groups in self.digits
        ]

    def index_before(self, loop: int) -> ir.Value:
        """The index of a loop before the split, at the insertion point in the new body."""
        indices = [linalg.IndexOp(number).result for number in range(len(self.sizes))]
        whole = ir.AffineMap.get(len(indices), 0, [self.before[loop]])
        return affine.apply(whole, indices)


def is_plain(map: ir.AffineMap) -> bool:
    """Whether each index is a single loop."""
    return all(dim_of(expression) is not None for expression in map.results)


def plan_split(
    maps: Sequence[ir.AffineMap],
    kinds: Sequence[ir.Attribute],
    ranges: Sequence[int | None],
    location: ir.Location,
) -> LoopSplit | None:
    """Plan how to split the loops so that each index becomes a single loop after operands are
    reshaped; None if the form of an index does not allow it.

    Raises PassError where a loop that is divided is not a whole number of blocks, is dynamic, or is
    divided by two sizes of which neither is a multiple of the other.
    """
    divisors = _divisors(maps, ranges, location)
    loops: list[ir.AffineExpr] = []
    sizes: list[int | None] = []
    split_kinds: list[ir.Attribute] = []
    for loop, kind in enumerate(kinds):
        first = ir.AffineDimExpr.get(len(sizes))
        if loop not in divisors:
            loops.append(first)
            sizes.append(ranges[loop])
            split_kinds.append(kind)
            continue
        # The digits from the outermost on: there are three for blocks of 32, each of which is two
        # blocks of 16.
        inside = divisors[loop][::-1]
        whole = times(first, inside[0])
        sizes.append((ranges[loop] or 0) // inside[0])
        for size, under in zip(inside, [*inside[1:], 1], strict=True):
            whole = plus(whole, times(ir.AffineDimExpr.get(len(sizes)), under))
            sizes.append(size // under)
        loops.append(whole)
        split_kinds += [kind] * (len(inside) + 1)
    digits: list[list[list[int]]] = []
    for map in maps:
        groups: list[list[int]] = []
        for expression in map.results:
            group = _digits(resolve(expression, loops, sizes), sizes)
            if group is None:
                return None
            groups.append(group)
        digits.append(groups)
    return LoopSplit(split_kinds, sizes, digits, loops)


def is_divided_evenly(maps: Sequence[ir.AffineMap], ranges: Sequence[int | None]) -> bool:
    """Whether `plan_split` raises no error: each loop that is divided is static, and a whole number
    of blocks of each size that divides it; of two such sizes, one is a multiple of the other."""
    for loop, sizes in _block_sizes(maps).items():
        length = ranges[loop]
        if length is None or length % sizes[-1] or _contradicting(sizes):
            return False
    return True


def _divisors(
    maps: Sequence[ir.AffineMap], ranges: Sequence[int | None], location: ir.Location
) -> dict[int, list[int]]:
    """The block sizes of each loop that is divided, in ascending order. Raises PassError as
    `plan_split` does."""
    found = _block_sizes(maps)
    for loop, sizes in found.items():
        if contradicting := _contradicting(sizes):
            raise PassError(
                "one loop is divided into blocks of {} and of {}; give both operands the same "
                "block size, or a multiple".format(*contradicting),
                place_of(location),
            )
        length, size = ranges[loop], sizes[-1]
        if length is None:
            raise PassError(
                f"a dynamic dimension is divided into blocks of {size}; the dimension of the "
                "blocks must be static",
                place_of(location),
            )
        if length % size:
            raise PassError(
                f"K={length} is not a multiple of the block size {size}; pad the elements with "
                f"zeros to K={length + size - length % size}",
                place_of(location),
            )
    return found


def _block_sizes(maps: Sequence[ir.AffineMap]) -> dict[int, list[int]]:
    """The block sizes of each loop that is divided, in ascending order."""
    found: dict[int, set[int]] = {}
    for loop, size in (each for map in maps for index in map.results for each in _divisions(index)):
        found.setdefault(loop, set()).add(size)
    return {loop: sorted(sizes) for loop, sizes in found.items()}


def _contradicting(sizes: Sequence[int]) -> tuple[int, int] | None:
    """Two block sizes, of those in ascending order, of which neither is a multiple of the other."""
    return next((pair for pair in pairwise(sizes) if pair[1] % pair[0]), None)


def _divisions(expression: ir.AffineExpr) -> list[tuple[int, int]]:
    """(loop, divisor) for every `d floordiv c` and `d mod c` in an expression; for `(d mod e)
    floordiv c`, both (d, c) and (d, e)."""
    if not isinstance(expression, ir.AffineBinaryExpr):
        return []
    loop = dim_of(expression.lhs)
    divides = isinstance(expression, (ir.AffineFloorDivExpr, ir.AffineModExpr))
    if divides and loop is not None and isinstance(expression.rhs, ir.AffineConstantExpr):
        return [(loop, expression.rhs.value)]
    if divides and isinstance(expression.lhs, ir.AffineModExpr):
        return [(loop, expression.rhs.value) for loop, _ in _divisions(expression.lhs)] + (
            _divisions(expression.lhs)
        )
    return _divisions(expression.lhs) + _divisions(expression.rhs)


def _digits(expression: ir.AffineExpr, sizes: list[int | None]) -> list[int] | None:
    """The loops, outermost first, that are the digits of an index as a mixed-radix number; None if
    it is no such number.

    With inner sizes B and C: `a * (B * C) + b * C + c` is [a, b, c]; 0 is [].
    """
    if isinstance(expression, ir.AffineConstantExpr):
        return None if expression.value else []
    terms: list[tuple[int, int]] = []
    pending = [expression]
    while pending:
        term = pending.pop()
        loop = dim_of(term)
        if loop is not None:
            terms.append((1, loop))
        elif isinstance(term, ir.AffineAddExpr):
            pending += [term.lhs, term.rhs]
        elif isinstance(term, ir.AffineMulExpr) and dim_of(term.lhs) is not None:
            terms.append((term.rhs.value, term.lhs.position))
        else:
            return None
    # A unit loop has the stride of the loop inside it, and is sorted outside that loop.
    terms.sort(key=lambda term: (term[0], sizes[term[1]] != 1), reverse=False)
    stride = 1
    for step, loop in terms[:-1]:
        size = sizes[loop]
        if step != stride or size is None:
            return None
        stride *= size
    if terms[-1][0] != stride:
        return None
    return [loop for _, loop in reversed(terms)]


def can_reshape(value: ir.Value, digits: list[list[int]]) -> bool:
    """Whether `reshape` can reshape `value`: each dimension without a loop has size one, and at
    least one dimension has a loop, or there are no dimensions."""
    alone = [axis for axis, group in enumerate(digits) if not group]
    shape = ir.RankedTensorType(value.type).shape
    return all(shape[axis] == 1 for axis in alone) and len(alone) < max(len(digits), 1)


def is_covered(value: ir.Value, digits: list[list[int]], sizes: list[int | None]) -> bool:
    """Whether the loops read every index of each static dimension of `value`."""
    return _read_sizes(value, digits, sizes) == list(ir.RankedTensorType(value.type).shape)


def covered(value: ir.Value, digits: list[list[int]], sizes: list[int | None]) -> ir.Value:
    """Slice `value` to the part that the loops read: the first elements along each dimension."""
    if is_covered(value, digits, sizes):
        return value
    read = _read_sizes(value, digits, sizes)
    source = ir.RankedTensorType(value.type)
    dynamic = [
        value_of(size_of(value, axis)) for axis in range(len(read)) if source.is_dynamic_dim(axis)
    ]
    zeros, ones = [0] * len(read), [1] * len(read)
    kind = ir.RankedTensorType.get(read, source.element_type)
    return tensor.ExtractSliceOp(kind, value, [], dynamic, [], zeros, read, ones).result


def _read_sizes(value: ir.Value, digits: list[list[int]], sizes: list[int | None]) -> list[int]:
    """The number of elements that the loops read along each dimension; the size of the dimension
    if it or a loop is dynamic, or no loop indexes it."""
    found = []
    for size, group in zip(ir.RankedTensorType(value.type).shape, digits, strict=True):
        counts = [sizes[loop] for loop in group]
        static = [count for count in counts if count is not None]
        known = size >= 0 and group and len(static) == len(counts)
        found.append(math.prod(static) if known else size)
    return found


def reshape(value: ir.Value, digits: list[list[int]], sizes: list[int | None]) -> ir.Value:
    """Expand `value`, all of which the loops read, to one dimension for each loop that indexes it.
    Unchanged if each dimension has one loop."""
    if all(len(group) == 1 for group in digits):
        return value
    if not all(digits):
        value, digits = _without_ones(value, digits), [group for group in digits if group]
        return reshape(value, digits, sizes)
    source = ir.RankedTensorType(value.type)
    shape: list[int] = []
    dynamic: list[ir.Value] = []
    for axis, group in enumerate(digits):
        inner = [sizes[loop] or 0 for loop in group[1:]]
        if source.is_dynamic_dim(axis):
            dynamic.append(value_of(size_of(value, axis)))
            shape.append(ir.ShapedType.get_dynamic_size())
        else:
            outer = source.get_dim_size(axis)
            for size in inner:
                outer //= size
            shape.append(outer)
        shape += inner
    return tensor.ExpandShapeOp(
        ir.RankedTensorType.get(shape, source.element_type),
        value,
        reassociation(digits),
        output_shape=dynamic,
        static_output_shape=shape,
    ).result


def _without_ones(value: ir.Value, digits: list[list[int]]) -> ir.Value:
    """Collapse `value` to the dimensions that loops index; the others have size one."""
    groups: list[list[int]] = []
    waiting: list[int] = []
    for axis, group in enumerate(digits):
        waiting.append(axis)
        if group:
            groups.append(waiting)
            waiting = []
    if groups:
        groups[-1] += waiting
    source = ir.RankedTensorType(value.type)
    shape = [source.shape[axis] for axis, group in enumerate(digits) if group]
    kind = ir.RankedTensorType.get(shape, source.element_type)
    return tensor.CollapseShapeOp(kind, value, reassociation(groups)).result


def reassociation(digits: list[list[int]]) -> ir.ArrayAttr:
    """The reassociation of an expansion: for each dimension, as many consecutive dimensions of the
    expanded tensor as `digits` has loops for it."""
    i64 = ir.IntegerType.get_signless(64)
    groups, axis = [], 0
    for group in digits:
        groups.append([ir.IntegerAttr.get(i64, axis + i) for i in range(len(group))])
        axis += len(group)
    return ir.ArrayAttr.get([ir.ArrayAttr.get(group) for group in groups])
