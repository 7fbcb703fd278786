"""mxc-lower-quantise-to-cpu-kernels: dynamic quantisation to MX blocks is one kernel of our own.

The largest magnitude of a block, its scale and its elements are three operations, two dispatches
that each read the floats. Here they are one, which reads them once (kernels/cpu/quantise/): a block
is rounded by one addition an element, and by integers where that would not be exact. Where the
floats are the values of other MX blocks, it reads these.

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

from mxc.dialects.errors import PassError
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.kernel_calls import mark_quantises
from mxc.dialects.quantise import Quantisation, match_quantisation
from mxc.dialects.recast import match_dequantised
from mxc.passes.base import Pass
from mxc.passes.kernels.cpu.isa import ISAS
from mxc.passes.kernels.cpu.quantise.kernel import Quantise
from mxc.passes.kernels.cpu.quantise.rounding import Rounding
from mxc.passes.kernels.cpu.quantise.sources import Source
from mxc.passes.kernels.executables import dispatch_all, executable
from mxc.passes.kernels.extents import Size, product, value_of
from mxc.passes.kernels.reshapes import as_tensor, packed_as, sizes_of
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
        found = [match_quantisation(op) for op in linalg_operations(module)]
        built: set[str] = set()
        for quantisation in found:
            if quantisation is not None:
                _lower(module, quantisation, self.isa, built)
        sweep(module)


def _lower(module: ir.Operation, found: Quantisation, isa: str, built: set[str]) -> None:
    source, tensors = _read(found.x)
    shape = shape_of(found.x)
    blocks = math.prod(shape) // BLOCK if min(shape) >= 0 else None
    kernel = Quantise(ISAS[isa], Rounding(found.format, found.recipe), source, blocks)
    types = kernel.buffers
    if kernel.name not in built:
        built.add(kernel.name)
        with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
            executable(
                kernel.name,
                types,
                kernel.workgroups,
                kernel.body,
                scalars=int(blocks is None),
                sizes=lambda given: [*given] * len(types),
            )
    # Where the scales are computed: before all that reads them or the elements.
    with ir.InsertionPoint(found.scales), found.codes.location:
        sizes = sizes_of(found.x)
        count = [_count(shape, sizes)] if blocks is None else []
        pairs = zip(tensors, types, strict=False)
        given = [packed_as(value, as_tensor(kind), count) for value, kind in pairs]
        results = [as_tensor(kind) for kind in types[len(tensors) :]]
        made = dispatch_all(kernel.name, [*given, *count], results, count, count * len(types))
        mark_quantises(made, found.format.name)
        for op, result in zip((found.codes, found.scales), made.results, strict=True):
            wanted = ir.RankedTensorType(op.results[0].type)
            op.results[0].replace_all_uses_with(packed_as(result, wanted, sizes))


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
