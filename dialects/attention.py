"""Attention over pages of keys and values: a named operation.

A pool [N, E, B, V, D] has N pages of B positions. A page has E entries for each position (the keys
or the values of a layer), each for V heads of D elements. A call has T rows in S runs; a run is
consecutive tokens of one sequence. Position p of run s is row p % B of page lists[s, p // B].

    products = queries . keys                                  [T, V, G, J]
    scores   = seen ? scale * products : MASKED
    maximum  = greatest of scores and sink                     [T, V, G]
    weights  = exp(scores - maximum)
    total    = sum of weights, and exp(sink - maximum)
    mixed    = sum of weights * values, over weights that are not zero
    result   = mixed / total                                   [T, V, G, D]

G is query heads per key/value head, J the positions of all pages of a run. Values may be the first
elements of their entry. pages.py describes the formats of a pool, and writing to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, math, scf, tensor

from mxc.dialects import named_operations
from mxc.dialects.generic import constant, generic, loop_index, shape_of, to_f32
from mxc.dialects.named_operations import PRODUCT, NamedCall
from mxc.dialects.pages import Pages, element_at
from mxc.dialects.sizes import Size, size_of, value_of

#: The score of a masked position: exp(MASKED - any finite score) is exactly zero.
MASKED = -3.0e38

#: Significant bits of an f32.
F32_BITS = 24

#: The operation's name.
ATTENTION = "attention"

_SCORES, _ROWS, _RESULT, _SINKS = "m h g s", "m h g", "m h g d", "h g"


@dataclass(frozen=True, order=True)
class AttentionChunk:
    """Positions are split into chunks of `size`; a query attends within its own chunk (Llama 4)."""

    size: int


#: Which of the keys at or before its position a query attends to: the last so many (an int), those
#: in its chunk, or all (None).
Reach = int | AttentionChunk | None


@dataclass(frozen=True)
class Runs:
    """The rows of a call. `positions` i32 [T]: the position of each row in its sequence. `runs` i32
    [S, 3]: the first row, the number of rows, and the number of earlier positions of each run, in
    row order."""

    positions: ir.Value
    runs: ir.Value


@dataclass(frozen=True)
class AttentionCall:
    """A call of the operation, with its operands and options as `attention` describes them."""

    op: ir.Operation
    queries: ir.Value
    sinks: ir.Value
    rows: Runs
    pages: Pages
    keys: ir.Value
    values: ir.Value
    mixed: int
    reach: Reach
    scale: float
    cap: float | None
    bits: int


def attention(
    queries: ir.Value,
    sinks: ir.Value,
    rows: Runs,
    pages: Pages,
    entries: tuple[int, int],
    *,
    mixed: int,
    reach: Reach,
    scale: float,
    cap: float | None = None,
    bits: int = F32_BITS,
) -> ir.Value:
    """softmax(scale * q k, with one more logit `sinks` per head) v: f32 [T, V, G, mixed].

    queries f32 [T, V, G, D]; sinks [V, G], floats. `entries`: the entries of keys and of values;
    the first `mixed` elements of a value are used. A query attends to the keys at or before it,
    restricted by `reach`. The sink takes part in the maximum and the sum, and has no value. `cap`:
    scores become cap * tanh(score / cap) before they are masked. `bits`: the number of significant
    bits of queries and of weights that a kernel must keep.
    """
    f32, index = ir.F32Type.get(), ir.IndexType.get()
    tokens, heads, group, _ = shape_of(queries)
    options: dict[str, ir.Attribute] = {"scale": ir.FloatAttr.get_f32(scale)}
    i64 = ir.IntegerType.get_signless(64)
    for name, number in (("window", reach), ("chunk", reach)):
        if name == "window" and isinstance(number, int):
            options[name] = ir.IntegerAttr.get(i64, number)
        if name == "chunk" and isinstance(number, AttentionChunk):
            options[name] = ir.IntegerAttr.get(i64, number.size)
    if cap is not None:
        options["cap"] = ir.FloatAttr.get_f32(cap)
    if bits != F32_BITS:
        options["bits"] = ir.IntegerAttr.get(i64, bits)
    if pages.format is not None:
        options["format"] = ir.StringAttr.get(pages.format)

    def reference(*given: ir.Value) -> list[ir.Value]:
        return [_reference(given, pages.format, mixed, reach, scale, cap)]

    operands = [queries, sinks, rows.positions, rows.runs, pages.pool, pages.lists]
    operands += [constant(entry, index) for entry in entries]
    kind = ir.RankedTensorType.get([tokens, heads, group, mixed], f32)
    (result,) = named_operations.call(
        ATTENTION, operands, [kind], reference, options=options, sizes=[(0, 0)]
    )
    return result


def attention_calls(module: ir.Operation) -> Iterator[AttentionCall]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
    for found in named_operations.calls(module, ATTENTION):
        yield _read(found)


def _read(found: NamedCall) -> AttentionCall:
    options = found.options
    numbers = {
        name: options[name].value
        for name in ("scale", "cap", "window", "chunk", "bits")
        if name in options
    }
    reach: Reach = numbers.get("window")
    if "chunk" in numbers:
        reach = AttentionChunk(numbers["chunk"])
    queries, sinks, positions, runs, pool, lists, keys, values = found.op.operands
    return AttentionCall(
        op=found.op,
        queries=queries,
        sinks=sinks,
        rows=Runs(positions, runs),
        pages=Pages(pool, lists, options["format"].value if "format" in options else None),
        keys=keys,
        values=values,
        mixed=shape_of(found.op.results[0])[-1],
        reach=reach,
        scale=numbers["scale"],
        cap=numbers.get("cap"),
        bits=numbers.get("bits", F32_BITS),
    )


def _reference(
    given: tuple[ir.Value, ...],
    format: str | None,
    mixed: int,
    reach: Reach,
    scale: float,
    cap: float | None,
) -> ir.Value:
    queries, sinks, positions, runs, pool, lists, keys, values = given
    f32, index = ir.F32Type.get(), ir.IndexType.get()
    block = Pages(pool, lists, format).positions
    _, heads, group, _ = shape_of(queries)
    pages = value_of(size_of(lists, 1))
    count = pages * block
    one = constant(1, index)
    last_run, last, last_page = (
        value_of(each) - one for each in (size_of(lists, 0), pages, size_of(pool, 0))
    )
    owners = owners_of(size_of(positions, 0), runs)

    def element(
        owner: ir.Value, entry: ir.Value, position: ir.Value, head: ir.Value, depth: ir.Value
    ) -> ir.Value:
        """An element of an entry at a position of the run `owner`."""
        size = constant(block, index)
        # Code generators compute whole vectors, and extract also for the unused lanes of the last
        # vector, whose row or position does not exist. Indices are therefore kept in bounds.
        run = arith.minui(arith.index_cast(index, owner), last_run)
        number = arith.minui(position // size, last)
        page = tensor.extract(lists, [run, number])
        page = arith.minui(arith.index_cast(index, page), last_page)
        at = [page, entry, position % size, head, depth]
        return element_at(Pages(pool, lists, format), at)

    def product(owner: ir.Value) -> ir.Value:
        row, head, member, position = (loop_index(_SCORES, letter) for letter in "mhgs")

        def step(depth: ir.Value, total: ir.Value) -> ir.Value:
            query = tensor.extract(queries, [row, head, member, depth])
            key = element(owner, keys, position, head, depth)
            return total + query * key

        return _summed(constant(shape_of(queries)[3], index), step)

    products = generic(
        [(owners, "m")],
        _SCORES,
        f32,
        product,
        sizes=dict(zip("hgs", [heads, group, count], strict=True)),
    )
    products.owner.attributes[PRODUCT] = ir.UnitAttr.get()

    def masked(product: ir.Value, position: ir.Value) -> ir.Value:
        query = arith.index_cast(index, position)
        key = loop_index(_SCORES, "s")
        seen = arith.cmpi(arith.CmpIPredicate.sle, key, query)
        if isinstance(reach, AttentionChunk):
            size = constant(reach.size, index)
            start = query // size * size
            seen = seen & arith.cmpi(arith.CmpIPredicate.sge, key, start)
        elif reach is not None:
            age = query - key
            limit = constant(reach, index)
            seen = seen & arith.cmpi(arith.CmpIPredicate.slt, age, limit)
        scaled = product * scale
        if cap is not None:
            bound = constant(cap, f32)
            scaled = math.tanh(scaled / bound) * bound
        return arith.select(seen, scaled, constant(MASKED, f32))

    scores = generic([(products, _SCORES), (positions, "m")], _SCORES, f32, masked)
    # The operand `positions` supplies the number of rows.
    first_maximum = generic([(sinks, _SINKS), (positions, "m")], _ROWS, f32, lambda s, _: to_f32(s))
    maximum = generic(
        [(scores, _SCORES)], _ROWS, f32, lambda x, acc: arith.maxnumf(x, acc),
        initial=first_maximum,
    )  # fmt: skip
    weights = generic(
        [(scores, _SCORES), (maximum, _ROWS)],
        _SCORES,
        f32,
        lambda x, top: math.exp(x - top),
    )
    sink_weight = generic(
        [(sinks, _SINKS), (maximum, _ROWS)],
        _ROWS,
        f32,
        lambda x, top: math.exp(to_f32(x) - top),
    )
    total = generic(
        [(weights, _SCORES)], _ROWS, f32, lambda x, acc: x + acc,
        initial=sink_weight,
    )  # fmt: skip

    def mix(owner: ir.Value) -> ir.Value:
        row, head, member, depth = (loop_index(_RESULT, letter) for letter in "mhgd")
        # Keys that a query does not attend to have weight zero, and their values may be NaN.
        zero = constant(0.0, f32)

        def step(position: ir.Value, total: ir.Value) -> ir.Value:
            weight = tensor.extract(weights, [row, head, member, position])
            unseen = arith.cmpf(arith.CmpFPredicate.OEQ, weight, zero)
            value = element(owner, values, position, head, depth)
            return total + arith.select(unseen, zero, weight * value)

        return _summed(count, step)

    sums = generic([(owners, "m")], _RESULT, f32, mix, sizes={"h": heads, "g": group, "d": mixed})
    sums.owner.attributes[PRODUCT] = ir.UnitAttr.get()
    return generic([(sums, _RESULT), (total, _ROWS)], _RESULT, f32, lambda x, t: x / t)


def _summed(count: ir.Value, step: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """The sum of `step` over the indices 0 .. count - 1, in order, starting at zero.

    It is a loop within the body: where a reduction reads by computed indices, IREE's code generator
    for GPUs assigns lanes in a way that it then cannot distribute.
    """
    index = ir.IndexType.get()
    zero, one = constant(0, index), constant(1, index)
    op = scf.ForOp(zero, count, one, [constant(0.0, ir.F32Type.get())])
    with ir.InsertionPoint(op.body):
        scf.YieldOp([step(op.induction_variable, op.inner_iter_args[0])])
    return op.results[0]


def owners_of(rows: Size, runs: ir.Value) -> ir.Value:
    """i32 [rows]: the run of each row, which is the last run that begins at or before the row."""
    i32 = ir.IntegerType.get_signless(32)
    count = value_of(size_of(runs, 0))
    kind = ir.RankedTensorType.get([ir.ShapedType.get_dynamic_size()], i32)
    firsts = tensor.extract_slice(kind, runs, [], [count], [], [0, 0], [kind.shape[0], 1], [1, 1])

    def begun(first: ir.Value, acc: ir.Value) -> ir.Value:
        row = arith.index_cast(i32, linalg.IndexOp(0).result)
        return acc + arith.extui(i32, arith.cmpi(arith.CmpIPredicate.sle, first, row))

    return generic([(firsts, "s")], "m", i32, begun, initial=-1, sizes={"m": rows})
