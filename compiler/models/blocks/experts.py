"""Mixture of experts: grouping of rows by expert, and contractions with gathered weights.

Letters: T tokens, J chosen experts per token, E experts, P = T * J pairs (token, choice), B rows of
a group, G groups, N and K of an expert's weight [N, K], KO = K / 32 blocks.

Each pair is a row times the gathered weights of its expert. On CPUs a kernel reads the weights in
place, and computes many pairs expert by expert. On GPUs there is no such kernel: the program sorts
the pairs by expert into G groups of B slots, each group for one expert, so that an expert's weights
are read once for up to B rows (dialects/expert_groups.py). A slot without a pair repeats pair 0,
and its result is not read.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.compiler.models.blocks.activations import BlockActivations
from mxc.compiler.models.blocks.primitives import collapse, expand, f32, slice_of
from mxc.dialects import expert_groups
from mxc.dialects.boundary import pack, unpack
from mxc.dialects.expert_groups import COPIED, rows_of_groups
from mxc.dialects.generic import constant, element_of, generic, i32, loop_index, shape_of, to_f32
from mxc.dialects.linalg_ext import gather
from mxc.dialects.row_norms import sum_experts
from mxc.dialects.scaled import scaled_contraction
from mxc.dialects.sizes import Size, size_of, split
from mxc.targets.gpu import GroupRows


def as_index(value: ir.Value) -> ir.Value:
    """Cast an i32 scalar to index."""
    return arith.index_cast(ir.IndexType.get(), value)


@dataclass(frozen=True)
class Groups:
    """Assignment of pairs to the slots of groups; all pairs of group g chose `experts[g]`.

    `experts` i32 [G], `pair_of_slot` i32 [G * B], `slot_of_pair` i32 [T, J]. `rows`: B, a
    number or an index value. `in_order`: slot p is pair p.
    """

    experts: ir.Value
    pair_of_slot: ir.Value
    slot_of_pair: ir.Value
    rows: Size
    in_order: bool = False


def one_group_a_pair(experts: ir.Value) -> Groups:
    """Return groups of one row, one for each pair of experts i32 [T, J], in order."""
    choices = shape_of(experts)[1]
    loops = "m j"

    def number(_: ir.Value) -> ir.Value:
        row, column = (arith.index_cast(i32(), loop_index(loops, letter)) for letter in "mj")
        return arith.addi(arith.muli(row, constant(choices, i32())), column)

    slots = generic([(experts, loops)], loops, i32(), number)
    chosen = collapse(experts, [[0, 1]])
    return Groups(chosen, collapse(slots, [[0, 1]]), slots, 1, in_order=True)


def group_by_expert(
    experts: ir.Value, expert_count: int, x: BlockActivations, known: GroupRows
) -> tuple[Groups, BlockActivations]:
    """Sort the pairs of experts i32 [T, J] into groups of rows with one expert each. `known`
    determines the number of rows of a group (`rows_of_groups`).

    Returns the groups, and the rows of x [T, KO, KB] in their order, [G, B, KO, KB], with scales.
    """
    chosen = collapse(experts, [[0, 1]])
    flat = _flat(x.elements)
    # The kernel copies pieces of COPIED bytes; rows of another size are copied after it.
    whole = shape_of(flat)[1] * element_of(flat).width % (8 * COPIED) == 0
    rows = rows_of_groups(size_of(chosen, 0), expert_count, known)
    owner, pair_of_slot, slots, *copied = expert_groups.group_by_expert(
        chosen, expert_count, rows, flat if whole else None, most_rows=known[-1][1]
    )
    owner = expert_groups.clamped(owner, expert_count)
    groups = Groups(owner, pair_of_slot, expand(slots, [[0, 1]], shape_of(experts)), rows)
    elements = _in_groups(copied[0], x.elements, groups) if copied else _rows(x.elements, groups)
    scales = None if x.scales is None else _rows(x.scales, groups)
    factors = None if x.factors is None else _rows(x.factors, groups)
    return groups, BlockActivations(elements, scales, factors)


def repeat_rows(x: BlockActivations, groups: Groups) -> BlockActivations:
    """Repeat rows of x [T, KO, KB] for each pair in order: [P, 1, KO, KB], with scales."""
    scales = None if x.scales is None else _repeated(x.scales, groups)
    factors = None if x.factors is None else _repeated(x.factors, groups)
    return BlockActivations(_repeated(x.elements, groups), scales, factors)


def _repeated(x: ir.Value, groups: Groups) -> ir.Value:
    """Repeat each row of x [T, ..] J times: [T * J, 1, ..]."""
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
    """Gather the row of x [T, ..] for each slot: [G, B, ..]."""
    flat, choices = _flat(x), shape_of(groups.slot_of_pair)[1]
    inner = " k" * (len(shape_of(flat)) - 1)

    def row(pair: ir.Value) -> ir.Value:
        token = as_index(arith.divui(pair, constant(choices, i32())))
        return tensor.extract(flat, [token, *(loop_index(f"s{inner}", k) for k in inner.split())])

    sizes = dict(zip(inner.split(), shape_of(flat)[1:], strict=True))
    rows = generic([(groups.pair_of_slot, "s")], f"s{inner}", element_of(flat), row, sizes=sizes)
    return _in_groups(rows, x, groups)


def _flat(x: ir.Value) -> ir.Value:
    """Reshape x [T, ..] to [T, K], or keep [T].

    K is one dimension as in the operation that computes x, so that the block dimensions do not
    propagate into it. Elements of less than 16 bits are packed in bytes, because elements of 4 bits
    have no addresses.
    """
    x = pack(x) if _is_packed(x) else x
    rank = len(shape_of(x))
    return collapse(x, [[0], list(range(1, rank))]) if rank > 2 else x


def _in_groups(rows: ir.Value, like: ir.Value, groups: Groups) -> ir.Value:
    """Reshape rows [S, K] of `_flat` to [G, B, ..], with the elements of `like` [T, ..]."""
    kind, packed = element_of(like), _is_packed(like)
    _, *rest = shape_of(pack(like) if packed else like)
    grouped = [[0, 1], *([list(range(2, len(rest) + 2))] if rest else [])]
    shape, dynamic = split([size_of(groups.experts, 0), groups.rows, *rest])
    kind_of_rows = ir.RankedTensorType.get(shape, element_of(rows))
    rows = tensor.expand_shape(kind_of_rows, rows, grouped, dynamic, shape)
    return unpack(rows, kind) if packed else rows


def _is_packed(x: ir.Value) -> bool:
    kind = element_of(x)
    return isinstance(kind, ir.FloatType) and kind.width < 16


@dataclass(frozen=True)
class ExpertWeight:
    """Elements [E, N, KO, KB] and scales [E, N, KO], or plain elements [E, N, K].

    `factors` [E, N], if any, multiply the products; then `bias` [E, N], if any, is added.
    """

    elements: ir.Value
    scales: ir.Value | None = None
    factors: ir.Value | None = None
    bias: ir.Value | None = None


def expert_linear(x: BlockActivations, groups: Groups, weight: ExpertWeight, name: str) -> ir.Value:
    """x [G, B, K] times the weights of each group's expert, plus bias: f32 [G, B, N].

    x.elements is [G, B, KO, KB] for weights in blocks, [G, B, K] for plain weights.
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
    """Sum, over the choices J, shares [T, J] times the pair's row of y [G, B, N]: f32 [T, N]."""
    rows = collapse(y, [[0, 1], [2]])
    if not groups.in_order:
        return sum_experts(rows, shares, groups.slot_of_pair, _combined)
    pairs = expand(rows, [[0, 1], [2]], [*shape_of(shares), shape_of(rows)[1]])
    values = [(slice_of(pairs, 1, j), "m n") for j in range(shape_of(shares)[1])]
    return _weighted(values, shares, shape_of(rows)[1], lambda given: given)


def _combined(rows: ir.Value, shares: ir.Value, slots: ir.Value) -> ir.Value:
    """`combine` of rows [S, N], where slots [T, J] are the row numbers of the pairs."""
    values = [(slice_of(slots, 1, j), "m") for j in range(shape_of(shares)[1])]

    def value(given: ir.Value) -> ir.Value:
        return tensor.extract(rows, [as_index(given), loop_index("m n", "n")])

    return _weighted(values, shares, shape_of(rows)[1], value)


def _weighted(
    values: list[tuple[ir.Value, str]],
    shares: ir.Value,
    width: int,
    value: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Sum, over the choices j, shares [T, j] times `value` of values[j]: f32 [T, N]."""
    # Unrolled: IREE would lower a short sum as a matrix product, whose tiles spill.
    each = [(slice_of(shares, 1, j), "m") for j in range(len(values))]

    def added(*given: ir.Value) -> ir.Value:
        products = [
            arith.mulf(value(row), share)
            for row, share in zip(given[: len(each)], given[len(each) :], strict=True)
        ]
        return functools.reduce(arith.addf, products)

    return generic([*values, *each], "m n", f32(), added, sizes={"n": width})
