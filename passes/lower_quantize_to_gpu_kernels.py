"""mxc-lower-quantize-to-gpu-kernels: dynamic quantization to MX blocks becomes one kernel.

The largest magnitude of a block, its scale and its elements are three operations in two or three
dispatches, each of which reads the floats. Here they are one kernel: a wave reads blocks into its
lanes, finds their largest magnitudes by exchange between lanes, and converts the values that it
holds. Where the floats are the values of other MX blocks, it reads these blocks; where they are a
transposed matrix, the matrix. Rows of nvfp4 have one scale each, and one workgroup per row. On a
`target` without conversion instructions the kernel uses integers, and reads only floats; mxint8 is
made by integers everywhere.

before:
    %amax = linalg.generic ins(%x) { bitcast, andi, maxsi }           f32 [.., KO, 32] -> i32
    %scales = linalg.generic ins(%amax) { addi, shrsi, .. }           i32 -> i8
    %codes = linalg.generic ins(%x, %scales) { bitcast, andi, .. }    -> i4 [.., KO, 32]
after:
    stream.executable private @mxc_quantize_f32_mxfp4_even_512 { .. amdgpu.packed_scaled_trunc .. }
    %codes, %scales = flow.dispatch @mxc_quantize_f32_mxfp4_even_512(%x)

The number of rows may be dynamic.

Leaves alone: rows of nvfp4 that do not fit into a workgroup, and all other operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.quantizations import (
    Quantization,
    RowQuantization,
    match_quantization,
    match_row_quantization,
    source_of,
)
from mxc.dialects.reasons import Reason
from mxc.dialects.recast import match_transposed
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls, quantize
from mxc.passes.kernels.executables import Threads
from mxc.passes.kernels.gpu.blocks.quantize import GpuQuantize
from mxc.passes.kernels.gpu.blocks.quantize_rows import QuantizeRows
from mxc.passes.kernels.gpu.blocks.transpose import GpuTransposeQuantize
from mxc.passes.kernels.gpu.conversions import BlockConversion
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.quantized import source_read
from mxc.passes.rewriting.rebuild import linalg_operations, sweep
from mxc.targets.amd import known_gpu
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True)
class LowerQuantizeToGpuKernels(Pass):
    """Lower dynamic quantization to kernels of the conversions of `target`, or of integers."""

    name = "mxc-lower-quantize-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every quantization that a kernel computes. PassError for an unknown target."""
        unit = known_gpu(self.target).matrix
        calls = Calls(module)
        for op in linalg_operations(module):
            if (rows := match_row_quantization(op)) is not None:
                _rows(calls, rows, op, unit)
                continue
            quantization = match_quantization(op)
            if quantization is None:
                continue
            call = _call(quantization, unit)
            if isinstance(call, Reason):
                write_reason(op, call)
            else:
                threads = Threads(call.kernel.threads, unit.lanes)
                quantize(calls, quantization, call.kernel, call.kernel.name, call.operands, threads)
        sweep(module)


def _rows(calls: Calls, found: RowQuantization, op: ir.Operation, unit: MatrixUnit) -> None:
    """Call a kernel for a quantization to nvfp4, or record why there is none."""
    # Rows of the result are counted, because `found.x` may have other rows.
    *lead, blocks, block = shape_of(op.results[0])
    rows, depth = math.prod(lead) if min(lead, default=1) >= 0 else None, blocks * block
    kernel = QuantizeRows(rows, depth, str(element_of(found.x)), unit.lanes, unit.converts)
    if rows == 0 or not kernel.fits:
        write_reason(op, Reason(f"no workgroup holds a row of {found.x.type}"))
        return
    threads = Threads(kernel.threads, unit.lanes)
    quantize(calls, found, kernel, kernel.name, [found.x], threads)


@dataclass(frozen=True)
class _Call:
    """A kernel of a quantization to MX blocks, and the tensors that it reads."""

    kernel: GpuQuantize | GpuTransposeQuantize
    operands: tuple[ir.Value, ...]


def _call(found: Quantization, unit: MatrixUnit) -> _Call | Reason:
    sizes = shape_of(found.x)
    if 0 in sizes:
        return Reason(f"{found.x.type} has no elements")
    conversion = BlockConversion.of(found, unit.converts)
    # Kernels with conversions also read blocks of other formats, and transposed matrices.
    matrix = match_transposed(found.x) if unit.converts else None
    if matrix is not None:
        source, operands = source_read(source_of(matrix), integers=False)
        rows, depth = shape_of(matrix)
        turned = GpuTransposeQuantize(conversion, rows, depth, source)
        if turned.fits:
            return _Call(turned, operands)
    source, operands = str(element_of(found.x)), (found.x,)
    if unit.converts:
        source, operands = source_read(found.x, integers=False)
    blocks = math.prod(sizes) // BLOCK if min(sizes) > 0 else None
    return _Call(GpuQuantize(blocks, conversion, source), operands)
