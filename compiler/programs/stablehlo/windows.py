"""Windows of StableHLO over dynamic sizes: running sums, and pooling by windows of known sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, tensor

from mxc.compiler.programs.reshape_groups import ONE, Size
from mxc.compiler.programs.single import NO_LOWERING
from mxc.compiler.programs.stablehlo.edges import Edge, padded, window_count
from mxc.compiler.programs.stablehlo.operations import text_of
from mxc.compiler.programs.stablehlo.products import converted, wide_sums
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes, has_no_sign
from mxc.dialects.generic import element_of, empty, generic, loop_index
from mxc.dialects.linalg_ext import scan
from mxc.dialects.locations import place_of
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.sizes import axes_of, shape_of, size_of, sizes_of, value_of
from mxc.errors import PassError

_Combine = Callable[[ir.Value, ir.Value], ir.Value]
#: What combines elements of a window, by the operation of StableHLO: of floats, and of integers.
_COMBINES: dict[str, tuple[_Combine, _Combine]] = {
    "stablehlo.add": (arith.addf, arith.addi),
    "stablehlo.multiply": (arith.mulf, arith.muli),
    "stablehlo.maximum": (arith.maximumf, arith.maxsi),
    "stablehlo.minimum": (arith.minimumf, arith.minsi),
}
#: The custom call by which JAX says windows of which a number comes with the call.
_WINDOW = "stablehlo.dynamic_reduce_window"
#: The attributes with a number for each dimension, as the fields of `_Windows`.
_LISTS = ("window_dimensions", "window_strides", "base_dilations", "window_dilations")
_NOTHING = Size(0)


@dataclass(frozen=True)
class _Windows:
    """Numbers of windows along each dimension.

    `inside`: the distance of two elements in what they are laid over, `spread` in the windows.
    `edges`: what is added before and after each dimension; `added`: the same as the program has it.
    """

    lengths: Sequence[Size]
    strides: Sequence[Size]
    inside: Sequence[Size]
    spread: Sequence[Size]
    edges: Sequence[Size]
    added: Sequence[Edge]

    def are_dense(self) -> bool:
        """Whether one begins at each element, without gaps."""
        return all(each == ONE for each in (*self.strides, *self.inside, *self.spread))

    def are_known(self) -> bool:
        """Whether the call brings no number but those at the edges."""
        numbers = (*self.lengths, *self.strides, *self.inside, *self.spread)
        return not any(each.names for each in numbers)

    def keeps(self, axis: int) -> bool:
        """Whether a dimension is as it was."""
        numbers = (self.lengths, self.strides, self.inside)
        edges = self.edges[2 * axis : 2 * axis + 2]
        return all(each[axis] == ONE for each in numbers) and list(edges) == [_NOTHING] * 2


def windows_of_operation(op: ir.Operation, sizes: DimensionSizes) -> ir.Value:
    """`stablehlo.reduce_window` of one tensor, whose elements one operation combines.

    Raises PassError for others: IREE would make operations of them that are not valid.
    """
    combine = _of_body(op.regions[0].blocks[0], op.operands[0]) if len(op.operands) == 2 else None
    return _lowered(op, op.name, combine, _of_attributes(op), sizes)


def windows_of_call(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """The same of the custom call for windows of which a number comes with the call; None for
    other custom calls."""
    if text_of(op, "call_target_name") != _WINDOW:
        return None
    return _lowered(op, _WINDOW, _combination(op), _of_operands(op, sizes), sizes)


def _lowered(
    op: ir.Operation,
    name: str,
    combine: _Combine | None,
    windows: _Windows,
    sizes: DimensionSizes,
) -> ir.Value:
    value, start = op.operands[:2]
    own = sizes.of(value)
    found = None
    if combine is not None and not has_no_sign(value):
        if windows.are_dense():
            found = _scanned(value, start, combine, windows, own)
        if found is not None:
            sizes.record(found, own)
            return found
        if windows.are_known():
            found = _combined(value, start, combine, windows)
    if found is None:
        raise PassError(f"{name} of such sizes {NO_LOWERING}", place_of(op.location))
    if found.type != op.results[0].type:
        found = tensor.cast(op.results[0].type, found)
    kept = [windows.keeps(axis) for axis in range(len(own))]
    sizes.record(found, [size if same else None for size, same in zip(own, kept, strict=True)])
    return found


def _of_attributes(op: ir.Operation) -> _Windows:
    rank = len(shape_of(op.operands[0]))
    lengths, strides, inside, spread = (
        [Size(each) for each in ir.DenseI64ArrayAttr(op.attributes[name])]
        if name in op.attributes
        else [ONE] * rank
        for name in _LISTS
    )
    added = [0] * (2 * rank)
    if "padding" in op.attributes:
        added = [int(each) for each in ir.DenseIntElementsAttr(op.attributes["padding"])]
    return _Windows(lengths, strides, inside, spread, [Size(each) for each in added], added)


def _of_operands(op: ir.Operation, sizes: DimensionSizes) -> _Windows:
    *lists, padding = list(op.operands)[2:]
    rank = len(shape_of(op.operands[0]))
    lengths, strides, inside, spread = (
        [sizes.element(each, axis) for axis in range(rank)] for each in lists
    )
    edges = [sizes.element(padding, number) for number in range(2 * rank)]
    added = [
        sizes.index(padding, number) if each.names else each.factor
        for number, each in enumerate(edges)
    ]
    return _Windows(lengths, strides, inside, spread, edges, added)


def _scanned(
    value: ir.Value, start: ir.Value, combine: _Combine, windows: _Windows, own: Sequence[Size]
) -> ir.Value | None:
    """Dense windows as a scan, if they have the length of one dimension and reach one of its ends.

    `own`: the sizes of `value`. bf16 and f16 are added up as f32.
    """
    long = [axis for axis, length in enumerate(windows.lengths) if length != ONE]
    if len(long) != 1 or windows.lengths[long[0]] != own[long[0]]:
        return None
    (axis,) = long
    from_first, from_last = ([_NOTHING] * len(windows.edges) for _ in range(2))
    from_first[2 * axis] = from_last[2 * axis + 1] = _one_less(own[axis])
    if windows.edges not in (from_first, from_last):
        return None
    element = element_of(value)
    wide = wide_sums(element)
    letters = axes_of(value).split()
    extents = dict(zip(letters, sizes_of(value), strict=True))
    last = value_of(extents[letters[axis]])

    def ordered(given: ir.Value, wanted: ir.Type) -> ir.Value:
        """Elements of a type in the order in which they are added up, or back."""
        read = " ".join(letters)
        if windows.edges == from_first:
            if wanted == element_of(given):
                return given
            return generic([(given, read)], read, wanted, lambda each: converted(each, wanted))

        def body() -> ir.Value:
            at = [loop_index(read, letter) for letter in letters]
            at[axis] = arith.subi(last, arith.addi(at[axis], value_of(1)))
            return converted(tensor.extract(given, at), wanted)

        return generic([], read, wanted, body, sizes=extents)

    others = [letter for letter in letters if letter != letters[axis]]
    first = generic(
        [(start, "")],
        " ".join(others),
        wide,
        lambda each: converted(each, wide),
        sizes={letter: extents[letter] for letter in others},
    )
    return ordered(scan(ordered(value, wide), first, axis, combine), element)


def _one_less(size: Size) -> Size:
    """A size less one, as `DimensionSizes.element` has it."""
    return Size(names=(("add", size, Size(-1)),)) if size.names else Size(size.factor - 1)


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


def _combined(value: ir.Value, start: ir.Value, combine: _Combine, windows: _Windows) -> ir.Value:
    """The elements of each window, combined one after another."""
    element, rank = element_of(value), len(shape_of(value))
    lengths, strides, inside, spread = (
        [each.factor for each in numbers]
        for numbers in (windows.lengths, windows.strides, windows.inside, windows.spread)
    )
    whole = padded(value, start, windows.added, [each - 1 for each in inside])
    counts = [
        window_count(size_of(whole, axis), lengths[axis], strides[axis], spread[axis])
        for axis in range(rank)
    ]
    out = [ir.AffineDimExpr.get(axis) for axis in range(rank)]
    inner = [ir.AffineDimExpr.get(rank + axis) for axis in range(rank)]
    reads = [
        each * stride + place * distance
        for each, stride, place, distance in zip(out, strides, inner, spread, strict=True)
    ]
    letters = axes_of(value)
    first = generic(
        [(start, "")],
        letters,
        element,
        lambda each: each,
        sizes=dict(zip(letters.split(), counts, strict=True)),
    )
    maps = [ir.AffineMap.get(2 * rank, 0, each) for each in (reads, inner, out)]
    kinds = [linalg.IteratorType.parallel] * rank + [linalg.IteratorType.reduction] * rank
    # No element of it is read: it has the sizes of the window.
    extent = empty(lengths, element)

    def body(each: ir.Value, _: ir.Value, total: ir.Value) -> ir.Value:
        return combine(total, each)

    return linalg.generic([whole, extent], [first], maps, kinds)(body)
