"""Activations in the order in which a kernel multiplies them; one elementwise dispatch.

mxfp4 by pairs: step 4j + t of a block multiplies k = 8j + t and 8j + 4 + t, so that the weights
need no shuffle: [.., 4 (j), 2 (w), 4 (t)] becomes [.., 4 (j), 4 (t), 2 (w)].
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.generic import element_of, generic, shape_of
from mxc.passes.kernels.matches import Call
from mxc.passes.kernels.reshapes import add_leading, split_last
from mxc.passes.kernels.weights import BLOCK


def prepare(call: Call) -> ir.Value:
    """The activations of `call`: [groups, rows, blocks, ..], pairs in the order of the steps."""
    value = call.lhs
    if call.format != "mxfp4":
        value = split_last(value, [call.depth // BLOCK, BLOCK])
    if not call.batched:
        value = add_leading(value)
    if not call.pairs or call.format != "mxfp4":
        return value
    parts = split_last(value, [4, 2, 4])
    kind: ir.Type = element_of(parts)
    assert len(shape_of(parts)) == 6
    return generic([(parts, "g m k j w t")], "g m k j t w", kind, lambda x: x)
