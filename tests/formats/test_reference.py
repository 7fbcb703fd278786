"""quantize and dequantize: layout, dtypes, edges, refusals, and the laws that they obey."""

import math
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

import mxc
from mxc.errors import FormatError
from mxc.formats import pieces
from mxc.formats.formats import FORMATS
from mxc.formats.packing import decode_scales, unpack_elements
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import Quantized, dequantize, quantize

MX = [name for name, format in FORMATS.items() if not format.tensor_scale]
each_format = pytest.mark.parametrize("name", FORMATS)
each_mx = pytest.mark.parametrize("name", MX)
each_recipe = pytest.mark.parametrize("recipe", ScaleRecipe)


def normal(*shape: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(a: mxc.Quantized, b: mxc.Quantized) -> bool:
    return all(
        np.array_equal(getattr(a, part), getattr(b, part))
        for part in ("elements", "scales", "shape", "axis", "tensor_scale", "recipe", "format")
    )


def test_the_front_door_leads_here() -> None:
    assert mxc.quantize is quantize
    assert mxc.dequantize is dequantize
    assert mxc.Quantized is Quantized


def test_one_block_by_hand() -> None:
    # amax 7 = 1.75 * 2^2: FLOOR gives 2^(2 - 2), byte 127; 7 saturates; 2.5 and 5 are ties.
    x = np.zeros(32, np.float32)
    x[:6] = [7, -0.0, 2.5, -5, 0.25, 0.2500001]
    q = quantize(x, "mxfp4")
    assert q.scales.tolist() == [127]
    assert q.elements[:3].tolist() == [0x87, 0xE4, 0x10]
    assert (q.recipe, q.axis, q.shape, q.tensor_scale) == (ScaleRecipe.FLOOR, 0, (32,), None)
    assert dequantize(q)[:6].tolist() == [6, 0, 2, -4, 0, 0.5]
    assert np.signbit(dequantize(q)[1])
    # EVEN rounds 7 up to 8 and takes 2^(3 - 2).
    q = quantize(x, "mxfp4", recipe="even")
    assert (q.scales.tolist(), q.recipe) == ([128], "even")
    assert dequantize(q)[:4].tolist() == [8, 0, 2, -4]


@each_format
def test_the_block_axis_moves_last(name: str) -> None:
    format = FORMATS[name]
    x = normal(3, 64, 5)
    q = quantize(x, name, axis=1)
    assert q.elements.shape == (3, 5, 64 * format.element.bits // 8)
    assert q.scales.shape == (3, 5, 64 // format.block)
    assert (q.axis, q.shape) == (1, (3, 64, 5))
    last = quantize(np.ascontiguousarray(np.moveaxis(x, 1, -1)), name)
    np.testing.assert_array_equal(q.elements, last.elements)
    np.testing.assert_array_equal(q.scales, last.scales)
    assert same(q, quantize(x, name, axis=-2))
    y = dequantize(q)
    assert (y.shape, y.dtype, y.flags.c_contiguous) == (x.shape, np.dtype(np.float32), True)
    np.testing.assert_array_equal(np.moveaxis(y, 1, -1), dequantize(last))


@each_format
@pytest.mark.parametrize("shape", [(640,), (3, 320), (40, 2, 32), (2, 3, 2, 96), (70, 1, 64)])
def test_pieces_do_not_show(
    name: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = normal(*shape)
    whole = quantize(x, name)
    y = dequantize(whole)
    monkeypatch.setattr(pieces, "PIECE", 64)
    assert same(quantize(x, name), whole)
    np.testing.assert_array_equal(dequantize(whole), y)


@each_format
def test_an_empty_tensor(name: str) -> None:
    q = quantize(np.zeros((0, 64), np.float32), name)
    assert q.elements.size == q.scales.size == 0
    assert dequantize(q).shape == (0, 64)
    assert dequantize(quantize(np.zeros((2, 0), np.float32), name)).shape == (2, 0)


@each_format
@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, np.float16, np.float64, ">f4", ">f8"], ids=str
)
def test_other_float_types_are_exact(name: str, dtype: str | type[Any]) -> None:
    x = normal(4, 96).astype(dtype)
    narrow = x.astype(np.float32)
    assert np.array_equal(narrow.astype(np.float64), x.astype(np.float64))
    assert same(quantize(x, name), quantize(narrow, name))


@each_recipe
def test_float64_is_not_rounded_twice(recipe: ScaleRecipe) -> None:
    # Both above a tie and above a scale's threshold by less than float32 can say.
    x = np.zeros(32)
    x[:2] = 6 * (1 + 2.0**-40), 0.25 * (1 + 2.0**-40)
    q = quantize(x, "mxfp4", recipe=recipe)
    above = quantize(np.nextafter(x.astype(np.float32), np.float32(np.inf)), "mxfp4", recipe=recipe)
    assert same(q, above)
    assert same(q, quantize(x.astype(">f8"), "mxfp4", recipe=recipe))
    assert q.scales[0] == (128 if recipe in ("rceil", "ceil") else 127)
    with pytest.raises(FormatError, match="must be within float32"):
        quantize(np.full(32, 1e39), "mxfp4", recipe=recipe)


@each_mx
@each_recipe
def test_nan_marks_its_block_alone(name: str, recipe: ScaleRecipe) -> None:
    x = normal(2, 96)
    clean = dequantize(quantize(x, name, recipe=recipe))
    x[1, 40] = np.nan
    x[1, 41] = np.inf
    q = quantize(x, name, recipe=recipe)
    assert q.scales[1, 1] == 0xFF
    size = FORMATS[name].block_bytes
    assert not q.elements[1, size : 2 * size].any()
    y = dequantize(q)
    assert np.isnan(y[1, 32:64]).all()
    y[1, 32:64] = clean[1, 32:64]
    np.testing.assert_array_equal(y, clean)


@each_mx
@each_recipe
def test_infinity_saturates(name: str, recipe: ScaleRecipe) -> None:
    x = normal(32)
    x[:2] = np.inf, -np.inf
    element = FORMATS[name].element
    q = quantize(x, name, recipe=recipe)
    codes = unpack_elements(q.elements, name)
    assert element.values[codes[:2]].tolist() == [element.max, -element.max]


@each_mx
@each_recipe
def test_zeros_have_byte_zero_and_keep_their_signs(name: str, recipe: ScaleRecipe) -> None:
    x = np.zeros(32, np.float32)
    x[1::2] = -0.0
    q = quantize(x, name, recipe=recipe)
    assert q.scales.tolist() == [0]
    y = dequantize(q)
    assert not y.any()
    if name != "mxint8":  # two's complement has one zero
        np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


@each_mx
def test_the_least_scale_holds_subnormals(name: str) -> None:
    element = FORMATS[name].element
    x = (element.values[1 : element.max_code + 1].astype(np.float64) * 2.0**-127)[-32:]
    x = np.resize(x, 32).astype(np.float32)
    q = quantize(x, name)
    assert q.scales.tolist() == [0]
    np.testing.assert_array_equal(dequantize(q), x)


def test_the_greatest_scale_overflows_to_infinity() -> None:
    q = Quantized(
        np.full(16, 0xF2, np.uint8), np.array([254], np.uint8), FORMATS["mxfp4"], None, 0, (32,)
    )
    assert dequantize(q)[:2].tolist() == [2.0**127, -np.inf]


def test_memory_beyond_the_result_is_bounded() -> None:
    x = normal(1 << 16, 64)  # 16 MiB
    for axis in (0, 1):
        tracemalloc.start()
        q = quantize(x, "mxfp6e2m3", axis=axis)
        after_quantize = tracemalloc.get_traced_memory()[1] - q.elements.nbytes - q.scales.nbytes
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        y = dequantize(q)
        after_dequantize = tracemalloc.get_traced_memory()[1] - held - y.nbytes
        tracemalloc.stop()
        assert max(after_quantize, after_dequantize) < 12 << 20


def test_refusals_of_quantize() -> None:
    x = normal(4, 100)
    with pytest.raises(FormatError, match="unknown format 'fp4'"):
        quantize(x, "fp4")
    with pytest.raises(FormatError, match="unknown scale recipe 'up'"):
        quantize(x, "mxfp4", recipe="up")
    with pytest.raises(FormatError, match=r"multiple of 32 elements, found 100; pad to 128"):
        quantize(x, "mxfp4")
    with pytest.raises(FormatError, match=r"axis 2 is outside of shape \[4, 100\]"):
        quantize(x, "mxfp4", axis=2)
    with pytest.raises(FormatError, match=r"axis -1 is outside of shape \[\]"):
        quantize(np.float32(1), "mxfp4")
    with pytest.raises(FormatError, match=r"float32 or float64, found int32"):
        quantize(np.zeros(32, np.int32), "mxfp4")
    with pytest.raises(FormatError, match=r"nvfp4 has e4m3 scales, .* found recipe 'floor'"):
        quantize(normal(32), "nvfp4", recipe="floor")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nvfp4_refuses_what_its_tensor_scale_cannot_hold(value: float) -> None:
    x = normal(4, 32)
    x[2, 3] = value
    with pytest.raises(FormatError, match=r"nvfp4 wants finite values, found .* (nan|inf)"):
        quantize(x, "nvfp4")


@pytest.mark.parametrize("scale", [0.0, 2.0**-149, 2.0**-122, 2.0**-110, 2.0**120])
def test_nvfp4_at_the_ends_of_float32(scale: float) -> None:
    x = normal(4, 32) * np.float32(scale)
    y = dequantize(quantize(x, "nvfp4"))
    assert np.isfinite(y).all()
    # Half of the widest gap of E2M1, 4..6, under the block's own largest magnitude, and as much
    # again for the rounding of the scale; never less than one step of the least scale.
    bound = np.abs(x).reshape(4, 2, 16).max(-1, keepdims=True) / 6 * 1.07 + 2.0**-126
    assert (np.abs(y - x).reshape(4, 2, 16) <= bound).all()


def test_a_quantized_tensor_must_agree_with_itself() -> None:
    fp4 = FORMATS["mxfp4"]
    elements, scales = np.zeros((2, 16), np.uint8), np.zeros((2, 1), np.uint8)
    Quantized(elements, scales, fp4, None, 1, (2, 32))
    with pytest.raises(FormatError, match=r"elements of mxfp4 .* uint8 \[3, 16\], .* \[2, 16\]"):
        Quantized(elements, scales, fp4, None, 1, (3, 32))
    with pytest.raises(FormatError, match=r"scales of mxfp4 .* found float32 \[2, 1\]"):
        Quantized(elements, scales.astype(np.float32), fp4, None, 1, (2, 32))
    with pytest.raises(FormatError, match=r"axis 2 is outside"):
        Quantized(elements, scales, fp4, None, 2, (2, 32))
    with pytest.raises(FormatError, match=r"multiple of 32 elements, found 33"):
        Quantized(elements, scales, fp4, None, 1, (2, 33))
    with pytest.raises(FormatError, match=r"mxfp4 wants no tensor scale, found 1.0"):
        Quantized(elements, scales, fp4, None, 1, (2, 32), 1.0)
    with pytest.raises(FormatError, match=r"nvfp4 wants a tensor scale, found None"):
        Quantized(elements, np.zeros((2, 2), np.uint8), FORMATS["nvfp4"], None, 1, (2, 32))


# Two blocks, neither near the ends of float32 where a scale clamps or a value overflows.
BLOCKS = arrays.arrays(
    np.float32,
    64,
    elements=st.floats(-(2.0**100), 2.0**100, width=32).map(
        lambda v: v if abs(v) > 2.0**-60 else math.copysign(0.0, v)
    ),
)
few = settings(max_examples=60, deadline=None)


@few
@given(BLOCKS, st.sampled_from(MX), st.sampled_from(ScaleRecipe))
def test_quantizing_again_changes_no_value(x: NDArray[Any], name: str, recipe: ScaleRecipe) -> None:
    y = dequantize(quantize(x, name, recipe=recipe))
    np.testing.assert_array_equal(dequantize(quantize(y, name, recipe=recipe)), y)


@few
@given(BLOCKS, st.sampled_from(list(FORMATS)))
def test_the_sign_changes_nothing_else(x: NDArray[Any], name: str) -> None:
    q, negated = quantize(x, name), quantize(-x, name)
    np.testing.assert_array_equal(q.scales, negated.scales)
    np.testing.assert_array_equal(dequantize(negated), -dequantize(q))


@few
@given(BLOCKS, st.sampled_from(MX), st.sampled_from(ScaleRecipe), st.integers(-20, 20))
def test_a_power_of_two_moves_the_scale_alone(
    x: NDArray[Any], name: str, recipe: ScaleRecipe, shift: int
) -> None:
    q = quantize(x, name, recipe=recipe)
    moved = quantize(np.ldexp(x, shift), name, recipe=recipe)
    np.testing.assert_array_equal(q.elements, moved.elements)
    blocks = np.abs(x).reshape(-1, 32).max(-1) > 0
    difference = moved.scales.astype(int) - q.scales
    np.testing.assert_array_equal(difference, np.where(blocks, shift, 0))


@few
@given(BLOCKS, st.sampled_from(MX), st.sampled_from(ScaleRecipe))
def test_the_error_is_half_a_step_or_saturation(
    x: NDArray[Any], name: str, recipe: ScaleRecipe
) -> None:
    element = FORMATS[name].element
    q = quantize(x, name, recipe=recipe)
    scale = np.repeat(decode_scales(q.scales, name), 32).astype(np.float64)
    y, exact = dequantize(q).astype(np.float64), np.abs(x.astype(np.float64))
    step = scale * 2.0 ** (element.emax - element.mantissa)
    saturated = exact > scale * element.max
    assert (np.abs(y - x)[~saturated] <= step[~saturated] / 2).all()
    assert (np.abs(y) == scale * element.max)[saturated].all()
    if recipe in (ScaleRecipe.RCEIL, ScaleRecipe.CEIL):
        assert not saturated.any()
