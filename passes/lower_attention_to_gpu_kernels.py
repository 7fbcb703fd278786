"""mxc-lower-attention-to-gpu-kernels: attention over pages becomes matrix instructions on them.

Scores, softmax and values of all heads become one dispatch (passes/kernels/gpu/attention/body.py),
for any number of tokens, runs and pages. The kernel reads the pool where it lies, by the page
numbers of the lists. Nothing of the size of tokens times keys is in memory. Where tokens are
decoded their keys are shared out in pieces, and a second dispatch, which has nothing to do
elsewhere, adds them up. A row has the same bits whatever else is in the call.

Products and sums are those of f32: a query or a weight is the sum of three bf16. A result that is
only rounded to bf16 is stored so. Keys and values in fp8 or an MX format are loaded as they are,
and decoded to bf16 in registers (passes/kernels/gpu/attention/packed.py).

before:
    util.func private @mxc.attention(..) attributes {mxc.operation = "attention", ..} { .. }
    %y = util.call @mxc.attention(%queries, %sinks, %positions, %runs, %pool, %lists, %k, %v)
after:
    stream.executable private @mxc_attention_8x8x64_bf16 { .. amdgpu.mfma .. }
    %parts, %whole = flow.dispatch @mxc_attention_..(%queries, %pool, %sinks, %runs, %lists,
                                                    %T, %S, %P, %N, %k, %v, %pieces)
    %y = flow.dispatch @mxc_attention_.._joined(%parts, %sinks, %runs, %whole, ..) -> %whole

Leaves alone: queries that are not f32; keys, values or sinks of other types than bf16, f16 and f32,
keys and values in other formats than mxint8, mxfp8e4m3 and fp8e4m3; of these values of which a lane
has an odd number of elements, of MX formats elements of two blocks (96); keys and values of sizes
that are no multiple of 16; keys of more than 512 bytes, 1152 of bf16 and of what becomes bf16;
pages of positions that are no multiple of 32; scales and caps far from 1. Values may be the first
elements of the rows that keys are.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.artifact.pages import PAGE_FORMATS
from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.attention import AttentionCall
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.quantise import BLOCK
from mxc.dialects.reasons import Reason
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import Threads
from mxc.passes.kernels.gpu.attention.body import attention
from mxc.passes.kernels.gpu.attention.join import join_pieces
from mxc.passes.kernels.gpu.attention.shape import (
    BLOCK_KEYS,
    JOINED,
    TILE,
    Attention,
)
from mxc.passes.kernels.gpu.attention.softmax import CAPS, SCALES
from mxc.passes.kernels.gpu.fragments import Instruction
from mxc.passes.kernels.paged_attention import Case, Scalars, executables_of, lower_attention
from mxc.passes.kernels.roundings import rounding_of
from mxc.targets.amd import known_gpu

#: Types that are sums of at most three bf16, with their bytes.
_FLOATS = {"bf16": 2, "f16": 2, "f32": 4}
#: Formats of packed pages, whose numbers are bf16.
_PACKED = tuple(PAGE_FORMATS)
#: Bytes of the longest key; of bf16, which is its own only part.
_MOST_BYTES, _BF16_BYTES = 512, 1152


@dataclass(frozen=True)
class LowerAttentionToGpuKernels(Pass):
    """Give attention to kernels of the bf16 matrix instructions of `target`."""

    name = "mxc-lower-attention-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every attention over pages. PassError for an unknown target."""
        instruction = Instruction(TILE, known_gpu(self.target).matrix)
        lower_attention(module, functools.partial(_shape, instruction), _build)


def _shape(instruction: Instruction, call: AttentionCall) -> Attention | Reason:
    _, heads, group, depth = shape_of(call.queries)
    entries, block = shape_of(call.pages.pool)[1], call.pages.positions
    element = call.pages.format or str(element_of(call.pages.pool))
    sinks = str(element_of(call.sinks))
    mixed = call.mixed
    if str(element_of(call.queries)) != "f32":
        return Reason(f"queries are {call.queries.type}; kernels take f32")
    if element not in (*_FLOATS, *_PACKED) or sinks not in _FLOATS:
        return Reason(
            f"keys are {element}, sinks {sinks}; kernels take {', '.join(_FLOATS)}, and keys in "
            f"{', '.join(_PACKED)}"
        )
    # What is packed becomes bf16 in registers.
    size = _FLOATS.get(element, 2)
    longest = (_MOST_BYTES if element in ("f16", "f32") else _BF16_BYTES) // size
    if depth % TILE or mixed % TILE or max(depth, mixed) > longest:
        return Reason(
            f"keys have {depth} elements of {element}, values {mixed}; kernels take multiples of "
            f"{TILE} up to {longest}"
        )
    if block % BLOCK_KEYS:
        return Reason(f"pages have {block} positions; kernels take multiples of {BLOCK_KEYS}")
    for name, number, (least, most) in (("scale", call.scale, SCALES), ("cap", call.cap, CAPS)):
        if number is not None and not least <= number <= most:
            return Reason(f"the {name} is {number:g}; kernels take {least:g} to {most:g}")
    page = block * heads * depth * size
    tokens = 2 * TILE * heads * group * max(depth, mixed) * 4
    if max(page, tokens) >= BEYOND:
        return Reason(f"keys or queries have {max(page, tokens)} bytes; less than {BEYOND} may be")
    shape = Attention(
        heads=heads,
        group=group,
        depth=depth,
        mixed=mixed,
        pool=(entries, block),
        element=element,
        sinks=sinks,
        scale=call.scale,
        cap=call.cap,
        reach=call.reach,
        instruction=instruction,
        result="f32" if rounding_of(call.op) is None else "bf16",
    )
    if shape.packed is not None and shape.slots % 2:
        return Reason(
            f"values of {mixed} elements are {element}, {shape.slots} a lane; kernels take even "
            "numbers"
        )
    if shape.scaled and BLOCK % shape.slots:
        return Reason(
            f"values of {mixed} elements are {element}, {shape.slots} a lane; kernels take numbers "
            f"that divide a block of {BLOCK}"
        )
    return shape


def _build(name: str, shape: Attention) -> None:
    def body(tiles: int, buffers: Sequence[ir.Value], call: Scalars) -> None:
        attention(shape, buffers, call, tiles=tiles)

    def threads(tiles: int) -> Threads:
        attributes = {"amdgpu-waves-per-eu": str(shape.waves(tiles))}
        return Threads(shape.lanes, shape.lanes, attributes)

    # Where no token is decoded there are rows enough for two tiles.
    several = Case(1, functools.partial(body, shape.tiles), threads(shape.tiles))
    executables_of(
        name,
        shape,
        functools.partial(body, 1),
        functools.partial(join_pieces, shape),
        threads(1),
        Threads(JOINED, shape.lanes),
        [several] if shape.tiles > 1 else [],
    )
