"""Rotary embedding of queries and keys, and keys and values written to their pages: one operation.

T rows of a call, V key/value heads and Q query heads of D elements, of which 2 R are rotated. A
pool [N, E, .., V, D] has N pages of B positions (pages.py); keys are in one of its E entries,
values in the next. An element of index `re` is the real part of a pair, one of `im` the imaginary
part; element r of a row of cos and sin is for pair r:

    rotated[.., re(r)] = x[.., re(r)] cos[t, r] - x[.., im(r)] sin[t, r]
    rotated[.., im(r)] = x[.., im(r)] cos[t, r] + x[.., re(r)] sin[t, r]
    pool[slots[t] / B, entry, slots[t] % B]     = rotated keys of row t
    pool[slots[t] / B, entry + 1, slots[t] % B] = values of row t

    distance 1       re(r) = 2 r, im(r) = 2 r + 1          interleaved
    distance d > 1   re(r) = r,   im(r) = r + d            d = R: the first 2 R elements of a head
                                                           d = D / 2: R elements of either half

Other elements of a head stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects import named_operations, pages
from mxc.dialects.generic import element_of, generic, loop_index, shape_of
from mxc.dialects.sizes import size_of, value_of

#: The operation's name, and the options that it is built with. SCALED: for keys and for values, 1
#: where they have scales.
ROTARY_WRITE = "rotary_write"
ENTRY, DISTANCE, FORMAT, SCALED = "entry", "distance", "format", "scaled"
#: Operands before the scales.
_OPERANDS = 7

#: The scales of keys and of values, f32 [V]; None for 1.
Scales = tuple[ir.Value | None, ir.Value | None]


@dataclass(frozen=True)
class RotaryWrite:
    """A call of the operation, with its operands and options as `rotary_write` describes them."""

    op: ir.Operation
    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    cos: ir.Value
    sin: ir.Value
    slots: ir.Value
    pool: ir.Value
    entry: int
    distance: int
    format: str | None
    scales: Scales

    @property
    def beside(self) -> list[ir.Value]:
        """The operands besides queries, keys and values: cos, sin, slots, the pool, scales."""
        return list(self.op.operands)[3:]


def rotary_write(
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    rotations: tuple[ir.Value, ir.Value],
    slots: ir.Value,
    pool: ir.Value,
    entry: int,
    *,
    distance: int | None = None,
    format: str | None = None,
    scales: Scales = (None, None),
) -> tuple[ir.Value, ir.Value]:
    """The rotated queries f32 [T, Q * D], and the pool with the keys and values of the rows.

    queries f32 [T, Q * D], keys and values f32 [T, V * D]; rotations: cos and sin, f32 [T, R];
    slots i32 [T], no two the same. `distance`: see above; None for R. `format`: the packed
    format of the pool; None for floats. `scales`: keys and values of fp8 pages are divided by them.
    """
    scaled = [0 if scale is None else 1 for scale in scales]
    given = [scale for scale in scales if scale is not None]
    operands = [queries, keys, values, *rotations, slots, pool, *given]
    apart = shape_of(rotations[0])[1] if distance is None else distance
    i64 = ir.IntegerType.get_signless(64)

    def reference(*given: ir.Value) -> list[ir.Value]:
        x, (*tables, slots, pool) = given[:3], given[3:_OPERANDS]
        own = _scales_of(given[_OPERANDS:], scaled)
        rotated, keys, values = _rotated_and_kept(x, tables, pool, apart)
        return [rotated, pages.write(pool, format, entry, slots, [keys, values], own)]

    found, written = named_operations.call(
        ROTARY_WRITE,
        operands,
        [queries.type, pool.type],
        reference,
        options={
            ENTRY: ir.IntegerAttr.get(i64, entry),
            DISTANCE: ir.IntegerAttr.get(i64, apart),
            FORMAT: ir.StringAttr.get(format or ""),
            SCALED: ir.DenseI64ArrayAttr.get(scaled),
        },
        sizes=[(0, 0), (_OPERANDS - 1, 0)],
    )
    return found, written


def rotary_writes(module: ir.Operation) -> Iterator[RotaryWrite]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
    for found in named_operations.calls(module, ROTARY_WRITE):
        yield _rotary_write(found)


def rotary_write_of(op: ir.Operation) -> RotaryWrite | None:
    """`op` as a call of the operation; None where it is none."""
    found = named_operations.named_call(op, ROTARY_WRITE)
    return None if found is None else _rotary_write(found)


def _rotary_write(found: named_operations.NamedCall) -> RotaryWrite:
    entry, distance = (ir.IntegerAttr(found.options[key]).value for key in (ENTRY, DISTANCE))
    scaled = list(ir.DenseI64ArrayAttr(found.options[SCALED]))
    queries, keys, values, cos, sin, slots, pool, *scales = found.op.operands
    return RotaryWrite(
        op=found.op,
        queries=queries,
        keys=keys,
        values=values,
        cos=cos,
        sin=sin,
        slots=slots,
        pool=pool,
        entry=entry,
        distance=distance,
        format=ir.StringAttr(found.options[FORMAT]).value or None,
        scales=_scales_of(scales, scaled),
    )


def _scales_of(given: Sequence[ir.Value], scaled: Sequence[int]) -> Scales:
    """The given scales as those of keys and of values; `scaled`: 1 for each that has scales."""
    left = list(given)
    keys, values = (left.pop(0) if each else None for each in scaled)
    return keys, values


def _rotated_and_kept(
    x: Sequence[ir.Value], tables: Sequence[ir.Value], pool: ir.Value, distance: int
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Queries f32 [T, Q * D] and keys f32 [T, V, D], rotated, and values f32 [T, V, D]."""
    queries, keys, values = x
    *_, heads, depth = shape_of(pool)
    tokens, width = shape_of(queries)
    rotated = _rotated(queries, tables, width // depth, depth, distance)
    whole = ir.RankedTensorType.get([tokens, width], element_of(queries))
    rotated = tensor.collapse_shape(whole, rotated, [[0], [1, 2]])
    kept = _rotated(keys, tables, heads, depth, distance)
    return rotated, kept, _heads(values, heads, depth)


def _heads(x: ir.Value, heads: int, depth: int) -> ir.Value:
    """x [T, heads * D] as [T, heads, D]."""
    tokens, _ = shape_of(x)
    kind = ir.RankedTensorType.get([tokens, heads, depth], element_of(x))
    sizes = [value_of(size_of(x, 0))] if tokens < 0 else []
    return tensor.expand_shape(kind, x, [[0], [1, 2]], sizes, [tokens, heads, depth])


def _rotated(
    x: ir.Value, tables: Sequence[ir.Value], heads: int, depth: int, distance: int
) -> ir.Value:
    """Rotate x f32 [T, heads * D]: f32 [T, heads, D]."""
    loops, pairs = "m h d", shape_of(tables[0])[1]

    def rotate(value: ir.Value) -> ir.Value:
        row, head, at = (loop_index(loops, letter) for letter in loops.split())
        if distance == 1:
            pair, part = at // 2, at % 2
            is_second = arith.cmpi(arith.CmpIPredicate.eq, part, value_of(1))
        else:
            is_second = arith.cmpi(arith.CmpIPredicate.uge, at, value_of(distance))
            pair = arith.select(is_second, at - distance, at)
        inside = arith.cmpi(arith.CmpIPredicate.ult, pair, value_of(pairs))
        other = arith.select(is_second, at - distance, at + distance)
        pair, other = (arith.select(inside, each, value_of(0)) for each in (pair, other))
        place = head * depth + other
        c, s = (tensor.extract(table, [row, pair]) for table in tables)
        own, beside = value * c, tensor.extract(x, [row, place]) * s
        first, second = own - beside, own + beside
        return arith.select(inside, arith.select(is_second, second, first), value)

    return generic([(_heads(x, heads, depth), loops)], loops, element_of(x), rotate)
