"""Recognize the block format that a computation decodes, by comparing values for all codes.

A program may decode elements by a lookup table, by shifts into the bits of a float, or by powers of
two. A tree (scalar_trees.py) over two reads, of at most 8 bits each, is evaluated for every code of
both reads, and for both nibbles of a byte where its indices select one. The table is compared with
element times scale, bit for bit, after the rounding that the type of the result implies. No form is
recognized by its operations.

Two differences are accepted, and listed in `Decoding.differs`:

    scale 255   NaN in E8M0; a program may compute 2^128, which is Inf, or anything
    scale 0     2^-127 in E8M0; a program that shifts the scale into the exponent of an f32 makes 0

A constant that multiplies all values, as the scale of a whole tensor of nvfp4, is left out of them:
the real product is the same, rounded in another order.

`signed_zeros` is false where a zero of the program has another sign than that of the format (a
table of integers has one zero): a sum that starts from +0.0 is the same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir

from mxc.dialects.dequantize import is_byte
from mxc.dialects.generic import shape_of
from mxc.dialects.indexing import bound, plus, times
from mxc.dialects.scalar_nodes import (
    AffineIndex,
    Apply,
    Cast,
    FloatProduct,
    Literal,
    Select,
    TableElement,
    TensorElement,
    Tree,
    parts,
    reads,
)
from mxc.dialects.scalar_operations import Array, bitcast, bits_of, decoded, evaluate, rounded
from mxc.formats.formats import E8M0, FORMATS, BlockFormat

#: Most bits of a code or a scale.
_WIDEST = 8
#: Bits of an element that shares its byte with another one; an index selects one of the two.
_NIBBLE = 4
#: The mantissa of a power of two, as math.frexp has it.
_HALF = 0.5
#: If more than this part of a table agrees with a format, the program meant that format.
_MEANT = 0.5


@dataclass(frozen=True)
class Decoding:
    """The elements and scales of a format that a tree reads; `kind`: the float type of its values.

    `factor`: a constant that multiplies all values, such as the scale of a whole tensor.
    `second`: an expression that is 1 where the element is the second of its byte; None where each
    read is one element. `swapped`: the first element of a byte is in its high bits.
    """

    format: BlockFormat
    elements: TensorElement
    scale: TensorElement
    second: ir.AffineExpr | None
    swapped: bool
    kind: ir.Type
    signed_zeros: bool
    differs: tuple[str, ...]
    factor: float = 1.0


def decoding_of(tree: Tree, ranges: list[int | None]) -> Decoding | str | None:
    """The format that a tree decodes, or the reason why it decodes none although it looks similar.

    None for a tree whose reads are not codes and their scales.
    """
    found = _decoding_of(tree, ranges)
    if isinstance(found, str):
        rest, factor = _without_factor(tree)
        inner = _decoding_of(rest, ranges) if factor != 1.0 else None
        if isinstance(inner, Decoding):
            return dataclasses.replace(inner, factor=factor)
    return found


def _decoding_of(tree: Tree, ranges: list[int | None]) -> Decoding | str | None:
    found = list(dict.fromkeys(reads(tree)))
    kind = tree.type
    if len(found) != 2 or any(not is_code(each.type) for each in found):
        return None
    if rounded(np.zeros(()), kind) is None:
        return None
    loops = dict.fromkeys(variables(tree))
    # Expressions that are always 0 do not distinguish places.
    fixed = [each for each in loops if bound(each, ranges) == 0]
    chosen = [each for each in loops if each not in fixed]
    if len(chosen) > 1 or any(bound(each, ranges) != 1 for each in chosen):
        return "its elements depend on their place by more than the nibble of a byte"
    axes = {found[0]: 1, found[1]: 2}
    codes = {read: _codes(read, axis) for read, axis in axes.items()}
    places = {each: np.zeros((1, 1, 1), np.uint64) for each in fixed}
    places |= {each: np.arange(2, dtype=np.uint64).reshape(2, 1, 1) for each in chosen}
    values = CodeTable(codes, places).of(tree)
    if values is None:
        return "it is decoded by an operation that is not evaluated"
    shape = (2 if chosen else 1, *(1 << bits_of(read.type) for read in found))
    values = np.broadcast_to(values, shape)
    closest: tuple[float, str] = (_MEANT, "")
    for elements, scale in (found, found[::-1]):
        table = values if elements is found[0] else values.swapaxes(1, 2)
        for format in FORMATS.values():
            for swapped in (False, True) if chosen else (False,):
                wanted = _wanted(format, elements, scale, swapped, chosen, kind)
                if wanted is None:
                    continue
                same = _same(table, wanted)
                within = slice(1, -1) if format.scale == E8M0 else slice(None)
                if same[..., within].all():
                    signs = _negative(table) == _negative(wanted)
                    return Decoding(
                        format,
                        elements,
                        scale,
                        chosen[0] if chosen else None,
                        swapped,
                        kind,
                        bool((signs | (wanted != 0))[..., within].all()),
                        _differs(format, table, wanted, same),
                    )
                if same.mean() > closest[0]:
                    closest = same.mean(), _first(format, table, wanted, same)
    return closest[1] or "its values are those of no block format"


def constant_value(tree: Tree) -> float | int | None:
    """The value of a tree without reads and indices; None for another tree."""
    if next(reads(tree), None) is not None or next(variables(tree), None) is not None:
        return None
    found = CodeTable({}, {}).of(tree)
    return None if found is None else found.reshape(-1)[0].item()


def _without_factor(tree: Tree) -> tuple[Tree, float]:
    """Split off the constant factors of an f32 product, such as the scale of a tensor: the tree
    without them, and their product. Powers of two stay, as programs decode elements by them."""
    multiplies = isinstance(tree, Apply) and tree.op.name == "arith.mulf"
    if not (multiplies or isinstance(tree, FloatProduct)) or not isinstance(tree.type, ir.F32Type):
        return tree, 1.0
    sides = parts(tree)
    for constant, other in (sides, sides[::-1]):
        value = constant_value(constant)
        if isinstance(value, float) and math.isfinite(value) and abs(math.frexp(value)[0]) != _HALF:
            rest, factor = _without_factor(other)
            return rest, factor * value
    (left, first), (right, second) = map(_without_factor, sides)
    return FloatProduct(left, right), first * second


def is_code(kind: ir.Type) -> bool:
    """Whether a type has 2 to 8 bits."""
    return isinstance(kind, (ir.FloatType, ir.IntegerType)) and 1 < bits_of(kind) <= _WIDEST


def place_in_row(decoding: Decoding) -> tuple[ir.AffineExpr, ...]:
    """The indices of the element in the unpacked tensor, whose last axis counts elements."""
    at = decoding.elements.at
    if decoding.second is None:
        return at
    return (*at[:-1], _both(at[-1], decoding.second))


def halved_axis(decoding: Decoding) -> int | None:
    """The dimension of the bytes along which the two elements of a byte are adjacent. None where
    the halves of bytes have their own loop, and where a byte holds one element."""
    if decoding.second is None:
        return None
    for axis, byte in enumerate(decoding.elements.at):
        if any(_combined(term, decoding.second) is not None for term in _summands(byte)):
            return axis
    return None


@dataclass(frozen=True)
class Halves:
    """Bytes whose two elements are not adjacent. In a stretch of `size` bytes along `axis`, one
    half of the bytes holds the first `size` elements, the other half the next `size`. `at`: the
    index of an element along the axis, counted in elements."""

    axis: int
    size: int
    at: ir.AffineExpr


def halves_of(decoding: Decoding) -> Halves | None:
    """The order of elements where the two elements of a byte are not adjacent; None for other
    orders.

    Matches byte k mod B and half k floordiv B for elements k of a row of 2 * B; and loops h and b,
    b inside, with byte b and half h.
    """
    second = decoding.second
    if isinstance(second, ir.AffineFloorDivExpr):
        whole, size = second.lhs.maybe_downcast(), ir.AffineConstantExpr(second.rhs).value
        place = ir.AffineExpr.get_mod(whole, size).maybe_downcast()
        for axis, byte in enumerate(decoding.elements.at):
            terms = list(_summands(byte))
            if place in terms:
                terms.remove(place)
                for term in terms:
                    whole = plus(times(term, 2), whole)
                return Halves(axis, size, whole)
    if isinstance(second, ir.AffineDimExpr):
        *_, byte = decoding.elements.at
        size = shape_of(decoding.elements.value)[-1]
        if isinstance(byte, ir.AffineDimExpr) and byte.position > second.position and size > 0:
            return Halves(len(decoding.elements.at) - 1, size, plus(times(second, size), byte))
    return None


def _both(byte: ir.AffineExpr, second: ir.AffineExpr) -> ir.AffineExpr:
    """2 * byte + second, simplified: k floordiv 2 and k mod 2 combine to k."""
    whole = zero = ir.AffineConstantExpr.get(0)
    paired = False
    for term in _summands(byte):
        combined = None if paired else _combined(term, second)
        paired = paired or combined is not None
        whole = plus(whole, times(term, 2) if combined is None else combined)
    return plus(whole, zero if paired else second)


def _combined(term: ir.AffineExpr, second: ir.AffineExpr) -> ir.AffineExpr | None:
    """2 * term + second as one expression if they are quotient and remainder of one; else None."""
    if not isinstance(second, ir.AffineModExpr) or second.rhs != ir.AffineConstantExpr.get(2):
        return None
    whole = second.lhs.maybe_downcast()
    half = ir.AffineExpr.get_floor_div(whole, 2)
    if term == half:
        return whole
    # The byte within a block: (k floordiv 2) mod 16 and k mod 2 combine to k mod 32.
    if isinstance(term, ir.AffineModExpr) and term.lhs == half:
        size = ir.AffineConstantExpr(term.rhs).value
        return ir.AffineExpr.get_mod(whole, 2 * size).maybe_downcast()
    return None


def _summands(expression: ir.AffineExpr) -> Iterator[ir.AffineExpr]:
    if isinstance(expression, ir.AffineAddExpr):
        yield from _summands(expression.lhs.maybe_downcast())
        yield from _summands(expression.rhs.maybe_downcast())
    else:
        yield expression


def _codes(read: TensorElement, axis: int) -> Array | None:
    bits = np.arange(1 << bits_of(read.type), dtype=np.uint64)
    shape = [1, 1, 1]
    shape[axis] = len(bits)
    return decoded(bits.reshape(shape), read.type)


def variables(tree: Tree) -> Iterator[ir.AffineExpr]:
    """Yield the expressions of loops on which a tree depends, besides its reads."""
    if isinstance(tree, (AffineIndex, Select)):
        yield from _terms(tree.at)
    for inner in parts(tree):
        yield from variables(inner)


def _terms(expression: ir.AffineExpr) -> Iterator[ir.AffineExpr]:
    if isinstance(expression, (ir.AffineAddExpr, ir.AffineMulExpr)):
        yield from _terms(expression.lhs.maybe_downcast())
        yield from _terms(expression.rhs.maybe_downcast())
    elif not isinstance(expression, ir.AffineConstantExpr):
        yield expression


class CodeTable:
    """Evaluates trees for all codes and places."""

    def __init__(
        self, codes: Mapping[TensorElement, Array | None], places: Mapping[ir.AffineExpr, Array]
    ) -> None:
        """`codes`: the values of each read. `places`: those of each expression of `variables`."""
        self._codes, self._places = codes, places
        self._known: dict[int, Array | None] = {}

    def of(self, tree: Tree) -> Array | None:
        """The values of a tree; None for an unknown operation, or a lookup out of bounds."""
        if id(tree) not in self._known:
            self._known[id(tree)] = self._made(tree)
        return self._known[id(tree)]

    def _made(self, tree: Tree) -> Array | None:
        if isinstance(tree, TensorElement):
            return self._codes[tree]
        if isinstance(tree, Literal):
            integer = isinstance(tree.number, int)
            return np.full((1, 1, 1), tree.number, np.uint64 if integer else np.float64)
        if isinstance(tree, AffineIndex):
            return self._place(tree.at)
        inputs = [found for part in parts(tree) if (found := self.of(part)) is not None]
        if len(inputs) != len(parts(tree)):
            return None
        if isinstance(tree, Apply):
            return evaluate(tree.op, inputs)
        if isinstance(tree, FloatProduct):
            with np.errstate(all="ignore"):
                return rounded(inputs[0] * inputs[1], tree.type)
        if isinstance(tree, Cast):
            return bitcast(inputs[0], tree.inner.type, tree.type)
        if isinstance(tree, TableElement):
            sizes = zip(inputs, tree.table.shape, strict=True)
            if any((number >= np.uint64(size)).any() for number, size in sizes):
                return None
            return np.asarray(tree.table[tuple(number.astype(np.intp) for number in inputs)])
        number, found = self._place(tree.at), inputs[-1]
        for (case, _), value in zip(tree.cases, inputs, strict=False):
            found = np.where(number == case, value, found)
        return found

    def _place(self, expression: ir.AffineExpr) -> Array:
        if expression in self._places:
            return self._places[expression]
        if isinstance(expression, ir.AffineConstantExpr):
            return np.full((1, 1, 1), expression.value, np.uint64)
        left, right = (self._place(e.maybe_downcast()) for e in (expression.lhs, expression.rhs))
        adds = isinstance(expression, ir.AffineAddExpr)
        return np.asarray(left + right if adds else left * right)


def _wanted(
    format: BlockFormat,
    elements: TensorElement,
    scale: TensorElement,
    swapped: bool,
    chosen: list[ir.AffineExpr],
    kind: ir.Type,
) -> Array | None:
    """The values that the format has for all codes of `elements` and `scale`; None where the types
    do not fit the format."""
    bits = format.element.bits
    halves = bool(chosen) and bits == _NIBBLE and is_byte(elements.type)
    if not halves and (chosen or str(elements.type) not in _types(format.element.mlir, bits)):
        return None
    if str(scale.type) not in _types(format.scale.mlir, format.scale.bits):
        return None
    values = format.element.values.astype(np.float64)
    if halves:
        byte = np.arange(1 << _WIDEST)
        first, second = values[byte & 15], values[byte >> _NIBBLE]
        by_place = np.stack([second, first] if swapped else [first, second])
    else:
        by_place = values[None]
    with np.errstate(all="ignore"):
        products = by_place[..., None] * format.scale.values.astype(np.float64)
    return rounded(products, kind)


def _types(name: str, bits: int) -> tuple[str, ...]:
    """Types that hold a code of the format: its own type, and for 8 bits also i8."""
    return (name, f"i{bits}") if bits == _WIDEST else (name,)


def _same(found: Array, wanted: Array) -> Array:
    return np.asarray((found == wanted) | (np.isnan(found) & np.isnan(wanted)))


def _negative(values: Array) -> Array:
    return np.signbit(values)


def _differs(format: BlockFormat, found: Array, wanted: Array, same: Array) -> tuple[str, ...]:
    if format.scale != E8M0:
        return ()
    said = []
    for code in (0, 255):
        if not same[..., code].all():
            at = (*np.argwhere(~same[..., code])[-1], code)
            said.append(
                f"under scale byte {code} the program computes {found[at]:g} where "
                f"{format.name} has {wanted[at]:g}, which is what is computed"
            )
    return tuple(said)


def _first(format: BlockFormat, found: Array, wanted: Array, same: Array) -> str:
    inner = 1 if format.scale == E8M0 else 0
    place = next(tuple(at) for at in np.argwhere(~same) if inner <= at[-1] <= 255 - inner)
    return (
        f"it is decoded almost as {format.name}: code {place[1]} under scale byte {place[2]} is "
        f"{found[place]:g}, and {wanted[place]:g} in the format"
    )
