"""mxc-lower-quantize-to-cpu-kernels: dynamic quantization to MX blocks becomes one kernel.

The largest magnitude of a block, its scale and its elements are three operations and two
dispatches, each of which reads the floats. The kernel reads them once
(passes/kernels/cpu/quantize/). It rounds a block with one addition per element, and with integers
where that would not be exact. Where the floats are the values of other MX blocks, it reads these
blocks; where they are a transposed matrix, the matrix.

before:
    %amax = linalg.generic ins(%x) { bitcast, andi, maxsi }           f32 [.., KO, 32] -> i32
    %scales = linalg.generic ins(%amax) { addi, shrsi, .. }           i32 -> i8
    %codes = linalg.generic ins(%x, %scales) { bitcast, andi, .. }    -> i4 [.., KO, 32]
after:
    stream.executable private @mxc_quantize_f32_mxfp4_even_512 { .. }
    %codes, %scales = flow.dispatch @mxc_quantize_f32_mxfp4_even_512(%x)

Leaves alone: all other operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import shape_of
from mxc.dialects.quantizations import Quantization, match_quantization, source_of
from mxc.dialects.recast import match_transposed
from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls, quantize
from mxc.passes.kernels.cpu.isa import ISAS, Isa
from mxc.passes.kernels.cpu.quantize.kernel import CpuQuantize
from mxc.passes.kernels.cpu.quantize.rounding import Rounding
from mxc.passes.kernels.cpu.quantize.sources import BlockSource
from mxc.passes.kernels.cpu.quantize.transpose import CpuTransposeQuantize
from mxc.passes.kernels.quantized import source_read
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.rewriting.rebuild import linalg_operations, sweep


@dataclass(frozen=True)
class LowerQuantizeToCpuKernels(Pass):
    """Lower dynamic quantization to kernels for `isa`, a name in passes/kernels/cpu/isa."""

    name = "mxc-lower-quantize-to-cpu-kernels"
    isa: str = "avx512-bf16"

    def run(self, module: ir.Operation) -> None:
        """Lower every quantization. Raises PassError for an unknown isa."""
        if self.isa not in ISAS:
            raise PassError(f"{self.name}: unknown isa {self.isa!r}; known: {', '.join(ISAS)}")
        calls = Calls(module)
        for op in linalg_operations(module):
            if (found := match_quantization(op)) is not None:
                kernel, tensors = _kernel(ISAS[self.isa], found)
                quantize(calls, found, kernel, kernel.name, tensors)
        sweep(module)


def _kernel(
    isa: Isa, found: Quantization
) -> tuple[CpuQuantize | CpuTransposeQuantize, tuple[ir.Value, ...]]:
    """The kernel that quantizes, and the tensors that it reads."""
    rounding, shape = Rounding(found.format, found.recipe), shape_of(found.x)
    matrix = match_transposed(found.x)
    if matrix is not None and min(shape) >= 0:
        source, tensors = source_read(source_of(matrix), integers=True)
        turned = CpuTransposeQuantize(rounding, BlockSource(source), *shape_of(matrix))
        if turned.fits:
            return turned, tensors
    source, tensors = source_read(found.x, integers=True)
    blocks = math.prod(shape) // BLOCK if min(shape) >= 0 else None
    return CpuQuantize(isa, rounding, BlockSource(source), blocks), tensors
