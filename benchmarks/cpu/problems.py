"""The measured matrix products: shapes, random mxfp4 weights, expected results.

    y[m, n] = sum over k of x[m, k] * w[n, k]        w in mxfp4, x normally distributed f32

Weights have a gain near one, so that the values of a chain of products neither grow nor vanish.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

BLOCK = 32

#: Bytes of distinct weights that a rotation reads before it starts again: many times any cache.
COLD_BYTES = 256 << 20
#: With many rows, reading weights hardly matters. Then a rotation has only so many products that
#: their operations are about SHORT_OPERATIONS, so that a repetition fits between two disturbances;
#: but its weights still have SHORT_BYTES, which fit in no cache.
SHORT_BYTES = 64 << 20
SHORT_OPERATIONS = 6e10

#: Root mean square of the sixteen e2m1 values, all equally likely.
_E2M1_RMS = math.sqrt(sum(v * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)

#: Columns of a result that are compared with float64, spread evenly over all.
_CHECKED = 64


@dataclass(frozen=True)
class Shape:
    """Weights of n rows (outputs) and k columns."""

    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.n}x{self.k}"

    @property
    def bytes(self) -> int:
        """Bytes of the weights in mxfp4: 17 for 32 elements."""
        return self.n * self.k // BLOCK * 17

    def copies(self, m: int, cold_bytes: int = COLD_BYTES) -> int:
        """Return the number of distinct weights of a rotation with `m` rows of activations: those
        of `cold_bytes`, or fewer with many rows, but at least two."""
        sizes = (cold_bytes, min(cold_bytes, SHORT_BYTES))
        cold, short = (size // self.bytes + 1 for size in sizes)
        return max(2, short, min(cold, int(SHORT_OPERATIONS / self.operations(m))))

    def operations(self, m: int) -> float:
        """Return the number of multiplications and additions with `m` rows of activations."""
        return 2.0 * m * self.n * self.k


SHAPES = (Shape(4096, 4096), Shape(2880, 2880), Shape(5760, 2880), Shape(14336, 4096))
ROWS = (1, 8, 32, 128, 512)


def parse_shapes(text: str) -> list[Shape]:
    """Parse shapes NxK that are separated by commas."""
    return [Shape(*map(int, word.split("x"))) for word in text.split(",")]


@dataclass(frozen=True)
class Weights:
    """mxfp4 weights. `codes`: uint8 [n, k/32, 32], 0 to 15. `scales`: E8M0 bytes [n, k/32]."""

    codes: Array
    scales: Array

    @property
    def packed(self) -> Array:
        """Two codes per byte, the even one in the low bits: uint8 [n, k/32, 16], as in OCP
        checkpoints."""
        packed: Array = self.codes[..., 0::2] | self.codes[..., 1::2] << 4
        return packed

    @property
    def ggml(self) -> Array:
        """Blocks as ggml's block_mxfp4, uint8 [n, k/32, 17]: the scale, then byte j with elements j
        (low) and j + 16."""
        halves = self.codes[..., :16] | self.codes[..., 16:] << 4
        return np.concatenate([self.scales[..., None], halves], axis=-1)

    def values(self, rows: Array) -> Array:
        """Return the weights of `rows` (indices) as float64 [len(rows), k], by ml_dtypes."""
        elements = self.codes[rows].view(ml_dtypes.float4_e2m1fn).astype(np.float64)
        factors = self.scales[rows].view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
        values: Array = (elements * factors[..., None]).reshape(len(rows), -1)
        return values


def draw_weights(shape: Shape, seed: int = 0) -> Weights:
    """Draw random weights: any codes, and as scales three neighboring powers of two."""
    rng = np.random.default_rng(seed)
    blocks = (shape.n, shape.k // BLOCK)
    middle = round(127 - math.log2(_E2M1_RMS * math.sqrt(shape.k)))
    codes = rng.integers(0, 16, (*blocks, BLOCK), dtype=np.uint8)
    return Weights(codes, rng.integers(middle - 1, middle + 2, blocks, dtype=np.uint8))


def draw_activations(m: int, k: int, seed: int = 1) -> Array:
    """Draw normally distributed activations, float32 [m, k]."""
    return np.random.default_rng(seed).standard_normal((m, k), dtype=np.float32)


def relative_error(found: Array, x: Array, weights: Weights) -> float:
    """Return the root mean square error, relative to the root mean square of the float64 product,
    over some columns.

    `found`: the product [m, n]. `x`: activations [m, k] before any rounding.
    """
    columns = np.unique(np.linspace(0, found.shape[1] - 1, _CHECKED).astype(int))
    wanted = x.astype(np.float64) @ weights.values(columns).T
    error = np.linalg.norm(found[:, columns] - wanted) / np.linalg.norm(wanted)
    return float(error)
