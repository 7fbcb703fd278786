"""Tensors of any scope: MX and nvfp4 as the reference, fp8 as torch, integers as torchao."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

from mxc.errors import FormatError
from mxc.formats.array_values import matmul
from mxc.formats.formats import FORMATS
from mxc.formats.packing import unpack_elements
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import dequantize, quantize
from mxc.formats.scaled_tensor import dequantize_scaled
from mxc.formats.scaling import quantize_scaled

RNG = np.random.default_rng(12)
X = (RNG.standard_t(4, (6, 64, 96)) * np.exp2(RNG.integers(-6, 6, (6, 64, 1)))).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_blocks_along_any_axis_are_the_reference(name: str, axis: int) -> None:
    x = X[:1].repeat(32, axis=0) * np.linspace(0.5, 2, 32, dtype=np.float32)[:, None, None]
    format = FORMATS[name]
    tensor = "_float32" if format.tensor_scale else ""
    spec = f"{format.element}:{format.scale}{tensor}_t{format.block}d{axis}"
    recipe = None if format.tensor_scale else "even"
    wanted = quantize(x, name, recipe=recipe, axis=axis)
    found: Any = quantize_scaled(x, spec, recipe="even")
    np.testing.assert_array_equal(np.moveaxis(found.scales, axis, -1), wanted.scales)
    codes = unpack_elements(wanted.elements, name)
    np.testing.assert_array_equal(np.moveaxis(found.codes.view(np.uint8), axis, -1), codes)
    assert found.tensor_scale == wanted.tensor_scale
    np.testing.assert_array_equal(dequantize_scaled(found), dequantize(wanted))


TORCH = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
}


@pytest.mark.parametrize("data", TORCH)
@pytest.mark.parametrize("scope", ["", "_t0", "_t0_t32"])
def test_fp8_is_torch(data: str, scope: str) -> None:
    found = quantize_scaled(X, f"{data}:float32{scope}")
    x = torch.from_numpy(X)
    axes = {"": (0, 1, 2), "_t0": (2,), "_t0_t32": (1, 3)}[scope]
    tiled = x.reshape(6, 64, 3, 32) if scope == "_t0_t32" else x
    largest = torch.finfo(TORCH[data]).max
    scale = tiled.abs().amax(axes, keepdim=True) / largest
    wanted = (tiled / scale).clamp(-largest, largest).to(TORCH[data])
    np.testing.assert_array_equal(found.scales.reshape(scale.shape), scale.numpy())
    np.testing.assert_array_equal(
        found.codes.reshape(tiled.shape), wanted.view(torch.uint8).numpy()
    )
    values = (wanted.float() * scale).reshape(x.shape).numpy()
    np.testing.assert_array_equal(dequantize_scaled(found), values)


@pytest.mark.parametrize("data", TORCH)
def test_static_fp8_saturates_as_torch_clamped(data: str) -> None:
    found = quantize_scaled(X, f"{data}:float32", scale=0.003)
    largest = torch.finfo(TORCH[data]).max
    wanted = (torch.from_numpy(X) / np.float32(0.003)).clamp(-largest, largest).to(TORCH[data])
    np.testing.assert_array_equal(found.codes, wanted.view(torch.uint8).numpy())
    assert (np.abs(dequantize_scaled(found)) == np.float32(largest) * np.float32(0.003)).any()
    assert found.scales.shape == (1, 1, 1)


@pytest.mark.parametrize(
    ("scope", "block"),
    [
        ("", (6, 64, 96)),
        ("_t0", (1, 1, 96)),
        ("_t32", (1, 1, 32)),
        ("_t16_t32", (1, 16, 32)),
        ("_t0_t24", (1, 64, 24)),
        ("_t3d0_t8d1", (3, 8, 1)),
    ],
)
@pytest.mark.parametrize("bits", [4, 8])
def test_signed_integers_are_torchao(scope: str, block: tuple[int, int, int], bits: int) -> None:
    limit = (1 << bits - 1) - 1
    x = torch.from_numpy(X)
    kinds = (MappingType.SYMMETRIC, block, torch.int8, -limit, limit)
    scale, zero = choose_qparams_affine(x, *kinds, eps=1e-30, scale_dtype=torch.float32)
    found: Any = quantize_scaled(X, f"int{bits}:float32{scope}")
    # torchao divides by half of the number of steps, which is another float32 than the largest.
    np.testing.assert_allclose(found.scales, scale.numpy().reshape(found.scales.shape), rtol=1e-6)
    mine = torch.from_numpy(found.scales)
    codes = quantize_affine(x, block, mine, zero, torch.int8, -limit, limit)
    # It multiplies with 1 / scale, which moves values that are nearly halfway.
    differs = found.codes != codes.numpy()
    assert differs.mean() < 1e-4
    values = dequantize_affine(torch.from_numpy(found.codes), block, mine, zero, torch.int8)
    np.testing.assert_array_equal(dequantize_scaled(found), values.numpy())


@pytest.mark.parametrize(
    ("scope", "block"), [("_t0", (1, 1, 96)), ("_t0_t32", (1, 64, 32)), ("_t32", (1, 1, 32))]
)
def test_unsigned_integers_with_zero_points_are_torchao(
    scope: str, block: tuple[int, int, int]
) -> None:
    x = torch.from_numpy(X + np.float32(0.7))
    scale, zero = choose_qparams_affine(
        x,
        MappingType.ASYMMETRIC,
        block,
        torch.uint8,
        0,
        15,
        eps=1e-30,
        scale_dtype=torch.float32,
        zero_point_dtype=torch.int32,
    )
    found = quantize_scaled(x.numpy(), f"uint4:float32_int8{scope}")
    np.testing.assert_array_equal(found.scales.reshape(-1), scale.numpy().reshape(-1))
    np.testing.assert_array_equal(found.zeros.reshape(-1), zero.numpy().reshape(-1))
    codes = quantize_affine(x, block, scale, zero, torch.uint8, 0, 15)
    assert (found.codes != codes.numpy()).mean() < 1e-4
    values = dequantize_affine(
        torch.from_numpy(found.codes), block, scale, zero, torch.uint8, 0, 15
    )
    np.testing.assert_array_equal(dequantize_scaled(found), values.numpy())
    assert len(np.unique(found.codes)) == 16


def test_float_zero_points_are_the_least_of_their_tiles() -> None:
    x = X[0] + np.float32(3)
    found: Any = quantize_scaled(x, "uint4:bfloat16_bfloat16_t0_t32")
    assert found.scales.shape == found.zeros.shape == (1, 3)
    tiles = x.reshape(64, 3, 32)
    low = np.minimum(tiles.min((0, 2)), 0)
    np.testing.assert_allclose(found.zeros[0].astype(np.float32), low, rtol=2**-8)
    step = found.scales.astype(np.float32).repeat(32, 1)
    # From the zero point and the scale as they are stored, both rounded to bfloat16.
    zero = found.zeros.astype(np.float32).repeat(32, 1)
    np.testing.assert_array_equal(found.codes, np.clip(np.rint((x - zero) / step), 0, 15))
    highest = np.maximum(tiles.max((0, 2)), 0)
    exact = (highest - found.zeros[0].astype(np.float32)) / np.float32(15)
    np.testing.assert_array_equal(found.scales[0], exact.astype(found.scales.dtype))
    # Half a step, and what rounding zero and scale to bfloat16 moves at the ends.
    error = np.abs(dequantize_scaled(found) - x)
    assert (error <= step * 0.5 + 2**-8 * (15 * step + np.abs(low).max())).all()


def test_a_tensor_scale_above_exponents() -> None:
    """It has the largest value under a scale of one; below it scales are as of any tensor."""
    found = quantize_scaled(X[0], "e2m1:e8m0_float32_t32", recipe="even")
    assert found.tensor_scale == np.abs(X[0]).max() / np.float32(6)
    wanted = quantize(X[0] / found.tensor_scale, "mxfp4", recipe="even")
    np.testing.assert_array_equal(found.scales, wanted.scales)
    codes = unpack_elements(wanted.elements, "mxfp4")
    np.testing.assert_array_equal(found.codes.view(np.uint8), codes)


def test_the_two_level_tiles_of_tensorcast() -> None:
    found = quantize_scaled(X[0], "e4m3:e4m3_float32_t16_t16")
    assert found.scales.shape == (4, 6)
    assert found.scales.dtype == np.uint8
    values = dequantize_scaled(found)
    assert 10 * np.log10(np.square(X[0]).sum() / np.square(values - X[0]).sum()) > 28
    assert found.tensor_scale == np.abs(X[0]).max() / np.float32(448 * 448)


def test_tails_are_tiles_too() -> None:
    x = X[0, :50, :70]
    found: Any = quantize_scaled(x, "e4m3:float32_t32_t32")
    assert found.scales.shape == (2, 3)
    np.testing.assert_array_equal(found.scales[1, 2], np.abs(x[32:, 64:]).max() / np.float32(448))
    corner = quantize_scaled(np.ascontiguousarray(x[32:, 64:]), "e4m3:float32")
    np.testing.assert_array_equal(found.codes[32:, 64:], corner.codes)
    np.testing.assert_array_equal(dequantize_scaled(found)[32:, 64:], dequantize_scaled(corner))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("e2m1:e8m0_t32", "e2m1:e8m0_t32d0"),
        ("e4m3:float32_t0", "e4m3:float32_t0d0"),
        ("int8:float32_t0", "uint4:float16_int8_t16d0"),
        ("e4m3fnuz:float32", "e4m3:bfloat16_t32_t32"),
        ("e4m3:float32_t16", "e2m1:e4m3_float32_t16d0"),
    ],
)
def test_products_are_those_of_the_values(left: str, right: str) -> None:
    a, b = quantize_scaled(X[0], left), quantize_scaled(X[1, :, :].T[:96, :48], right)
    wanted = dequantize_scaled(a).astype(np.float64) @ dequantize_scaled(b).astype(np.float64)
    np.testing.assert_array_equal(matmul(a, b), wanted.astype(np.float32))
    # Scales of K that were applied to sums of other blocks would be far from the plain product.
    plain = X[0].astype(np.float64) @ X[1].T[:96, :48].astype(np.float64)
    assert np.square(matmul(a, b) - plain).sum() < 0.05 * np.square(plain).sum()
    np.testing.assert_allclose(
        matmul(X[0], b), X[0].astype(np.float64) @ dequantize_scaled(b).astype(np.float64), 1e-6
    )


shapes = st.lists(st.integers(0, 9), min_size=2, max_size=3).map(tuple)
#: How many elements share a scale, along some axes; along others each has its own.
SCOPES = {
    "": {},
    "_t0": {-1: 0},
    "_t4": {-1: 4},
    "_t2_t3": {-2: 2, -1: 3},
    "_t0_t4": {-2: 0, -1: 4},
    "_t3d0": {0: 3},
    "_t0d1": {1: 0},
    "_t2d0_t5": {0: 2, -1: 5},
}
scopes = st.sampled_from([*SCOPES])


def scales_of(scope: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the scales of a tensor: one scale of a whole axis, even of an empty one."""
    tiles = SCOPES[scope]
    sizes = {axis % len(shape): size for axis, size in tiles.items()}
    each = [sizes.get(axis, 1 if tiles else 0) for axis in range(len(shape))]
    return tuple(-(-n // size) if size else 1 for n, size in zip(shape, each, strict=True))


@given(shapes, scopes, st.sampled_from(["e2m1:e8m0", "e4m3:float32", "int4:bfloat16"]))
def test_shapes_fit_whatever_the_scope(shape: tuple[int, ...], scope: str, spec: str) -> None:
    x = np.linspace(-1, 3, int(np.prod(shape)), dtype=np.float32).reshape(shape)
    found = quantize_scaled(x, spec + scope)
    assert found.codes.shape == x.shape
    assert found.scales.shape == scales_of(scope, shape)
    values = dequantize_scaled(found)
    assert values.shape == x.shape
    assert (np.abs(values - x) <= 0.5 + np.abs(x) / 4).all()


@pytest.mark.parametrize("recipe", ScaleRecipe)
def test_recipes_are_for_exponents(recipe: ScaleRecipe) -> None:
    x = np.array([[6.5, 1, 0, 0]], np.float32)
    wanted = {"floor": 127, "even": 127, "rceil": 128, "ceil": 128}
    assert quantize_scaled(x, "e2m1:e8m0_t4", recipe=recipe).scales.item() == wanted[recipe]


def test_fixed_point_of_any_width() -> None:
    x = np.array([[1.0, -0.75, 0.3, 0.0]], np.float32)
    found = quantize_scaled(x, "int4:e8m0_t4")
    assert found.codes.tolist() == [[4, -3, 1, 0]]
    assert dequantize_scaled(found).tolist() == [[1.0, -0.75, 0.25, 0.0]]
    wide = quantize_scaled(x, "int12:e8m0_t4")
    assert wide.codes.dtype == np.int16
    np.testing.assert_allclose(dequantize_scaled(wide), x, atol=2**-11)


def test_static_integers_saturate_on_both_sides_alike() -> None:
    x = np.array([[-10.0, 10.0, 0.024, -0.026]], np.float32)
    for data, limit in (("int8", 127), ("int4", 7)):
        found = quantize_scaled(x, f"{data}:float32", scale=0.01)
        assert found.codes.tolist() == [[-limit, limit, 2, -3]]


@pytest.mark.parametrize("data", ["float16", "bfloat16"])
def test_data_of_16_bits_fills_its_range(data: str) -> None:
    found = quantize_scaled(X, f"{data}:float32_t0")
    largest = torch.finfo(getattr(torch, data)).max
    peaks = np.abs(found.codes.astype(np.float32)).max(-1)
    assert (peaks >= 0.99 * largest).all()
    assert np.isfinite(peaks).all()
    np.testing.assert_allclose(dequantize_scaled(found), X, 2**-7)


def test_zeros_have_a_scale() -> None:
    zeros = np.zeros((2, 8), np.float32)
    for spec, scale in (
        ("e4m3:float32_t4", 1.0),
        ("e4m3:e8m0_t4", 0),
        ("e2m1:e4m3_float32_t4", 8),
        ("uint4:float16_int8_t4", 1.0),
    ):
        found = quantize_scaled(zeros, spec)
        assert (found.scales == scale).all(), spec
        assert (dequantize_scaled(found) == 0).all()


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("e4m3", {"scale": 1.0}, "has no scale, found static scales"),
        ("e2m1:e8m0_t16s4_t16s4", {}, "subtiles"),
        ("uint4:float16_int8_t16n2m4", {}, "2:4 sparsity is not computed"),
        ("float16:e8m0_t32", {}, "float16 data is not under e8m0"),
        ("uint8:float16_int8_t32", {}, "reaches 255, which int8 does not; choose int9"),
        ("e4m3:float32_t4d5", {}, r"no place in a tensor of shape \[2, 8\]"),
        ("e4m3:float32", {"scale": [1.0, 2.0, 3.0]}, "do not broadcast"),
        ("e4m3:float32", {"scale": 0.0}, "must be positive numbers of float32"),
        ("e4m3:e8m0_t4", {"scale": 0.3}, "must be positive numbers of e8m0"),
        ("uint4:float32_int8", {"scale": 0.3}, "static scales for data with zero points"),
        ("e2m1:e4m3_float32_t4", {"scale": 1.0}, "static scales beside a tensor scale"),
    ],
)
def test_refusals(spec: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        quantize_scaled(np.ones((2, 8), np.float32), spec, **options)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        ("float32", np.float32),
        ("float16", np.float16),
        ("bfloat16", ml_dtypes.bfloat16),
        ("e4m3", ml_dtypes.float8_e4m3fn),
        ("e5m2fnuz", ml_dtypes.float8_e5m2fnuz),
        ("e2m3", ml_dtypes.float6_e2m3fn),
    ],
)
def test_unscaled_data_is_a_saturating_cast(data: str, dtype: type[Any]) -> None:
    found = quantize_scaled(X, data)
    assert (found.scales, str(found.spec)) == (None, data)
    limit = np.float32(ml_dtypes.finfo(dtype).max)
    wanted = np.clip(X, -limit, limit).astype(dtype)
    np.testing.assert_array_equal(found.codes, wanted.view(found.codes.dtype))
    np.testing.assert_array_equal(dequantize_scaled(found), wanted.astype(np.float32))
    assert np.isfinite(dequantize_scaled(quantize_scaled([3e38, -3e38], data))).all()


