"""Inference of the recipe that chose a weight's scales, from the weight's bytes.

Recipes put the largest magnitude of a block into different ranges. For e2m1, FLOOR puts it into [4,
8) times the scale, where it becomes 4 or 6, and RCEIL into (3, 6]. The share of blocks with each
largest code is compared with the share under each recipe if magnitudes were evenly spread over the
octave, which they nearly are. The result is likely, not certain, and has to be presented as such.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, TensorRows
from mxc.formats.formats import E8M0, BlockFormat
from mxc.formats.packing import unpack_elements
from mxc.formats.recipes import ScaleRecipe, scale_bytes
from mxc.formats.rounding import encode

#: Number of magnitudes in one octave from which the expected shares are computed.
_SAMPLES = 1 << 14

#: Limits of relative entropy in nats per block. For magnitudes of Gaussian and heavy-tailed
#: weights, the right recipe is within the first limit of its own expectation, and within the second
#: limit of the best recipe.
_STRANGE = 0.15
_MARGIN = 0.18

#: Replaces a share of zero: a search for the best scale gives some blocks that no recipe gives.
_NEVER = 1e-6

#: Least number of blocks for an inference.
_FEW = 16


class RecipeInference:
    """Accumulates the blocks of a weight, one piece at a time."""

    def __init__(self, tensor: CanonicalTensor) -> None:
        """Start without blocks; formats without E8M0 scales are ignored."""
        format = tensor.block_format
        self._format = format if format is not None and format.scale == E8M0 else None
        codes = 0 if self._format is None else self._format.element.magnitude_mask + 1
        self._seen: NDArray[np.int64] = np.zeros(codes, np.int64)

    @property
    def blocks(self) -> int:
        """Number of blocks that were counted: nonzero, and with a scale inside the range of
        E8M0."""
        return int(self._seen.sum())

    def look(self, piece: TensorRows) -> None:
        """Count the largest codes of the blocks of a piece."""
        format = self._format
        if format is None or piece.scales is None:
            return
        codes = unpack_elements(piece.elements, format) & np.uint8(format.element.magnitude_mask)
        if not format.element.exponent:
            # Two's complement: take the magnitude of a negative code.
            signed = unpack_elements(piece.elements, format).view(np.int8).astype(np.int16)
            codes = np.abs(signed).clip(0, format.element.magnitude_mask).astype(np.uint8)
        largest = codes.reshape(*piece.scales.shape, format.block).max(axis=-1)
        telling = (piece.scales > 0) & (piece.scales < E8M0.max_code) & (largest > 0)
        self._seen += np.bincount(largest[telling], minlength=self._seen.size)

    def recipes(self) -> tuple[ScaleRecipe, ...]:
        """Return the recipes that explain the counts, the likeliest first.

        The result is empty if too few blocks were counted, or if no recipe explains them.
        """
        if self._format is None or self.blocks < _FEW:
            return ()
        seen = self._seen[self._seen > 0] / self.blocks
        far = {}
        for recipe in ScaleRecipe:
            share = np.maximum(_shares(self._format, recipe)[self._seen > 0], _NEVER)
            # Relative entropy: the information lost by assuming this recipe.
            far[recipe] = float((seen * np.log(seen / share)).sum())
        best = min(far.values())
        if best > _STRANGE:
            return ()
        return tuple(sorted((r for r in far if far[r] < best + _MARGIN), key=lambda r: far[r]))


@cache
def _shares(format: BlockFormat, recipe: ScaleRecipe) -> NDArray[np.float64]:
    """Return float64 [codes]: the share of blocks in which each code is the largest."""
    element = format.element
    amax = np.exp2((np.arange(_SAMPLES) + 0.5) / _SAMPLES).astype(np.float32)
    scales = scale_bytes(amax, element, recipe)
    values = np.ldexp(amax, 127 - scales.astype(np.int32)).astype(np.float32)
    codes = encode(values, element)
    count = np.bincount(codes, minlength=element.magnitude_mask + 1)
    shares: NDArray[np.float64] = count / _SAMPLES
    return shares
