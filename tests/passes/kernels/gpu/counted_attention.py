"""Programs with attention after a kernel that rotates queries and writes keys and values.

That kernel zeroes the counters by which waves of attention find out which of them is last. The rows
that it writes are those that the pool has already, so the result is that of attention alone.
"""

from collections.abc import Sequence

import numpy as np
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.rotary_writes import rotary_write
from tests.passes.attention_cases import ENTRIES, PAGE, TYPES, Array, Case, Inputs, build


def program(case: Case, times: int = 1) -> str:
    """Return a program with a function `counted`: it writes rows, then computes attention `times`
    times. It returns each result of attention, then the rotated queries."""
    some, rows = ir.ShapedType.get_dynamic_size(), case.heads * case.depth
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        i32, f32 = ir.IntegerType.get_signless(32), ir.F32Type.get()
        element, sinks = TYPES[case.pool][0].get(), TYPES[case.sinks][0].get()
        kinds = [
            ([some, case.group * rows], f32),
            *[([some, rows], f32)] * 2,
            *[([some, case.depth // 2], f32)] * 2,
            ([some], i32),
            ([some, case.heads, case.group, case.depth], f32),
            ([case.heads, case.group], sinks),
            ([some], i32),
            ([some, 3], i32),
            ([some, ENTRIES, PAGE, case.heads, case.depth], element),
            ([some, some], i32),
        ]
        types = [ir.RankedTensorType.get(*each) for each in kinds]
        with ir.InsertionPoint(module.body):
            op = ir.Operation.create("util.func", regions=1, attributes={
                "sym_name": ir.StringAttr.get("counted"),
                "sym_visibility": ir.StringAttr.get("public"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
            })  # fmt: skip
            block = op.regions[0].blocks.append(*types)
            with ir.InsertionPoint(block):
                asked, keys, values, cos, sin, slots, *rest = block.arguments
                queries, sink, positions, runs, pool, lists = rest
                rotated, pool = rotary_write(asked, keys, values, (cos, sin), slots, pool, 0)
                found = [
                    build(case)(queries, sink, positions, runs, pool, lists) for _ in range(times)
                ]
                results = [*found, rotated]
                ir.Operation.create("util.return", operands=results)
            kind = ir.FunctionType.get(types, [each.type for each in results])
            op.attributes["function_type"] = ir.TypeAttr.get(kind)
        return str(module)


def arguments(case: Case, given: Inputs) -> Sequence[Array]:
    """Return the arguments of `counted` for the inputs of a case."""
    rows = len(given.queries)
    slots = np.zeros(rows, np.int32)
    for run, (count, before) in enumerate(given.lengths):
        for token in range(count):
            page, place = given.place(run, before + token)
            slots[int(given.runs[run, 0]) + token] = page * PAGE + place
    # Entries 0 and 1 of a page are written; attention reads entries 0 and 2.
    there = [
        given.pool[slots // PAGE, entry, slots % PAGE].astype(np.float32).reshape(rows, -1)
        for entry in range(2)
    ]
    cos, sin = (np.full((rows, case.depth // 2), number, np.float32) for number in (1, 0))
    asked = given.queries.reshape(rows, -1)
    return [asked, *there, cos, sin, slots, *given.arrays]
