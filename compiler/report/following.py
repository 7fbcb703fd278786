"""Finds the dispatches after a contraction that only finish its result, element by element.

A bias, a gate or a rounding that was not fused into the kernel of the contraction reads the whole
result again. Its cost is part of the contraction's, as the preparation of operands is.
"""

from __future__ import annotations

import math

from iree.compiler import ir

from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.dispatches import RENAMES, Dispatch, loads, walk
from mxc.passes.verify_packed_weights import WeightValues


def following(dispatch: Dispatch, columns: int, weights: WeightValues) -> tuple[Dispatch, ...]:
    """Return the dispatches that finish the result of `dispatch`, which has `columns`, in their
    order.

    Each is the only reader of the result before it. It computes element by element on the whole
    result, or on its two halves of the columns, and does nothing else.
    """
    found: list[Dispatch] = []
    last = dispatch
    while len(last.op.results) == 1:
        reader = _only_reader(last.op.results[0], weights)
        if reader is None or not _finishes(*reader, columns):
            break
        last = reader[0]
        found.append(last)
    return tuple(found)


def _only_reader(value: ir.Value, weights: WeightValues) -> tuple[Dispatch, int] | None:
    """Return the only dispatch that reads `value`, through renames, and its operand's index."""
    found: set[tuple[Dispatch, int]] = set()
    pending = [value]
    while pending:
        value = pending.pop()
        for use in value.uses:
            op = use.owner.operation
            if op.name in RENAMES:
                pending.append(op.results[0])
                continue
            reader = weights.dispatches.get(op)
            if reader is None:
                return None
            found.update((reader, n) for n, v in enumerate(reader.operands) if v == value)
    return found.pop() if len(found) == 1 else None


def _finishes(reader: Dispatch, index: int, columns: int) -> bool:
    """Return whether a dispatch only computes element by element on all of operand `index`."""
    if reader.body is None or len(reader.op.results) != 1:
        return False
    # Operations with a body: neither linalg.index nor linalg.yield.
    inside = [op for op in walk(reader.body) if "linalg" in op.name and len(op.regions)]
    bodies = [op for op in inside if op.name == "linalg.generic"]
    if not bodies or any(op.name not in ("linalg.generic", "linalg.fill") for op in inside):
        return False
    if not all(map(is_elementwise, bodies)):
        return False
    whole, written = (_size(v.type) for v in (reader.operands[index], reader.op.results[0]))
    parts = loads(reader, index)
    sizes = [_size(part.type) for part in parts]
    if sizes == [whole]:
        return written == whole
    # The last size of each part; a scalar has none.
    ends = [end for part in parts for end in ir.RankedTensorType(part.type).shape[-1:]]
    halves = len(parts) == 2 and [2 * end for end in ends] == [columns, columns]
    return halves and sizes == [written, written] and (2 * written[0], written[1]) == whole


def _size(kind: ir.Type) -> tuple[int, int]:
    """Return the product of the static sizes of a tensor type, and the number of dynamic ones."""
    shape = ir.RankedTensorType(kind).shape
    return math.prod(size for size in shape if size >= 0), sum(size < 0 for size in shape)
