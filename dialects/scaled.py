"""The scaled contraction: the builder and the matcher of one form of IR.

    result[b, m, n] = acc[b, m, n]
                    + sum over ko, kb of (lhs[b, m, ko, kb] * lhs_scale[b, m, ko])
                                       * (rhs[b, n, ko, kb] * rhs_scale[b, n, ko])

It is one `linalg.generic` over the loops (batch.., m, n, ko, kb) with the operands in the order
lhs, rhs, lhs_scale (if any), rhs_scale (if any), acc. A scale is read without kb, so that no tensor
holds it once per element. IREE selects scaled matrix instructions only for this order of operands.

dequantize.py defines the value of a scaled element. Products and sums are f32.

A map may leave out a batch loop along which its operand does not change, and may read the
dimensions of its operand in another order (weights given as [KO, KB, N]); the order of operands and
of loops is fixed.

Where a scale of one side covers several blocks of the other, there is one more loop, over (batch..,
m, n, ko, ki, kb): mxfp8 by nvfp4 reads lhs [M, KO, 2, 16] with scales [M, KO], and rhs [N, KO, 2,
16] with scales [N, KO, 2]. Passes do not change this form; kernels may read it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.dialects.dequantize import Factor, extend, is_scale_of
from mxc.dialects.indexing import dims, indexing_maps
from mxc.dialects.mixed_blocks import in_common_blocks
from mxc.dialects.product import is_canonical_body, read_product
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import size_of

_PARALLEL = linalg.IteratorType.parallel
_REDUCTION = linalg.IteratorType.reduction


def scaled_contraction(
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    lhs_scale: ir.Value | None = None,
    rhs_scale: ir.Value | None = None,
    batch: int = 0,
    name: str | None = None,
) -> ir.Value:
    """Contract the last two dimensions of `lhs` and `rhs`, starting at zero, at the insertion
    point.

    lhs: tensor [batch.., M, KO, KB]; rhs: tensor [batch.., N, KO, KB]. A scale has the same shape
    without KB, and is f8E8M0FNU, f8E4M3FN (nvfp4) or f32. i8 elements are mxint8 with f8E8M0FNU
    scales, and int8 blocks with f32 scales. A side without scale is f32, bf16 or f16. Of two scaled
    sides, one may have a KB that is a multiple of the other's. `batch` is the number of leading
    dimensions that both sides share. Returns f32 [batch.., M, N]; M, N and the batch may be
    dynamic. `name` becomes the location of the operation, by which reports name it. Raises
    ValueError for types that do not fit.
    """
    location = ir.Location.name(name) if name is not None else ir.Location.current
    inner = (0, 0)
    with location:
        if lhs_scale is not None and rhs_scale is not None:
            inner, lhs, lhs_scale, rhs, rhs_scale = in_common_blocks(lhs, lhs_scale, rhs, rhs_scale)
    _check(lhs, rhs, lhs_scale, rhs_scale, batch, inner)
    with location:
        zero = arith.constant(ir.F32Type.get(), 0.0)
        rows = [size_of(lhs, axis) for axis in range(batch + 1)]
        empty = tensor.empty([*rows, size_of(rhs, batch)], ir.F32Type.get())
        acc = linalg.fill(zero, outs=[empty])
        maps = contraction_maps(batch, lhs_scale is not None, rhs_scale is not None, inner)
        return contraction_into(lhs, rhs, lhs_scale, rhs_scale, acc, maps)


def contraction_maps(
    batch: int, lhs_scaled: bool, rhs_scaled: bool, inner: tuple[int, int] = (0, 0)
) -> list[ir.AffineMap]:
    """Indexing maps of the canonical operands, in order, over (batch.., m, n, ko, kb).

    `inner`: 1 for the side whose scales are also read along ki, if there is such a loop.
    """
    d = [ir.AffineDimExpr.get(i) for i in range(batch + 4 + max(inner))]
    b, (m, n, ko, *ki, kb) = d[:batch], d[batch:]
    reads = [[*b, m, ko, *ki, kb], [*b, n, ko, *ki, kb]]
    reads += [[*b, m, ko, *ki[: inner[0]]]] * lhs_scaled
    reads += [[*b, n, ko, *ki[: inner[1]]]] * rhs_scaled
    return [ir.AffineMap.get(len(d), 0, read) for read in [*reads, [*b, m, n]]]


def contraction_into(
    lhs: ir.Value,
    rhs: ir.Value,
    lhs_scale: ir.Value | None,
    rhs_scale: ir.Value | None,
    acc: ir.Value,
    maps: Sequence[ir.AffineMap],
) -> ir.Value:
    """Build the generic, added to `acc`; `maps` in operand order over (batch.., m, n, ko, kb)."""
    scales = [scale for scale in (lhs_scale, rhs_scale) if scale is not None]
    parallel = len(maps[-1].results)
    loops = [_PARALLEL] * parallel + [_REDUCTION] * (maps[0].n_dims - parallel)

    def body(left: ir.Value, right: ir.Value, *rest: ir.Value) -> ir.Value:
        *block_scales, total = rest
        left = extend(left, block_scales.pop(0) if lhs_scale is not None else None)
        right = extend(right, block_scales.pop(0) if rhs_scale is not None else None)
        return total + left * right

    return linalg.generic([lhs, rhs, *scales], [acc], list(maps), loops)(body)


def _check(
    lhs: ir.Value,
    rhs: ir.Value,
    lhs_scale: ir.Value | None,
    rhs_scale: ir.Value | None,
    batch: int,
    inner: tuple[int, int],
) -> None:
    """Raise ValueError for types that do not fit the form; a wrong call is a bug of the caller."""
    if lhs_scale is None and rhs_scale is None:
        raise ValueError("a scaled contraction needs lhs_scale or rhs_scale, got neither")
    shapes = [list(ir.RankedTensorType(side.type).shape) for side in (lhs, rhs)]
    wanted = batch + 3 + max(inner)
    if any(len(shape) != wanted for shape in shapes):
        raise ValueError(
            f"with {batch} batch dimensions both sides need rank {wanted} "
            f"[batch.., M or N, KO, KB], got {lhs.type} and {rhs.type}"
        )
    if shapes[0][-2:] != shapes[1][-2:] or shapes[0][:batch] != shapes[1][:batch]:
        raise ValueError(f"batch, KO and KB of {lhs.type} and {rhs.type} differ")
    for side, scale, own in ((lhs, lhs_scale, inner[0]), (rhs, rhs_scale, inner[1])):
        element = ir.RankedTensorType(side.type).element_type
        if scale is None:
            if not isinstance(element, (ir.F32Type, ir.BF16Type, ir.F16Type)):
                raise ValueError(f"a side without scale must be f32, bf16 or f16, got {side.type}")
            continue
        if not is_scale_of(ir.RankedTensorType(scale.type).element_type, element):
            raise ValueError(f"{scale.type} cannot scale the elements of {side.type}")
        blocks = list(ir.RankedTensorType(side.type).shape)[: wanted - 1 - max(inner) + own]
        if list(ir.RankedTensorType(scale.type).shape) != blocks:
            raise ValueError(f"scale of {side.type} must have shape {blocks}, got {scale.type}")


#: The reason for a contraction of a vector; mxc-expand-vectors adds a row.
NO_ROWS = Reason("a side has no row loop of its own")


@dataclass(frozen=True)
class Loops:
    """Roles of the loops of the generic. `ki`: the loop over the smaller blocks within a larger
    one; empty if the block sizes of both sides are equal."""

    batch: tuple[int, ...]
    m: int
    n: int
    ko: int
    ki: tuple[int, ...]
    kb: int

    @property
    def order(self) -> tuple[int, ...]:
        """The loops in canonical order."""
        return (*self.batch, self.m, self.n, self.ko, *self.ki, self.kb)


@dataclass(frozen=True)
class ScaledContraction:
    """A generic that computes a scaled contraction, in whatever order it is written.

    `maps` are those of lhs, rhs, lhs_scale, rhs_scale (where present) and acc; `numbers` are the
    operand numbers of these except acc. Sizes are -1 where dynamic; `batch` has one for each batch
    loop; `k` counts elements, `block` the elements per scale. `rounded`: the types to which the
    values of lhs and of rhs are rounded before the multiplication, "" for none. `blocks`: elements
    per scale of lhs and of rhs, of which `block` is the smaller; a side without scale has that of
    the other.
    """

    op: ir.Operation
    lhs: ir.Value
    rhs: ir.Value
    lhs_scale: ir.Value | None
    rhs_scale: ir.Value | None
    acc: ir.Value
    maps: tuple[ir.AffineMap, ...]
    numbers: tuple[int, ...]
    loops: Loops
    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    block: int
    is_canonical: bool
    rounded: tuple[str, str]
    blocks: tuple[int, int]

    @property
    def lhs_type(self) -> ir.Type:
        """Element type of lhs."""
        return ir.RankedTensorType(self.lhs.type).element_type

    @property
    def rhs_type(self) -> ir.Type:
        """Element type of rhs."""
        return ir.RankedTensorType(self.rhs.type).element_type

    @property
    def is_row_major(self) -> bool:
        """Whether the dimensions of each operand are in the order of the loops."""
        places = [[self.loops.order.index(i) for i in _known(dims(a))] for a in self.maps]
        return all(place == sorted(place) for place in places)


def match_scaled_contraction(
    op: ir.Operation, *, rounded: bool = False, mixed: bool = False
) -> ScaledContraction | Reason:
    """The scaled contraction that `op` computes, or the reason why it computes none.

    `rounded`: also accept sides that are dequantized to a type that does not hold all their values;
    `mixed`: also accept sides with different block sizes.
    """
    if op.name != "linalg.generic" or len(op.results) != 1:
        return Reason("it is no linalg.generic with one result")
    factors = read_product(op, rounded=rounded)
    if isinstance(factors, Reason):
        return factors
    if factors[0].scale is None and factors[1].scale is None:
        return Reason("neither side has a scale")
    maps = indexing_maps(op)
    if any(None in dims(affine) for affine in maps):
        return Reason("an operand is not indexed by plain loops")
    used = {i for f in factors for i in (f.element, f.scale) if i is not None}
    if used != set(range(len(op.operands) - 1)):
        return Reason("it has operands that its product does not read")
    written = _known(dims(maps[-1]))
    reads = [set(_known(dims(maps[f.element]))) for f in factors]
    reduced = [i for i in range(maps[-1].n_dims) if i not in written]
    if len(reduced) not in (2, 2 + mixed) or any(not set(reduced) <= read for read in reads):
        return Reason(f"it reduces {len(reduced)} loops where (ko, kb) are wanted on both sides")
    blocks = [set(_known(dims(maps[f.scale]))) for f in factors if f.scale is not None]
    # Number of scales that a loop indexes: all for ko, those of smaller blocks for ki, none for kb.
    depth = {loop: sum(loop in block for block in blocks) for loop in reduced}
    ko, *ki, kb = sorted(reduced, key=lambda loop: -depth[loop])
    if depth[ko] != len(blocks) or depth[kb] or any(depth[loop] != 1 for loop in ki):
        return Reason("a scale is not read once for each block of the reduction")
    for factor, read in zip(factors, reads, strict=True):
        if factor.scale is not None:
            own = set(_known(dims(maps[factor.scale])))
            if own | {*ki} != read - {kb} | {*ki}:
                return Reason("a scale is not read at every row and block of its elements")
    return _assign_sides(op, factors, maps, written, (ko, *ki, kb))


def _assign_sides(
    op: ir.Operation,
    factors: tuple[Factor, Factor],
    maps: list[ir.AffineMap],
    written: list[int],
    reduced: Sequence[int],
) -> ScaledContraction | Reason:
    reads = [set(_known(dims(maps[f.element]))) for f in factors]
    own = [[i for i in written if i in reads[s] and i not in reads[1 - s]] for s in (0, 1)]
    if not own[0] or not own[1]:
        return NO_ROWS
    # The rows of rhs are the columns of the result; if only one side has a scale, it is rhs.
    right = 1 if written.index(own[1][-1]) > written.index(own[0][-1]) else 0
    if (factors[0].scale is None) != (factors[1].scale is None):
        right = 1 if factors[0].scale is None else 0
    lhs, rhs = factors[1 - right], factors[right]
    m, n = own[1 - right][-1], own[right][-1]
    ko, *ki, kb = reduced
    loops = Loops(tuple(i for i in written if i not in (m, n)), m, n, ko, tuple(ki), kb)
    order = [i for i in (lhs.element, rhs.element, lhs.scale, rhs.scale) if i is not None]
    sizes = _sizes(op, maps)
    own_blocks = [
        sizes[kb]
        if factor.scale is None
        else math.prod(sizes[loop] for loop in reduced if loop not in dims(maps[factor.scale]))
        for factor in (lhs, rhs)
    ]
    return ScaledContraction(
        op=op,
        lhs=op.operands[lhs.element],
        rhs=op.operands[rhs.element],
        lhs_scale=None if lhs.scale is None else op.operands[lhs.scale],
        rhs_scale=None if rhs.scale is None else op.operands[rhs.scale],
        acc=op.operands[len(op.operands) - 1],
        maps=tuple(maps[i] for i in [*order, len(op.operands) - 1]),
        numbers=tuple(order),
        loops=loops,
        batch=tuple(sizes[i] for i in loops.batch),
        m=sizes[m],
        n=sizes[n],
        k=-1 if sizes[ko] < 0 else math.prod(sizes[loop] for loop in reduced),
        block=sizes[kb],
        is_canonical=not ki
        and loops.order == tuple(range(maps[-1].n_dims))
        and order == list(range(len(order)))
        and is_canonical_body(op, lhs, rhs),
        rounded=(lhs.rounded, rhs.rounded),
        blocks=(own_blocks[0], own_blocks[1]),
    )


def _known(loops: Sequence[int | None]) -> list[int]:
    return [loop for loop in loops if loop is not None]


def _sizes(op: ir.Operation, maps: list[ir.AffineMap]) -> list[int]:
    sizes = [-1] * maps[-1].n_dims
    for operand, affine in zip(op.operands, maps, strict=True):
        for size, loop in zip(operand.type.shape, _known(dims(affine)), strict=True):
            sizes[loop] = max(sizes[loop], size)
    return sizes
