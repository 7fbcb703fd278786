"""The gated delta rule: linear attention whose state is a matrix a head, [key size, value size].

    S' = exp(g) S + k (beta (v - exp(g) k S))        what a token changes
    o  = q S'                                        what it reads

One token is one step, in one dispatch that reads and writes the state once, where it lies. Several
are computed in chunks of up to 64 by products of matrices: with the tokens i and j of a chunk, D_i
the sum of their g up to i, and S what was there before the chunk,

    X = (1 + A)^-1,  A_ij = beta_i exp(D_i - D_j) (k_i k_j)  for j < i
    U = X beta (v - exp(D) k S)
    o = exp(D) q S + P U,  P_ij = exp(D_i - D_j) (q_i k_j)  for j <= i
    S' = exp(D_last) S + (exp(D_last - D) k)^T U

X is put together from inverses of blocks along the diagonal, of 1, 2, 4, .. rows: with those of two
neighbours L and M, and B of A below the first and beside the second, it is [L, 0; -M B L, M]. Sums
of powers of A would cancel where keys are alike.

Source: Yang et al., "Gated Delta Networks" (arXiv 2412.06464), and transformers' models/qwen3_next
(5.23). Letters: T tokens of this call, n chunks of c tokens, G heads of queries and keys, R heads
of values for each, K and V the sizes of their heads, L layers.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, linalg, math, tensor

from mxc.compiler.models.blocks.primitives import (
    collapse,
    expand,
    f32,
    joined,
    rows_from,
    slice_of,
)
from mxc.dialects.generic import constant, element_of, fill, generic, loop_index, shape_of

#: The most tokens of a chunk, as in the reference; a power of two.
CHUNK = 64

_STATE = "g r k v"


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Rows of T tokens: queries and keys [T, G, K], values [T, G, R, V], beta and g [T, G, R].

    All f32; `g` is the logarithm of what is kept of the state, at most zero.
    """

    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    beta: ir.Value
    g: ir.Value


