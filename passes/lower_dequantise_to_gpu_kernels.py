"""mxc-lower-dequantise-to-gpu-kernels: tensors of 6-bit elements that become floats in memory.

IREE's code generators cannot load elements of 6 bits. Those that a contraction reads are decoded in
its kernel; what is left, a tensor that the program returns or computes with, becomes floats in a
kernel of its own. f32 holds all values of MX blocks; bf16 and f16 are rounded to once, to nearest
even.

before:
    %y = linalg.generic ins(%x, %s) { scaling_extf, truncf }     f6E2M3FN [.., KO, 32] -> bf16
after:
    stream.executable private @mxc_dequantise_mxfp6e2m3_bf16_512 { .. v_cvt_scalef32_pk32 .. }
    %y = flow.dispatch @mxc_dequantise_mxfp6e2m3_bf16_512(%x, %s)

Leaves alone: elements of 4 and 8 bits, which IREE loads and computes with at once, and all that is
read or written in another order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.recast import Dequantised, match_dequantised
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import Threads, dispatch_all, executable_of
from mxc.passes.kernels.extents import Size, dynamic_of, product, value_of
from mxc.passes.kernels.gpu.blocks.dequantise import Dequantise
from mxc.passes.kernels.reshapes import as_tensor, packed_as, sizes_of
from mxc.passes.rewriting.rebuild import linalg_operations, sweep

#: Bits of elements that IREE cannot load.
_BITS = 6
_FLOATS = ("f32", "bf16", "f16")


@dataclass(frozen=True)
class LowerDequantiseToGpuKernels(Pass):
    """Give what dequantises elements of 6 bits to a kernel of scaled conversions."""

    name = "mxc-lower-dequantise-to-gpu-kernels"

    def run(self, module: ir.Operation) -> None:
        """Lower every tensor that IREE could not make."""
        built: set[str] = set()
        for op in linalg_operations(module):
            kind = str(element_of(op.results[0]))
            found = match_dequantised(op.results[0], kind) if kind in _FLOATS else None
            if found is not None and found.format.element.bits == _BITS:
                _lower(module, op, found, kind, built)
        sweep(module)


def _lower(
    module: ir.Operation, op: ir.Operation, found: Dequantised, kind: str, built: set[str]
) -> None:
    *lead, _ = shape_of(op.results[0])
    kernel = Dequantise(found.format, None if min(lead) < 0 else math.prod(lead), kind)
    if kernel.name not in built:
        built.add(kernel.name)
        with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
            executable_of(kernel.name, kernel, Threads(kernel.threads, 64))
    with ir.InsertionPoint(op), op.location:
        sizes = sizes_of(op.results[0])
        values = iter(sizes)
        count: Size = 1
        for size in lead:
            count = product(count, next(values) if size < 0 else size)
        scalars = [value_of(count)] if kernel.scalars else []
        *read, floats = kernel.buffers(scalars)
        pairs = zip((found.elements, found.scales), read, strict=True)
        made = dispatch_all(
            kernel.name,
            [
                *(packed_as(v, as_tensor(b.memref), dynamic_of([b])) for v, b in pairs),
                *scalars,
            ],
            [as_tensor(floats.memref)],
            workload=scalars,
            sizes=dynamic_of([*read, floats]),
        )
        result = op.results[0]
        result.replace_all_uses_with(packed_as(made.results[0], result.type, sizes))
