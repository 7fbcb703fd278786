"""Sparse matrix instructions: two of each four elements of a row of A are given, with indices.

Source: AMD CDNA4 instruction set architecture, section 7.5. Element 2 t + e of a lane's part of A
is multiplied with element 4 t + index[2 t + e] of B in the same group of lanes. The indices have 2
bits each; CBSZ and ABID select the part of the register that holds them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mxc.simulator.code.instruction import Instruction
from mxc.simulator.compute.fragments import held_rows
from mxc.simulator.compute.mfma import DECODERS, Constant, accumulate
from mxc.simulator.compute.operations import Array
from mxc.simulator.compute.signatures import sparse_shape
from mxc.simulator.run.state import Waves

Step = Callable[[Waves], None]


def smfmac_step(i: Instruction, constant: Constant) -> Step | None:
    """Return the step of a sparse matrix instruction; None for any other instruction."""
    shape = sparse_shape(i.name)
    if shape is None:
        return None
    rows, _, depth, element = shape
    left, right = DECODERS[element]
    #: Number of elements of A per lane, and the first bit of their indices.
    given = depth // 2 * rows // 64
    chosen = 0 if i.has("cbsz") & 3 else i.has("abid") % (16 // given)
    shift = 2 * given * chosen

    def step(w: Waves) -> None:
        a_lanes, b_lanes, index = i.operands
        raw_a = w.group(a_lanes.bank, a_lanes.index, a_lanes.count)
        raw_b = w.group(b_lanes.bank, b_lanes.index, b_lanes.count)
        places = w.wide(w.v[index.index])[..., None] >> np.arange(given) * 2 + shift & 3
        dense = _spread(left(raw_a), places)
        a = held_rows(dense, rows, 1)
        b = right(held_rows(raw_b, rows, 1))
        accumulate(w, i, i.results[0], a, b, constant)

    return step


def _spread(elements: Array, places: Array) -> Array:
    """Expand elements [waves, 64, n] to [waves, 64, 2 n]: each at its place, the others zero."""
    waves, lanes, count = elements.shape
    dense = np.zeros((waves, lanes, count // 2, 4), elements.dtype)
    pairs = elements.reshape(waves, lanes, -1, 2)
    at = places.reshape(waves, lanes, -1, 2).astype(np.int64)
    np.put_along_axis(dense, at, pairs, axis=-1)
    return dense.reshape(waves, lanes, -1)
