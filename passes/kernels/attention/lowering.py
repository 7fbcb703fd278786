"""Paged attention on CPUs: which calls have a kernel, and its executables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from iree.compiler import ir

from mxc.dialects.attention import AttentionCall, AttentionChunk
from mxc.dialects.dense_attention import DenseAttentionCall
from mxc.dialects.quantize import BLOCK
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.attention.kernel import attention
from mxc.passes.kernels.attention.pieces import merge_pieces
from mxc.passes.kernels.attention.shape import KEY_REGISTERS, MOST_STAGED, CpuAttention
from mxc.passes.kernels.attention.tiled import tiled_attention
from mxc.passes.kernels.attention.tiled_shape import TiledAttention, on_tiles
from mxc.passes.kernels.dense_attention import dense_attention_lowering, dense_sizes_of
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.paged_attention import attention_lowering, paged_sizes_of

#: Most lanes of kernels with long heads.
_FEW_LANES = 8


class _Kernel(CpuAttention):
    """A kernel on vectors, and its second kernel."""

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        attention(self, buffers)

    def merge(self, *buffers: ir.Value) -> None:
        """Build the body of the second kernel."""
        merge_pieces(self, buffers)


class _TiledKernel(TiledAttention):
    """A kernel on AMX tiles, and its second kernel."""

    def body(self, *buffers: ir.Value) -> None:
        """Build the body at the insertion point."""
        tiled_attention(self, buffers)

    def merge(self, *buffers: ir.Value) -> None:
        """Build the body of the second kernel."""
        merge_pieces(self, buffers)


def attention_kernels(lanes: int, tiles: bool) -> Lowering[AttentionCall, CpuAttention]:
    """The lowering of attention to kernels for registers of `lanes` f32, or on `tiles` of AMX where
    these compute a call (tiled_shape.py)."""

    def kernel(call: AttentionCall) -> CpuAttention | Reason:
        sizes = paged_sizes_of(call)
        if isinstance(sizes, Reason):
            return sizes
        if not isinstance(call.reach, AttentionChunk):
            sizes = {**sizes, "reach": None, "window": None}
        if not tiles:
            return _kernel(sizes, lanes)
        found = on_tiles(_TiledKernel(**sizes), call.bits)
        return _kernel(sizes, lanes, found) if isinstance(found, Reason) else found

    return attention_lowering(kernel)


def dense_attention_kernels(lanes: int, tiles: bool) -> Lowering[DenseAttentionCall, _Kernel]:
    """The lowering of dense attention to kernels for registers of `lanes` f32. There is none on
    `tiles` of AMX; if the CPU has these, the kernel says why it is not on them."""
    why = Reason("keys and values are in no pages") if tiles else None
    return dense_attention_lowering(lambda call: _kernel(dense_sizes_of(call), lanes, why))


def _kernel(
    sizes: dict[str, Any] | Reason, lanes: int, no_tiles: Reason | None = None
) -> _Kernel | Reason:
    """The kernel for registers of `lanes` f32. `no_tiles`: why it is not on the tiles of the
    CPU, if there are some."""
    if isinstance(sizes, Reason):
        return sizes
    choice = "" if no_tiles is None else f"no tiles: {no_tiles.text}"
    shape = _Kernel(**sizes, lanes=lanes, choice=choice)
    depth = shape.depth
    # With half the lanes, half as many keys are staged at once, which leaves room for long heads.
    if shape.key_registers < KEY_REGISTERS:
        shape = replace(shape, lanes=min(lanes, _FEW_LANES))
    unit = 16 if shape.packed is None else BLOCK
    if depth % unit or shape.mixed % unit or not shape.key_registers:
        most = MOST_STAGED // (4 * shape.lanes)
        return Reason(
            f"keys have {depth} elements, values {shape.mixed}; kernels take multiples of {unit} "
            f"up to {most}"
        )
    if not shape.dense and shape.page % shape.block_keys:
        return Reason(f"pages have {shape.page} positions; kernels take {shape.block_keys} at once")
    return shape