@pytest.mark.parametrize("scope", ["_t0", "_t0_t32", "_t32"])
@pytest.mark.parametrize("scale", ["float16", "bfloat16", "e4m3"])
def test_zero_points_under_two_levels_are_torchao_with_the_product_of_scales(
    scale: str, scope: str
) -> None:
    x = X + np.float32(0.7)
    found = quantize_scaled(x, f"uint4:float32_{scale}_int8{scope}")
    assert str(found.spec) == f"uint4:float32_{scale}_int8{scope}"
    block = {"_t0": (1, 1, 96), "_t0_t32": (1, 64, 32), "_t32": (1, 1, 32)}[scope]
    stored = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    levels = stored[found.scales] if scale == "e4m3" else found.scales.astype(np.float32)
    whole = torch.from_numpy(np.float32(found.tensor_scale) * levels)
    # The largest span has the largest scale that its type holds: 1 where it has an exponent range.
    assert levels.max() == (448 if scale == "e4m3" else 1)
    exact = choose_qparams_affine(
        torch.from_numpy(x),
        MappingType.ASYMMETRIC,
        block,
        torch.uint8,
        0,
        15,
        eps=1e-30,
        scale_dtype=torch.float32,
    )[0].reshape(whole.shape)
    near = exact > exact.max() / 64
    np.testing.assert_allclose(whole[near], exact[near], rtol=2**-4)
    zero = torch.from_numpy(found.zeros.astype(np.int32))
    codes = quantize_affine(torch.from_numpy(x), block, whole, zero, torch.uint8, 0, 15)
    assert (found.codes != codes.numpy()).mean() < 1e-4
    values = dequantize_affine(
        torch.from_numpy(found.codes), block, whole, zero, torch.uint8, 0, 15
    )
    np.testing.assert_array_equal(dequantize_scaled(found), values.numpy())


