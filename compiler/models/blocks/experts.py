"""Mixture of experts: grouping of rows by expert, gathered contractions.

Letters: T tokens, J chosen experts a token, E experts, P = T * J pairs (token, choice), B rows of
a group, G groups, N and K of an expert's weight [N, K], KO = K / 32 blocks.

Each pair is a row by its expert's weights, which are gathered: a kernel of ours reads them where
they are, and takes many pairs expert by expert. Where there is no such kernel (on GPUs), the
program sorts the pairs by expert into groups of B rows, each group of one expert, so that an
expert's weights are read once for up to B rows:

    pairs      (t0,e2) (t0,e0) (t1,e2) (t1,e1) ..     P = T * J, in the order of the tokens
    slots      e0: [p1 . . .]  e1: [p3 . . .]  e2: [p0 p2 . .] ..     G groups of B slots

G is the most that any routing of so many pairs can need. A slot that no pair fills repeats pair 0
and is never read back.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.compiler.models.blocks.activations import Blocks
from mxc.compiler.models.blocks.primitives import collapse, expand, f32, slice_of, to_f32
from mxc.dialects.boundary import pack, unpack
from mxc.dialects.generic import constant, element_of, generic, loop_index, shape_of
from mxc.dialects.linalg_ext import gather
from mxc.dialects.scaled import scaled_contraction
from mxc.dialects.sizes import product, sizes_of, value_of

#: Rows of a group: the M of a matrix instruction, and of a register tile on CPUs.
GROUP_ROWS = 16


def i32() -> ir.Type:
    """The i32 type of the current context."""
    return ir.IntegerType.get_signless(32)


def as_index(value: ir.Value) -> ir.Value:
    """An i32 scalar as an index."""
    return arith.index_cast(ir.IndexType.get(), value)


@dataclass(frozen=True)
class Groups:
    """Where each pair's row is: group g has rows of pairs that all chose `experts[g]`.

    experts i32 [G]; pair_of_slot i32 [G * B]; slot_of_pair i32 [T, J]. `in_order`: slot p is
    pair p.
    """

    experts: ir.Value
    pair_of_slot: ir.Value
    slot_of_pair: ir.Value
    rows: int
    in_order: bool = False


def one_group_a_pair(experts: ir.Value) -> Groups:
    """Each pair is a group of one row, nothing to sort. experts i32 [T, J]."""
    choices = shape_of(experts)[1]
    loops = "m j"

    def number(_: ir.Value) -> ir.Value:
        row, column = (arith.index_cast(i32(), loop_index(loops, letter)) for letter in "mj")
        return arith.addi(arith.muli(row, constant(choices, i32())), column)

    slots = generic([(experts, loops)], loops, i32(), number)
    chosen = collapse(experts, [[0, 1]])
    return Groups(chosen, collapse(slots, [[0, 1]]), slots, 1, in_order=True)


def group_by_expert(experts: ir.Value, expert_count: int, rows: int = GROUP_ROWS) -> Groups:
    """Sort the pairs of experts i32 [T, J] into groups of `rows` rows of one expert."""
    index = ir.IndexType.get()
    pairs = value_of(product(sizes_of(experts)))
    used = arith.minsi(pairs, constant(expert_count, index))
    most = arith.addi(pairs, arith.muli(used, constant(rows - 1, index)))
    groups = arith.divui(most, constant(rows, index))
    chosen = collapse(experts, [[0, 1]])

    def number(value: int) -> ir.Value:
        return constant(value, i32())

    def one_if(condition: ir.Value) -> ir.Value:
        return arith.select(condition, number(1), number(0))

    def equal(a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.cmpi(arith.CmpIPredicate.eq, a, b)

    def position(output: str, letter: str) -> ir.Value:
        return arith.index_cast(i32(), loop_index(output, letter))

    def count_earlier(a: ir.Value, b: ir.Value, acc: ir.Value) -> ir.Value:
        loops = "p q"
        earlier = arith.cmpi(
            arith.CmpIPredicate.slt, loop_index(loops, "q"), loop_index(loops, "p")
        )
        return arith.addi(acc, one_if(arith.andi(earlier, equal(a, b))))

    rank = generic([(chosen, "p"), (chosen, "q")], "p", i32(), count_earlier)
    blocks = generic(
        [(chosen, "p")],
        "e",
        i32(),
        lambda c, acc: arith.addi(acc, one_if(equal(c, position("e", "e")))),
        sizes={"e": expert_count},
    )
    blocks = generic(
        [(blocks, "e")],
        "e",
        i32(),
        lambda n: arith.divui(arith.addi(n, number(rows - 1)), number(rows)),
    )

    def add_earlier(n: ir.Value, acc: ir.Value) -> ir.Value:
        earlier = arith.cmpi(
            arith.CmpIPredicate.slt, loop_index("e d", "d"), loop_index("e d", "e")
        )
        return arith.addi(acc, arith.select(earlier, n, number(0)))

    first = generic([(blocks, "d")], "e", i32(), add_earlier, sizes={"e": expert_count})
    slots = generic(
        [(chosen, "p"), (rank, "p")],
        "p",
        i32(),
        lambda c, r: arith.addi(arith.muli(tensor.extract(first, [as_index(c)]), number(rows)), r),
    )

    def ended(start: ir.Value, n: ir.Value, acc: ir.Value) -> ir.Value:
        over = arith.cmpi(arith.CmpIPredicate.sle, arith.addi(start, n), position("g", "g"))
        return arith.addi(acc, one_if(over))

    owner = generic([(first, "e"), (blocks, "e")], "g", i32(), ended, sizes={"g": groups})
    owner = generic([(owner, "g")], "g", i32(), lambda e: arith.minsi(e, number(expert_count - 1)))

    def pair_here(slot: ir.Value, acc: ir.Value) -> ir.Value:
        here = equal(slot, position("s p", "s"))
        return arith.select(here, position("s p", "p"), acc)

    slot_count = arith.muli(groups, constant(rows, index))
    pair_of_slot = generic([(slots, "p")], "s", i32(), pair_here, sizes={"s": slot_count})
    return Groups(owner, pair_of_slot, expand(slots, [[0, 1]], shape_of(experts)), rows)


def group_rows(x: Blocks, groups: Groups) -> Blocks:
    """Rows of x [T, KO, KB] as the groups want them: [G, B, KO, KB], and their scales."""
    rows = _repeated if groups.in_order else _rows
    scales = None if x.scales is None else rows(x.scales, groups)
    factors = None if x.factors is None else rows(x.factors, groups)
    return Blocks(rows(x.elements, groups), scales, factors)


def _repeated(x: ir.Value, groups: Groups) -> ir.Value:
    """Rows of x [T, ..], each J times: [T * J, 1, ..]."""
    kind, choices = element_of(x), shape_of(groups.slot_of_pair)[1]
    packed = isinstance(kind, ir.FloatType) and kind.width < 16
    x = pack(x) if packed else x
    inner = "".join(f" k{axis}" for axis in range(1, len(shape_of(x))))
    rows = generic(
        [(x, f"m{inner}")], f"m j{inner}", element_of(x), lambda e: e, sizes={"j": choices}
    )
    rows = collapse(rows, [[0, 1], *([axis + 2] for axis in range(len(shape_of(x)) - 1))])
    pairs, *rest = shape_of(rows)
    grouped = [[0, 1], *([axis + 2] for axis in range(len(rest)))]
    rows = expand(rows, grouped, [pairs, 1, *rest])
    return unpack(rows, kind) if packed else rows


def _rows(x: ir.Value, groups: Groups) -> ir.Value:
    """Rows of x [T, ..], one a slot: [G, B, ..]."""
    kind, choices = element_of(x), shape_of(groups.slot_of_pair)[1]
    # Elements of 4 bits have no addresses.
    packed = isinstance(kind, ir.FloatType) and kind.width < 16
    x = pack(x) if packed else x
    inner = [f"k{axis}" for axis in range(1, len(shape_of(x)))]
    loops = " ".join(["s", *inner])

    def row(pair: ir.Value) -> ir.Value:
        token = arith.divui(pair, constant(choices, i32()))
        return tensor.extract(x, [as_index(token), *(loop_index(loops, k) for k in inner)])

    sizes = dict(zip(inner, shape_of(x)[1:], strict=True))
    rows = generic([(groups.pair_of_slot, "s")], loops, element_of(x), row, sizes=sizes)
    slots, *rest = shape_of(rows)
    grouped = [[0, 1], *([axis + 2] for axis in range(len(rest)))]
    rows = expand(rows, grouped, [slots, groups.rows, *rest])
    return unpack(rows, kind) if packed else rows


@dataclass(frozen=True)
class ExpertWeight:
    """Elements [E, N, KO, KB] and scales [E, N, KO], or plain elements [E, N, K].

    `bias` and `factors` [E, N], where there are some: what products are multiplied with, then what
    is added.
    """

    elements: ir.Value
    scales: ir.Value | None = None
    factors: ir.Value | None = None
    bias: ir.Value | None = None


def expert_linear(x: Blocks, groups: Groups, weight: ExpertWeight, name: str) -> ir.Value:
    """x [G, B, K] times the weights of each group's expert, plus bias: f32 [G, B, N].

    Without blocks, x.elements is [G, B, K] too.
    """
    elements = gather(weight.elements, groups.experts)
    if weight.scales is None:
        with ir.Location.name(name):
            y = generic(
                [(x.elements, "g m k"), (elements, "g n k")],
                "g m n",
                f32(),
                lambda a, w, acc: arith.addf(acc, arith.mulf(to_f32(a), to_f32(w))),
            )
    else:
        scales = gather(weight.scales, groups.experts)
        y = scaled_contraction(
            x.elements, elements, lhs_scale=x.scales, rhs_scale=scales, batch=1, name=name
        )
    if x.factors is not None:
        y = generic([(y, "g m n"), (x.factors, "g m")], "g m n", f32(), arith.mulf)
    for numbers, operation in ((weight.factors, arith.mulf), (weight.bias, arith.addf)):
        if numbers is not None:
            y = _by_expert(y, groups, numbers, operation)
    return y


def _by_expert(
    y: ir.Value,
    groups: Groups,
    numbers: ir.Value,
    operation: Callable[[ir.Value, ir.Value], ir.Value],
) -> ir.Value:
    """operation(y [G, B, N], the row of numbers [E, N] of each group's expert)."""

    def change(value: ir.Value, expert: ir.Value) -> ir.Value:
        number = tensor.extract(numbers, [as_index(expert), loop_index("g m n", "n")])
        return operation(value, to_f32(number))

    return generic([(y, "g m n"), (groups.experts, "g")], "g m n", f32(), change)


def combine(y: ir.Value, shares: ir.Value, groups: Groups) -> ir.Value:
    """Sum over the choices of share [T, J] times the pair's row of y [G, B, N]: f32 [T, N]."""
    rows = collapse(y, [[0, 1], [2]])
    if groups.in_order:
        pairs = expand(rows, [[0, 1], [2]], [*shape_of(shares), shape_of(rows)[1]])
        choices = range(shape_of(shares)[1])

        def added(*values: ir.Value) -> ir.Value:
            # Element by element: IREE takes a sum over so few for a product, whose tiles spill.
            products = [arith.mulf(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
            return functools.reduce(arith.addf, products)

        each = [[(slice_of(pairs, 1, j), "m n"), (slice_of(shares, 1, j), "m")] for j in choices]
        return generic([one for pair in each for one in pair], "m n", f32(), added)

    def weighted(slot: ir.Value, share: ir.Value, acc: ir.Value) -> ir.Value:
        value = tensor.extract(rows, [as_index(slot), loop_index("m n j", "n")])
        return arith.addf(acc, arith.mulf(value, share))

    return generic(
        [(groups.slot_of_pair, "m j"), (shares, "m j")],
        "m n",
        f32(),
        weighted,
        sizes={"n": shape_of(rows)[1]},
    )
