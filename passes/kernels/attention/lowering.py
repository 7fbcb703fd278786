"""Paged attention on CPUs: which calls have a kernel, and its executables."""

from __future__ import annotations

from mxc.artifact.pages import PAGE_FORMATS
from mxc.dialects.attention import AttentionCall
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.quantize import BLOCK
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.attention.kernel import attention
from mxc.passes.kernels.attention.pieces import join_pieces
from mxc.passes.kernels.attention.shape import (
    KEY_REGISTERS,
    MOST_STAGED,
    Attention,
    key_registers,
)
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.paged_attention import attention_lowering, executables_of

#: Most lanes of kernels with long heads.
_FEW_LANES = 8

#: Types that are extended exactly to f32 when they are loaded.
_FLOATS = ("bf16", "f16", "f32")
#: Packed formats of pages, whose elements are all exact in f32.
_PACKED = tuple(PAGE_FORMATS)


def attention_kernels(lanes: int) -> Lowering[AttentionCall, Attention]:
    """The lowering of attention to kernels for registers of `lanes` f32."""
    return attention_lowering(lambda call: _shape(call, lanes), _build)


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
    # With half the lanes, half as many keys are staged at once, which leaves room for long heads.
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
