"""mxc-lower-attention-to-cpu-kernels: attention over pages becomes kernels that read them in place.

Scores, softmax and values of all heads become one dispatch of a hand-scheduled body
(passes/kernels/attention/), for any number of rows, runs and pages. Nothing of the size of tokens
times keys is in memory. Where there are too few rows for many workgroups, a token that is decoded,
the keys are shared out in pieces, and a second dispatch puts their results together; where there
are enough it has nothing to do. The bits of a row are the same either way.

Products and sums are f32, keys and values are extended exactly; where they are in fp8 or an MX
format they are decoded in registers, and are packed in memory (passes/kernels/attention/packed.py).
Exponentials are within 1 ulp.

before:
    %y = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %keys,
                                  %values)
after:
    stream.executable private @mxc_attention_8x8x64_bf16 { .. }
    stream.executable private @mxc_attention_8x8x64_bf16_joined { .. }
    %pieces = ..
    %parts, %result = flow.dispatch @mxc_attention_8x8x64_bf16[..](%queries, %pool, %sinks, %runs,
        %lists, %T, %S, %P, %N, %keys, %values, %pieces)
    %y = flow.dispatch @mxc_attention_8x8x64_bf16_joined[..](%parts, %sinks, %runs, %result, ..)
        -> %result

Leaves alone: queries that are not f32; keys, values or sinks of other types than bf16, f16 and f32,
keys and values in other formats than mxint8, mxfp8e4m3 and fp8e4m3; keys and values of sizes that
are no multiple of 16, packed ones of 32; keys of more than 576 elements, 1152 with 4
lanes; pages whose positions are no multiple of the keys of a block: 32 with 16 lanes, else 16 or 8.
Keys of more than 144 elements have 8 lanes at most, and half as many in a block from 288 on.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.artifact.pages import PAGE_FORMATS
from mxc.dialects.attention import AttentionCall
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.quantise import BLOCK
from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.kernels.attention.kernel import attention
from mxc.passes.kernels.attention.pieces import join_pieces
from mxc.passes.kernels.attention.shape import (
    KEY_REGISTERS,
    MOST_STAGED,
    Attention,
    key_registers,
)
from mxc.passes.kernels.paged_attention import executables_of, lower_attention

#: Lanes of the kernels of long heads where registers have more.
_FEW_LANES = 8

#: Types that are extended to f32 exactly, on the way to the registers.
_FLOATS = ("bf16", "f16", "f32")
#: Formats of packed pages, of which all elements are exact in f32.
_PACKED = tuple(PAGE_FORMATS)


@dataclass(frozen=True)
class LowerAttentionToCpuKernels(Pass):
    """Give attention to kernels of registers of `lanes` f32: 16 AVX-512, 8 AVX2, 4 NEON."""

    name = "mxc-lower-attention-to-cpu-kernels"
    lanes: int = 16

    def run(self, module: ir.Operation) -> None:
        """Lower every attention over pages."""
        lower_attention(module, lambda call: _shape(call, self.lanes), _build)


def _shape(call: AttentionCall, lanes: int) -> Attention | Reason:
    _, heads, group, depth = shape_of(call.queries)
    entries, positions = shape_of(call.pages.pool)[1], call.pages.positions
    element = call.pages.format or str(element_of(call.pages.pool))
    sinks = str(element_of(call.sinks))
    if str(element_of(call.queries)) != "f32":
        return Reason(f"queries are {element_of(call.queries)}; kernels take f32")
    if element not in (*_FLOATS, *_PACKED) or sinks not in _FLOATS:
        return Reason(
            f"keys are {element}, sinks {sinks}; kernels take {', '.join(_FLOATS)}, and keys in "
            f"{', '.join(_PACKED)}"
        )
    # Half the lanes stage half as many keys at once: long heads have room then.
    if key_registers(depth, lanes) < KEY_REGISTERS:
        lanes = min(lanes, _FEW_LANES)
    unit = BLOCK if element in _PACKED else 16
    if depth % unit or call.mixed % unit or not key_registers(depth, lanes):
        most = MOST_STAGED // (4 * lanes)
        return Reason(
            f"keys have {depth} elements, values {call.mixed}; kernels take multiples of {unit} up "
            f"to {most}"
        )
    shape = Attention(
        heads=heads,
        group=group,
        depth=depth,
        mixed=call.mixed,
        pool=(entries, positions),
        element=element,
        sinks=sinks,
        scale=call.scale,
        cap=call.cap,
        reach=call.reach,
        lanes=lanes,
    )
    if positions % shape.block_keys:
        return Reason(f"pages have {positions} positions; kernels take {shape.block_keys} at once")
    return shape


def _build(name: str, shape: Attention) -> None:
    executables_of(
        name,
        shape,
        lambda buffers, call: attention(shape, buffers, call),
        lambda buffers, call: join_pieces(shape, buffers, call),
    )
