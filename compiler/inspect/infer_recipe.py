"""Which recipe chose the scales of a weight, as far as its bytes tell.

Recipes put the largest magnitude of a block into different ranges: FLOOR for e2m1 into [4, 8)
times the scale, where it becomes 4 or 6, RCEIL into (3, 6]. The share of blocks with each largest
code is compared with what every recipe would give if magnitudes were spread evenly over the
octave, which they nearly are. What is found so is likely, not certain, and has to be called so.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.checkpoints.canonical.tensor import CanonicalTensor, Piece
from mxc.formats.formats import E8M0, BlockFormat
from mxc.formats.packing import unpack_elements
from mxc.formats.recipes import ScaleRecipe, scale_bytes
from mxc.formats.rounding import encode

#: Magnitudes of one octave that stand for all.
_SAMPLES = 1 << 14

#: For magnitudes of Gaussian and of heavy-tailed weights, no recipe is further from its own
#: expectation than the first number, and none that is right is further from the best than the
#: second (nats a block).
_STRANGE = 0.15
_MARGIN = 0.18

#: Stands for a share of zero: a search for the best scale does in some blocks what no recipe does.
_NEVER = 1e-6

#: Fewer blocks say nothing.
_FEW = 16


class RecipeInference:
    """Looks at the blocks of a weight, a piece at a time."""

    def __init__(self, tensor: CanonicalTensor) -> None:
        """Looks at nothing where the format has no E8M0 scales."""
        format = tensor.block_format
        self._format = format if format is not None and format.scale == E8M0 else None
        codes = 0 if self._format is None else self._format.element.magnitude_mask + 1
        self._seen: NDArray[np.int64] = np.zeros(codes, np.int64)

    @property
    def blocks(self) -> int:
        """Blocks that tell something: not zero, and their scale not at an end of its range."""
        return int(self._seen.sum())

    def look(self, piece: Piece) -> None:
        """Count the largest codes of the blocks of a piece."""
        format = self._format
        if format is None or piece.scales is None:
            return
        codes = unpack_elements(piece.elements, format) & np.uint8(format.element.magnitude_mask)
        if not format.element.exponent:
            # Two's complement: the magnitude of a negative code.
            signed = unpack_elements(piece.elements, format).view(np.int8).astype(np.int16)
            codes = np.abs(signed).clip(0, format.element.magnitude_mask).astype(np.uint8)
        largest = codes.reshape(*piece.scales.shape, format.block).max(axis=-1)
        telling = (piece.scales > 0) & (piece.scales < E8M0.max_code) & (largest > 0)
        self._seen += np.bincount(largest[telling], minlength=self._seen.size)

    def recipes(self) -> tuple[ScaleRecipe, ...]:
        """The recipes that explain what was seen, the likeliest first.

        Empty: too few blocks tell anything, or no recipe gives such blocks.
        """
        if self._format is None or self.blocks < _FEW:
            return ()
        seen = self._seen[self._seen > 0] / self.blocks
        far = {}
        for recipe in ScaleRecipe:
            share = np.maximum(_shares(self._format, recipe)[self._seen > 0], _NEVER)
            # Relative entropy: what is lost by believing in this recipe.
            far[recipe] = float((seen * np.log(seen / share)).sum())
        best = min(far.values())
        if best > _STRANGE:
            return ()
        return tuple(sorted((r for r in far if far[r] < best + _MARGIN), key=lambda r: far[r]))


@cache
def _shares(format: BlockFormat, recipe: ScaleRecipe) -> NDArray[np.float64]:
    """float64 [codes]: how often each code is the largest of a block."""
    element = format.element
    amax = np.exp2((np.arange(_SAMPLES) + 0.5) / _SAMPLES).astype(np.float32)
    scales = scale_bytes(amax, element, recipe)
    values = np.ldexp(amax, 127 - scales.astype(np.int32)).astype(np.float32)
    codes = encode(values, element)
    count = np.bincount(codes, minlength=element.magnitude_mask + 1)
    shares: NDArray[np.float64] = count / _SAMPLES
    return shares
