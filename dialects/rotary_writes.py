"""Rotary positions of queries and keys, and keys and values written to their pages: one operation.

T rows of a call, V key/value heads and Q query heads of D elements, R = D / 2. A pool [N, E, B, V,
D] has N pages of B positions (pages.py); keys are in one of its E entries, values in the next.

    turned[.., r]       = x[.., r] cos[t, r] - x[.., R + r] sin[t, r]
    turned[.., R + r]   = x[.., R + r] cos[t, r] + x[.., r] sin[t, r]
    pool[slots[t] / B, entry, slots[t] % B]     = turned keys of row t
    pool[slots[t] / B, entry + 1, slots[t] % B] = values of row t
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects import named_operations
from mxc.dialects.generic import constant, element_of, generic, loop_index, shape_of
from mxc.dialects.pages import write_rows
from mxc.dialects.sizes import size_of, value_of

#: The operation's name, and the option that it is built with.
ROTARY_WRITE, ENTRY = "rotary_write", "entry"


@dataclass(frozen=True)
class RotaryWrite:
    """A call of the operation, see `rotary_write`."""

    op: ir.Operation
    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    cos: ir.Value
    sin: ir.Value
    slots: ir.Value
    pool: ir.Value
    entry: int


def rotary_write(
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    rotations: tuple[ir.Value, ir.Value],
    slots: ir.Value,
    pool: ir.Value,
    entry: int,
) -> tuple[ir.Value, ir.Value]:
    """The turned queries f32 [T, Q * D], and the pool with the keys and values of the rows.

    queries f32 [T, Q * D], keys and values f32 [T, V * D]; rotations: cos and sin, f32 [T, R];
    slots i32 [T], no two the same; pool [N, E, B, V, D] of floats.
    """
    operands = [queries, keys, values, *rotations, slots, pool]
    found, written = named_operations.call(
        ROTARY_WRITE,
        operands,
        [queries.type, pool.type],
        lambda *given: _reference(*given, entry=entry),
        options={ENTRY: ir.IntegerAttr.get(ir.IntegerType.get_signless(64), entry)},
        sizes=[(0, 0), (len(operands) - 1, 0)],
    )
    return found, written


def rotary_writes(module: ir.Operation) -> Iterator[RotaryWrite]:
    """The calls of the operation in a program; they may be replaced meanwhile."""
    for found in named_operations.calls(module, ROTARY_WRITE):
        entry = ir.IntegerAttr(found.options[ENTRY]).value
        queries, keys, values, cos, sin, slots, pool = found.op.operands
        yield RotaryWrite(found.op, queries, keys, values, cos, sin, slots, pool, entry)


def _reference(
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    cos: ir.Value,
    sin: ir.Value,
    slots: ir.Value,
    pool: ir.Value,
    *,
    entry: int,
) -> list[ir.Value]:
    _, _, _, heads, depth = shape_of(pool)
    tokens, width = shape_of(queries)
    turned = _turned(queries, cos, sin, width // depth, depth)
    whole = ir.RankedTensorType.get([tokens, width], element_of(queries))
    turned = tensor.collapse_shape(whole, turned, [[0], [1, 2, 3]])
    keys = _turned(keys, cos, sin, heads, depth)
    flat = ir.RankedTensorType.get([tokens, heads * depth], element_of(keys))
    keys = tensor.collapse_shape(flat, keys, [[0], [1, 2, 3]])
    kind = element_of(pool)
    each = ir.RankedTensorType.get([tokens, heads, depth], kind)
    for place, rows in enumerate((keys, values), start=entry):
        if element_of(rows) != kind:
            rows = generic([(rows, "m n")], "m n", kind, lambda x: arith.truncf(kind, x))
        sizes = [value_of(size_of(slots, 0))] if tokens < 0 else []
        rows = tensor.expand_shape(each, rows, [[0], [1, 2]], sizes, [tokens, heads, depth])
        pool = write_rows(pool, place, slots, rows)
    return [turned, pool]


def _turned(x: ir.Value, cos: ir.Value, sin: ir.Value, heads: int, depth: int) -> ir.Value:
    """f32 [T, heads, 2, R] of x f32 [T, heads * D]."""
    loops, half = "m h p r", depth // 2

    def turn(c: ir.Value, s: ir.Value) -> ir.Value:
        row, head, part, column = (loop_index(loops, letter) for letter in loops.split())
        first = arith.addi(arith.muli(head, constant(depth, ir.IndexType.get())), column)
        places = (first, arith.addi(first, constant(half, ir.IndexType.get())))
        re, im = (tensor.extract(x, [row, place]) for place in places)
        real = arith.subf(arith.mulf(re, c), arith.mulf(im, s))
        imaginary = arith.addf(arith.mulf(im, c), arith.mulf(re, s))
        is_first = arith.cmpi(arith.CmpIPredicate.eq, part, constant(0, ir.IndexType.get()))
        return arith.select(is_first, real, imaginary)

    sizes = {"h": heads, "p": 2}
    return generic([(cos, "m r"), (sin, "m r")], loops, element_of(x), turn, sizes=sizes)
