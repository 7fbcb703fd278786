"""Windows of StableHLO over dynamic sizes: running sums, and pooling by windows of known sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.compiler.programs.reshape_groups import ONE, Size
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes, has_no_sign
from mxc.dialects.generic import element_of, empty, generic
from mxc.dialects.linalg_ext import scan
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.sizes import value_of

_Combine = Callable[[ir.Value, ir.Value], ir.Value]
#: What combines elements of a window, by the operation of StableHLO: of floats, and of integers.
_COMBINES: dict[str, tuple[_Combine, _Combine]] = {
    "stablehlo.add": (arith.addf, arith.addi),
    "stablehlo.multiply": (arith.mulf, arith.muli),
    "stablehlo.maximum": (arith.maximumf, arith.maxsi),
    "stablehlo.minimum": (arith.minimumf, arith.minsi),
}
#: The custom call by which JAX says a window whose size comes with the call.
_WINDOW = "stablehlo.dynamic_reduce_window"


def running(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """A window along one dimension from its first element up to each: a running sum, or product.

    bf16 and f16 are added up as f32.
    """
    if ir.StringAttr(op.attributes["call_target_name"]).value != _WINDOW:
        return None
    value, start, window, strides, base, dilation, padding = op.operands
    rank, own = ir.RankedTensorType(value.type).rank, sizes.of(value)
    if any(sizes.element(each, axis) != ONE
           for each in (strides, base, dilation) for axis in range(rank)):  # fmt: skip
        return None
    lengths = [sizes.element(window, axis) for axis in range(rank)]
    long = [axis for axis in range(rank) if lengths[axis] != ONE]
    before = [sizes.element(padding, 2 * axis) for axis in range(rank)]
    after = [sizes.element(padding, 2 * axis + 1) for axis in range(rank)]
    if len(long) != 1 or lengths[long[0]] != own[long[0]] or any(each.factor for each in after):
        return None
    axis = long[0]
    one_less = Size(names=(("add", own[axis], Size(-1)),))
    if before[axis] != one_less or any(before[each].factor for each in range(rank) if each != axis):
        return None
    combine = _combination(op)
    if combine is None or has_no_sign(value):
        return None
    element = value.type.element_type
    wide = ir.F32Type.get() if element in (ir.BF16Type.get(), ir.F16Type.get()) else element
    letters = [f"d{each}" for each in range(rank)]
    others = [letter for each, letter in enumerate(letters) if each != axis]
    counts: dict[str, int | ir.Value] = {
        letters[each]: tensor.dim(value, value_of(each)) if own[each].names else own[each].factor
        for each in range(rank)
        if each != axis
    }

    def to(wanted: ir.Type, tensor_value: ir.Value) -> ir.Value:
        if element_of(tensor_value) == wanted:
            return tensor_value
        change = arith.extf if wanted == wide else arith.truncf
        read = " ".join(letters)
        return generic([(tensor_value, read)], read, wanted, lambda each: change(wanted, each))

    first = generic(
        [(start, "")],
        " ".join(others),
        wide,
        lambda each: each if wide == element else arith.extf(wide, each),
        sizes=counts,
    )
    found = to(element, scan(to(wide, value), first, axis, combine))
    sizes.record(found, own)
    return found


def _combination(op: ir.Operation) -> _Combine | None:
    """What the function of a window does, if it is one operation on its two arguments."""
    (symbol,) = ir.ArrayAttr(op.attributes["called_computations"])
    module = op.parent
    while module is not None and module.name != "builtin.module":
        module = module.parent
    assert module is not None
    wanted = ir.FlatSymbolRefAttr(symbol).value
    for view in module.regions[0].blocks[0].operations:
        each = view.operation
        if each.name == "func.func" and symbol_of(each) == wanted:
            return _of_body(each.regions[0].blocks[0], op.operands[0])
    return None


def _of_body(block: ir.Block, value: ir.Value) -> _Combine | None:
    """What a body does with elements of `value`, if it is one operation on its two arguments."""
    names = [each.operation.name for each in block.operations][:-1]
    known = _COMBINES.get(names[0]) if len(names) == 1 else None
    floats = isinstance(element_of(value), ir.FloatType)
    return None if known is None else known[not floats]


def pooled(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.reduce_window` of one tensor: elements of a window combined by one operation."""
    if len(op.operands) != 2 or has_no_sign(op.operands[0]):
        return None
    value, start = op.operands
    combine = _of_body(op.regions[0].blocks[0], value)
    if combine is None:
        return None
    rank = ir.RankedTensorType(value.type).rank
    window, strides, base, dilations = (
        list(ir.DenseI64ArrayAttr(op.attributes[name])) if name in op.attributes else [1] * rank
        for name in ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
    )
    edges = [0] * (2 * rank)
    if "padding" in op.attributes:
        edges = [int(each) for each in ir.DenseIntElementsAttr(op.attributes["padding"])]
    kind = ir.RankedTensorType(op.results[0].type)
    whole = _padded(value, start, edges[::2], edges[1::2], [each - 1 for each in base])
    counts: list[int | ir.Value] = []
    known = []
    own = sizes.of(value)
    for axis, size in enumerate(kind.shape):
        # A dimension of a size that comes with the call is not reduced, or its result is another.
        single = (window[axis], strides[axis], base[axis], *edges[2 * axis : 2 * axis + 2])
        if size < 0 and single != (1, 1, 1, 0, 0):
            return None
        counts.append(tensor.dim(value, value_of(axis)) if size < 0 else size)
        known.append(own[axis] if size < 0 else Size(size))
    out = [ir.AffineDimExpr.get(axis) for axis in range(rank)]
    inner = [ir.AffineDimExpr.get(rank + axis) for axis in range(rank)]
    reads = [
        each * stride + place * dilation
        for each, stride, place, dilation in zip(out, strides, inner, dilations, strict=True)
    ]
    first = generic(
        [(start, "")],
        " ".join(f"d{axis}" for axis in range(rank)),
        kind.element_type,
        lambda each: each,
        sizes={f"d{axis}": count for axis, count in enumerate(counts)},
    )
    maps = [ir.AffineMap.get(2 * rank, 0, each) for each in (reads, inner, out)]
    kinds = [linalg.IteratorType.parallel] * rank + [linalg.IteratorType.reduction] * rank
    # No element of it is read: it has the sizes of the window.
    extent = empty(window, kind.element_type)

    def body(element: ir.Value, _: ir.Value, total: ir.Value) -> ir.Value:
        return combine(total, element)

    found = linalg.generic([whole, extent], [first], maps, kinds)(body)
    sizes.record(found, known)
    return found


def _padded(
    value: ir.Value,
    start: ir.Value,
    low: Sequence[int],
    high: Sequence[int],
    between: Sequence[int],
) -> ir.Value:
    if not any((*low, *high, *between)):
        return value
    attributes = {
        "edge_padding_low": ir.DenseI64ArrayAttr.get(low),
        "edge_padding_high": ir.DenseI64ArrayAttr.get(high),
        "interior_padding": ir.DenseI64ArrayAttr.get(between),
    }
    return ir.Operation.create(
        "stablehlo.pad",
        results=None,
        operands=[value, start],
        attributes=attributes,
        infer_type=True,
    ).result
