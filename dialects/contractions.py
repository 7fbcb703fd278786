"""Recognize any contraction: which two tensors a linalg operation multiplies and sums.

    out[b, m, n] += sum over k of lhs[b, m, k] * rhs[b, n, k]

in every form that IREE brings it to: generic or named, with scales on either side or none, without
the unit loops that IREE dropped. `scaled` builds and matches the one canonical form; this module
only describes, and returns None for other operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.contraction import OperandFormat
from mxc.dialects.dequantize import is_packed
from mxc.dialects.dispatches import owner, walk

_PRODUCTS = ("arith.mulf", "arith.muli")
_SUMS = ("arith.addf", "arith.addi", "arith.subf")
#: Operations that add floats to a sum, or subtract them from it.
_FLOAT_SUMS = ("arith.addf", "arith.subf", "math.fma")
_FUSED = "math.fma"
_CONSTANT = "arith.constant"
#: Operations that may lie between a product and the sum: roundings, negation, a mask.
_AROUND = ("arith.extf", "arith.truncf", "arith.negf", "arith.select")

# A factor that is looked up by an index is not an element of the operand that holds the index.
_NO_FACTOR = ("tensor.extract", "linalg.index")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One factor: its tensor, its scales (None if unscaled), and the loops that index each."""

    tensor: ir.Value
    dims: tuple[int, ...]
    scale: ir.Value | None = None
    scale_dims: tuple[int, ...] = ()

    @property
    def element(self) -> ir.Type:
        """Type of the elements."""
        return ir.RankedTensorType(self.tensor.type).element_type

    def format(self, block: int) -> OperandFormat:
        """The operand format, with `block` elements per scale if it has scales."""
        if self.scale is None:
            return OperandFormat(str(self.element))
        scale = str(ir.RankedTensorType(self.scale.type).element_type)
        return OperandFormat(str(self.element), scale, block)


@dataclass(frozen=True, kw_only=True)
class FactorPair:
    """The two factors that `op` multiplies and sums.

    `batch`, `m`, `n`, `k` are products of loop sizes, 1 where there is no loop, -1 if dynamic.
    `block` is the number of elements along k that share a scale, 0 for an unscaled product.
    """

    op: ir.Operation
    lhs: Side
    rhs: Side
    batch: int
    m: int
    n: int
    k: int
    block: int


def contractions(root: ir.Operation) -> list[FactorPair]:
    """Every contraction under `root`, in order."""
    return [found for op in walk(root) if (found := read(op)) is not None]


def read(op: ir.Operation) -> FactorPair | None:
    """Describe the contraction that `op` computes; None for other operations."""
    if not op.name.startswith("linalg.") or len(op.results) != 1 or len(op.regions) != 1:
        return None
    attribute = linalg.get_indexing_maps(op)
    if attribute is None or not op.regions[0].blocks:
        return None
    dims = [_dims(ir.AffineMapAttr(each).value) for each in attribute]
    if any(each is None for each in dims):
        return None
    indexed = [each for each in dims if each is not None]
    block = op.regions[0].blocks[0]
    leaves = _factors(block)
    reduced = {d for each in indexed for d in each} - set(indexed[-1])
    if leaves is None or not reduced or len(indexed) != len(op.operands):
        return None
    sides = _sides(op, leaves, indexed, reduced)
    if sides is None:
        return None
    sizes = _sizes(op, indexed)
    lhs, rhs = sides
    shared = (set(lhs.dims) & set(rhs.dims)) - reduced
    scaled = next((side for side in (rhs, lhs) if side.scale is not None), None)
    return FactorPair(
        op=op,
        lhs=lhs,
        rhs=rhs,
        batch=_extent(sizes, shared),
        m=_extent(sizes, set(lhs.dims) - reduced - shared),
        n=_extent(sizes, set(rhs.dims) - reduced - shared),
        k=_extent(sizes, reduced),
        block=0 if scaled is None else _extent(sizes, reduced - set(scaled.scale_dims)),
    )


def is_contraction(op: ir.Operation) -> bool:
    """Whether `op` sums products of two tensors, or sums packed elements, in any form."""
    return sums_elements(op) or read(op) is not None


def is_scaled_reduction(op: ir.Operation) -> bool:
    """Whether `op` sums scaled elements, in any form."""
    if not op.name.startswith("linalg.") or "iterator_types" not in op.attributes:
        return False
    loops = str(op.attributes["iterator_types"])
    return "reduction" in loops and any(inner.name == "arith.scaling_extf" for inner in walk(op))


