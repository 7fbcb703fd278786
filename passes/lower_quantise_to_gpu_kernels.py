"""mxc-lower-quantise-to-gpu-kernels: dynamic quantisation to MX blocks is one kernel of our own.

The largest magnitude of a block, its scale and its elements are three operations, and as many
kernels or one less, each of which reads the floats again. Here they are one: a wave reads blocks
into its lanes, finds their largest magnitudes among them, and converts what it holds. Where the
floats are the values of other MX blocks, it reads these; where they are a matrix transposed, the
matrix. A `target` without conversions does it by integers, and reads floats alone.

before:
    %amax = linalg.generic ins(%x) { bitcast, andi, maxsi }           f32 [.., KO, 32] -> i32
    %scales = linalg.generic ins(%amax) { addi, shrsi, .. }           i32 -> i8
    %codes = linalg.generic ins(%x, %scales) { bitcast, andi, .. }    -> i4 [.., KO, 32]
after:
    stream.executable private @mxc_quantise_f32_mxfp4_even_512 { .. amdgpu.packed_scaled_trunc .. }
    %codes, %scales = flow.dispatch @mxc_quantise_f32_mxfp4_even_512(%x)

The number of rows may come with each call.

Leaves alone: mxint8, whose elements no conversion makes, all else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.kernel_calls import mark_quantises, write_reason
from mxc.dialects.quantise import Quantisation, match_quantisation, source_of
from mxc.dialects.reasons import Reason
from mxc.dialects.recast import match_dequantised, match_transposed
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import Threads, dispatch_all, executable_of
from mxc.passes.kernels.extents import Size, dynamic_of, product, value_of
from mxc.passes.kernels.gpu.blocks.quantise import Quantise
from mxc.passes.kernels.gpu.blocks.transpose import TransposeQuantise
from mxc.passes.kernels.gpu.conversions import Conversion
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.reshapes import as_tensor, packed_as, sizes_of
from mxc.passes.rewriting.rebuild import linalg_operations, sweep
from mxc.targets.amd import known_gpu
from mxc.targets.matrix_unit import MatrixUnit


@dataclass(frozen=True)
class LowerQuantiseToGpuKernels(Pass):
    """Give dynamic quantisation to a kernel of the conversions of `target`, or of integers."""

    name = "mxc-lower-quantise-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every quantisation that a kernel computes. PassError for an unknown target."""
        unit = known_gpu(self.target).matrix
        built: set[str] = set()
        for op in linalg_operations(module):
            quantisation = match_quantisation(op)
            if quantisation is None:
                continue
            call = _call(quantisation, unit)
            if isinstance(call, Reason):
                write_reason(op, call)
            else:
                _lower(module, quantisation, call, built, unit.lanes)
        sweep(module)


@dataclass(frozen=True)
class _Call:
    kernel: Quantise | TransposeQuantise
    operands: tuple[ir.Value, ...]


def _call(found: Quantisation, unit: MatrixUnit) -> _Call | Reason:
    sizes = shape_of(found.x)
    if 0 in sizes:
        return Reason(f"{found.x.type} has no elements")
    if not found.format.element.exponent:
        return Reason(f"it makes {found.format.name}, whose elements are integers")
    conversion = Conversion(found.format, found.recipe, unit.converts)
    matrix = match_transposed(found.x) if unit.converts else None
    # What was packed is read as it is where conversions unpack it.
    source, operands = str(element_of(found.x)), (found.x,)
    if unit.converts:
        source, operands = _read(found.x if matrix is None else source_of(matrix))
    kernel: Quantise | TransposeQuantise
    blocks = math.prod(sizes) // BLOCK if min(sizes) > 0 else None
    kernel = Quantise(conversion, blocks, source)
    if matrix is not None:
        rows, depth = shape_of(matrix)
        turned = TransposeQuantise(conversion, rows, depth, source)
        # What it does not take is transposed first.
        kernel = turned if turned.fits else replace(kernel, source=str(element_of(found.x)))
        operands = operands if turned.fits else (found.x,)
    return _Call(kernel, operands)


def _read(x: ir.Value) -> tuple[str, tuple[ir.Value, ...]]:
    """What a kernel reads where it wants these floats: its name, and the tensors."""
    packed = match_dequantised(x)
    if packed is not None and packed.format.element.exponent:
        return packed.format.name, (packed.elements, packed.scales)
    return str(element_of(x)), (x,)


def _lower(
    module: ir.Operation, found: Quantisation, call: _Call, built: set[str], lanes: int
) -> None:
    kernel, count = call.kernel, len(call.operands)
    if kernel.name not in built:
        built.add(kernel.name)
        with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
            threads = Threads(kernel.threads, lanes)
            executable_of(kernel.name, kernel, threads)
    # Where the scales are computed: before all that reads them or the elements.
    with ir.InsertionPoint(found.scales), found.codes.location:
        # Elements and scales have rows in common.
        sizes = sizes_of(found.scales.results[0])
        scalars = [_blocks(found, sizes)] if kernel.scalars else []
        buffers = kernel.buffers(scalars)
        pairs = zip(call.operands, buffers[:count], strict=True)
        given = [packed_as(v, as_tensor(b.memref), dynamic_of([b])) for v, b in pairs]
        made = dispatch_all(
            kernel.name,
            [*given, *scalars],
            [as_tensor(buffer.memref) for buffer in buffers[count:]],
            workload=scalars,
            sizes=dynamic_of(buffers),
        )
        mark_quantises(made, found.format.name)
        for op, result in zip((found.codes, found.scales), made.results, strict=True):
            wanted = op.results[0]
            wanted.replace_all_uses_with(packed_as(result, wanted.type, sizes))


def _blocks(found: Quantisation, sizes: Sequence[ir.Value]) -> ir.Value:
    """The number of blocks, at the insertion point. `sizes`: the dynamic ones of the scales."""
    values, count = iter(sizes), 1
    whole: Size = 1
    for size in shape_of(found.scales.results[0]):
        if size < 0:
            whole = product(whole, next(values))
        else:
            count *= size
    return value_of(product(whole, count))
