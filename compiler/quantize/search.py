"""Scales of least squared error: of each block the best of a few scales near the usual one.

A recipe finds a scale from the largest magnitude alone. Trying its neighbours costs a few more
passes and loses less: with a smaller scale the largest element saturates, and all others are
finer. What is stored is the same format, which every reader of it takes.

Where it is known what a layer is fed with, the error of a weight counts by the mean square of its
input (`squares`): that is what it adds to outputs, if inputs are not correlated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mxc.formats.formats import E8M0, BlockFormat
from mxc.formats.nvfp4 import Tensor
from mxc.formats.recipes import ScaleRecipe, scale_bytes
from mxc.formats.rounding import Ties, encode

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

#: What `--recipe` calls it; and it, followed by rounding with feedback (feedback.py).
SEARCH, FEEDBACK = "search", "gptq"
#: Exponents tried, beside the least with which nothing saturates, which comes first.
NEIGHBOURS = (0, -1, 1, -2)
#: Codes tried beside that of amax / 6: E4M3 has eight to a power of two, so these are scales from
#: amax / 8 to amax / 4, of which 4 is what "four over six" tries.
_NEAR = range(-3, 5)
#: Where errors count differently, scales further away can be best: from amax / 12 to amax / 3.
_FURTHER = range(-8, 9)


def best_powers(
    blocks: Floats, format: BlockFormat, ties: Ties, squares: Floats | None = None
) -> tuple[Bytes, Bytes]:
    """Codes uint8 [n, 32] and E8M0 bytes uint8 [n] of finite `blocks` float32 [n, 32].

    `squares` float32 [m, 32]: by what errors count, in the blocks of a row; n is a multiple of m.
    """
    usual = scale_bytes(np.abs(blocks).max(axis=1), format.element, ScaleRecipe.RCEIL)
    tried = [np.clip(usual.astype(np.int16) + by, 0, E8M0.max_code) for by in NEIGHBOURS]
    # A power of two: exact, but for what rounds to nothing.
    units = [np.ldexp(np.float32(1), 127 - each.astype(np.int32)) for each in tried]
    codes = [each.astype(np.uint8) for each in tried]
    return _best(blocks, codes, units, format, ties, squares)


def best_nvfp4(
    blocks: Floats,
    amax: Floats,
    whole: Tensor,
    format: BlockFormat,
    ties: Ties,
    squares: Floats | None = None,
) -> tuple[Bytes, Bytes]:
    """The same of nvfp4: E4M3 bytes under the scale of the whole tensor."""
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
    """The codes and the scales of least squared error; of equals the first."""
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
    """The sum of squares of each block, float64 [n], by what they count."""
    found: NDArray[np.float64]
    if squares is None:
        found = np.einsum("ij,ij->i", error, error, dtype=np.float64)
        return found
    rows = np.square(error).reshape(-1, *squares.shape)
    rows *= squares
    found = rows.reshape(error.shape).sum(axis=1, dtype=np.float64)
    return found
