"""Attention as linalg: grouped queries, a sliding window or chunks, sinks. Built and matched here.

    products = queries . keys                                  [T, V, G, S]
    scores   = seen ? scale * products : MASKED
    maximum  = greatest of scores and sink                     [T, V, G]
    weights  = exp(scores - maximum)
    total    = sum of weights, and exp(sink - maximum)
    mixed    = sum of weights * values, over weights that are not zero
    result   = mixed / total                                   [T, V, G, D]

T tokens of this call, V key/value heads, G query heads a key/value head, D head size, S keys.
Values may have another size than keys, which the result then has too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, math

from mxc.dialects.dequantize import iterators
from mxc.dialects.generic import constant, generic, loop_index, shape_of
from mxc.dialects.indexing import indexing_maps
from mxc.dialects.reasons import Reason
from mxc.dialects.scalar_pattern import Found, Pattern, match_scalar, number_of

#: The least f32 that a softmax may meet: exp(it - anything finite) is exactly zero.
MASKED = -3.0e38

_SCORES, _ROWS, _RESULT, _KEYS, _SINKS = "m h g s", "m h g", "m h g d", "s h d", "h g"


@dataclass(frozen=True, order=True)
class Chunk:
    """Positions are cut into chunks of `size`; a query sees the keys of its own (Llama 4)."""

    size: int


#: The keys that a query sees of those at or before it: the last so many, those of its chunk, all.
Reach = int | Chunk | None


def attention(
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    sinks: ir.Value,
    *,
    position: ir.Value,
    first: ir.Value | None,
    width: Reach,
    scale: float,
    cap: float | None = None,
) -> ir.Value:
    """softmax(scale * q k, with one more logit `sinks` a head) v: f32 [T, V, G, D].

    queries [T, V, G, D] f32; keys [S, V, D]; values [S, V, D of the result]; sinks [V, G], floats.
    Query m stands at position + m, key s at first + s (None: at s), both index values. A query sees
    the keys at or before it, and of these what `width` says. The sink takes part in the maximum and
    the sum, and has no value. `cap`: scores become cap * tanh(score / cap) before they
    are masked.
    """
    f32 = ir.F32Type.get()
    products = generic(
        [(queries, _RESULT), (keys, _KEYS)],
        _SCORES,
        f32,
        lambda q, k, acc: arith.addf(acc, arith.mulf(q, _to_f32(k))),
    )

    def masked(product: ir.Value) -> ir.Value:
        query = arith.addi(position, loop_index(_SCORES, "m"))
        key = loop_index(_SCORES, "s")
        if first is not None:
            key = arith.addi(first, key)
        seen = arith.cmpi(arith.CmpIPredicate.sle, key, query)
        if isinstance(width, Chunk):
            size = constant(width.size, ir.IndexType.get())
            start = arith.muli(arith.divui(query, size), size)
            seen = arith.andi(seen, arith.cmpi(arith.CmpIPredicate.sge, key, start))
        elif width is not None:
            age = arith.subi(query, key)
            limit = constant(width, ir.IndexType.get())
            seen = arith.andi(seen, arith.cmpi(arith.CmpIPredicate.slt, age, limit))
        scaled = arith.mulf(product, constant(scale, f32))
        if cap is not None:
            bound = constant(cap, f32)
            scaled = arith.mulf(math.tanh(arith.divf(scaled, bound)), bound)
        return arith.select(seen, scaled, constant(MASKED, f32))

    scores = generic([(products, _SCORES)], _SCORES, f32, masked)
    tokens = shape_of(queries)[0]
    first_maximum = generic([(sinks, _SINKS)], _ROWS, f32, _to_f32, sizes={"m": tokens})
    maximum = generic(
        [(scores, _SCORES)], _ROWS, f32, lambda x, acc: arith.maxnumf(x, acc),
        initial=first_maximum,
    )  # fmt: skip
    weights = generic(
        [(scores, _SCORES), (maximum, _ROWS)],
        _SCORES,
        f32,
        lambda x, top: math.exp(arith.subf(x, top)),
    )
    sink_weight = generic(
        [(sinks, _SINKS), (maximum, _ROWS)],
        _ROWS,
        f32,
        lambda x, top: math.exp(arith.subf(_to_f32(x), top)),
    )
    total = generic(
        [(weights, _SCORES)], _ROWS, f32, lambda x, acc: arith.addf(x, acc),
        initial=sink_weight,
    )  # fmt: skip

    def mix(weight: ir.Value, value: ir.Value, total: ir.Value) -> ir.Value:
        # What a query does not see has weight zero, and may be NaN: a later token, or padding.
        zero = constant(0.0, f32)
        unseen = arith.cmpf(arith.CmpFPredicate.OEQ, weight, zero)
        return arith.addf(total, arith.select(unseen, zero, arith.mulf(weight, _to_f32(value))))

    mixed = generic([(weights, _SCORES), (values, _KEYS)], _RESULT, f32, mix)
    return generic([(mixed, _RESULT), (total, _ROWS)], _RESULT, f32, lambda x, t: arith.divf(x, t))


def _to_f32(value: ir.Value) -> ir.Value:
    f32 = ir.F32Type.get()
    return value if value.type == f32 else arith.extf(f32, value)


@dataclass(frozen=True)
class MatchedAttention:
    """The operands of `attention` behind the operation that makes its result.

    `products`: the two contractions in it. `position` and `first` are None where they are zero.
    """

    op: ir.Operation
    products: tuple[ir.Operation, ir.Operation]
    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    sinks: ir.Value
    position: ir.Value | None
    first: ir.Value | None
    width: Reach
    scale: float


# Scalars of a body: %i an argument, ~%i one that may be extended to f32, ?x a value from outside or
# a constant; a tuple is an operation over its operands.
_PRODUCT: Pattern = ("arith.addf", "%2", ("arith.mulf", "~%0", "~%1"))
_UNSEEN: Pattern = ("arith.cmpf oeq", "%0", "?zero")
_MIX: Pattern = (
    "arith.addf", "%2", ("arith.select", _UNSEEN, "?nothing", ("arith.mulf", "~%0", "~%1")),
)  # fmt: skip
_EXP: Pattern = ("math.exp", ("arith.subf", "~%0", "%1"))


def _masks(tokens: int, keys: int) -> Iterator[Pattern]:
    """The bodies of the scores: with or without a first key; all keys, a window, or chunks.

    The canonicaliser puts constants behind, and makes nothing of adding zero: where tokens or keys
    are one, the index is.
    """
    for query in _sums("?position", "linalg.index 0", tokens):
        for key in _sums("?first", "linalg.index 3", keys):
            causal: Pattern = ("arith.cmpi sle", key, query)
            near: Pattern = ("arith.cmpi slt", ("arith.subi", query, key), "?width")
            start: Pattern = ("arith.muli", ("arith.divui", query, "?chunk"), "?size")
            own: Pattern = ("arith.cmpi sge", key, start)
            for seen in (causal, ("arith.andi", causal, near), ("arith.andi", causal, own)):
                yield ("arith.select", seen, ("arith.mulf", "%0", "?scale"), "?masked")


def _sums(start: str, step: str, size: int) -> list[Pattern]:
    if size == 1:
        return [start, ("arith.addi", start, step), ("arith.addi", step, start)]
    return [step, ("arith.addi", start, step), ("arith.addi", step, start)]


#: The contractions of attention: by keys, and by values.
_PRODUCTS = 2
#: Of an operation that divides no sum under weights by the sum of the weights.
NO_ATTENTION = Reason("it is no attention")


def match_attention(op: ir.Operation) -> MatchedAttention | Reason:
    """The attention whose result `op` makes, as `attention` builds it, or why it is another one.

    NO_ATTENTION where it is none.
    """
    divide = _read(op, [_RESULT, _ROWS], _RESULT, [("arith.divf", "%0", "%1")])
    if divide is None:
        return NO_ATTENTION
    mixed, total = (_owner(value) for value in op.operands[:2])
    added = _read(total, [_SCORES], _ROWS, [("arith.addf", "%0", "%1")])
    if mixed is None or total is None or added is None:
        return NO_ATTENTION
    if mixed.name != "linalg.generic" or total.operands[0] != mixed.operands[0]:
        return NO_ATTENTION
    mix = _read(mixed, [_SCORES, _KEYS], _RESULT, [_MIX])
    zeros = [number_of(mix[name]) for name in ("zero", "nothing")] if mix is not None else []
    if zeros != [0.0, 0.0] or not _starts_at_zero(mixed):
        return Reason("the values are not summed from zero, without those of weight zero")
    weights, sink_weight = _owner(mixed.operands[0]), _owner(total.operands[1])
    exponentials = _read(weights, [_SCORES, _ROWS], _SCORES, [_EXP])
    if weights is None or exponentials is None:
        return Reason("the weights are no exponentials of scores less one number for each row")
    sunk = _read(sink_weight, [_SINKS, _ROWS], _ROWS, [_EXP])
    if sink_weight is None or sunk is None:
        return Reason("the sum of the weights does not start from the weight of a sink")
    scores, maximum = (_owner(value) for value in weights.operands[:2])
    # NaN comes through the sum of the weights, whatever the maximum is.
    largest: list[Pattern] = [(f"arith.{name}", "%0", "%1") for name in ("maxnumf", "maximumf")]
    highest = _read(maximum, [_SCORES], _ROWS, largest)
    if maximum is None or highest is None:
        return Reason("what is subtracted from the scores is not the largest of them")
    tokens, *_, keys = shape_of(weights.operands[0])
    mask = _read(scores, [_SCORES], _SCORES, _masks(tokens, keys))
    if scores is None or mask is None:
        return Reason(
            "the scores are more than products times a number, seen by later positions or in a "
            "window of them"
        )
    scale, masked = number_of(mask["scale"]), number_of(mask["masked"])
    reach = _reach(mask)
    if scale is None or masked is None or isinstance(reach, Reason):
        return Reason("the scale, the width of the window or the score of what is unseen varies")
    if masked > 0.99 * MASKED:
        return Reason(f"what is unseen has the score {masked:g}, which is not below all others")
    products, floor = _owner(scores.operands[0]), _owner(maximum.operands[1])
    product = _read(products, [_RESULT, _KEYS], _SCORES, [_PRODUCT])
    if products is None or product is None or not _starts_at_zero(products):
        return Reason("the scores are no products of queries and keys that sum from zero")
    start = _read(floor, [_SINKS], _ROWS, ["~%0"])
    if floor is None or start is None:
        return Reason("the largest score does not start from a sink")
    same = (
        maximum.operands[0] == weights.operands[0]
        and sink_weight.operands[1] == weights.operands[1]
        and sink_weight.operands[0] == floor.operands[0]
    )
    if not same:
        return Reason("scores, their largest and the sinks are not the same in all of its parts")
    return MatchedAttention(
        op=op,
        products=(products, mixed),
        queries=products.operands[0],
        keys=products.operands[1],
        values=mixed.operands[1],
        sinks=floor.operands[0],
        position=mask.get("position"),
        first=mask.get("first"),
        width=reach,
        scale=float(scale),
    )


def _reach(mask: Found) -> Reach | Reason:
    """What a query sees of the keys at or before it."""
    numbers = [number_of(mask[name]) for name in ("width", "chunk", "size") if name in mask]
    if not numbers:
        return None
    if None in numbers or len({*numbers}) != 1:
        return Reason("the window varies")
    size = int(numbers[0] or 0)
    return Chunk(size) if "chunk" in mask else size


def products_of(op: ir.Operation) -> list[ir.Operation]:
    """The contractions in what divides a sum under weights, as far as they are found."""
    found: list[ir.Operation] = []
    inner = _owner(op.operands[0])
    while inner is not None and inner.name.startswith("linalg.") and len(found) < _PRODUCTS:
        if any("reduction" in str(kind) for kind in iterators(inner)):
            found.append(inner)
        inner = _owner(inner.operands[0])
    return found


def _read(
    op: ir.Operation | None, inputs: Sequence[str], output: str, bodies: Iterable[Pattern]
) -> Found | None:
    """What the body of `op` binds, if `op` is a generic over these subscripts with such a body."""
    if op is None or op.name != "linalg.generic" or len(op.operands) != len(inputs) + 1:
        return None
    loops = output.split()
    loops += [letter for text in inputs for letter in text.split() if letter not in loops]
    loops = list(dict.fromkeys(loops))
    maps = [
        ir.AffineMap.get(len(loops), 0, [ir.AffineDimExpr.get(loops.index(i)) for i in s.split()])
        for s in (*inputs, output)
    ]
    parallel = len(output.split())
    kinds = [str(kind) for kind in iterators(op)]
    if indexing_maps(op) != maps or any(
        ("parallel" in kind) != (place < parallel) for place, kind in enumerate(kinds)
    ):
        return None
    found = (match_scalar(op, body) for body in bodies)
    return next((one for one in found if one is not None), None)


def _owner(value: ir.Value) -> ir.Operation | None:
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _starts_at_zero(op: ir.Operation) -> bool:
    fill = _owner(op.operands[len(op.operands) - 1])
    return fill is not None and fill.name == "linalg.fill" and number_of(fill.operands[0]) == 0.0
