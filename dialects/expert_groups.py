"""Sort rows into groups of one expert each: a named operation.

There are P pairs of a token and an expert that it chose, and E experts. A group has B slots for
rows of one expert. An expert has as many groups as its pairs need, and the last may be partly
empty:

    pairs      (t0,e2) (t0,e0) (t1,e2) (t1,e1) ..
    slots      e0: [p1 . . .]  e1: [p3 . . .]  e2: [p0 p2 . .] ..     G groups of B slots

The pairs of an expert keep their order. G is the most groups that a call may need; unused groups
come last, and have expert E, which is none. Rows of the tokens may be copied to the slots of their
pairs. B may come with the call.

Nothing reads rows of an unused group. `clamped` gives unused groups the last expert, so that
operations that do not know about unused groups read weights that exist. Kernels take the numbers
before this step (`unclamped`), and do not compute unused groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects import named_operations
from mxc.dialects.dequantize import is_made_by
from mxc.dialects.generic import constant, element_of, empty, generic, i32, loop_index, shape_of
from mxc.dialects.samples import STATED
from mxc.dialects.sizes import Size, size_of, value_of
from mxc.targets.gpu import GroupRows

#: The name of the operation, and the names of its options.
GROUP_BY_EXPERT, EXPERTS, MOST_ROWS = "group_by_expert", "experts", "most_rows"
#: Bytes of a row that is copied are a multiple of this number.
COPIED = 16


@dataclass(frozen=True)
class GroupingCall:
    """A call of the operation: the expert of each pair, i32 [P], the slots per group (`rows`, None
    where they come with each call; `most_rows`), and the rows to copy, [T, K], if any."""

    op: ir.Operation
    chosen: ir.Value
    experts: int
    rows: int | None
    most_rows: int
    copied: ir.Value | None


def rows_of_groups(pairs: Size, experts: int, known: GroupRows) -> Size:
    """The number of rows of a group, B, for this number of pairs; `known`: see `GroupRows`."""
    if isinstance(pairs, int):
        return max(rows for least, rows in known if pairs >= least * experts)
    index = ir.IndexType.get()
    (_, few), *more = known
    found = constant(few, index)
    for least, rows in more:
        enough = arith.cmpi(arith.CmpIPredicate.uge, pairs, constant(least * experts, index))
        found = arith.select(enough, constant(rows, index), found)
    return found


def group_by_expert(
    chosen: ir.Value,
    experts: int,
    rows: Size,
    copied: ir.Value | None = None,
    *,
    most_rows: int | None = None,
) -> list[ir.Value]:
    """Sort pairs into groups of `rows` slots, a number or what `rows_of_groups` gives, up to
    `most_rows`. `chosen` i32 [P]: expert numbers, 0 .. experts - 1.

    Returns the expert of each group, i32 [G]; the pair of each slot, i32 [G * rows]; and the slot
    of each pair, i32 [P]. A slot without a pair has pair 0, a group without pairs `experts`.
    With `copied` [T, K], where P is a multiple of T, also returns row p / (P / T) of it for the
    pair p of each slot, [G * rows, K].
    """
    index, kind = ir.IndexType.get(), i32()
    most = rows if isinstance(rows, int) else most_rows
    assert most is not None
    pairs = value_of(size_of(chosen, 0))
    used = arith.minsi(pairs, constant(experts, index))
    slots_of_group = value_of(rows)
    needed = pairs + used * (slots_of_group - 1)
    groups = arith.divui(needed, slots_of_group)
    slots = groups * slots_of_group
    # Empty operands, which supply the sizes of the results.
    operands = [chosen, empty([groups], kind), empty([slots], kind), slots_of_group]
    whole = ir.IntegerType.get_signless(64)
    options: dict[str, ir.Attribute] = {
        EXPERTS: ir.IntegerAttr.get(whole, experts),
        MOST_ROWS: ir.IntegerAttr.get(whole, most),
    }
    dynamic = ir.ShapedType.get_dynamic_size()
    kinds = [*[ir.RankedTensorType.get([dynamic], kind)] * 2, chosen.type]
    sizes = [(1, 0), (2, 0), *[(0, 0)] * (shape_of(chosen)[0] < 0)]
    if copied is not None:
        operands.append(copied)
        kinds.append(ir.RankedTensorType.get([dynamic, shape_of(copied)[1]], element_of(copied)))
        sizes.append((2, 0))
    return named_operations.call(
        GROUP_BY_EXPERT,
        operands,
        kinds,
        lambda *given: _reference(*given, count=experts),
        options=options,
        sizes=sizes,
    )


def clamped(experts_of_groups: ir.Value, experts: int) -> ir.Value:
    """Give unused groups the last expert: i32 [G], from the first result of `group_by_expert`."""
    last = experts - 1
    return generic(
        [(experts_of_groups, "g")], "g", i32(), lambda e: arith.minsi(e, constant(last, i32()))
    )


def unclamped(value: ir.Value) -> ir.Value | None:
    """The result of `group_by_expert` from which `clamped` made `value`; None for another value."""
    if isinstance(value, ir.BlockArgument) or value.owner.name != "linalg.generic":
        return None
    given = value.owner.operands[0]
    *_, end = value.owner.regions[0].blocks[0].operations
    clamps = is_made_by(end.operands[0], "arith.minsi") and not isinstance(given, ir.BlockArgument)
    sorts = clamps and named_operations.is_call(given.owner, GROUP_BY_EXPERT)
    return given if sorts and given == given.owner.results[0] else None


def grouping_calls(module: ir.Operation) -> Iterator[GroupingCall]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
    for found in named_operations.calls(module, GROUP_BY_EXPERT):
        experts, most = (ir.IntegerAttr(found.options[name]).value for name in (EXPERTS, MOST_ROWS))
        chosen, _, _, slots_of_group, *copied = found.op.operands
        rows = STATED.number(slots_of_group)
        yield GroupingCall(found.op, chosen, experts, rows, most, copied[0] if copied else None)


def _reference(
    chosen: ir.Value,
    groups: ir.Value,
    slots: ir.Value,
    slots_of_group: ir.Value,
    copied: ir.Value | None = None,
    *,
    count: int,
) -> list[ir.Value]:
    rows = arith.index_cast(i32(), slots_of_group)

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
        return acc + one_if(earlier & equal(a, b))

    rank = generic([(chosen, "p"), (chosen, "q")], "p", i32(), count_earlier)
    blocks = generic(
        [(chosen, "p")],
        "e",
        i32(),
        lambda c, acc: acc + one_if(equal(c, position("e", "e"))),
        sizes={"e": count},
    )
    blocks = generic(
        [(blocks, "e")],
        "e",
        i32(),
        lambda n: arith.divui(n + rows - number(1), rows),
    )

    def add_earlier(n: ir.Value, acc: ir.Value) -> ir.Value:
        earlier = arith.cmpi(
            arith.CmpIPredicate.slt, loop_index("e d", "d"), loop_index("e d", "e")
        )
        return acc + arith.select(earlier, n, number(0))

    first = generic([(blocks, "d")], "e", i32(), add_earlier, sizes={"e": count})

    def place(expert: ir.Value, before: ir.Value) -> ir.Value:
        at = arith.index_cast(ir.IndexType.get(), expert)
        return tensor.extract(first, [at]) * rows + before

    places = generic([(chosen, "p"), (rank, "p")], "p", i32(), place)

    def ended(start: ir.Value, n: ir.Value, acc: ir.Value) -> ir.Value:
        over = arith.cmpi(arith.CmpIPredicate.sle, start + n, position("g", "g"))
        return acc + one_if(over)

    many = {"g": size_of(groups, 0)}
    owner = generic([(first, "e"), (blocks, "e")], "g", i32(), ended, sizes=many)

    def pair_here(slot: ir.Value, acc: ir.Value) -> ir.Value:
        here = equal(slot, position("s p", "s"))
        return arith.select(here, position("s p", "p"), acc)

    many = {"s": size_of(slots, 0)}
    pair_of_slot = generic([(places, "p")], "s", i32(), pair_here, sizes=many)
    if copied is None:
        return [owner, pair_of_slot, places]
    choices = value_of(size_of(chosen, 0)) // value_of(size_of(copied, 0))

    return [owner, pair_of_slot, places, rows_at(copied, pair_of_slot, choices)]


def rows_at(values: ir.Value, numbers: ir.Value, share: Size) -> ir.Value:
    """The rows of values [R, K] at numbers i32 [S], divided by `share`: [S, K]."""

    def row(number: ir.Value) -> ir.Value:
        place = arith.index_cast(ir.IndexType.get(), number) // share
        return tensor.extract(values, [place, loop_index("s k", "k")])

    width = {"k": shape_of(values)[1]}
    return generic([(numbers, "s")], "s k", element_of(values), row, sizes=width)