def advance(tokens: Tokens, states: ir.Value, layer: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What the tokens read, f32 [T, G, R, V]; `states` [L, G, R, K, V] with that of `layer` after.

    `layer` is an index. A token whose beta, g and rows are zero changes nothing.
    """
    if shape_of(tokens.queries)[0] == 1:
        return _step(tokens, states, layer)
    return _chunks(tokens, states, layer)


def _step(tokens: Tokens, states: ir.Value, layer: ir.Value) -> tuple[ir.Value, ir.Value]:
    rows = (tokens.queries, tokens.keys, tokens.values, tokens.beta)
    q, k, v, beta = (slice_of(each, 0, 0) for each in rows)
    kept = generic([(slice_of(tokens.g, 0, 0), "g r")], "g r", f32(), math.exp)
    result = ir.RankedTensorType.get(shape_of(v), f32())
    # A region of its own: left to itself, IREE reads the state once more for each product.
    region = ir.Operation.create(
        "flow.dispatch.region",
        results=[result, states.type],
        attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0])},
        regions=2,
    )
    with ir.InsertionPoint(region.regions[0].blocks.append()):
        state = _read(states, layer)
        change = generic(
            [(_product(k, state), "g r v"), (v, "g r v"), (beta, "g r"), (kept, "g r")],
            "g r v",
            f32(),
            lambda known, value, b, e: arith.mulf(b, arith.subf(value, arith.mulf(e, known))),
        )
        state = generic(
            [(state, _STATE), (k, "g k"), (change, "g r v"), (kept, "g r")],
            _STATE,
            f32(),
            lambda s, key, d, e: arith.addf(arith.mulf(e, s), arith.mulf(key, d)),
        )
        found = [_product(q, state), _write(state, states, layer)]
        ir.Operation.create("flow.return", operands=found)
    read, states = region.results
    return expand(read, [[0, 1], [2], [3]], [1, *shape_of(read)]), states


def _product(row: ir.Value, state: ir.Value) -> ir.Value:
    """row [G, K] times state [G, R, K, V]: [G, R, V]."""
    return generic([(row, "g k"), (state, _STATE)], "g r v", f32(), _dot)


def _dot(a: ir.Value, b: ir.Value, total: ir.Value) -> ir.Value:
    return arith.addf(total, arith.mulf(a, b))


def _read(states: ir.Value, layer: ir.Value) -> ir.Value:
    _, *sizes = shape_of(states)
    kind = ir.RankedTensorType.get(sizes, element_of(states))
    return tensor.extract_slice(kind, states, [layer], [], [], *_place(sizes))


def _write(state: ir.Value, states: ir.Value, layer: ir.Value) -> ir.Value:
    return tensor.insert_slice(state, states, [layer], [], [], *_place(shape_of(state)))


def _place(sizes: list[int]) -> tuple[list[int], list[int], list[int]]:
    """Offsets, sizes and strides of the state of one layer."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return [dynamic, *[0] * len(sizes)], [1, *sizes], [1] * (1 + len(sizes))


def _chunks(tokens: Tokens, states: ir.Value, layer: ir.Value) -> tuple[ir.Value, ir.Value]:
    count = shape_of(tokens.queries)[0]
    size = min(CHUNK, 1 << (count - 1).bit_length())
    q, k = (_in_chunks(x, size, "g k") for x in (tokens.queries, tokens.keys))
    v = _in_chunks(tokens.values, size, "g r v")
    beta, g = (_in_chunks(x, size, "g r") for x in (tokens.beta, tokens.g))
    sums = _running_sums(g)
    below = _decayed(_scores(k, k), sums, beta)
    inside = _decayed(_scores(q, k), sums, None)
    inverse = _inverse(below)
    state, found = _read(states, layer), []
    for number in range(shape_of(q)[0]):
        parts = (q, k, v, beta, sums, inside, inverse)
        read, state = _chunk(_Chunk(*(slice_of(part, 0, number) for part in parts)), state)
        found.append(expand(read, [[0, 1], [2], [3], [4]], [1, *shape_of(read)]))
    rows = generic([(joined(found), "n g r i v")], "n i g r v", f32(), lambda x: x)
    rows = collapse(rows, [[0, 1], [2], [3], [4]])
    if shape_of(rows)[0] != count:
        rows = rows_from(rows, constant(0, ir.IndexType.get()), count)
    return rows, _write(state, states, layer)


def _in_chunks(x: ir.Value, size: int, rest: str) -> ir.Value:
    """x [T, G, ..] as chunks [n, G, (R,) c, ..], with rows of zeros behind the last.

    `rest`: the letters of its dimensions but the first.
    """
    count, *sizes = shape_of(x)
    number = -(-count // size)
    if number * size != count:
        zeros = fill([number * size, *sizes], f32(), 0.0)
        offsets, ones = [0] * (1 + len(sizes)), [1] * (1 + len(sizes))
        x = tensor.insert_slice(x, zeros, [], [], [], offsets, [count, *sizes], ones)
    groups = [[0, 1], *([axis + 2] for axis in range(len(sizes)))]
    x = expand(x, groups, [number, size, *sizes])
    heads = [letter for letter in rest.split() if letter in "gr"]
    columns = [letter for letter in rest.split() if letter not in "gr"]
    turned = " ".join(["n", *heads, "i", *columns])
    return generic([(x, f"n i {rest}")], turned, f32(), lambda a: a)


def _running_sums(g: ir.Value) -> ir.Value:
    """g [n, G, R, c]: of each token the sum of its own and of those before it in its chunk."""
    loops = "n g r i"

    def added(x: ir.Value, total: ir.Value) -> ir.Value:
        before = arith.cmpi(arith.CmpIPredicate.sle, _index(4), _index(3))
        return arith.addf(total, arith.select(before, x, constant(0.0, f32())))

    return generic([(g, "n g r j")], loops, f32(), added, sizes={"i": shape_of(g)[-1]})


def _index(loop: int) -> ir.Value:
    return linalg.IndexOp(loop).result


def _scores(x: ir.Value, k: ir.Value) -> ir.Value:
    """Products of the rows of x and of k, both [n, G, c, K]: [n, G, c, c]."""
    return generic([(x, "n g i k"), (k, "n g j k")], "n g i j", f32(), _dot)


def _decayed(scores: ir.Value, sums: ir.Value, beta: ir.Value | None) -> ir.Value:
    """exp(D_i - D_j) scores_ij [n, G, R, c, c], zero for j > i; times beta_i, for j = i too."""
    loops = "n g r i j"
    later = arith.CmpIPredicate.sgt if beta is None else arith.CmpIPredicate.sge

    def decayed(score: ir.Value, own: ir.Value, other: ir.Value, *rate: ir.Value) -> ir.Value:
        value = arith.mulf(score, math.exp(arith.subf(own, other)))
        for each in rate:
            value = arith.mulf(each, value)
        zero = arith.cmpi(later, loop_index(loops, "j"), loop_index(loops, "i"))
        return arith.select(zero, constant(0.0, f32()), value)

    rates = [] if beta is None else [(beta, "n g r i")]
    operands = [(scores, "n g i j"), (sums, "n g r i"), (sums, "n g r j"), *rates]
    return generic(operands, loops, f32(), decayed)


def _inverse(below: ir.Value) -> ir.Value:
    """(1 + A)^-1 of A = `below` [n, G, R, c, c], whose diagonal and upper half are zero."""
    *_, size = shape_of(below)
    loops = "n g r i j"

    def first(a: ir.Value) -> ir.Value:
        """The inverses of blocks of two rows, [1, 0; a, 1]."""
        i, j = (loop_index(loops, letter) for letter in "ij")
        here = arith.cmpi(arith.CmpIPredicate.eq, i, j)
        other = arith.select(_beside(i, j, 1), arith.negf(a), constant(0.0, f32()))
        return arith.select(here, constant(1.0, f32()), other)

    found, rows = generic([(below, loops)], loops, f32(), first), 2
    while rows < size:
        width = rows

        def crossing(a: ir.Value, width: int = width) -> ir.Value:
            i, j = (loop_index(loops, letter) for letter in "ij")
            return arith.select(_beside(i, j, width), a, constant(0.0, f32()))

        part = generic([(below, loops)], loops, f32(), crossing)
        inner = _matrices(part, found)
        found = generic(
            [(found, loops), (_matrices(found, inner), loops)], loops, f32(), arith.subf
        )
        rows *= 2
    return found


def _beside(i: ir.Value, j: ir.Value, rows: int) -> ir.Value:
    """Whether j is in a block of `rows` at an even place, and i in the next one."""
    size = constant(rows, ir.IndexType.get())
    one = constant(1, ir.IndexType.get())
    block = arith.divui(j, size)
    even = arith.cmpi(arith.CmpIPredicate.eq, arith.andi(block, one), _zero())
    following = arith.cmpi(arith.CmpIPredicate.eq, arith.divui(i, size), arith.addi(block, one))
    return arith.andi(even, following)


def _zero() -> ir.Value:
    return constant(0, ir.IndexType.get())


def _matrices(a: ir.Value, b: ir.Value) -> ir.Value:
    """Products of matrices, [n, G, R, c, c] each."""
    return generic([(a, "n g r i m"), (b, "n g r m j")], "n g r i j", f32(), _dot)


@dataclass(frozen=True)
class _Chunk:
    """What belongs to the tokens of one chunk: rows, rates [G, R, c], matrices [G, R, c, c]."""

    q: ir.Value
    k: ir.Value
    v: ir.Value
    beta: ir.Value
    sums: ir.Value
    inside: ir.Value
    inverse: ir.Value


def _chunk(x: _Chunk, state: ir.Value) -> tuple[ir.Value, ir.Value]:
    """What the tokens of one chunk read, [G, R, c, V], and the state behind them."""
    rows = "g r i v"
    last = slice_of(x.sums, 2, shape_of(x.sums)[2] - 1)
    known, asked = (
        generic([(each, "g i k"), (state, _STATE)], rows, f32(), _dot) for each in (x.k, x.q)
    )

    def missing(value: ir.Value, have: ir.Value, total: ir.Value, rate: ir.Value) -> ir.Value:
        return arith.mulf(rate, arith.subf(value, arith.mulf(math.exp(total), have)))

    wanted = generic(
        [(x.v, rows), (known, rows), (x.sums, "g r i"), (x.beta, "g r i")], rows, f32(), missing
    )
    change = generic([(x.inverse, "g r i j"), (wanted, "g r j v")], rows, f32(), _dot)
    start = generic(
        [(asked, rows), (x.sums, "g r i")], rows, f32(), lambda a, d: arith.mulf(math.exp(d), a)
    )
    read = generic([(x.inside, "g r i j"), (change, "g r j v")], rows, f32(), _dot, initial=start)
    left = generic(
        [(x.k, "g i k"), (last, "g r"), (x.sums, "g r i")],
        "g r i k",
        f32(),
        lambda a, end, d: arith.mulf(math.exp(arith.subf(end, d)), a),
    )
    kept = generic(
        [(state, _STATE), (last, "g r")],
        _STATE,
        f32(),
        lambda s, end: arith.mulf(math.exp(end), s),
    )
    state = generic([(left, "g r i k"), (change, rows)], _STATE, f32(), _dot, initial=kept)
    return read, state
