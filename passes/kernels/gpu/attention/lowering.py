"""Paged and dense attention on GPUs: which calls have a kernel, and its executables."""

from __future__ import annotations

import functools
from typing import Any

from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.attention import AttentionCall
from mxc.dialects.dense_attention import DenseAttentionCall
from mxc.dialects.generic import shape_of
from mxc.dialects.locations import place_of
from mxc.dialects.named_operations import module_of
from mxc.dialects.quantize import BLOCK
from mxc.dialects.reasons import Reason
from mxc.errors import PassError
from mxc.passes.base import add_note
from mxc.passes.kernels.dense_attention import dense_attention_lowering, dense_sizes_of
from mxc.passes.kernels.executables import Cases, Threads, switch_below
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.attention.body import attention
from mxc.passes.kernels.gpu.attention.merge import merge_pieces
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, MERGED, TILE, GpuAttention
from mxc.passes.kernels.gpu.attention.softmax import CAPS, SCALES
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.paged_attention import attention_lowering, paged_sizes_of
from mxc.passes.kernels.rotary_writes import zeros_beside
from mxc.passes.kernels.roundings import rounding_of
from mxc.targets.matrix_unit import MatrixUnit

#: Why a call without a kernel is an error, and what to do. IREE's code for the reference
#: implementation extracts elements at indices that it has not computed.
_CURE = "IREE's code for it reads outside of its buffers: choose --kv-cache bf16, or a CPU"

#: Note for a call for which no kernel writes the zeros that waves use as counters.
_SECOND = (
    "attention over {} pages has a second dispatch for decoded tokens, which adds up the sums of "
    "their pieces of keys: the keys are not written by a kernel of mxc for this attention alone"
)

#: Most bytes of a key or a value in registers: of f16 and f32, which are split into several bf16
#: parts; and of bf16.
_MOST_BYTES, _BF16_BYTES = 512, 1152


class _Kernel(GpuAttention):
    """The attention kernel, and the second kernel, of some sizes."""

    @property
    def threads(self) -> Threads:
        """Threads of a workgroup: one wave, with one tile of rows."""
        return self._threads(1)

    def _threads(self, tiles: int) -> Threads:
        attributes = {"amdgpu-waves-per-eu": str(self.waves(tiles))}
        return Threads(self.lanes, self.lanes, attributes)

    @property
    def cases(self) -> Cases | None:
        """Two cases if waves may have two tiles of rows: two tiles where no token is decoded
        (`pieces` is 0), since there are enough rows; else one."""
        if self.tiles == 1:
            return None
        return Cases([1], [self._threads(self.tiles), self.threads])

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        kinds = dict.fromkeys((self.tiles, 1))
        parts = [functools.partial(attention, self, buffers, tiles=tiles) for tiles in kinds]
        if len(parts) == 1:
            parts[0]()
        else:
            switch_below(value_of(self.pieces), [1], parts)

    @property
    def merge_threads(self) -> Threads:
        """Threads of a workgroup of the second kernel."""
        return Threads(MERGED, self.lanes)

    def merge(self, *buffers: ir.Value) -> None:
        """Build the body of the second kernel."""
        merge_pieces(self, buffers)


def attention_kernels(matrix: MatrixUnit) -> Lowering[AttentionCall, _Kernel]:
    """The lowering of paged attention to kernels with the bf16 instruction of `matrix`."""
    return attention_lowering(functools.partial(_kernel, TileInstruction(TILE, matrix)), _counters)


def dense_attention_kernels(matrix: MatrixUnit) -> Lowering[DenseAttentionCall, _Kernel]:
    """The lowering of dense attention to the same kernels."""
    instruction = TileInstruction(TILE, matrix)
    return dense_attention_lowering(functools.partial(_dense_kernel, instruction))


def _dense_kernel(instruction: TileInstruction, call: DenseAttentionCall) -> _Kernel | Reason:
    sizes = dense_sizes_of(call)
    if isinstance(sizes, Reason):
        return sizes
    return _shape(instruction, sizes, "f32", counts=False)


def _kernel(instruction: TileInstruction, call: AttentionCall) -> _Kernel:
    """Return the kernel of a call, and add a note if it needs a second kernel. Raises PassError if
    no kernel computes the call."""
    sizes = paged_sizes_of(call)
    found: _Kernel | Reason
    if isinstance(sizes, Reason):
        found = sizes
    else:
        result = "f32" if rounding_of(call.op) is None else "bf16"
        counts = _counters(call) is not None
        found = _shape(instruction, {**sizes, "bits": call.bits}, result, counts=counts)
    if isinstance(found, Reason):
        message = f"no kernel computes attention: {found.text}; {_CURE}"
        raise PassError(message, place_of(call.op.location))
    if not found.counts:
        add_note(module_of(call.op), _SECOND.format(found.element))
    return found


def _counters(call: AttentionCall) -> ir.Value | None:
    """Return zeros i32 [T, V * G] from the kernel that wrote the keys of the tokens, if there are
    such; else None."""
    zeros = zeros_beside(call.pages.pool)
    if zeros is None:
        return None
    _, heads, group, _ = shape_of(call.queries)
    return zeros if shape_of(zeros)[1] == heads * group else None


def _shape(
    instruction: TileInstruction, sizes: dict[str, Any], result: str, *, counts: bool
) -> _Kernel | Reason:
    """Return the kernel of these sizes, or the reason why there is none. `result`: "f32" or "bf16".
    `counts`: whether the wave that finishes last adds pieces up."""
    shape = _Kernel(**sizes, result=result, counts=counts, instruction=instruction)
    element, depth, mixed = shape.element, shape.depth, shape.mixed
    # Bytes of an element in registers, where packed elements are bf16.
    size = 4 if element == "f32" else 2
    longest = (_MOST_BYTES if element in ("f16", "f32") else _BF16_BYTES) // size
    if depth % TILE or mixed % TILE or max(depth, mixed) > longest:
        return Reason(
            f"keys have {depth} elements of {element}, values {mixed}; kernels take multiples of "
            f"{TILE} up to {longest}"
        )
    if not shape.dense and shape.ragged:
        return Reason(f"pages have {shape.page} positions; kernels take multiples of {BLOCK_KEYS}")
    for name, number, (least, most) in (("scale", shape.scale, SCALES), ("cap", shape.cap, CAPS)):
        if number is not None and not least <= number <= most:
            return Reason(f"the {name} is {number:g}; kernels take {least:g} to {most:g}")
    # A bounded buffer has one block of dense keys, which are a page of any number of positions.
    keys = BLOCK_KEYS if shape.dense else shape.page
    page = keys * shape.heads * depth * size
    tokens = 2 * TILE * shape.heads * shape.group * max(depth, mixed) * 4
    if max(page, tokens) >= BEYOND:
        return Reason(f"keys or queries have {max(page, tokens)} bytes; less than {BEYOND} may be")
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
