"""mxc-hoist-scales: multiply the result of a contraction by scales that are constant along K.

A scale of a tensor, of a row of lhs or of a row of rhs is the same for all terms of a sum. Outside
of the sum it multiplies each result once, in the epilogue, and the contraction is then one of plain
elements, as matrix instructions and dot products take. The exact product is the same, but rounding
differs: terms and partial sums are rounded before they are scaled.

before:
    linalg.generic {indexing_maps = [(m, n, k) -> (m, k), .. -> (n, k), .. -> (n), .. -> (m, n)]}
      ins(%x, %w : tensor<NxKxf8E4M3FN>, %s : tensor<Nxf32>) outs(%acc)
      { mulf(extf(%w), %s), mulf(%x, _), addf }
after:
    %r = linalg.generic {indexing_maps = [(m, n, k) -> (m, k), (m, n, k) -> (n, k), ..]}
      ins(%x, %w) outs(%zero) { mulf(%x, extf(%w)), addf }
    linalg.generic {indexing_maps = [(m, n) -> (m, n), (m, n) -> (n), (m, n) -> (m, n), ..]}
      ins(%r, %s, %acc) { addf(%acc, mulf(%r, %s)) }

Leaves alone: contractions that read no elements of 8 bits or fewer; scales that vary along the
reduction, or are computed from the number of an iteration; terms that read the sum itself; products
in other types than f32, whose rounding the program asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.dialects.dequantize import (
    is_byte,
    is_step,
    iterators,
)
from mxc.dialects.generic import element_of, fill
from mxc.dialects.indexing import dims, indexing_maps, substitute
from mxc.dialects.product import f32_operands
from mxc.dialects.scalar_nodes import loops_of
from mxc.dialects.sizes import size_of
from mxc.passes.base import Pass
from mxc.passes.kernels.values import is_zero
from mxc.passes.rewriting.generics import (
    arguments_of,
    computes_from_index,
    generic_like,
    is_product,
    read_map,
    yielded,
)
from mxc.passes.rewriting.rebuild import OperandRead, clone_scalar, replace, sums_of_elements, sweep


@dataclass(frozen=True)
class HoistScales(Pass):
    """Multiply the result of a contraction by the scales that do not vary along the reduction."""

    name = "mxc-hoist-scales"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every sum of products with a factor that is the same for all terms."""
        for op in sums_of_elements(module):
            _hoist(op)
        sweep(module)


def _hoist(op: ir.Operation) -> None:
    block = op.regions[0].blocks[0]
    acc = block.arguments[len(block.arguments) - 1]
    terms = [v for v in f32_operands(yielded(op), "arith.addf") or () if v != acc]
    written = dims(indexing_maps(op)[-1])
    if len(terms) != 1 or None in written or acc in arguments_of(terms[0]):
        return
    factors = list(_factors(op, terms[0]))
    hoisted = [value for value in factors if _is_constant_along(op, value)]
    if not hoisted or len(hoisted) == len(factors):
        return
    kept = set().union(*(arguments_of(value) for value in factors if value not in hoisted))
    inputs = [
        (argument, OperandRead(op.operands[argument.arg_number], read_map(op, argument)))
        for argument in block.arguments
        if argument in kept
    ]
    init = op.operands[len(op.operands) - 1]
    start = init if is_zero(init) else _zeros(op, init)

    def product(scalars: Sequence[ir.Value]) -> ir.Value:
        at = dict(zip((argument for argument, _ in inputs), scalars, strict=False))
        return scalars[-1] + _without(terms[0], hoisted, at)

    result = generic_like(op, [read for _, read in inputs], start, product)
    added = None if start == init else init
    replace(op, _scaled(op, result, hoisted, added, [d for d in written if d is not None]))


def _factors(op: ir.Operation, value: ir.Value) -> list[ir.Value]:
    """The factors of an f32 product. A product that is constant along the reduction is one."""
    if not is_product(value) or _is_constant_along(op, value):
        return [value]
    return [factor for side in value.owner.operands for factor in _factors(op, side)]


def _is_constant_along(op: ir.Operation, value: ir.Value) -> bool:
    """Whether a scalar of the body is the same for all terms of the sum."""
    if not isinstance(value.type, ir.F32Type):
        return False
    if is_step(value) and _reads_bytes(op):
        return False  # the constant that belongs to the elements of mxint8
    if computes_from_index(value):
        return False
    reduced = {i for i, kind in enumerate(iterators(op)) if "reduction" in str(kind)}
    maps = [read_map(op, argument) for argument in arguments_of(value)]
    return all(reduced.isdisjoint(loops_of(affine.results)) for affine in maps)


def _reads_bytes(op: ir.Operation) -> bool:
    return any(is_byte(argument.type) for argument in op.regions[0].blocks[0].arguments)


def _without(
    value: ir.Value, hoisted: Sequence[ir.Value], at: dict[ir.Value, ir.Value]
) -> ir.Value:
    """Emit the product `value` without the hoisted factors."""
    if not is_product(value):
        return clone_scalar(value, at)
    left, right = value.owner.operands
    if left in hoisted:
        return _without(right, hoisted, at)
    if right in hoisted:
        return _without(left, hoisted, at)
    return _without(left, hoisted, at) * _without(right, hoisted, at)


def _zeros(op: ir.Operation, like: ir.Value) -> ir.Value:
    with ir.InsertionPoint(op), op.location:
        rank = ir.RankedTensorType(like.type).rank
        return fill([size_of(like, axis) for axis in range(rank)], element_of(like), 0.0)


def _scaled(
    op: ir.Operation,
    result: ir.Value,
    factors: Sequence[ir.Value],
    added: ir.Value | None,
    written: Sequence[int],
) -> ir.Value:
    """Build `result` times the factors, plus `added` if there is one. `written`: the loop of `op`
    for each dimension of the result."""
    rank = len(written)
    loops = [ir.AffineConstantExpr.get(0)] * indexing_maps(op)[-1].n_dims
    for axis, loop in enumerate(written):
        loops[loop] = ir.AffineDimExpr.get(axis)
    used = set().union(*(arguments_of(value) for value in factors))
    arguments = [a for a in op.regions[0].blocks[0].arguments if a in used]
    values, maps = [result], [ir.AffineMap.get_identity(rank)]
    for argument in arguments:
        reads = [substitute(e, loops) for e in read_map(op, argument).results]
        values.append(op.operands[argument.arg_number])
        maps.append(ir.AffineMap.get(rank, 0, reads))
    if added is not None:
        values.append(added)
        maps.append(ir.AffineMap.get_identity(rank))
    parallel = [linalg.IteratorType.parallel] * rank

    def body(total: ir.Value, *rest: ir.Value) -> ir.Value:
        at = dict(zip(arguments, rest, strict=False))
        for factor in factors:
            total = total * clone_scalar(factor, at)
        return total if added is None else rest[len(arguments)] + total

    with ir.InsertionPoint(op), op.location:
        sizes = [size_of(result, axis) for axis in range(rank)]
        init = tensor.empty(sizes, element_of(result))
        maps.append(ir.AffineMap.get_identity(rank))
        return linalg.generic(values, [init], maps, parallel)(body)