def sums_elements(op: ir.Operation) -> bool:
    """Whether `op` sums floats that it decodes from elements or scales of 8 bits or fewer."""
    if not sums(op):
        return False
    types = [v.type.element_type for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    return is_scaled_reduction(op) or any(map(is_packed, types))


def sums(op: ir.Operation) -> bool:
    """Whether `op` is a linalg.generic that adds floats over a loop, or subtracts them."""
    if not op.name.startswith("linalg.") or "iterator_types" not in op.attributes:
        return False
    total = owner(list(op.regions[0].blocks[0].operations)[-1].operation.operands[0])
    adds = total is not None and total.name in _FLOAT_SUMS
    return adds and "reduction" in str(op.attributes["iterator_types"])


def _dims(indexing: ir.AffineMap) -> tuple[int, ...] | None:
    """The loop of each result of a map; None for a map with other results."""
    if not all(isinstance(result, ir.AffineDimExpr) for result in indexing.results):
        return None
    return tuple(ir.AffineDimExpr(result).position for result in indexing.results)


def _factors(block: ir.Block) -> list[int] | None:
    """Argument numbers that `yield(acc + product)` multiplies; None for another body."""
    operations = list(block.operations)
    if not operations or not operations[-1].operation.operands:
        return None
    total = owner(operations[-1].operation.operands[0])
    if total is None or total.name not in (*_SUMS, _FUSED):
        return None
    accumulator = block.arguments[len(block.arguments) - 1]
    terms = [value for value in total.operands if value != accumulator]
    if total.name == _FUSED:
        factors = terms if len(terms) == 2 else None  # all but the accumulator
    else:
        factors = _multiplied(terms[0]) if len(terms) == 1 else None
    if factors is None:
        return None
    found: list[int] = []
    pending = list(factors)
    while pending:
        value = pending.pop(0)
        definition = owner(value)
        if definition is not None:
            if definition.name in _NO_FACTOR:
                return None
            pending = [*definition.operands, *pending]
        elif value == accumulator:
            return None
        elif value.owner == block:
            found.append(ir.BlockArgument(value).arg_number)
    return found


def _multiplied(value: ir.Value) -> list[ir.Value] | None:
    """The factors of a product that may be rounded, negated or masked; None for another value."""
    product = owner(value)
    while product is not None and product.name in _AROUND:
        # A masked product counts as a product: the other value of the selection is a constant.
        chosen = list(product.operands)[product.name == "arith.select" :]
        product = next((op for op in map(owner, chosen) if op and op.name != _CONSTANT), None)
    return None if product is None or product.name not in _PRODUCTS else list(product.operands)


def _sides(
    op: ir.Operation, leaves: list[int], dims: list[tuple[int, ...]], reduced: set[int]
) -> tuple[Side, Side] | None:
    """Distinguish elements from scales: elements are read at every step along k. Scalar operands,
    such as the zero points of a quantized product, are neither."""
    tensors = [i for i in leaves if isinstance(op.operands[i].type, ir.RankedTensorType)]
    unique = list(dict.fromkeys(tensors))
    types = {i: ir.RankedTensorType(op.operands[i].type).element_type for i in unique}
    depth = max((len(reduced & set(dims[i])) for i in unique), default=0)
    elements = [
        i
        for i in unique
        if len(reduced & set(dims[i])) == depth and not isinstance(types[i], ir.Float8E8M0FNUType)
    ]
    if len(elements) != 2:
        return None
    scales = {i: s for s in unique if s not in elements for i in (_scaled_by(s, elements, dims),)}
    first, second = (
        Side(
            tensor=op.operands[i],
            dims=dims[i],
            scale=op.operands[scales[i]] if i in scales else None,
            scale_dims=dims[scales[i]] if i in scales else (),
        )
        for i in sorted(elements)
    )
    # The weight is the scaled side where only one is; otherwise the program's order is kept.
    return (second, first) if first.scale is not None and second.scale is None else (first, second)


def _scaled_by(scale: int, elements: list[int], dims: list[tuple[int, ...]]) -> int:
    """The element that a scale belongs to: the one with the fewest loops besides the scale's."""
    return min(elements, key=lambda i: (not set(dims[scale]) <= set(dims[i]), len(set(dims[i])), i))


def _sizes(op: ir.Operation, dims: list[tuple[int, ...]]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for operand, loops in zip(op.operands, dims, strict=True):
        if isinstance(operand.type, ir.RankedTensorType):
            for loop, size in zip(loops, operand.type.shape, strict=True):
                sizes[loop] = max(size, sizes.get(loop, -1))
    return sizes


def _extent(sizes: dict[int, int], loops: set[int]) -> int:
    chosen = [sizes.get(loop, -1) for loop in loops]
    return -1 if any(size < 0 for size in chosen) else math.prod(chosen)
