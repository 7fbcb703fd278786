"""The scratch of attention on AMX tiles. test_attention_kernels.py tests its results."""

from itertools import product

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.attention.tiled_shape import (
    BITS,
    MOST_SCRATCH,
    TiledAttention,
    on_tiles,
)


class Sizes(TiledAttention):
    """A kernel without a body, for its sizes."""

    def body(self, *buffers: ir.Value) -> None:
        raise NotImplementedError

    def merge(self, *buffers: ir.Value) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("group", [8, 20, 128])
def test_scratch_of_tiles_is_on_the_stack(group: int) -> None:
    """A thread has 128 KiB of stack; where a tile of rows needs more, there is no kernel."""
    with new_context():
        for heads, depth in product((1, 8, 64, 128, 1000), (32, 64, 96, 128, 192, 256, 576)):
            kernel = Sizes(
                heads=heads, group=group, depth=depth, mixed=depth, entries=2, element="bf16",
                sinks="f32", scale=1.0, cap=None, reach=None, positions=64,
            )  # fmt: skip
            assert isinstance(on_tiles(kernel, BITS), Reason) == (depth > 192)
            assert kernel.scratch_bytes <= MOST_SCRATCH or depth > 192
