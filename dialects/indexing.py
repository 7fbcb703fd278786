"""Trace where an element of a tensor comes from, through operations that only move elements.

Reshapes, transposes, broadcasts and copies are changes of index. `trace` follows them upwards and
composes them into one affine map, so that a consumer can read the source itself.

    %w = tensor.collapse_shape %d [[0], [1, 2]] : tensor<NxKOx32xf32> into tensor<NxKxf32>
    read of %w at (n, k)    is    read of %d at (n, k floordiv 32, k mod 32)
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import linalg

Indices = list[ir.AffineExpr]


def indexing_maps(op: ir.Operation) -> list[ir.AffineMap]:
    """Indexing maps of a linalg operation in operand order, also of a named operation."""
    return [ir.AffineMapAttr(attribute).value for attribute in linalg.get_indexing_maps(op)]


def dim_of(expression: ir.AffineExpr) -> int | None:
    """Position of the loop if the expression is a single loop, else None."""
    if isinstance(expression, ir.AffineDimExpr):
        return int(expression.position)
    return None


def dims(affine: ir.AffineMap) -> list[int | None]:
    """The loop of each result of a map, None for a compound result."""
    return [dim_of(expression) for expression in affine.results]


def loop_ranges(op: ir.Operation) -> list[int | None]:
    """Number of iterations of each loop, None if dynamic or not determined by an operand."""
    maps = indexing_maps(op)
    ranges: list[int | None] = [None] * maps[-1].n_dims
    for operand, affine in zip(op.operands, maps, strict=True):
        if not isinstance(operand.type, ir.RankedTensorType):
            continue
        for size, loop in zip(operand.type.shape, dims(affine), strict=True):
            if loop is not None and size >= 0:
                ranges[loop] = size
    return ranges


def read_through(
    op: ir.Operation,
    operand: int,
    indices: Sequence[ir.AffineExpr],
    ranges: Sequence[int | None],
) -> Indices | None:
    """Indices into `operand` of an elementwise linalg `op` when its result is read at `indices`.

    `ranges` are those of the loops in `indices`. None where the map of the result is not a
    permutation of the loops of `op`.
    """
    maps = indexing_maps(op)
    written = dims(maps[-1])
    if sorted(d if d is not None else -1 for d in written) != list(range(maps[-1].n_dims)):
        return None
    at = dict(zip(written, indices, strict=True))
    loops = [at[i] for i in range(len(at))]
    return [resolve(e, loops, ranges) for e in maps[operand].results]


def trace(
    value: ir.Value, indices: Sequence[ir.AffineExpr], ranges: Sequence[int | None]
) -> tuple[ir.Value, Indices]:
    """The farthest source from which `value` is only moved, and the indices that read it there.

    `ranges` bounds the loops in `indices`, for simplification.
    """
    at = list(indices)
    while not isinstance(value, ir.BlockArgument):
        step = moved(value.owner, at, ranges)
        if step is None:
            break
        value, at = step
    return value, at


def moved(
    op: ir.Operation, at: Indices, ranges: Sequence[int | None]
) -> tuple[ir.Value, Indices] | None:
    """The operand, and the indices in it, that the result of `op` has at `at`; None where `op` does
    more than move elements."""
    if op.name == "tensor.collapse_shape":
        return _through_collapse(op, at, ranges)
    if op.name == "tensor.expand_shape":
        return _through_expand(op, at)
    if op.name in ("linalg.generic", "linalg.transpose", "linalg.broadcast", "linalg.copy"):
        body = list(op.regions[0].blocks[0].operations)
        yielded = body[-1].operands[0] if len(body) == 1 else None
        if len(op.results) != 1 or yielded is None or not isinstance(yielded, ir.BlockArgument):
            return None
        number = yielded.arg_number
        if number == len(op.operands) - 1 or "reduction" in str(
            op.attributes.get("iterator_types")
        ):
            return None
        if not isinstance(op.operands[number].type, ir.RankedTensorType):
            return None
        indices = read_through(op, number, at, ranges)
        return None if indices is None else (op.operands[number], indices)
    return None


def _groups(op: ir.Operation) -> list[list[int]]:
    groups = ir.ArrayAttr(op.attributes["reassociation"])
    return [[ir.IntegerAttr(i).value for i in ir.ArrayAttr(group)] for group in groups]


def _through_collapse(
    op: ir.Operation, at: Indices, ranges: Sequence[int | None]
) -> tuple[ir.Value, Indices] | None:
    source = op.operands[0]
    shape = list(ir.RankedTensorType(source.type).shape)
    indices: Indices = []
    for group, index in zip(_groups(op), at, strict=True):
        inner: Indices = []
        for axis in reversed(group[1:]):
            if shape[axis] < 0:
                if any(shape[each] != 1 for each in group if each < axis):
                    return None
                inner.insert(0, index)
                index = ir.AffineConstantExpr.get(0)
                continue
            inner.insert(0, remainder(index, shape[axis], ranges))
            index = quotient(index, shape[axis], ranges)
        indices += [index, *inner]
    return source, indices


def _through_expand(op: ir.Operation, at: Indices) -> tuple[ir.Value, Indices] | None:
    shape = list(ir.RankedTensorType(op.results[0].type).shape)
    indices: Indices = []
    for group in _groups(op):
        index = at[group[0]]
        for axis in group[1:]:
            if shape[axis] < 0:
                if any(shape[each] != 1 for each in group if each < axis):
                    return None
                index = at[axis]
                continue
            index = plus(times(index, shape[axis]), at[axis])
        indices.append(index)
    return op.operands[0], indices


def substitute(expression: ir.AffineExpr, loops: Sequence[ir.AffineExpr]) -> ir.AffineExpr:
    """`expression` with its loop i replaced by `loops[i]`."""
    if not loops:
        return expression
    width = 1 + max(_highest(e) for e in loops)
    # `compose` returns the base class, which does not show its parts.
    return expression.compose(ir.AffineMap.get(width, 0, list(loops))).maybe_downcast()


def resolve(
    expression: ir.AffineExpr, loops: Sequence[ir.AffineExpr], ranges: Sequence[int | None]
) -> ir.AffineExpr:
    """`substitute`, with divisions simplified as far as `ranges` of the new loops allow."""
    loop = dim_of(expression)
    if loop is not None:
        return loops[loop]
    if not isinstance(expression, ir.AffineBinaryExpr):
        return expression
    left = resolve(expression.lhs, loops, ranges)
    if isinstance(expression.rhs, ir.AffineConstantExpr):
        constant = expression.rhs.value
        if isinstance(expression, ir.AffineFloorDivExpr):
            return quotient(left, constant, ranges)
        if isinstance(expression, ir.AffineModExpr):
            return remainder(left, constant, ranges)
        if isinstance(expression, ir.AffineMulExpr):
            return times(left, constant)
    return plus(left, resolve(expression.rhs, loops, ranges))


# The operators of the bindings type their result by the operator, also where it was simplified to
# another kind; reading the parts of such an object ends the process. Hence `maybe_downcast`.


def plus(left: ir.AffineExpr, right: ir.AffineExpr) -> ir.AffineExpr:
    """`left + right`, simplified, as an object of its actual class."""
    for one, other in ((left, right), (right, left)):
        if (whole := _whole(one, other)) is not None:
            return whole
    return (left + right).maybe_downcast()


def _whole(quotients: ir.AffineExpr, rest: ir.AffineExpr) -> ir.AffineExpr | None:
    """e for `(e floordiv c) * c` plus `e mod c`; None for other summands."""
    if not isinstance(rest, ir.AffineModExpr) or not isinstance(quotients, ir.AffineMulExpr):
        return None
    divided = quotients.lhs.maybe_downcast()
    if not isinstance(divided, ir.AffineFloorDivExpr) or divided.lhs != rest.lhs:
        return None
    same = divided.rhs == rest.rhs == quotients.rhs
    return rest.lhs.maybe_downcast() if same else None


def times(expression: ir.AffineExpr, factor: int) -> ir.AffineExpr:
    """`expression * factor`, simplified and multiplied out, as an object of its actual class."""
    if isinstance(expression, ir.AffineAddExpr):
        terms = (expression.lhs.maybe_downcast(), expression.rhs.maybe_downcast())
        return plus(*(times(term, factor) for term in terms))
    return (expression * factor).maybe_downcast()


def quotient(
    expression: ir.AffineExpr, divisor: int, ranges: Sequence[int | None]
) -> ir.AffineExpr:
    """`expression floordiv divisor`, without terms that are zero for the ranges of the loops.

    A single loop stays divided even where it covers one block: the division records that there are
    blocks.
    """
    whole, rest = _divide(expression, divisor)
    if bound(rest, ranges) <= divisor - 1 and rest != expression:
        return whole
    if isinstance(expression, ir.AffineModExpr):
        inner = expression.rhs.maybe_downcast()
        if isinstance(inner, ir.AffineConstantExpr) and inner.value <= divisor:
            return ir.AffineConstantExpr.get(0)
    if isinstance(expression, ir.AffineFloorDivExpr):
        inner = expression.rhs.maybe_downcast()
        if isinstance(inner, ir.AffineConstantExpr):
            return quotient(expression.lhs.maybe_downcast(), divisor * inner.value, ranges)
    return ir.AffineExpr.get_floor_div(expression, divisor).maybe_downcast()


def remainder(
    expression: ir.AffineExpr, divisor: int, ranges: Sequence[int | None]
) -> ir.AffineExpr:
    """`expression mod divisor`, simplified like `quotient`."""
    _, rest = _divide(expression, divisor)
    if bound(rest, ranges) <= divisor - 1 and rest != expression:
        return rest
    return ir.AffineExpr.get_mod(expression, divisor).maybe_downcast()


def _divide(expression: ir.AffineExpr, divisor: int) -> tuple[ir.AffineExpr, ir.AffineExpr]:
    """(a, b) with expression = a * divisor + b, and a as large as the expression shows."""
    zero = ir.AffineConstantExpr.get(0)
    if isinstance(expression, ir.AffineAddExpr):
        (a, b), (c, d) = _divide(expression.lhs, divisor), _divide(expression.rhs, divisor)
        return plus(a, c), plus(b, d)
    if isinstance(expression, ir.AffineMulExpr) and isinstance(
        expression.rhs, ir.AffineConstantExpr
    ):
        factor = expression.rhs.value
        if factor % divisor == 0:
            return times(expression.lhs, factor // divisor), zero
    if divisor == 1:
        return expression, zero
    return zero, expression


#: Larger than every size: the bound of a loop with an unknown range.
_UNBOUNDED = 1 << 62


def bound(expression: ir.AffineExpr, ranges: Sequence[int | None]) -> int:
    """The largest value of an expression of non-negative terms."""
    if isinstance(expression, ir.AffineConstantExpr):
        return int(expression.value)
    loop = dim_of(expression)
    if loop is not None:
        size = ranges[loop]
        return _UNBOUNDED if size is None else size - 1
    left, right = bound(expression.lhs, ranges), bound(expression.rhs, ranges)
    if isinstance(expression, ir.AffineAddExpr):
        return left + right
    if isinstance(expression, ir.AffineMulExpr):
        return left * right
    if isinstance(expression, ir.AffineModExpr):
        return min(left, right - 1)
    if isinstance(expression, ir.AffineFloorDivExpr):
        return left // right if right else _UNBOUNDED
    return _UNBOUNDED


def _highest(expression: ir.AffineExpr) -> int:
    """The highest loop number in an expression, -1 if there is none."""
    loop = dim_of(expression)
    if loop is not None:
        return loop
    if isinstance(expression, ir.AffineBinaryExpr):
        return max(_highest(expression.lhs), _highest(expression.rhs))
    return -1