def test_float_zero_points_of_8_bits() -> None:
    found = quantize_scaled(X[0] - 2, "uint8:float32_float16_e5m2_t32")
    zeros = found.zeros.view(ml_dtypes.float8_e5m2).astype(np.float32)
    low = np.minimum((X[0] - 2).reshape(64, 3, 32).min(2), 0)
    np.testing.assert_array_equal(zeros, low.astype(ml_dtypes.float8_e5m2).astype(np.float32))
    scales = np.float32(found.tensor_scale) * found.scales.astype(np.float32)
    values = found.codes * scales.repeat(32, 1) + zeros.repeat(32, 1)
    np.testing.assert_array_equal(dequantize_scaled(found), values)


def test_casts_between_scopes_are_of_the_values() -> None:
    rows = quantize_scaled(X[0], "e4m3:float32_t0")
    for spec in ("e4m3:float32_t32_t32", "e2m1:e8m0_t32d0", "int8:float32", "bfloat16"):
        cast = quantize_scaled(rows, spec)
        wanted = quantize_scaled(dequantize_scaled(rows), spec)
        np.testing.assert_array_equal(cast.codes, wanted.codes)
        np.testing.assert_array_equal(dequantize_scaled(cast), dequantize_scaled(wanted))
    blocks = quantize(X[0], "mxfp8e4m3", recipe="rceil")
    across = quantize_scaled(blocks, "mxfp4", recipe="even")
    np.testing.assert_array_equal(
        dequantize_scaled(across), dequantize(quantize(blocks, "mxfp4", recipe="even"))
    )


def test_nan_is_refused() -> None:
    with pytest.raises(FormatError, match="found NaN or Inf"):
        quantize_scaled(np.array([1.0, np.nan]), "e4m3:float32")
