"""Scales of least squared error: for each block the best of a few scales near the usual one.

A recipe derives a scale from the largest magnitude alone. Trying its neighbours costs a few more
passes and reduces the error: with a smaller scale the largest element saturates, while all others
are finer. The stored format is the same.

If the inputs of a layer are known, the squared error of a weight is multiplied by the mean square
of its input (`squares`): that is its contribution to the error of outputs, for uncorrelated inputs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxc.formats.formats import E8M0, BlockFormat
from mxc.formats.nvfp4 import TensorScaling
from mxc.formats.recipes import ScaleRecipe, scale_bytes
from mxc.formats.rounding import Ties, encode

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

#: Values of `--recipe`: the search alone, and the search followed by error feedback (feedback.py).
SEARCH, FEEDBACK = "search", "gptq"
#: Offsets of exponents that are tried, relative to the smallest without saturation, which is first.
NEIGHBOURS = (0, -1, 1, -2)
#: Offsets of codes that are tried, relative to that of amax / 6: E4M3 has eight codes per power of
#: two, so these are scales from amax / 8 to amax / 4; "four over six" tries the latter.
_NEAR = range(-3, 5)
#: With weighted errors, more distant scales can be best: from amax / 12 to amax / 3.
_FURTHER = range(-8, 9)


def best_powers(
    blocks: Floats, format: BlockFormat, ties: Ties, squares: Floats | None = None
) -> tuple[Bytes, Bytes]:
    """Return codes uint8 [n, 32] and E8M0 bytes uint8 [n] of finite `blocks` float32 [n, 32].

    `squares` float32 [m, 32]: weights of squared errors, for the blocks of a row; n is a multiple
    of m.
    """
    usual = scale_bytes(np.abs(blocks).max(axis=1), format.element, ScaleRecipe.RCEIL)
    tried = [np.clip(usual.astype(np.int16) + by, 0, E8M0.max_code) for by in NEIGHBOURS]
    # Powers of two: multiplication is exact except for underflow.
    units = [np.ldexp(np.float32(1), 127 - each.astype(np.int32)) for each in tried]
    codes = [each.astype(np.uint8) for each in tried]
    return _best(blocks, codes, units, format, ties, squares)


def best_nvfp4(
    blocks: Floats,
    amax: Floats,
    whole: TensorScaling,
    format: BlockFormat,
    ties: Ties,
    squares: Floats | None = None,
) -> tuple[Bytes, Bytes]:
    """Return the same for nvfp4, with E4M3 bytes under the tensor scale."""
    usual, _ = whole.block_scales(amax, format)
    bounds = np.asarray([format.scale.min_normal, format.scale.max], np.float32)
    least, largest = encode(bounds, format.scale).tolist()
    tried = _NEAR if squares is None else _FURTHER
    near = [np.clip(usual.astype(np.int16) + by, least, largest) for by in tried]
    codes = [usual, *(each.astype(np.uint8) for each in near)]
    units = [np.float32(1) / whole.factors(each, format) for each in codes]
    return _best(blocks, codes, units, format, ties, squares)


def _best(
    blocks: Floats,
    tried: list[Bytes],
    units: list[Floats],
    format: BlockFormat,
    ties: Ties,
    squares: Floats | None,
) -> tuple[Bytes, Bytes]:
    """Return the codes and scales of least squared error; the first among equals."""
    element = format.element
    found = np.zeros(blocks.shape, np.uint8)
    scales = np.zeros(len(blocks), np.uint8)
    least = np.full(len(blocks), np.inf)
    for bytes_, unit in zip(tried, units, strict=True):
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            steps = blocks * unit[:, None]
            codes = encode(steps, element, ties)
            error = element.values.take(codes) - steps
            noise = _noise(error, squares)
            noise /= np.square(unit.astype(np.float64))
        better = noise < least
        found[better], scales[better], least[better] = codes[better], bytes_[better], noise[better]
    return found, scales


def _noise(error: Floats, squares: Floats | None) -> NDArray[np.float64]:
    """Return the weighted sum of squares of each block, float64 [n]."""
    found: NDArray[np.float64]
    if squares is None:
        found = np.einsum("ij,ij->i", error, error, dtype=np.float64)
        return found
    rows = np.square(error).reshape(-1, *squares.shape)
    rows *= squares
    found = rows.reshape(error.shape).sum(axis=1, dtype=np.float64)
    return found
