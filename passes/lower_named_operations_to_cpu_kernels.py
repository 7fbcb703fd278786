"""mxc-lower-named-operations-to-cpu-kernels: calls of named operations become kernels for a CPU.

Each operation has a lowering, which chooses a kernel for a call or gives the reason for none:

- attention over pages: scores, softmax and values of all heads are one dispatch of a hand-scheduled
  body (passes/kernels/attention/), for any number of rows, runs and pages. Where there are too few
  rows for many workgroups, the keys are split into pieces, and a second dispatch combines the
  pieces. The bits of a row are the same either way. Products and sums are f32; packed keys and
  values are decoded in registers. Exponentials are within 1 ulp. With `tiles`, products are on AMX
  tiles where 16 significant bits of queries and weights are enough, keys and values are bf16, and
  each has 8 query heads or more; other calls have the reason in `mxc.choice`.
- attention over dense keys and values: the same kernel, where the keys of a sequence are one page.
- recurrences: the rows of a run are processed in order, with a part of its state in the L1 cache or
  in registers (passes/kernels/cpu/recurrences/). The state is read from the pool once and written
  once, in place. A workgroup computes some columns of the state of a run.
- rotary embeddings, with keys and values written to pages: one row per workgroup
  (passes/kernels/rotary_writes.py).

before:
    %y = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %keys,
                                  %values)
after:
    stream.executable private @mxc_attention_8x8x64_bf16 { .. }
    stream.executable private @mxc_attention_8x8x64_bf16_merged { .. }
    %pieces = ..
    %parts, %result = flow.dispatch @mxc_attention_8x8x64_bf16[..](%queries, %pool, %sinks, %runs,
        %lists, %T, %S, %P, %N, %keys, %values, %pieces)
    %y = flow.dispatch @mxc_attention_8x8x64_bf16_merged[..](%parts, %sinks, %runs, %result, ..)
        -> %result

Leaves alone: attention with queries that are not f32, keys, values or sinks of other types than
bf16, f16 and f32, packed keys and values in other formats than mxint8, mxfp8e4m3 and fp8e4m3, keys
and values whose size is not a multiple of 16 (of 32 if packed), keys of more than 576 elements
(1152 with 4 lanes), pages whose positions are not a multiple of the keys of a block, which are 32
with 16 lanes, else 16 or 8 (keys of more than 144 elements have 8 lanes at most, and half as many
keys in a block from 288 elements on); states whose rows are not a multiple of `lanes`, or that do
not have a multiple of 8 rows; convolutions whose columns are not a multiple of `lanes`, of one
token or more than 8, or with weights that are not bf16, f16 or f32; rotary writes whose real and
imaginary parts are not a multiple of `lanes` elements, of 8 for packed pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.passes.base import Pass
from mxc.passes.kernels.attention.lowering import attention_kernels, dense_attention_kernels
from mxc.passes.kernels.cpu.recurrences.convolution import CpuConvolution
from mxc.passes.kernels.cpu.recurrences.delta_rule import CpuDeltaRule
from mxc.passes.kernels.lowerings import lower_named
from mxc.passes.kernels.recurrences.calls import recurrence_lowering
from mxc.passes.kernels.rotary_writes import rotary_lowering


@dataclass(frozen=True)
class LowerNamedOperationsToCpuKernels(Pass):
    """Lower named operations to kernels for CPUs.

    `lanes`: f32 elements of a vector register, 16 for AVX-512, 8 for AVX2, 4 for NEON. `tiles`:
    whether the CPU has AMX tiles.
    """

    name = "mxc-lower-named-operations-to-cpu-kernels"
    lanes: int = 16
    tiles: bool = False

    def run(self, module: ir.Operation) -> None:
        """Lower every call that a kernel takes."""
        lowerings = (
            attention_kernels(self.lanes, self.tiles),
            dense_attention_kernels(self.lanes, self.tiles),
            recurrence_lowering(CpuDeltaRule, CpuConvolution, self.lanes),
            rotary_lowering(self.lanes),
        )
        lower_named(module, lowerings)
