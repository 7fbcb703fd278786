"""mxc-lower-named-operations-to-gpu-kernels: calls of named operations become kernels for a GPU.

Each operation has a lowering, which chooses a kernel for a call or gives the reason for none:

- recurrences: the rows of a run are processed in order, with its state in registers
  (passes/kernels/gpu/recurrences/). The state is read from the pool once and written once, in
  place. A workgroup computes some columns of the state of a run.
- rotary embeddings, with keys and values written to pages: one row per workgroup
  (passes/kernels/rotary_writes.py). mxc-lower-to-gpu-kernels has taken those that read nothing but
  a product, if its kernel has them.
- the largest elements of rows: one row per workgroup, one element per lane
  (passes/kernels/gpu/top_k.py). IREE would give a whole row to one lane.
- rows sorted by expert: one workgroup does all (passes/kernels/gpu/grouping.py). IREE would make a
  kernel of each sum of the reference, and two of these loop over all pairs for each pair or slot.
- norms of rows: one row per workgroup (passes/kernels/gpu/row_norm.py). The kernel includes the sum
  of experts and residual before a norm, roundings to bf16 after it, and a router with few weights
  (passes/kernels/gpu/route.py).
- attention over pages, or over dense keys and values: scores, softmax and values of all heads are
  one dispatch of matrix instructions (passes/kernels/gpu/attention/), which reads the pool by the
  page numbers in the lists. For decoded tokens, the keys are split into pieces, which the last wave
  to finish combines. It is found by counters, which the kernel of rotary embeddings sets to zero;
  where that kernel has not written the keys, a second dispatch combines the pieces. Queries and
  weights are split into three bf16. A result that is only rounded to bf16 is stored as bf16. Packed
  keys and values are decoded in registers.

before:
    %y = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %k, %v)
    %values, %indices = iree_linalg_ext.topk_v2 dimension(1) ins(%x : tensor<TxExf32>) outs(..)
after:
    stream.executable private @mxc_attention_8x8x64_bf16 { .. amdgpu.mfma .. }
    %parts, %y, %counted = flow.dispatch @mxc_attention_..(%queries, %pool, %sinks, %runs, %lists,
                                         %zeros, %T, %S, %P, %N, %k, %v, %pieces) -> .., %zeros
    stream.executable private @mxc_top_8_of_Dx128 { .. }
    %values, %indices = flow.dispatch @mxc_top_8_of_Dx128(%x)

Leaves alone: states whose rows are not a multiple of an eighth of a wave, or that do not have a
multiple of 8 rows, or have more than 256; convolutions of one token or more than 8, or with weights
that are not bf16, f16 or f32; rotary writes whose real and imaginary parts are not a multiple of 4
elements, of 8 for packed pages; the largest elements of rows of more than 1024 elements or of a
dynamic number of elements, of other types than f32, in another order than descending, with given
indices, or with results that do not start from -inf and 0; more than 1024 experts; norms of rows of
more than 32768 elements or not a multiple of 4, or with weights that are not bf16, f16 or f32;
routers that read no such norm, or whose weights have more than 256 KiB.

Refuses: attention with queries that are not f32; keys, values or sinks of other types than bf16,
f16 and f32; packed keys and values in other formats than mxint8, mxfp8e4m3 and fp8e4m3, of which a
lane would have an odd number of elements, or, in MX formats, elements of two blocks (96); keys and
values whose size is not a multiple of 16; keys of more than 512 bytes, or 1152 for bf16 and formats
that are decoded to bf16; pages whose positions are not a multiple of 32; scales and caps far from
1. Values may be the first elements of the rows that hold the keys.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.passes.base import Pass
from mxc.passes.kernels.gpu.attention.lowering import (
    attention_kernels,
    dense_attention_kernels,
)
from mxc.passes.kernels.gpu.grouping import grouping_lowering
from mxc.passes.kernels.gpu.recurrences.convolution import GpuConvolution
from mxc.passes.kernels.gpu.recurrences.delta_rule import GpuDeltaRule
from mxc.passes.kernels.gpu.route import route_lowering
from mxc.passes.kernels.gpu.row_norm import row_norm_lowering
from mxc.passes.kernels.gpu.top_k import top_k_lowering
from mxc.passes.kernels.lowerings import lower_named
from mxc.passes.kernels.recurrences.calls import recurrence_lowering
from mxc.passes.kernels.rotary_writes import rotary_lowering
from mxc.targets.amd import known_gpu

#: f32 elements that a lane loads at once.
_LOADED = 4


@dataclass(frozen=True)
class LowerNamedOperationsToGpuKernels(Pass):
    """Lower named operations to kernels for the waves and matrix instructions of `target`."""

    name = "mxc-lower-named-operations-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every call that a kernel takes. Raises PassError for an unknown target, and for
        attention that no kernel takes."""
        matrix = known_gpu(self.target).matrix
        lowerings = (
            recurrence_lowering(GpuDeltaRule, GpuConvolution, matrix.lanes),
            rotary_lowering(_LOADED, matrix.lanes),
            top_k_lowering(matrix.lanes),
            grouping_lowering(matrix.lanes),
            row_norm_lowering(matrix.lanes),
            route_lowering(),
            attention_kernels(matrix),
            dense_attention_kernels(matrix),
        )
        lower_named(module, lowerings)
