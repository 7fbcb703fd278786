"""Transposed copies of tensors, packed ones as bytes."""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import linalg

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.generic import element_of, empty
from mxc.dialects.mixed_blocks import size_of

_BYTE = 8


def transposed(value: ir.Value, order: Sequence[int]) -> ir.Value:
    """`value` with its dimensions in another order, at the insertion point; elements of 8 bits or
    more. `order`: the dimension that each of the result is."""
    element = element_of(value)
    byte = isinstance(element, ir.FloatType) and element.width == _BYTE
    source = pack(value) if byte else value
    sizes = [size_of(source, axis) for axis in order]
    init = empty(sizes, element_of(source))
    found = linalg.transpose(source, outs=[init], permutation=list(order)).results[0]
    return unpack(found, element) if byte else found
