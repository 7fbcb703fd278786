"""Operations of iree_linalg_ext that mxc builds or lowers; the dialect has no Python classes.

Source: IREE, compiler/src/iree/compiler/Dialect/LinalgExt/IR/LinalgExtOps.td.
"""

from collections.abc import Callable

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import element_of, empty, fill, shape_of
from mxc.dialects.sizes import size_of

GATHER = "iree_linalg_ext.gather"
SCAN = "iree_linalg_ext.scan"
TOP_K = "iree_linalg_ext.topk_v2"
SORT = "iree_linalg_ext.sort"


def gather(source: ir.Value, indices: ir.Value) -> ir.Value:
    """Slices source[indices[g]]: source [E, ..] of any element, indices i32 [G] -> [G, ..].

    G may be dynamic.
    """
    out = empty([size_of(indices, 0), *shape_of(source)[1:]], element_of(source))
    op = ir.Operation.create(
        GATHER,
        results=[out.type],
        operands=[source, indices, out],
        attributes={"dimension_map": ir.DenseI64ArrayAttr.get([0])},
    )
    return op.result


def scatter(updates: ir.Value, places: ir.Value, whole: ir.Value) -> ir.Value:
    """`whole` [N, .., W..] with updates [T, W..] written at `places` i32 [T, R], distinct indices
    into its first R dimensions."""
    kind = element_of(whole)
    op = ir.Operation.create(
        "iree_linalg_ext.scatter",
        results=[whole.type],
        operands=[updates, places, whole],
        attributes={
            "dimension_map": ir.DenseI64ArrayAttr.get(list(range(shape_of(places)[1]))),
            "unique_indices": ir.BoolAttr.get(True),
        },
        regions=1,
    )
    block = op.regions[0].blocks.append(kind, kind)
    with ir.InsertionPoint(block):
        ir.Operation.create("iree_linalg_ext.yield", operands=[block.arguments[0]])
    return op.result


def top_k(scores: ir.Value, k: int) -> tuple[ir.Value, ir.Value]:
    """The k largest of each row of scores f32 [T, E], descending: f32 and i32 indices [T, k]."""
    rows = size_of(scores, 0)
    f32, i32 = ir.F32Type.get(), ir.IntegerType.get_signless(32)
    values = fill([rows, k], f32, float("-inf"))
    indices = fill([rows, k], i32, 0)
    op = ir.Operation.create(
        TOP_K,
        results=[values.type, indices.type],
        operands=[scores, values, indices],
        attributes={
            "dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 1),
            "is_sorted": ir.UnitAttr.get(),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 1, 1]),
        },
        regions=1,
    )
    block = op.regions[0].blocks.append(f32, f32)
    with ir.InsertionPoint(block):
        larger = arith.cmpf(arith.CmpFPredicate.OGT, *block.arguments)
        ir.Operation.create("iree_linalg_ext.yield", operands=[larger])
    return op.results[0], op.results[1]


def scan(
    value: ir.Value, start: ir.Value, axis: int, body: Callable[[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Running results of `body` along an axis of `value`: element i has those up to i, inclusive.

    `start` has the dimensions of `value` without `axis`. Sizes may be dynamic.
    """
    kind = element_of(value)
    out = empty([size_of(value, each) for each in range(len(shape_of(value)))], kind)
    op = ir.Operation.create(
        SCAN,
        results=[out.type, start.type],
        operands=[value, out, start],
        attributes={
            "dimension": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), axis),
            "inclusive": ir.BoolAttr.get(True),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 2]),
        },
        regions=1,
    )
    block = op.regions[0].blocks.append(kind, kind)
    with ir.InsertionPoint(block):
        ir.Operation.create("iree_linalg_ext.yield", operands=[body(*block.arguments)])
    return op.results[0]
