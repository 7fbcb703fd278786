"""The default recipe of each format is the one with which random weights lose least."""

import ml_dtypes
import numpy as np
import pytest

from mxc.compiler.quantize.least_error import LEAST_ERROR, recipe_for
from mxc.formats.formats import FORMATS, block_format
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import dequantize, quantize

SHAPE = (128, 4096)
RNG = np.random.default_rng(4)
WEIGHTS = {
    "normal": RNG.standard_normal(SHAPE),
    "laplace": RNG.laplace(size=SHAPE),
    "student": RNG.standard_t(4, SHAPE),
    "rows": RNG.standard_normal(SHAPE) * np.exp2(RNG.uniform(-3, 3, (SHAPE[0], 1))),
    "columns": RNG.standard_normal(SHAPE) * np.where(RNG.random(SHAPE[1]) < 0.01, 8, 1),
}


def test_each_format_with_recipes_has_one() -> None:
    with_recipes = {name for name, each in FORMATS.items() if not each.tensor_scale}
    assert set(LEAST_ERROR) == with_recipes
    assert recipe_for(block_format("nvfp4"), None) is None


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("format", LEAST_ERROR)
def test_no_other_loses_less(format: str, weights: str) -> None:
    x = (0.02 * WEIGHTS[weights]).astype(ml_dtypes.bfloat16).astype(np.float32)
    noise = {
        recipe: float(
            np.square(x - dequantize(quantize(x, format, recipe=recipe)), dtype="f8").sum()
        )
        for recipe in ScaleRecipe
    }
    # Within a hundredth of a dB recipes are alike.
    assert noise[LEAST_ERROR[format]] <= min(noise.values()) * 10**0.001
