"""References of the named operations of recurrence.py: linalg that IREE compiles, not made for
speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, scf, tensor

from mxc.dialects.attention import owners_of
from mxc.dialects.generic import empty, generic, to_f32
from mxc.dialects.linalg_ext import scatter
from mxc.dialects.named_operations import PRODUCT
from mxc.dialects.sizes import constant, element_of, shape_of, size_of, value_of

_STATE = "h k v"
_DYNAMIC = ir.ShapedType.get_dynamic_size()


@dataclass(frozen=True)
class _Slots:
    """Last operands of an operation: the layer, the runs, and the slot of each run in the pool."""

    layer: ir.Value
    runs: ir.Value
    places: ir.Value

    def first(self, run: ir.Value) -> ir.Value:
        """The first row of a run."""
        return _number(self.runs, [run, value_of(0)])

    def rows(self, run: ir.Value) -> ir.Value:
        """The number of rows of a run."""
        return _number(self.runs, [run, value_of(1)])

    def before(self, run: ir.Value) -> ir.Value:
        """The number of positions before a run."""
        return _number(self.runs, [run, value_of(2)])

    def state(self, run: ir.Value) -> list[ir.Value]:
        """The slot and the layer of the state of a run."""
        return [_number(self.places, [run]), self.layer]

    def written(
        self, pool: ir.Value, updates: ir.Value, run_of: Callable[[ir.Value], ir.Value]
    ) -> ir.Value:
        """`pool` with updates [n, ..] written as states; update i belongs to run `run_of(i)`."""
        i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
        layers, *sizes = shape_of(pool)[1:]
        count, axes = math.prod(sizes), list(range(2, 2 + len(sizes)))

        def place() -> ir.Value:
            slot, layer = self.state(run_of(linalg.IndexOp(0).result))
            return arith.index_cast(i32, slot * value_of(layers) + layer)

        number = {"n": size_of(updates, 0), "i": 1}
        places = generic([], "n i", i32, place, sizes=number)
        flat = ir.RankedTensorType.get([_DYNAMIC, count], f32)
        rows = ir.RankedTensorType.get([shape_of(updates)[0], count], f32)
        written = scatter(
            tensor.collapse_shape(rows, updates, [[0], [axis - 1 for axis in axes]]),
            places,
            tensor.collapse_shape(flat, pool, [[0, 1], axes]),
        )
        shape = [_DYNAMIC, layers, *sizes]
        return tensor.expand_shape(pool.type, written, [[0, 1], axes], [_size(pool)], shape)


def delta_rule(*given: ir.Value) -> list[ir.Value]:
    """Build result and pool from the operands of the operation: several dispatches per row."""
    queries, keys, values, decay, beta, pool, *rest = given
    slots, f32 = _Slots(*rest), ir.F32Type.get()
    count = _size(values)
    owners = owners_of(count, slots.runs)
    heads, *sizes = shape_of(pool)[2:]
    whole = dict(zip(_STATE.split(), (heads, *sizes), strict=True))
    start = [empty([count, heads, sizes[1]], f32), pool]
    loop = scf.ForOp(value_of(0), count, value_of(1), start)
    with ir.InsertionPoint(loop.body):
        row, (results, pool) = loop.induction_variable, loop.inner_iter_args
        q, k, v, b, left = (_row(x, row) for x in (queries, keys, values, beta, decay))
        q, k = (_of_values(x, heads) for x in (q, k))

        def kept(factor: ir.Value) -> ir.Value:
            run = _number(owners, [row])
            here = slots.before(run) + (row - slots.first(run))
            value = tensor.extract(pool, [*slots.state(run), *_loops(3)])
            return _or_zero(factor * value, here)

        state = generic(
            [(left, "h k" if len(shape_of(left)) == 2 else "h")], _STATE, f32, kept, sizes=whole
        )
        known = _product(k, state)
        change = generic(
            [(known, "h v"), (v, "h v"), (b, "h")],
            "h v",
            f32,
            lambda have, want, rate: rate * (want - have),
        )
        state = generic(
            [(state, _STATE), (k, "h k"), (change, "h v")],
            _STATE,
            f32,
            lambda s, key, d: s + key * d,
        )
        result = _product(q, state)
        here = [_DYNAMIC, 0, 0], [1, heads, sizes[1]], [1] * 3
        results = tensor.insert_slice(result, results, [row], [], [], *here)
        one = [1, heads, *sizes]
        kind = ir.RankedTensorType.get(one, f32)
        update = tensor.expand_shape(kind, state, [[0, 1], [2], [3]], [], one)
        pool = slots.written(pool, update, lambda _: _number(owners, [row]))
        scf.YieldOp([results, pool])
    return list(loop.results)


def convolution(*given: ir.Value) -> list[ir.Value]:
    """Build result and pool from the operands: a gather of rows and a scatter of states."""
    x, weights, pool, *rest = given
    slots, f32 = _Slots(*rest), ir.F32Type.get()
    count, (columns, width) = _size(x), shape_of(weights)
    owners = owners_of(count, slots.runs)

    def source(run: ir.Value, place: ir.Value, column: ir.Value) -> ir.Value:
        """x of a run at `place` from its first row; places from -W + 1 to -1 are in the state."""
        row = arith.maxsi(slots.first(run) + place, value_of(0))
        old = arith.minsi(place + value_of(width - 1), value_of(width - 2))
        value = tensor.extract(pool, [*slots.state(run), old, column])
        value = _or_zero(value, slots.before(run))
        inside = arith.cmpi(arith.CmpIPredicate.sge, place, value_of(0))
        return arith.select(inside, tensor.extract(x, [row, column]), value)

    def convolved() -> ir.Value:
        row, column = _loops(2)
        # Read by index rather than as an operand: IREE has no GPU code for this operation after the
        # reduction that computes the owners.
        run = _number(owners, [row])
        place = row - slots.first(run)
        total = constant(0.0, f32)
        for at in range(width):
            value = source(run, place + value_of(at - width + 1), column)
            factor = to_f32(tensor.extract(weights, [column, value_of(at)]))
            total = total + value * factor
        return total

    def last() -> ir.Value:
        run, at, column = _loops(3)
        return source(run, slots.rows(run) + (at + value_of(1 - width)), column)

    result = generic([], "m c", f32, convolved, sizes={"m": count, "c": columns})
    sizes: dict[str, int | ir.Value] = {"s": _size(slots.runs), "w": width - 1, "c": columns}
    update = generic([], "s w c", f32, last, sizes=sizes)
    return [result, slots.written(pool, update, lambda run: run)]


def _row(x: ir.Value, row: ir.Value) -> ir.Value:
    """Row `row` of x [T, ..]."""
    _, *sizes = shape_of(x)
    kind = ir.RankedTensorType.get(sizes, element_of(x))
    offsets, ones = [_DYNAMIC, *[0] * len(sizes)], [1] * (1 + len(sizes))
    return tensor.extract_slice(kind, x, [row], [], [], offsets, [1, *sizes], ones)


def _of_values(x: ir.Value, heads: int) -> ir.Value:
    """Repeat the heads of x [G, K] to [H, K], one row per head of the values."""
    group = heads // shape_of(x)[0]

    def element() -> ir.Value:
        head, place = _loops(2)
        return tensor.extract(x, [head // value_of(group), place])

    return generic([], "h k", element_of(x), element, sizes={"h": heads, "k": shape_of(x)[1]})


def _number(x: ir.Value, at: Sequence[ir.Value]) -> ir.Value:
    """An element of an i32 tensor, as an index."""
    return arith.index_cast(ir.IndexType.get(), tensor.extract(x, list(at)))


def _or_zero(value: ir.Value, before: ir.Value) -> ir.Value:
    """`value`, an f32, or zero where no position comes before."""
    fresh = arith.cmpi(arith.CmpIPredicate.eq, before, value_of(0))
    return arith.select(fresh, constant(0.0, ir.F32Type.get()), value)


def _product(row: ir.Value, state: ir.Value) -> ir.Value:
    """row [H, K] times state [H, K, V], f32 [H, V]."""

    def dot(a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
        return total + a * b

    found = generic([(row, "h k"), (state, _STATE)], "h v", ir.F32Type.get(), dot)
    found.owner.attributes[PRODUCT] = ir.UnitAttr.get()
    return found


def _loops(count: int) -> list[ir.Value]:
    return [linalg.IndexOp(loop).result for loop in range(count)]


def _size(x: ir.Value) -> ir.Value:
    return value_of(size_of(x, 0))
