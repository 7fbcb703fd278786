"""mxc-lower-attention-to-gpu-kernels: attention over a cache becomes matrix instructions on it.

Scores, softmax and values of all heads become one dispatch (passes/kernels/gpu/attention/body.py),
for any number of keys, known or not when the program is compiled. The slices of the cache go away:
the kernel reads the cache itself, from the entry and for the keys that the slices named. Nothing of
the size of tokens times keys is in memory. Where there are too few rows to keep the chip busy, a
token that is decoded, the keys are shared out in pieces, and a second dispatch joins them.

Products and sums are those of f32: a query or a weight is the sum of three bf16. A result that is
only rounded to bf16 is stored so.

before:
    %k = tensor.extract_slice %cache[%entry, %first, 0, 0] [1, %size, V, D] ..
    %v = tensor.extract_slice %cache[%next, %first, 0, 0] [1, %size, V, D] ..
    %products = linalg.generic ins(%queries, %k) { mulf, addf }
    %scores = linalg.generic ins(%products) { index, cmpi, select }
    ..
    %y = linalg.generic ins(%mixed, %total) { divf }
after:
    stream.executable private @mxc_attention_128x8x8x64_bf16_of_4096 { .. amdgpu.mfma .. }
    %y = flow.dispatch @mxc_attention_..(%queries, %cache, %cache, %sinks, %position, %first,
                                         %size, %entry, %next)

Leaves alone: attention in another form than dialects/attention.py builds; queries that are not
f32; keys, values or sinks of other types than bf16, f16 and f32; keys and values that are no slices
of static tensors, or slices at other keys than each other; keys and values of sizes that are no
multiple of 32; keys of more than 512 bytes, 1152 of bf16; entries of a cache of 2 GiB or more.
Values may be the first elements of the rows that keys are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.attention import MatchedAttention
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.kernels.caches import CacheSlice, lower_attention
from mxc.passes.kernels.executables import Threads, executable
from mxc.passes.kernels.gpu.attention.body import attention
from mxc.passes.kernels.gpu.attention.join import join_pieces
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, HEAD_BYTES, Attention
from mxc.passes.kernels.gpu.attention.softmax import SCALES
from mxc.passes.kernels.gpu.lanes import LANES
from mxc.passes.kernels.roundings import rounding_of

#: Types that are sums of at most three bf16, with their bytes.
_FLOATS = {"bf16": 2, "f16": 2, "f32": 4}
#: Head sizes: fragments along D are of 32, and registers hold no keys of more bytes; of bf16, which
#: is its own only part.
_DEPTH_UNIT, _BF16_BYTES = 32, 1152


@dataclass(frozen=True)
class LowerAttentionToGpuKernels(Pass):
    """Give attention to kernels of bf16 matrix instructions, of waves of 64 lanes."""

    name = "mxc-lower-attention-to-gpu-kernels"

    def run(self, module: ir.Operation) -> None:
        """Lower every attention over slices of a cache."""
        lower_attention(module, _shape, _build)


def _shape(found: MatchedAttention, slices: tuple[CacheSlice, CacheSlice]) -> Attention | Reason:
    keys, values = slices
    tokens, heads, group, depth = shape_of(found.queries)
    element, sinks = str(element_of(keys.source)), str(element_of(found.sinks))
    if min(shape_of(found.queries)) <= 0 or str(element_of(found.queries)) != "f32":
        return Reason(f"queries are {found.queries.type}; kernels take f32 of static sizes")
    if element not in _FLOATS or sinks not in _FLOATS:
        return Reason(f"keys are {element}, sinks {sinks}; kernels take {', '.join(_FLOATS)}")
    longest = (_BF16_BYTES if element == "bf16" else HEAD_BYTES) // _FLOATS[element]
    mixed = shape_of(found.values)[-1]
    if depth % _DEPTH_UNIT or mixed % _DEPTH_UNIT or max(depth, mixed) > longest:
        return Reason(
            f"keys have {depth} elements of {element}, values {mixed}; kernels take multiples of "
            f"{_DEPTH_UNIT} up to {longest}"
        )
    least, most = SCALES
    if not least <= found.scale <= most:
        return Reason(f"the scale is {found.scale:g}; kernels take {least:g} to {most:g}")
    ahead = 2 * BLOCK_KEYS  # is asked for behind the end
    entry = max(
        (shape_of(each.source)[-3] + ahead) * math.prod(shape_of(each.source)[-2:])
        for each in (keys, values)
    )
    size = max(entry * _FLOATS[element], 4 * tokens * heads * group * max(depth, mixed))
    if size >= BEYOND:
        return Reason(f"keys or queries have {size} bytes; a buffer reaches less than {BEYOND}")
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
        most_keys=keys.size if isinstance(keys.size, int) else shape_of(keys.source)[-3],
        result="f32" if rounding_of(found.op) is None else "bf16",
    )


def _build(name: str, shape: Attention) -> None:
    buffers, threads = shape.buffers(), Threads(LANES, LANES)

    def body(*values: ir.Value) -> None:
        attention(shape, values[: len(buffers)], values[len(buffers) :])

    held = Threads(LANES, LANES, {"amdgpu-waves-per-eu": str(shape.waves)})
    executable(name, buffers, shape.workgroups, body, shape.scalars, held)
    if shape.pieces is None:
        return
    joined = shape.joined_buffers()

    def join(*values: ir.Value) -> None:
        join_pieces(shape, values[: len(joined)], values[len(joined)])

    executable(f"{name}_joined", joined, shape.joined_workgroups, join, 1, threads)
