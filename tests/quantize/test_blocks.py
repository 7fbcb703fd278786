"""The kernel on bfloat16 against the reference, bit for bit, and its loss against float64."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.compiler.quantize.blocks import BlockKernel
from mxc.errors import FormatError
from mxc.formats.formats import E8M0, FORMATS
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import dequantize, quantize
from mxc.formats.rounding import Ties

MX = [name for name, format in FORMATS.items() if format.scale == E8M0]
RULES = [*itertools.product(ScaleRecipe, Ties)]


def finite_blocks() -> NDArray[Any]:
    """bfloat16 [n, 32]: all finite numbers, blocks of every size, zeros, few bits and ties."""
    rng = np.random.default_rng(4)
    every = rng.permutation(np.arange(1 << 16, dtype=np.uint16)).reshape(-1, 32)
    every = np.where(every & 0x7F80 == 0x7F80, 0, every).astype(np.uint16)
    sizes = np.exp2(rng.integers(-140, 120, (1500, 1)))
    normal = (rng.standard_normal((1500, 32)) * sizes).astype(ml_dtypes.bfloat16)
    normal[::2].view(np.uint16)[...] &= 0xFFE0
    zeros = np.zeros((4, 32), np.uint16)
    zeros[1:3] = 0x8000
    zeros[2, 7] = 1
    return np.concatenate([every, normal.view(np.uint16), zeros]).view(ml_dtypes.bfloat16)


X = finite_blocks()


@pytest.mark.parametrize("name", MX)
def test_every_recipe_and_rounding_is_the_reference(name: str) -> None:
    for (recipe, ties), negative_zero in zip(RULES, itertools.cycle([True, False])):
        kernel = BlockKernel(FORMATS[name], recipe, ties, negative_zero)
        elements, scales, _ = kernel.run(X.view(np.uint16))
        wanted = quantize(X, name, recipe=recipe, ties=ties, negative_zero=negative_zero)
        np.testing.assert_array_equal(scales, wanted.scales[:, 0], f"{recipe} {ties}")
        np.testing.assert_array_equal(elements, wanted.elements, f"{recipe} {ties}")


@pytest.mark.parametrize("name", MX)
@pytest.mark.parametrize("recipe", [ScaleRecipe.FLOOR, ScaleRecipe.CEIL])
def test_loss_is_that_of_float64(name: str, recipe: ScaleRecipe) -> None:
    rng = np.random.default_rng(9)
    x = rng.standard_t(3, (500, 32)) * np.exp2(rng.integers(-12, 12, (500, 1)))
    x = x.astype(ml_dtypes.bfloat16)
    q = quantize(x, name, recipe=recipe)
    exact = x.astype(np.float64)
    scales = E8M0.values[q.scales].astype(np.float64)
    _, _, loss = BlockKernel(FORMATS[name], recipe).run(x.view(np.uint16))
    assert loss.elements == x.size
    assert loss.signal == pytest.approx(np.square(exact).sum(), rel=1e-5)
    assert loss.noise == pytest.approx(np.square(dequantize(q) - exact).sum(), rel=1e-4)
    beyond = np.abs(exact / scales) > FORMATS[name].element.max
    assert loss.saturated == np.count_nonzero(beyond)
    assert (loss.saturated > 0) == (recipe is ScaleRecipe.FLOOR)


def test_blocks_with_subnormals_count_in_the_loss() -> None:
    tiny = np.full((3, 32), 2.0**-130, ml_dtypes.bfloat16)
    tiny[1] = 1.0
    _, _, loss = BlockKernel(FORMATS["mxfp4"], ScaleRecipe.FLOOR).run(tiny.view(np.uint16))
    assert loss.signal == pytest.approx(32)
    assert loss.noise == pytest.approx(64 * 2.0**-260)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite_are_refused(value: float) -> None:
    x = np.ones((40, 32), ml_dtypes.bfloat16)
    x[39, 31] = value
    with pytest.raises(FormatError, match="found NaN or Inf"):
        BlockKernel(FORMATS["mxfp4"], ScaleRecipe.EVEN).run(x.view(np.uint16))


def test_no_blocks() -> None:
    elements, scales, loss = BlockKernel(FORMATS["mxfp4"], ScaleRecipe.EVEN).run(
        np.empty((0, 32), np.uint16)
    )
    assert (elements.shape, scales.shape, loss.elements) == ((0, 16), (0,), 0)


def test_nvfp4_has_no_such_tables() -> None:
    with pytest.raises(FormatError, match="found nvfp4"):
        BlockKernel(FORMATS["nvfp4"], ScaleRecipe.EVEN)
