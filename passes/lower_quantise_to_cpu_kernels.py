"""mxc-lower-quantise-to-cpu-kernels: dynamic quantisation to MX blocks is one kernel of our own.

The largest magnitude of a block, its scale and its elements are three operations, two dispatches
that each read the floats. Here they are one, which reads them once (kernels/cpu/quantise/): a block
is rounded by one addition an element, and by integers where that would not be exact. Where the
floats are the values of other MX blocks, it reads these; where they are a matrix transposed, the
matrix.

before:
    %amax = linalg.generic ins(%x) { bitcast, andi, maxsi }           f32 [.., KO, 32] -> i32
    %scales = linalg.generic ins(%amax) { addi, shrsi, .. }           i32 -> i8
    %codes = linalg.generic ins(%x, %scales) { bitcast, andi, .. }    -> i4 [.., KO, 32]
after:
    stream.executable private @mxc_quantise_f32_mxfp4_even_512 { .. }
    %codes, %scales = flow.dispatch @mxc_quantise_f32_mxfp4_even_512(%x)

Leaves alone: all else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.kernel_calls import mark_quantises
from mxc.dialects.quantise import Quantisation, match_quantisation, source_of
from mxc.dialects.recast import match_dequantised, match_transposed
from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.kernels.cpu.calls import Calls
from mxc.passes.kernels.cpu.isa import ISAS, Isa
from mxc.passes.kernels.cpu.quantise.kernel import Quantise
from mxc.passes.kernels.cpu.quantise.rounding import Rounding
from mxc.passes.kernels.cpu.quantise.sources import Source
from mxc.passes.kernels.cpu.quantise.transpose import TransposeQuantise
from mxc.passes.kernels.extents import Size, product, value_of
from mxc.passes.kernels.reshapes import packed_as, sizes_of
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.rewriting.rebuild import linalg_operations, sweep


@dataclass(frozen=True)
class LowerQuantiseToCpuKernels(Pass):
    """Give dynamic quantisation to kernels for `isa`, a name of kernels/cpu/isa."""

    name = "mxc-lower-quantise-to-cpu-kernels"
    isa: str = "avx512-bf16"

    def run(self, module: ir.Operation) -> None:
        """Lower every quantisation."""
        if self.isa not in ISAS:
            raise PassError(f"{self.name}: unknown isa {self.isa!r}; known: {', '.join(ISAS)}")
        calls = Calls(module)
        for op in linalg_operations(module):
            if (found := match_quantisation(op)) is not None:
                _lower(calls, ISAS[self.isa], found)
        sweep(module)


def _lower(calls: Calls, isa: Isa, found: Quantisation) -> None:
    kernel, tensors = _kernel(isa, found)
    # Where the scales are computed: before all that reads them or the elements.
    with ir.InsertionPoint(found.scales), found.codes.location:
        sizes = sizes_of(found.x)
        scalars = [_count(shape_of(found.x), sizes)] if kernel.scalars else []
        made = calls.dispatch(kernel.name, kernel, tensors, scalars)
        mark_quantises(made, found.format.name)
        for op, result in zip((found.codes, found.scales), made.results, strict=True):
            wanted = op.results[0]
            wanted.replace_all_uses_with(packed_as(result, wanted.type, sizes))


def _kernel(
    isa: Isa, found: Quantisation
) -> tuple[Quantise | TransposeQuantise, tuple[ir.Value, ...]]:
    """What quantises, and the tensors that it reads."""
    rounding, shape = Rounding(found.format, found.recipe), shape_of(found.x)
    matrix = match_transposed(found.x)
    if matrix is not None and min(shape) >= 0:
        source, tensors = _read(source_of(matrix))
        turned = TransposeQuantise(rounding, source, *shape_of(matrix))
        if turned.fits:
            return turned, tensors
    source, tensors = _read(found.x)
    blocks = math.prod(shape) // BLOCK if min(shape) >= 0 else None
    return Quantise(isa, rounding, source, blocks), tensors


def _count(shape: Sequence[int], sizes: Sequence[ir.Value]) -> ir.Value:
    """Blocks of a tensor of which some sizes are dynamic."""
    count: Size = math.prod(size for size in shape if size >= 0) // BLOCK
    for size in sizes:
        count = product(count, size)
    return value_of(count)


def _read(x: ir.Value) -> tuple[Source, tuple[ir.Value, ...]]:
    """What a kernel reads where it wants these floats, and the tensors."""
    packed = match_dequantised(x)
    if packed is not None:
        return Source(packed.format.name), (packed.elements, packed.scales)
    return Source(str(element_of(x))), (x,)
