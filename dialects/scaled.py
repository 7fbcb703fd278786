"""The scaled contraction: one shape of IR, built here and matched here.

    result[b, m, n] = acc[b, m, n]
                    + sum over ko, kb of (lhs[b, m, ko, kb] * lhs_scale[b, m, ko])
                                       * (rhs[b, n, ko, kb] * rhs_scale[b, n, ko])

It is one `linalg.generic` over the loops (batch.., m, n, ko, kb) with the operands in the order
lhs, rhs, lhs_scale (if any), rhs_scale (if any), acc. A scale is read without kb, so that no tensor
ever holds it once per element. The order is the one under which IREE selects scaled matrix
instructions; another order of the same operands gives none.

Meaning of a scaled element: `arith.scaling_extf` for scales of f8E8M0FNU (OCP MX 1.0, 6.1). For
nvfp4, whose scales are f8E4M3FN, `mulf(extf(element), extf(scale))`: arith.scaling_extf would read
only the exponent of such a scale. Products and sums are f32.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

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
    """Contract the last two dimensions of `lhs` and `rhs`, from zero, at the insertion point.

    lhs: tensor [batch.., M, KO, KB]; rhs: tensor [batch.., N, KO, KB]; a scale: the same without
    KB, f8E8M0FNU or f8E4M3FN (nvfp4). A side without scale is f32, bf16 or f16. `batch` is the
    number of leading dimensions that both sides share. Returns f32 [batch.., M, N]; M, N and the
    batch may be dynamic. `name` becomes the location of the operation, which is how reports call
    it. Raises ValueError where the types cannot be contracted so.
    """
    _check(lhs, rhs, lhs_scale, rhs_scale, batch)
    location = ir.Location.name(name) if name is not None else ir.Location.current
    with location:
        zero = arith.constant(ir.F32Type.get(), 0.0)
        rows = [_size(lhs, axis) for axis in range(batch + 1)]
        empty = tensor.empty([*rows, _size(rhs, batch)], ir.F32Type.get())
        acc = linalg.fill(zero, outs=[empty])
        maps = contraction_maps(batch, lhs_scale is not None, rhs_scale is not None)
        return contraction_into(lhs, rhs, lhs_scale, rhs_scale, acc, maps)


def contraction_maps(batch: int, lhs_scaled: bool, rhs_scaled: bool) -> list[ir.AffineMap]:
    """Indexing maps of the canonical operands, in their order, over (batch.., m, n, ko, kb)."""
    d = [ir.AffineDimExpr.get(i) for i in range(batch + 4)]
    b, (m, n, ko, kb) = d[:batch], d[batch:]
    reads = [[*b, m, ko, kb], [*b, n, ko, kb]]
    reads += [[*b, m, ko]] * lhs_scaled + [[*b, n, ko]] * rhs_scaled
    return [ir.AffineMap.get(batch + 4, 0, read) for read in [*reads, [*b, m, n]]]


def contraction_into(
    lhs: ir.Value,
    rhs: ir.Value,
    lhs_scale: ir.Value | None,
    rhs_scale: ir.Value | None,
    acc: ir.Value,
    maps: Sequence[ir.AffineMap],
) -> ir.Value:
    """The generic itself, added to `acc`; `maps` in operand order over (batch.., m, n, ko, kb)."""
    f32 = ir.F32Type.get()
    scales = [scale for scale in (lhs_scale, rhs_scale) if scale is not None]
    loops = [_PARALLEL] * (maps[0].n_dims - 2) + [_REDUCTION] * 2

    def body(left: ir.Value, right: ir.Value, *rest: ir.Value) -> ir.Value:
        *block_scales, total = rest
        left = extend(f32, left, block_scales.pop(0) if lhs_scale is not None else None)
        right = extend(f32, right, block_scales.pop(0) if rhs_scale is not None else None)
        return arith.addf(total, arith.mulf(left, right))

    return linalg.generic([lhs, rhs, *scales], [acc], list(maps), loops)(body)


def extend(f32: ir.Type, element: ir.Value, scale: ir.Value | None) -> ir.Value:
    """The f32 value of one element under its block scale (see the module's text)."""
    if scale is not None and isinstance(scale.type, ir.Float8E8M0FNUType):
        return arith.scaling_extf(f32, element, scale)
    value = element if element.type == f32 else arith.extf(f32, element)
    return value if scale is None else arith.mulf(value, arith.extf(f32, scale))


def _check(
    lhs: ir.Value,
    rhs: ir.Value,
    lhs_scale: ir.Value | None,
    rhs_scale: ir.Value | None,
    batch: int,
) -> None:
    """Refuse types that the shape cannot hold. A wrong call is a bug of the caller: ValueError."""
    if lhs_scale is None and rhs_scale is None:
        raise ValueError("a scaled contraction needs lhs_scale or rhs_scale, got neither")
    shapes = [list(ir.RankedTensorType(side.type).shape) for side in (lhs, rhs)]
    wanted = batch + 3
    if any(len(shape) != wanted for shape in shapes):
        raise ValueError(
            f"with {batch} batch dimensions both sides need rank {wanted} "
            f"[batch.., M or N, KO, KB], got {lhs.type} and {rhs.type}"
        )
    if shapes[0][-2:] != shapes[1][-2:] or shapes[0][:batch] != shapes[1][:batch]:
        raise ValueError(f"batch, KO and KB of {lhs.type} and {rhs.type} differ")
    for side, scale in ((lhs, lhs_scale), (rhs, rhs_scale)):
        element = ir.RankedTensorType(side.type).element_type
        if scale is None:
            if not isinstance(element, (ir.F32Type, ir.BF16Type, ir.F16Type)):
                raise ValueError(f"a side without scale must be f32, bf16 or f16, got {side.type}")
            continue
        if not is_scale_of(ir.RankedTensorType(scale.type).element_type, element):
            raise ValueError(f"{scale.type} cannot scale the elements of {side.type}")
        blocks = list(ir.RankedTensorType(side.type).shape)[:-1]
        if list(ir.RankedTensorType(scale.type).shape) != blocks:
            raise ValueError(f"scale of {side.type} must have shape {blocks}, got {scale.type}")


def is_scale_of(scale: ir.Type, element: ir.Type) -> bool:
    """Whether `scale` is the type of a block scale over `element`: MX, or nvfp4's e2m1 and e4m3."""
    if isinstance(scale, ir.Float8E8M0FNUType):
        return is_element(element)
    return isinstance(scale, ir.Float8E4M3FNType) and isinstance(element, ir.Float4E2M1FNType)


def is_element(element: ir.Type) -> bool:
    """Whether the type is the element of a block format: a float of at most 8 bits, not a scale."""
    return (
        isinstance(element, ir.FloatType)
        and element.width <= 8
        and not isinstance(element, ir.Float8E8M0FNUType)
    )


def _size(value: ir.Value, axis: int) -> int | ir.Value:
    """Size of one dimension: an int where static, else a `tensor.dim`."""
    shaped = ir.RankedTensorType(value.type)
    if not shaped.is_dynamic_dim(axis):
        return int(shaped.get_dim_size(axis))
    return tensor.DimOp(value, arith.constant(ir.IndexType.get(), axis)).result
