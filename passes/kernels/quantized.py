"""Find results of a product that are only quantized to MX blocks."""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.generic import shape_of
from mxc.dialects.quantizations import Quantization, match_quantization
from mxc.dialects.quantize import BLOCK

_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")


def quantized_result(value: ir.Value) -> Quantization | None:
    """The quantization that is the only use of a tensor, or None.

    Blocks are contiguous along the last dimension.
    """
    reads, todo = [], [value]
    while todo:
        for use in todo.pop().uses:
            op = use.owner.operation
            if op.name in _RESHAPES:
                todo.append(op.results[0])
            else:
                reads.append(op)
    downstream = [use.owner.operation for op in reads for r in op.results for use in r.uses]
    for op in [*reads, *downstream]:
        found = match_quantization(op)
        if found is None or found.x != value:
            continue
        amax = found.scales.operands[0].owner
        codes = found.codes
        inner = codes.operands[0].owner if codes not in reads else codes
        whole = shape_of(value)[-1] % BLOCK == 0
        return found if whole and all(op in (amax, inner) for op in reads) else None
    return None
