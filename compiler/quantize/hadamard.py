"""Rotations by Hadamard matrices, which spread outliers of one channel over many.

All entries of a Hadamard matrix have the same magnitude, so that each output is a sum of all inputs
with signs. The matrix is its own inverse. Random signs (with a fixed seed) are applied before it,
so that no output is the mean of the inputs.
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
    """The orthogonal matrix R of size `width`, block diagonal with blocks of `size`, a power of
    two.

    R = D H with D the signs, and H Hadamard matrices divided by sqrt(size).
    """

    width: int
    size: int

    @staticmethod
    def of(width: int) -> Hadamard:
        """Return the rotation with the largest blocks that divide the width."""
        return Hadamard(width, width & -width)

    @cached_property
    def signs(self) -> Floats:
        """+1 or -1 per channel, float32 [width]."""
        drawn = np.random.default_rng(_SEED).integers(0, 2, self.width)
        return (1 - 2 * drawn).astype(np.float32)

    def rotate(self, rows: Floats) -> Floats:
        """Return rows [n, m * width] times R, applied to each `width` columns separately."""
        shape = rows.shape
        found = rows.reshape(-1, self.width) * self.signs
        half = 1
        while half < self.size:
            pairs = found.reshape(-1, 2, half)
            found = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
            half *= 2
        found *= np.float32(self.size**-0.5)
        return found.reshape(shape)
