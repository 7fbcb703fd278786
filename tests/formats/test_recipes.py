"""Scale bytes against the recipes' definitions in exact rational arithmetic."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.errors import FormatError
from mxc.formats.formats import E2M1, E2M3, E3M2, E4M3, E5M2, INT8, ElementFormat
from mxc.formats.recipes import ScaleRecipe, scale_bytes, scale_recipe

ELEMENTS = (E2M1, E2M3, E3M2, E4M3, E5M2, INT8)
each_element = pytest.mark.parametrize("element", ELEMENTS, ids=str)


def amaxima() -> NDArray[Any]:
    """Positive float32: each power of two, and each mantissa where a recipe may turn, +-1 bit."""
    mantissas = {0, 1, (1 << 23) - 1}
    for bit in range(1, 9):
        # 1.5, 1.75 .. (maxima; EVEN's thresholds) and the floats beside them.
        edge = (1 << 23) - (1 << (23 - bit))
        mantissas |= {edge - 1, edge, edge + 1}
    bits = [exponent << 23 | m for exponent in range(255) for m in sorted(mantissas)]
    bits += [m >> 1 for m in mantissas] + [(1 << 23) + m >> 1 for m in mantissas]  # subnormals
    values = np.array(bits, np.uint32).view(np.float32)
    random = np.random.default_rng(0).integers(0, 0x7F800000, 2000).astype(np.uint32)
    return np.concatenate([values[values > 0], random.view(np.float32)])


def floor_log2(x: Fraction) -> int:
    e = x.numerator.bit_length() - x.denominator.bit_length()
    return e if Fraction(2) ** e <= x else e - 1


def ceil_log2(x: Fraction) -> int:
    e = floor_log2(x)
    return e if Fraction(2) ** e == x else e + 1


def exponent(amax: float | Fraction, element: ElementFormat, recipe: ScaleRecipe) -> int:
    """Unclamped exponent of the scale, by definition."""
    amax = Fraction(float(amax))
    if recipe is ScaleRecipe.RCEIL:
        return ceil_log2(amax / Fraction(element.max))
    if recipe is ScaleRecipe.CEIL:
        return ceil_log2(amax) - element.emax
    if recipe is ScaleRecipe.EVEN:
        quantum = Fraction(2) ** (floor_log2(amax) - element.mantissa)
        amax = (amax / quantum + Fraction(1, 2)).__floor__() * quantum
    return floor_log2(amax) - element.emax


@each_element
@pytest.mark.parametrize("recipe", ScaleRecipe)
def test_bytes_are_those_of_the_definition(element: ElementFormat, recipe: ScaleRecipe) -> None:
    amax = amaxima()
    wanted = [min(max(exponent(a, element, recipe) + 127, 0), 254) for a in amax]
    found = scale_bytes(amax, element, recipe)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(scale_bytes(-amax, element, recipe), wanted)


@each_element
@pytest.mark.parametrize("recipe", ScaleRecipe)
def test_zero_and_subnormals_have_the_least_scale(
    element: ElementFormat, recipe: ScaleRecipe
) -> None:
    amax = np.array([0.0, -0.0, 2.0**-149, 2.0**-128, 2.0**-127], np.float32)
    assert scale_bytes(amax, element, recipe).tolist() == [0] * 5


@each_element
@pytest.mark.parametrize("recipe", ScaleRecipe)
def test_nan_gives_the_nan_byte(element: ElementFormat, recipe: ScaleRecipe) -> None:
    nans = np.array([0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32)
    assert scale_bytes(nans.view(np.float32), element, recipe).tolist() == [0xFF] * 4


@each_element
def test_infinity(element: ElementFormat) -> None:
    inf = np.array([np.inf, -np.inf], np.float32)
    for recipe in (ScaleRecipe.FLOOR, ScaleRecipe.EVEN, ScaleRecipe.CEIL):
        assert scale_bytes(inf, element, recipe).tolist() == [min(255 - element.emax, 254)] * 2
    assert scale_bytes(inf, element, ScaleRecipe.RCEIL).tolist() == [254, 254]


@each_element
def test_rceil_is_the_rounded_up_float32_quotient_but_for_one_float(element: ElementFormat) -> None:
    """The form that cuBLAS and PTX compute; RCEIL's comment names the one float that it loses."""
    threshold = np.float32(element.max) * np.float32(2.0**-127)
    around = threshold.view(np.uint32) + np.arange(-20, 21)
    amax = np.concatenate([around.astype(np.uint32).view(np.float32), amaxima()])
    quotient = np.unique(amax) / np.float32(element.max)
    # A subnormal is above 2^-127 from the upper half of its field on.
    bits = quotient.view(np.uint32)
    byte = np.where(bits < 1 << 23, bits > 1 << 22, bits + 0x7FFFFF >> 23)
    found = scale_bytes(np.unique(amax), element, ScaleRecipe.RCEIL)
    differs = np.unique(amax)[found != np.minimum(byte, 254)]
    # Fixed point has max < 2, so the threshold is subnormal and the quotient exact enough.
    lost = [] if element is INT8 else [np.nextafter(threshold, np.float32(np.inf))]
    assert differs.tolist() == lost


def test_shape_is_kept() -> None:
    amax = np.ones((3, 2, 5), np.float32)
    assert scale_bytes(amax[:, ::2], E2M1, ScaleRecipe.EVEN).shape == (3, 1, 5)
    assert scale_bytes(np.array(1, np.float32), E2M1, ScaleRecipe.EVEN).shape == ()


def test_unknown_recipe_is_refused_with_the_known_ones() -> None:
    assert scale_recipe("rceil") is ScaleRecipe.RCEIL
    with pytest.raises(FormatError, match=r"'nearest'.*floor, even, rceil, ceil"):
        scale_recipe("nearest")
