"""The recipe with the least error for each format: the default of `mxc quantize`.

Measured on random weights of several distributions in bfloat16 (docs/quantization.md has the
figures, tests/quantize/test_least_error.py repeats them): for every distribution the same recipe is
best, or within 0.01 dB of the best.
"""

from __future__ import annotations

from collections.abc import Mapping

from mxc.formats.formats import BlockFormat
from mxc.formats.recipes import ScaleRecipe, scale_recipe
from mxc.formats.reference import chosen_recipe

#: A scale without saturation is up to twice as coarse. e4m3 has a wide exponent range, and its
#: largest code is 1.75 of a binade: with `even`, amax from 1.75 to 1.9375 still saturates.
LEAST_ERROR: Mapping[str, ScaleRecipe] = {
    "mxfp4": ScaleRecipe.EVEN,
    "mxfp6e2m3": ScaleRecipe.EVEN,
    "mxfp6e3m2": ScaleRecipe.EVEN,
    "mxfp8e4m3": ScaleRecipe.RCEIL,
    "mxfp8e5m2": ScaleRecipe.EVEN,
    "mxint8": ScaleRecipe.FLOOR,
}


def recipe_for(format: BlockFormat, recipe: ScaleRecipe | str | None) -> ScaleRecipe | None:
    """Return `recipe`, by default that of least error; None for nvfp4. FormatError as
    chosen_recipe."""
    if recipe is None:
        return LEAST_ERROR.get(format.name)
    return chosen_recipe(format, scale_recipe(recipe))
