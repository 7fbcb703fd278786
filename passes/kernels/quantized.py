"""Find results of a product that are only quantized to MX blocks, and what a quantization reads."""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.quantizations import Quantization, match_quantization
from mxc.dialects.quantize import BLOCK
from mxc.dialects.recast import match_dequantized
from mxc.dialects.sizes import RESHAPES


def quantized_result(value: ir.Value) -> Quantization | None:
    """The quantization to MX blocks that alone reads a tensor, through reshapes; or None.

    Blocks must be contiguous along the last dimension of `value`, and fill it.
    """
    reads, todo = [], [value]
    while todo:
        for use in todo.pop().uses:
            op = use.owner.operation
            if op.name in RESHAPES:
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


def source_read(x: ir.Value, *, integers: bool) -> tuple[str, tuple[ir.Value, ...]]:
    """Return what a kernel reads to get the floats `x`, as (name, tensors).

    If `x` is dequantized from blocks, these are the name of the block format, and elements and
    scales. Otherwise they are the name of the float type, and `x`. `integers`: whether formats with
    integer elements are read as blocks too.
    """
    packed = match_dequantized(x)
    if packed is not None and (integers or packed.format.element.exponent):
        return packed.format.name, (packed.elements, packed.scales)
    return str(element_of(x)), (x,)
