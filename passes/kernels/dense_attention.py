"""Attention over dense keys and values by the kernels of attention over pages.

Each sequence is a run, its keys are one page, and values are in a pool of their own. Nothing is
copied, unless the size of a head is no multiple of 16: then zeros are added after its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, tensor

from mxc.dialects.attention import F32_BITS, AttentionCall, Runs
from mxc.dialects.dense_attention import DenseAttentionCall, dense_attention_calls
from mxc.dialects.generic import element_of, generic, loop_index, shape_of
from mxc.dialects.pages import Pages
from mxc.dialects.reasons import Reason
from mxc.dialects.sizes import Size, dynamic_sizes, product, size_of, sizes_of, split, value_of
from mxc.dialects.slices import columns_of, widened
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.paged_attention import (
    FLOATS,
    K,
    PagedAttention,
    call_kernel,
    listed,
    named,
    scalars_of,
)
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.kernels.vectors import equal, f32, i32, index

#: Kernels take heads of multiples of this.
_UNIT = 16


def dense_sizes_of(call: DenseAttentionCall) -> dict[str, Any] | Reason:
    """The fields of a kernel that follow from a call, or the reason why no kernel reads it."""
    *_, heads, group, _ = shape_of(call.queries)
    element, positions = str(element_of(call.keys)), shape_of(call.keys)[1]
    if element not in FLOATS or element != str(element_of(call.values)):
        return Reason(
            f"keys are {element}, values {element_of(call.values)}; kernels take two of "
            f"{', '.join(FLOATS)} that are the same"
        )
    mask = None
    if call.mask is not None:
        masks, *lead, _ = shape_of(call.mask)
        mask = 0 if masks == 1 else call.sharing, lead[0] != 1, lead[1] != 1
    return {
        "heads": heads,
        "group": group,
        "depth": _whole(shape_of(call.keys)[-1]),
        "mixed": _whole(shape_of(call.values)[-1]),
        "entries": 1,
        "positions": positions if positions >= 0 else None,
        "element": element,
        "sinks": "f32",
        "scale": call.scale,
        "cap": None,
        "reach": None,
        "dense": True,
        "causal": call.causal,
        "mask": mask,
        "replaces": call.replaces,
    }


def dense_attention_lowering(
    kernel: Callable[[DenseAttentionCall], K | Reason],
) -> Lowering[DenseAttentionCall, K]:
    """The lowering of dense attention: each sequence is a run, and its keys are one page."""
    names: dict[K, str] = {}

    def dispatch(calls: Calls, call: DenseAttentionCall, kernel: K) -> Sequence[ir.Value]:
        paged, values = _paged(call, kernel)
        dense = [values, *listed(call.mask)]
        scalars = scalars_of(kernel, paged)
        made = call_kernel(calls, named(kernel, names), kernel, paged, scalars, dense)
        wanted = call.op.results[0]
        kind = ir.RankedTensorType.get([*shape_of(paged.queries)[:3], kernel.mixed], f32())
        whole = tensor.CastOp(kind, made).result
        sizes = [*shape_of(wanted)[:-1], kernel.mixed]
        found = reshape(whole, sizes, dynamic_sizes(wanted))
        return [columns_of(found, 0, shape_of(wanted)[-1])]

    return Lowering(dense_attention_calls, kernel, dispatch)


def _whole(size: int) -> int:
    """The size of a head, rounded up to one that kernels take."""
    return -(-size // _UNIT) * _UNIT


def _paged(call: DenseAttentionCall, kernel: PagedAttention) -> tuple[AttentionCall, ir.Value]:
    """Dense attention as attention over pages, at the insertion point, and the pool of values."""
    queries, keys = (widened(each, kernel.depth) for each in (call.queries, call.keys))
    count, tokens, *rest = sizes_of(queries)
    positions = size_of(call.keys, 1)
    queries = reshape(queries, *split([product([count, tokens]), *rest]))

    def pool(value: ir.Value) -> ir.Value:
        first, *others = sizes_of(value)
        return reshape(value, *split([first, 1, *others]))

    no_sink = ir.DenseElementsAttr.get_splat(
        ir.RankedTensorType.get([kernel.heads, kernel.group], f32()),
        ir.FloatAttr.get(f32(), float("-inf")),
    )
    runs = _table(count, [(tokens, 0), (0, tokens), (0, 0 if call.causal else positions - 1)])
    zero = index(0)
    paged = AttentionCall(
        op=call.op,
        queries=queries,
        sinks=arith.ConstantOp(no_sink.type, no_sink).result,
        # Kernels take the positions of tokens from the runs.
        rows=Runs(runs, runs),
        pages=Pages(pool(keys), _table(count, [(1, 0)])),
        keys=zero,
        values=zero,
        mixed=kernel.mixed,
        reach=None,
        scale=call.scale,
        cap=None,
        bits=F32_BITS,
    )
    return paged, pool(widened(call.values, kernel.mixed))


def _table(rows: Size, columns: Sequence[tuple[Size, Size]]) -> ir.Value:
    """i32 [rows, columns]: row n has n * a + b in the column (a, b)."""
    known = [each for each in (rows, *chain(*columns)) if isinstance(each, int)]
    if isinstance(rows, int) and len(known) == 1 + 2 * len(columns):
        numbers = np.array([[n * a + b for a, b in columns] for n in range(rows)], np.int32)
        kind = ir.RankedTensorType.get(numbers.shape, i32())
        return arith.ConstantOp(kind, ir.DenseElementsAttr.get(numbers, type=kind)).result

    def number() -> ir.Value:
        row, column = (loop_index("n c", letter) for letter in "nc")
        found = index(0)
        for at, (a, b) in enumerate(columns):
            found = arith.select(equal(column, at), row * value_of(a) + value_of(b), found)
        return arith.index_cast(i32(), found)

    return generic([], "n c", i32(), number, sizes={"n": rows, "c": len(columns)})
