"""The tile unit of AMX in numpy: 16 rows of 64 bytes, and the dot product of two tiles of bf16.

Source: Intel SDM, TDPBF16PS: pairs of bf16 in two chains of f32 fused multiply-adds along k, each
rounded to the nearest; then their sum is added. Subnormal inputs and results are zero.
"""

from __future__ import annotations

import numpy as np

from mxc.kernels.language import Atom, Numbers
from mxc.kernels.layout import Layout, layout

#: f32 sums of 16 rows by 16 columns.
TILE_C = layout("| n0 n1 n2 n3 | m0 m1 m2 m3")


def tile_a(weights: Layout) -> Layout:
    """Layout of a tile of A that matches weights of this layout: position i of a row of A is
    multiplied by position i of a column of B."""
    rows = layout("|| m0 m1 m2 m3").register
    return Layout(weights.item, weights.register, rows)


def tdpbf16ps(weights: Layout) -> Atom:
    """The atom sums += A times B. Shapes: sums [16 rows, 16, 1], A [16 rows, 16 dwords, 2], B [16
    dwords, 16 columns, 2]."""
    return Atom("tdpbf16ps", (TILE_C, tile_a(weights), weights), _dot)


def _dot(sums: Numbers, a: Numbers, b: Numbers) -> Numbers:
    rows, columns = (_flushed(x.astype(np.float32)) for x in (a, b))
    chains = np.zeros((2, sums.shape[0], sums.shape[1]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(rows.shape[1]):
            for chain in range(2):
                # Exact in float64: a product has 16 bits.
                product = np.multiply.outer(
                    rows[:, k, chain].astype(np.float64), columns[k, :, chain].astype(np.float64)
                )
                chains[chain] = _flushed((chains[chain] + product).astype(np.float32))
        total = _flushed(chains[0] + chains[1])
        found: Numbers = _flushed(_flushed(sums[..., 0]) + total)[..., None]
    return found


def _flushed(values: Numbers) -> Numbers:
    return np.where(np.abs(values) < np.finfo(np.float32).tiny, np.float32(0), values)
