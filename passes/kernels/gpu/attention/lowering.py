"""Attention over pages on GPUs: which calls have a kernel, and its executables."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

from iree.compiler import ir

from mxc.artifact.pages import PAGE_FORMATS
from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.attention import AttentionCall
from mxc.dialects.generic import element_of, shape_of
from mxc.dialects.named_operations import module_of
from mxc.dialects.quantize import BLOCK
from mxc.dialects.reasons import Reason
from mxc.errors import PassError
from mxc.passes.base import add_note
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
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.paged_attention import Case, Scalars, attention_lowering, executables_of
from mxc.passes.kernels.rotary_writes import zeros_beside
from mxc.passes.kernels.roundings import rounding_of
from mxc.targets.matrix_unit import MatrixUnit

#: What IREE makes of the reference extracts elements at numbers that it has not computed.
_CURE = "IREE's code for it reads outside of its buffers: choose --kv-cache bf16, or a CPU"

#: Where no kernel writes zeros for the counters of the waves.
_SECOND = (
    "attention over {} pages has a second dispatch for decoded tokens, which adds up the sums of "
    "their pieces of keys: the keys are not written by a kernel of mxc for this attention alone"
)

#: Types that are sums of at most three bf16, with their bytes.
_FLOATS = {"bf16": 2, "f16": 2, "f32": 4}
#: Formats of packed pages, whose numbers are bf16.
_PACKED = tuple(PAGE_FORMATS)
#: Bytes of the longest key; of bf16, which is its own only part.
_MOST_BYTES, _BF16_BYTES = 512, 1152


def attention_kernels(matrix: MatrixUnit) -> Lowering[AttentionCall, Attention]:
    """Attention becomes kernels of the bf16 instruction of a GPU."""
    kernel = functools.partial(_kernel, Instruction(TILE, matrix))
    return attention_lowering(kernel, _build, _counters)


def _kernel(instruction: Instruction, call: AttentionCall) -> Attention:
    """Raises PassError where there is none."""
    shape = _shape(instruction, call)
    if isinstance(shape, Reason):
        raise PassError(f"{call.op.location}: no kernel computes attention: {shape.text}; {_CURE}")
    counts = _counters(call) is not None
    if not counts:
        add_note(module_of(call.op), _SECOND.format(shape.element))
    return replace(shape, counts=counts)


def _counters(call: AttentionCall) -> ir.Value | None:
    """A zero for each query head of each token, of the kernel that wrote the keys of the tokens."""
    zeros = zeros_beside(call.pages.pool)
    if zeros is None:
        return None
    _, heads, group, _ = shape_of(call.queries)
    return zeros if shape_of(zeros)[1] == heads * group else None


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
