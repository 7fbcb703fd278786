"""mxc-lower-dequantize-to-gpu-kernels: dequantize tensors of 6-bit elements in a kernel.

IREE's code generators cannot load 6-bit elements. A kernel decodes those that a contraction reads.
Other tensors, which the program returns or computes with, are converted to floats by a kernel of
their own. f32 holds all values of MX blocks; for bf16 and f16, values are rounded once, to nearest
even.

before:
    %y = linalg.generic ins(%x, %s) { scaling_extf, truncf }     f6E2M3FN [.., KO, 32] -> bf16
after:
    stream.executable private @mxc_dequantize_mxfp6e2m3_bf16_512 { .. v_cvt_scalef32_pk32 .. }
    %y = flow.dispatch @mxc_dequantize_mxfp6e2m3_bf16_512(%x, %s)

Leaves alone: elements of 4 and 8 bits, which IREE can load, and tensors that are read or written in
another order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.recast import Dequantized, match_dequantized
from mxc.dialects.sizes import dynamic_sizes
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls, blocks_of
from mxc.passes.kernels.executables import Threads
from mxc.passes.kernels.gpu.blocks.quantize import Dequantize
from mxc.passes.kernels.reshapes import packed_as
from mxc.passes.rewriting.rebuild import linalg_operations, sweep

#: Width in bits of elements that IREE cannot load.
_BITS = 6
_FLOATS = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class LowerDequantizeToGpuKernels(Pass):
    """Dequantize 6-bit elements in kernels of scaled conversions."""

    name = "mxc-lower-dequantize-to-gpu-kernels"

    def run(self, module: ir.Operation) -> None:
        """Lower every dequantized tensor that IREE cannot compute."""
        calls = Calls(module)
        for op in linalg_operations(module):
            kind = str(element_of(op.results[0]))
            found = match_dequantized(op.results[0], kind) if kind in _FLOATS else None
            if found is not None and found.format.element.bits == _BITS:
                _lower(calls, op, found, kind)
        sweep(module)


def _lower(calls: Calls, op: ir.Operation, found: Dequantized, kind: str) -> None:
    result, tensors = op.results[0], (found.elements, found.scales)
    *lead, _ = shape_of(result)
    blocks = math.prod(lead) if min(lead) >= 0 else None
    kernel = Dequantize(blocks, found.format, kind)
    with ir.InsertionPoint(op), op.location:
        given = dynamic_sizes(result)
        scalars = [blocks_of(result, given)] if kernel.scalars else []
        threads = Threads(kernel.threads, 64)
        made = calls.dispatch(kernel.name, kernel, tensors, scalars, threads)
        result.replace_all_uses_with(packed_as(made.results[0], result.type, given))
