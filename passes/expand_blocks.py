"""mxc-expand-blocks: give each block of a reduction a loop of its own.

A contraction over rank-2 operands finds its scale by a division. Loops that are divided become two
loops, the block number and the place in the block, and operands that were indexed by the whole loop
are reshaped. No data moves.

before:
    linalg.generic {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (n, k),
                    (m, n, k) -> (n, k floordiv 32), (m, n, k) -> (m, n)]}
      ins(%x : tensor<MxKxf32>, %w : tensor<NxKxf4E2M1FN>, %s : tensor<NxKOxf8E8M0FNU>)
after:
    %x4 = tensor.expand_shape %x [[0], [1, 2]] : tensor<MxKxf32> into tensor<MxKOx32xf32>
    %w4 = tensor.expand_shape %w [[0], [1, 2]]
    linalg.generic {indexing_maps = [(m, n, ko, kb) -> (m, ko, kb), (m, n, ko, kb) -> (n, ko, kb),
                    (m, n, ko, kb) -> (n, ko), (m, n, ko, kb) -> (m, n)]} ins(%x4, %w4, %s)

Leaves alone: operations that read no elements of a block format. Refuses a loop that is not a whole
number of blocks, is dynamic, or is divided by two different sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor
from mxc.dialects.dequantize import is_element, iterators
from mxc.dialects.errors import PassError
from mxc.dialects.indexing import (
    dim_of,
    indexing_maps,
    loop_ranges,
    plus,
    quotient,
    remainder,
    times,
)
from mxc.passes.base import Pass
from mxc.passes.rebuild import discardable, linalg_operations, replace, sweep


@dataclass(frozen=True)
class ExpandBlocks(Pass):
    """Split the loops that are divided by a block size, and reshape the operands to match."""

    name = "mxc-expand-blocks"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every generic that reads elements with an index that is no plain loop."""
        for op in linalg_operations(module):
            elements = [v.type.element_type for v in op.operands if _is_tensor(v)]
            if op.name != "linalg.generic" or not any(is_element(e) for e in elements):
                continue
            maps = indexing_maps(op)
            if any(dim_of(e) is None for affine in maps for e in affine.results):
                _expand(op, maps)
        sweep(module)


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _expand(op: ir.Operation, maps: list[ir.AffineMap]) -> None:
    ranges = loop_ranges(op)
    divisors = _divisors(op, maps, ranges)
    loops: list[ir.AffineExpr] = []
    sizes: list[int | None] = []
    kinds: list[ir.Attribute] = []
    for loop, kind in enumerate(iterators(op)):
        first = ir.AffineDimExpr.get(len(sizes))
        if loop not in divisors:
            loops.append(first)
            sizes.append(ranges[loop])
            kinds.append(kind)
            continue
        size = divisors[loop]
        loops.append(plus(times(first, size), ir.AffineDimExpr.get(len(sizes) + 1)))
        sizes += [(ranges[loop] or 0) // size, size]
        kinds += [kind, kind]
    digits = [
        [_digits(_rewrite(e, loops, sizes), sizes) for e in affine.results] for affine in maps
    ]
    if any(d is None for result in digits for d in result):
        return  # an index of another kind: no block structure to recover
    plan = [[d for d in result if d is not None] for result in digits]
    with ir.InsertionPoint(op), op.location:
        operands = [_reshape(v, p, sizes) for v, p in zip(op.operands, plan, strict=True)]
        new = linalg.GenericOp(
            [operands[-1].type],
            operands[:-1],
            operands[-1:],
            ir.ArrayAttr.get([_map(p, len(sizes)) for p in plan]),
            ir.ArrayAttr.get(kinds),
        )
        op.regions[0].blocks[0].append_to(new.regions[0])
        for name in discardable(op):
            new.attributes[name] = op.attributes[name]
        result = new.results[0]
        if result.type != op.results[0].type:
            result = tensor.CollapseShapeOp(
                op.results[0].type, result, _reassociation(plan[-1])
            ).result
    replace(op, result)


def _divisors(
    op: ir.Operation, maps: list[ir.AffineMap], ranges: list[int | None]
) -> dict[int, int]:
    """Block size of each loop that is divided."""
    found: dict[int, int] = {}
    for affine in maps:
        for expression in affine.results:
            for loop, size in _divisions(expression):
                if found.setdefault(loop, size) != size:
                    raise PassError(
                        f"one loop is divided into blocks of {found[loop]} and of {size}; give "
                        "both operands the same block size",
                        op.location,
                    )
    for loop, size in found.items():
        length = ranges[loop]
        if length is None:
            raise PassError(
                f"a dynamic dimension is divided into blocks of {size}; the dimension of the "
                "blocks must be static",
                op.location,
            )
        if length % size:
            raise PassError(
                f"K={length} is not a multiple of the block size {size}; pad the elements with "
                f"zeros to K={length + size - length % size}",
                op.location,
            )
    return found


def _divisions(expression: ir.AffineExpr) -> list[tuple[int, int]]:
    """(loop, divisor) of every `d floordiv c` and `d mod c` in an expression."""
    if not isinstance(expression, ir.AffineBinaryExpr):
        return []
    loop = dim_of(expression.lhs)
    divides = isinstance(expression, (ir.AffineFloorDivExpr, ir.AffineModExpr))
    if divides and loop is not None and isinstance(expression.rhs, ir.AffineConstantExpr):
        return [(loop, expression.rhs.value)]
    return _divisions(expression.lhs) + _divisions(expression.rhs)


def _rewrite(
    expression: ir.AffineExpr, loops: list[ir.AffineExpr], sizes: list[int | None]
) -> ir.AffineExpr:
    """`expression` over the new loops, divisions resolved by their ranges."""
    loop = dim_of(expression)
    if loop is not None:
        return loops[loop]
    if not isinstance(expression, ir.AffineBinaryExpr):
        return expression
    left = _rewrite(expression.lhs, loops, sizes)
    if isinstance(expression.rhs, ir.AffineConstantExpr):
        constant = expression.rhs.value
        if isinstance(expression, ir.AffineFloorDivExpr):
            return quotient(left, constant, sizes)
        if isinstance(expression, ir.AffineModExpr):
            return remainder(left, constant, sizes)
        if isinstance(expression, ir.AffineMulExpr):
            return times(left, constant)
    return plus(left, _rewrite(expression.rhs, loops, sizes))


def _digits(expression: ir.AffineExpr, sizes: list[int | None]) -> list[int] | None:
    """The loops, outermost first, of which an index is the mixed-radix number; None if it is not.

    With inner sizes B and C: `a * (B * C) + b * C + c` is [a, b, c].
    """
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
    # A loop of one iteration has the stride of the loop inside it: it stands outside that one.
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


def _reshape(value: ir.Value, digits: list[list[int]], sizes: list[int | None]) -> ir.Value:
    if all(len(group) == 1 for group in digits):
        return value
    source = ir.RankedTensorType(value.type)
    shape: list[int] = []
    dynamic: list[ir.Value] = []
    for axis, group in enumerate(digits):
        inner = [sizes[loop] or 0 for loop in group[1:]]
        if source.is_dynamic_dim(axis):
            dynamic.append(tensor.DimOp(value, arith.constant(ir.IndexType.get(), axis)).result)
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
        _reassociation(digits),
        output_shape=dynamic,
        static_output_shape=shape,
    ).result


def _reassociation(digits: list[list[int]]) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    groups, axis = [], 0
    for group in digits:
        groups.append([ir.IntegerAttr.get(i64, axis + i) for i in range(len(group))])
        axis += len(group)
    return ir.ArrayAttr.get([ir.ArrayAttr.get(group) for group in groups])


def _map(digits: list[list[int]], loops: int) -> ir.Attribute:
    results = [ir.AffineDimExpr.get(loop) for group in digits for loop in group]
    return ir.AffineMapAttr.get(ir.AffineMap.get(loops, 0, results))
