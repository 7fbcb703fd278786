"""Pages of keys and values: writing rows to a pool, and reading its elements.

A pool [N, E, B, V, D] has N pages of B positions, in floats, in fp8 (e4m3), or in an MX format. In
fp8 it is bytes of the same shape, and the scales belong to the layers, not to the pool.

In an MX format a pool is bytes [N, E, B + B / 32, V, D]: the B positions of an entry are followed
by their scales, E8M0 [V, D / 32, B]. An entry thus begins at a multiple of D bytes, a page is
contiguous, and scales of adjacent positions are adjacent: a register of them fits kernels that have
keys in the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.artifact.pages import PAGE_BLOCK, PAGE_FORMATS, stored_positions
from mxc.dialects.generic import constant, element_of, generic, loop_index, shape_of, to_f32
from mxc.dialects.linalg_ext import scatter
from mxc.dialects.quantize import mx_integers
from mxc.dialects.quantize_scalars import (
    INFINITY,
    MAGNITUDE,
    above,
    as_bits,
    element_code,
    like,
    shaped_as,
)
from mxc.dialects.sizes import size_of, value_of
from mxc.formats.formats import E4M3, FORMATS, BlockFormat, ElementFormat
from mxc.formats.recipes import ScaleRecipe

#: Keys and values in fp8: their scales belong to layers, and are not in pages.
FP8 = BlockFormat("fp8e4m3", E4M3, unit_scales=True)

#: Recipe of the scales of pages in an MX format: no element saturates under such a scale.
RECIPE = ScaleRecipe.RCEIL

#: The E8M0 byte of the scale one.
_ONE = 127


@dataclass(frozen=True)
class Pages:
    """A pool of pages, and `lists` i32 [S, P]: the pages of the sequence of each run. `format`: the
    packed format of the pool, see `page_format`; None for floats."""

    pool: ir.Value
    lists: ir.Value
    format: str | None = None

    @property
    def positions(self) -> int:
        """Positions B of a page."""
        return positions_of(self.pool, self.format)


def positions_of(pool: ir.Value, format: str | None) -> int:
    """Positions B of a page of a pool in a packed format, or in floats (None)."""
    return shape_of(pool)[2] * PAGE_BLOCK // stored_positions(format, PAGE_BLOCK)


def page_format(name: str) -> BlockFormat | None:
    """The packed format of pages called `name`; None for a name of a float type."""
    if name not in PAGE_FORMATS:
        return None
    return FP8 if name == FP8.name else FORMATS[name]


def write(
    pool: ir.Value,
    format: str | None,
    entry: int,
    slots: ir.Value,
    parts: Sequence[ir.Value],
    scales: Sequence[ir.Value | None] = (),
) -> ir.Value:
    """The pool with `parts` f32 [T, V, D], one for each entry from `entry` on, at `slots`.

    `slots` i32 [T]: page * B + position % B. The parts are rounded to the floats of the pool
    (`format` None), or quantized to its format: to fp8 after a division by `scales` f32 [V] of each
    part (None: 1), to an MX format by RECIPE.
    """
    packed = None if format is None else page_format(format)
    if packed is not None and not packed.unit_scales:
        # All parts together: one dispatch for the elements, and one for the scales.
        codes, blocks = mx_integers(_stacked(parts), packed, RECIPE)
        return _write_blocks(pool, positions_of(pool, format), entry, slots, codes, blocks)
    kind = element_of(pool)
    for place, (part, scale) in enumerate(zip_longest(parts, scales), start=entry):
        rows = part
        if packed is not None:
            rows = _fp8_codes(part, scale)
        elif element_of(part) != kind:
            rows = generic([(part, "m h d")], "m h d", kind, lambda x: arith.truncf(kind, x))
        pool = _write_rows(pool, place, slots, rows)
    return pool


def fp8_code(value: ir.Value, scale: ir.Value | None = None) -> ir.Value:
    """The byte of e4m3, i8, nearest to an f32 or a vector of them, divided by `scale` if given.

    Ties go to even. What is beyond the largest number, infinity too, becomes the largest. A NaN
    stays a NaN.
    """
    bits = as_bits(value if scale is None else value / scale)
    found = element_code(bits, like(bits, _ONE), E4M3)
    none = above(bits & like(bits, MAGNITUDE), INFINITY)
    code = arith.select(none, like(bits, E4M3.nan_codes[0]), found)
    return arith.trunci(shaped_as(ir.IntegerType.get_signless(8), code), code)


def _fp8_codes(rows: ir.Value, scales: ir.Value | None) -> ir.Value:
    """rows f32 [T, V, D], over `scales` f32 [V] if there are some, as bytes of e4m3."""
    reads = [(rows, "m h d")] if scales is None else [(rows, "m h d"), (scales, "h")]
    return generic(reads, "m h d", ir.IntegerType.get_signless(8), fp8_code)


def _stacked(parts: Sequence[ir.Value]) -> ir.Value:
    """parts [T, V, D] as one tensor [T, parts, V, D]."""
    loops = "m e h d"

    def chosen(*values: ir.Value) -> ir.Value:
        found = values[0]
        for number, value in enumerate(values[1:], start=1):
            this = constant(number, ir.IndexType.get())
            own = arith.cmpi(arith.CmpIPredicate.eq, loop_index(loops, "e"), this)
            found = arith.select(own, value, found)
        return found

    reads = [(part, "m h d") for part in parts]
    return generic(reads, loops, element_of(parts[0]), chosen, sizes={"e": len(parts)})


def _write_rows(pool: ir.Value, entry: int, slots: ir.Value, rows: ir.Value) -> ir.Value:
    """`pool` with rows [T, V, D], of its type, in an entry at `slots`."""
    _, _, block, heads, depth = shape_of(pool)
    kind = ir.RankedTensorType.get([shape_of(rows)[0], heads * depth], element_of(pool))
    updates = tensor.collapse_shape(kind, rows, [[0], [1, 2]])
    return _write(pool, range(entry, entry + 1), block, slots, updates)


def _write_blocks(
    pool: ir.Value,
    block: int,
    entry: int,
    slots: ir.Value,
    codes: ir.Value,
    scales: ir.Value,
) -> ir.Value:
    """The pool with rows of the entries from `entry` on at `slots`: codes i8 [T, e, V, D / 32, 32]
    and scales i8 [T, e, V, D / 32]. `block`: positions of a page."""
    i32 = ir.IntegerType.get_signless(32)
    _, entries, _, heads, depth = shape_of(pool)
    _, count, _, blocks = shape_of(scales)
    dynamic, byte = ir.ShapedType.get_dynamic_size(), element_of(pool)
    several = ir.RankedTensorType.get([dynamic, heads * depth], byte)
    several = tensor.collapse_shape(several, codes, [[0, 1], [2, 3, 4]])
    written = _write(pool, range(entry, entry + count), block, slots, several)

    def place(slot: ir.Value) -> ir.Value:
        """The number of the entry in the pool, and the byte offset within the entry."""
        each, head, part, which = (
            arith.index_cast(i32, loop_index("m e h k c", loop)) for loop in "ehkc"
        )
        page, at = (op(slot, constant(block, i32)) for op in (arith.divui, arith.remui))
        whole = page * entries + entry
        whole = whole + each
        before = head * blocks + part
        offset = before * block + at
        offset = offset + block * heads * depth
        first = arith.cmpi(arith.CmpIPredicate.eq, which, constant(0, i32))
        return arith.select(first, whole, offset)

    sizes: dict[str, int | ir.Value] = {"e": count, "h": heads, "k": blocks, "c": 2}
    places = generic([(slots, "m")], "m e h k c", i32, place, sizes=sizes)
    pairs = ir.RankedTensorType.get([dynamic, 2], i32)
    places = tensor.collapse_shape(pairs, places, [[0, 1, 2, 3], [4]])
    updates = ir.RankedTensorType.get([dynamic], byte)
    updates = tensor.collapse_shape(updates, scales, [[0, 1, 2, 3]])
    parts = [[0, 1], [2, 3, 4]]
    flat = ir.RankedTensorType.get([dynamic, shape_of(pool)[2] * heads * depth], byte)
    flat = scatter(updates, places, tensor.collapse_shape(flat, written, parts))
    sizes_of_pool = [value_of(size_of(pool, 0))]
    return tensor.expand_shape(pool.type, flat, parts, sizes_of_pool, shape_of(pool))


def element_at(pages: Pages, at: Sequence[ir.Value]) -> ir.Value:
    """The f32 value of an element of the pool, by its five indices."""
    found = tensor.extract(pages.pool, at)
    format = None if pages.format is None else page_format(pages.format)
    if format is None:
        return to_f32(found)
    element = _element(found, format.element)
    if format.unit_scales:
        return element
    _, _, _, heads, depth = shape_of(pages.pool)
    place = place_of_scale(heads, depth, pages.positions, at)
    return element * _scale(tensor.extract(pages.pool, place))


def _write(
    pool: ir.Value, written: range, block: int, slots: ir.Value, updates: ir.Value
) -> ir.Value:
    """`pool` [N, E, .., V, D], of `block` positions, with updates [T * e, V * D] in e entries."""
    i32 = ir.IntegerType.get_signless(32)
    _, entries, height, heads, depth = shape_of(pool)

    def place(slot: ir.Value) -> ir.Value:
        size = constant(block, i32)
        page, at = slot // size, slot % size
        each = arith.index_cast(i32, loop_index("m e i", "e"))
        each = (each + written[0]) * height
        whole = page * (entries * height)
        return whole + (at + each)

    dynamic = ir.ShapedType.get_dynamic_size()
    places = generic([(slots, "m")], "m e i", i32, place, sizes={"e": len(written), "i": 1})
    column = ir.RankedTensorType.get([shape_of(updates)[0], 1], i32)
    places = tensor.collapse_shape(column, places, [[0, 1], [2]])
    parts = [[0, 1, 2], [3, 4]]
    whole = ir.RankedTensorType.get([dynamic, heads * depth], element_of(pool))
    flat = scatter(updates, places, tensor.collapse_shape(whole, pool, parts))
    pages = value_of(size_of(pool, 0))
    return tensor.expand_shape(pool.type, flat, parts, [pages], shape_of(pool))


def place_of_scale(
    heads: int, depth: int, positions: int, at: Sequence[ir.Value]
) -> list[ir.Value]:
    """The indices in an MX pool [N, E, .., V, D] of the scale of the element at the indices `at`.

    `positions`: B, of a page.
    """
    page, entry, position, head, element = at
    before = head * (depth // PAGE_BLOCK) + element // PAGE_BLOCK
    byte = before * positions + position
    row = byte // (heads * depth) + positions
    return [page, entry, row, byte // depth % heads, byte % depth]


def _element(code: ir.Value, element: ElementFormat) -> ir.Value:
    """The f32 value of a byte of a format, without its scale."""
    f32 = ir.F32Type.get()
    if not element.exponent:
        return arith.sitofp(f32, code) * element.min_positive
    return arith.extf(f32, arith.bitcast(ir.Type.parse(element.mlir), code))


def _scale(byte: ir.Value) -> ir.Value:
    """The f32 value of an E8M0 byte: 2^(byte - 127), NaN for 255. The byte 0, a subnormal, is zero,
    as CPUs and IREE read it."""
    i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
    bits = arith.extui(i32, byte) << 23
    none = arith.cmpi(arith.CmpIPredicate.eq, byte, constant(-1, byte.type))
    return arith.select(none, constant(float("nan"), f32), arith.bitcast(f32, bits))
