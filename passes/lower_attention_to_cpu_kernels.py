"""mxc-lower-attention-to-cpu-kernels: attention over a cache becomes kernels that read it in place.

Scores, softmax and values of all heads become one dispatch of a hand-scheduled body
(passes/kernels/attention/), for any number of keys, known or not when the program is compiled.
The slices of the cache go away: the body reads the cache itself, from the entry and for the keys
that the slices named. Nothing of the size of tokens times keys is in memory. Where there are too
few rows for many workgroups, a token that is decoded, the keys are shared out in pieces, and a
second dispatch puts their results together.

Products and sums are f32, keys and values are extended exactly. Exponentials are within 1 ulp.

before:
    %k = tensor.extract_slice %cache[%entry, %first, 0, 0] [1, %size, V, D] ..
    %v = tensor.extract_slice %cache[%next, %first, 0, 0] [1, %size, V, D] ..
    %products = linalg.generic ins(%queries, %k) { mulf, addf }
    %scores = linalg.generic ins(%products) { index, cmpi, select }
    ..
    %y = linalg.generic ins(%mixed, %total) { divf }
after:
    stream.executable private @mxc_attention_1x8x8x64_bf16_of_4096 { .. }
    %y = flow.dispatch @mxc_attention_..(%queries, %cache, %cache, %sinks, %position, %first,
                                         %size, %entry, %next)

Leaves alone: attention in another form than dialects/attention.py builds; queries that are not
f32; keys, values or sinks of other types than bf16, f16 and f32; keys and values that are no slices
of static tensors, or slices at other keys than each other; keys and values of sizes that are no
multiple of 16; keys of more than 576 elements, 1152 with 4 lanes. Of more than 144 elements,
kernels have 8 lanes at most. Values may be the first elements of the rows that keys are.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.attention import MatchedAttention
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.kernels.attention.kernel import attention
from mxc.passes.kernels.attention.pieces import join_pieces, pieces_buffers
from mxc.passes.kernels.attention.shape import (
    KEY_REGISTERS,
    MOST_STAGED,
    Attention,
    key_registers,
    most_pieces,
)
from mxc.passes.kernels.caches import CacheSlice, lower_attention
from mxc.passes.kernels.executables import executable

#: Lanes of the kernels of long heads where registers have more.
_FEW_LANES = 8

#: Types that are extended to f32 exactly, on the way to the registers.
_FLOATS = ("bf16", "f16", "f32")


@dataclass(frozen=True)
class LowerAttentionToCpuKernels(Pass):
    """Give attention to kernels of registers of `lanes` f32: 16 AVX-512, 8 AVX2, 4 NEON."""

    name = "mxc-lower-attention-to-cpu-kernels"
    lanes: int = 16

    def run(self, module: ir.Operation) -> None:
        """Lower every attention over slices of a cache."""
        lower_attention(module, lambda found, slices: _shape(found, slices, self.lanes), _build)


def _shape(
    found: MatchedAttention, slices: tuple[CacheSlice, CacheSlice], lanes: int
) -> Attention | Reason:
    keys, values = slices
    tokens, heads, group, depth = shape_of(found.queries)
    element = str(element_of(keys.source))
    sinks = str(element_of(found.sinks))
    if min(shape_of(found.queries)) <= 0 or str(element_of(found.queries)) != "f32":
        return Reason(f"queries are {found.queries.type}; kernels take f32 of static sizes")
    if element not in _FLOATS or sinks not in _FLOATS:
        return Reason(f"keys are {element}, sinks {sinks}; kernels take {', '.join(_FLOATS)}")
    # Half the lanes stage half as many keys at once: long heads have room then.
    if key_registers(depth, lanes) < KEY_REGISTERS:
        lanes = min(lanes, _FEW_LANES)
    mixed = shape_of(found.values)[-1]
    if depth % 16 or mixed % 16 or not key_registers(depth, lanes):
        most = MOST_STAGED // (4 * lanes)
        return Reason(
            f"keys have {depth} elements, values {mixed}; kernels take multiples of 16 up to {most}"
        )
    most_keys = keys.size if isinstance(keys.size, int) else shape_of(keys.source)[-3]
    return Attention(
        tokens=tokens,
        heads=heads,
        group=group,
        depth=depth,
        mixed=mixed,
        keys=tuple(shape_of(keys.source)),
        values=tuple(shape_of(values.source)),
        element=element,
        sinks=sinks,
        scale=found.scale,
        width=found.width,
        pieces=most_pieces(tokens, heads, group, most_keys, lanes),
        lanes=lanes,
    )


def _build(name: str, shape: Attention) -> None:
    buffers = shape.buffers()

    def body(*values: ir.Value) -> None:
        attention(shape, values[: len(buffers)], values[len(buffers) :])

    executable(name, buffers, shape.workgroups, body, shape.scalars)
    if shape.pieces is None:
        return
    joined = pieces_buffers(shape)

    def join(*values: ir.Value) -> None:
        join_pieces(shape, values[: len(joined)], values[len(joined)])

    executable(f"{name}_joined", joined, (shape.heads, shape.tokens), join, 1)
