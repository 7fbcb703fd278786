"""A causal convolution over the last few tokens, each column by itself, and its state.

    y[m] = sum over t < W of w[t] x[m - W + 1 + t]

The state of a layer is a ring: the row of position p stands at p modulo W, so that a token writes
one row and reads the W - 1 others; a new sequence has zeros there. Letters: T tokens of this call,
C columns, W the width of the convolution, L layers.
"""

from __future__ import annotations

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.compiler.models.blocks.primitives import expand, f32, rows_from, slice_of, to_f32
from mxc.dialects.generic import constant, element_of, generic, loop_index, shape_of


def convolve(
    x: ir.Value,
    weight: ir.Value,
    states: ir.Value,
    *,
    layer: ir.Value,
    position: ir.Value,
    count: ir.Value | None,
    activation: Callable[[ir.Value], ir.Value],
) -> tuple[ir.Value, ir.Value]:
    """activation(y) of x f32 [T, C], f32 [T, C]; `states` [L, W, C] with the last rows of x.

    `weight` [C, W]. `layer` and `position`, where x begins, are indices; `count` of the rows of x
    are tokens (None: all), the others are not kept.
    """
    tokens, columns = shape_of(x)
    width = shape_of(weight)[1]
    if tokens == 1:
        states = _write(states, x, layer, _modulo(position, width))
    # The row of position p - n is W - n places behind that of p.
    places = [_modulo(arith.addi(position, _index(n)), width) for n in range(1, width)]
    rows = [_row(states, layer, place) for place in places]
    if tokens > 1:
        before = tensor.empty([tokens + width - 1, columns], f32())
        for number, row in enumerate(rows):
            before = _put(row, before, number)
        joined = _put(x, before, width - 1)
        inputs = [rows_from(joined, _index(t), tokens) for t in range(width)]
        states = _keep(joined, states, layer, position, count, tokens)
    else:
        inputs = [*rows, x]
    weights = [slice_of(weight, 1, t) for t in range(width)]

    def convolved(*values: ir.Value) -> ir.Value:
        total = constant(0.0, f32())
        for value, factor in zip(values[:width], values[width:], strict=True):
            total = arith.addf(total, arith.mulf(value, to_f32(factor)))
        return activation(total)

    operands = [*((each, "m c") for each in inputs), *((each, "c") for each in weights)]
    return generic(operands, "m c", f32(), convolved), states


def _keep(
    rows: ir.Value,
    states: ir.Value,
    layer: ir.Value,
    position: ir.Value,
    count: ir.Value | None,
    tokens: int,
) -> ir.Value:
    """`states` with the last tokens of rows [W - 1 + T, C], of which those before `position` are
    the first W - 1."""
    _, width, columns = shape_of(states)
    loops, sizes = "w c", {"w": width, "c": columns}
    count = _index(tokens) if count is None else count
    last = arith.subi(arith.addi(position, count), _index(1))

    def row() -> ir.Value:
        # The last position that stands in this place, and its row.
        behind = arith.subi(arith.addi(last, _index(width)), loop_index(loops, "w"))
        place = arith.subi(arith.addi(count, _index(width - 2)), _modulo(behind, width))
        # Without a token, that of the place that is written next.
        place = arith.maxsi(place, _index(0))
        return tensor.extract(rows, [place, loop_index(loops, "c")])

    kept = generic([], loops, f32(), row, sizes=sizes)
    dynamic = ir.ShapedType.get_dynamic_size()
    return tensor.insert_slice(
        kept, states, [layer], [], [], [dynamic, 0, 0], [1, width, columns], [1, 1, 1]
    )


def _row(states: ir.Value, layer: ir.Value, place: ir.Value) -> ir.Value:
    """The row [1, C] at a place of the ring."""
    columns, dynamic = shape_of(states)[2], ir.ShapedType.get_dynamic_size()
    kind = ir.RankedTensorType.get([columns], element_of(states))
    row = tensor.extract_slice(
        kind, states, [layer, place], [], [], [dynamic, dynamic, 0], [1, 1, columns], [1, 1, 1]
    )
    return expand(row, [[0, 1]], [1, columns])


def _write(states: ir.Value, row: ir.Value, layer: ir.Value, place: ir.Value) -> ir.Value:
    columns, dynamic = shape_of(states)[2], ir.ShapedType.get_dynamic_size()
    return tensor.insert_slice(
        row, states, [layer, place], [], [], [dynamic, dynamic, 0], [1, 1, columns], [1, 1, 1]
    )


def _put(rows: ir.Value, target: ir.Value, start: int) -> ir.Value:
    return tensor.insert_slice(rows, target, [], [], [], [start, 0], shape_of(rows), [1, 1])


def _modulo(value: ir.Value, size: int) -> ir.Value:
    return arith.remui(value, _index(size))


def _index(value: int) -> ir.Value:
    return constant(value, ir.IndexType.get())
