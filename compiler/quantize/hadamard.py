"""Rotations by Hadamard matrices: they spread what is large in one channel over many.

A matrix of Hadamard's has entries of one size, so that each output is a sum of all inputs, with
signs. It is its own inverse, but for the signs that are put before it at random (of a fixed seed),
so that no channel stands for the mean of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

_SEED = 20


@dataclass(frozen=True)
class Hadamard:
    """The orthogonal matrix R of `width`: of blocks of `size` on the diagonal, a power of two.

    R = D H, D the signs, H the matrix of Hadamard over sqrt(size).
    """

    width: int
    size: int

    @staticmethod
    def of(width: int) -> Hadamard:
        """With the largest blocks that divide the width."""
        return Hadamard(width, width & -width)

    @cached_property
    def signs(self) -> Floats:
        """+1 or -1, float32 [width]."""
        drawn = np.random.default_rng(_SEED).integers(0, 2, self.width)
        return (1 - 2 * drawn).astype(np.float32)

    def rotate(self, rows: Floats) -> Floats:
        """rows [n, m * width] times R, each `width` columns by themselves."""
        shape = rows.shape
        found = rows.reshape(-1, self.width) * self.signs
        span = 1
        while span < self.size:
            pairs = found.reshape(-1, 2, span)
            found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
            span *= 2
        found *= np.float32(self.size**-0.5)
        return found.reshape(shape)
