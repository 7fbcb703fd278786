"""The reference against others' code, bit for bit: torchao, transformers, gfloat, ml_dtypes.

Every difference that is known is spelled out here and checked, too.
"""

import subprocess
import sys
from typing import Any

import gfloat
import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import (
    NVFP4Tensor,
    nvfp4_quantize,
    per_tensor_amax_to_scale,
)
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from mxc.formats.formats import E4M3, FORMATS, ElementFormat
from mxc.formats.packing import pack_elements, unpack_elements
from mxc.formats.recipes import ScaleRecipe, scale_bytes
from mxc.formats.reference import Quantized, dequantize, quantize

TORCHAO = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp6e2m3": DTYPE_FP6_E2M3,
    "mxfp6e3m2": DTYPE_FP6_E3M2,
    "mxfp8e4m3": torch.float8_e4m3fn,
    "mxfp8e5m2": torch.float8_e5m2,
}
ML_DTYPES = {
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "mxfp6e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp6e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp8e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8e5m2": ml_dtypes.float8_e5m2,
}
each_torchao = pytest.mark.parametrize("name", TORCHAO)
each_recipe = pytest.mark.parametrize("recipe", ScaleRecipe)


def torchao_quantize(
    x: NDArray[Any], name: str, recipe: ScaleRecipe
) -> tuple[NDArray[Any], NDArray[Any]]:
    """torchao's scale bytes [n] and codes [n, 32], one a byte, for float32 blocks x [n, 32]."""
    mode = ScaleCalculationMode[recipe.name]
    scales, elements = to_mx(torch.from_numpy(x), TORCHAO[name], 32, mode)
    codes = elements.view(torch.uint8).numpy()
    if name == "mxfp4":
        codes = unpack_elements(codes, name)
    return scales.view(torch.uint8).numpy()[:, 0], codes


def our_quantize(
    x: NDArray[Any], name: str, recipe: ScaleRecipe
) -> tuple[NDArray[Any], NDArray[Any]]:
    q = quantize(x, name, recipe=recipe)
    return q.scales[:, 0], unpack_elements(q.elements, name)


def ml_dtypes_codes(x: NDArray[Any], name: str, divisor: NDArray[Any]) -> NDArray[Any]:
    """Codes of x [n, 32] divided by `divisor` [n], in float64, clamped, rounded by ml_dtypes."""
    element = FORMATS[name].element
    scaled = np.clip(x.astype(np.float64) / divisor[:, None], -element.max, element.max)
    return scaled.astype(np.float32).astype(ML_DTYPES[name]).view(np.uint8)


def adversarial_blocks(element: ElementFormat) -> NDArray[Any]:
    """float32 [n, 32]: random blocks, and blocks led by each kind of largest magnitude."""
    rng = np.random.default_rng(7)
    edges = {0, 1, 2, (1 << 23) - 1}
    for bits in range(1, 6):
        edge = (1 << 23) - (1 << (23 - bits))
        edges |= {edge - 1, edge, edge + 1}
    exponents = [
        0,
        1,
        2,
        3,
        4,
        5,
        10,
        20,
        60,
        100,
        124,
        126,
        127,
        128,
        130,
        160,
        200,
        250,
        253,
        254,
    ]
    led_by = np.array([e << 23 | m for e in exponents for m in sorted(edges)], np.uint32)
    amax = led_by.view(np.float32)
    # Multiples of half a step of the element make ties; the rest is random.
    ties = rng.integers(-64, 65, (len(amax), 15)) / 64
    rest = rng.uniform(-1, 1, (len(amax), 15))
    signs = rng.choice([-1.0, 1.0], (len(amax), 1))
    zero = np.full((len(amax), 1), -0.0)
    led = amax[:, None].astype(np.float64) * np.concatenate([signs, ties, rest, zero], axis=1)
    # What follows the leader may not exceed it once rounded to float32.
    led = np.clip(led.astype(np.float32), -amax[:, None], amax[:, None])
    normal = rng.standard_normal((2000, 32)) * 2.0 ** rng.integers(-60, 60, (2000, 1))
    # Blocks on the element's own grid, doubled: every value a number or a tie.
    grid = element.values[: element.max_code + 1].astype(np.float64)
    halves = np.concatenate([grid, (grid[1:] + grid[:-1]) / 2])
    tied = rng.choice(halves, (200, 32)) * rng.choice([-1, 1], (200, 32))
    special = np.zeros((6, 32))
    special[1] = -0.0
    special[2:, :] = rng.standard_normal((4, 32))
    special[2, 3] = np.inf
    special[3, 4] = -np.inf
    special[4, 5] = np.nan
    special[5, :2] = np.nan, np.inf
    return np.concatenate([led, normal, tied, special]).astype(np.float32)


def close_above_a_power(amax: NDArray[Any], element: ElementFormat) -> NDArray[Any]:
    """Where amax / max is above a power of two by less than torch's float32 log2 can show."""
    fraction, _ = np.frexp(amax.astype(np.float64) / element.max)
    return (fraction > 0.5) & (fraction < 0.5 + 2.0**-17)


@each_torchao
@each_recipe
def test_quantize_is_torchao(name: str, recipe: ScaleRecipe) -> None:
    """Scale bytes and elements, but for these:

    1. RCEIL in torchao's eager mode takes ceil(log2(amax / max)) in float32. Where amax / max is
       above a power of two by less than log2 resolves, that is one byte too low, and amax
       saturates. The definition, and the instruction that torchao uses on a GPU, round up.
    2. Blocks of byte 0: torchao divides them by 2^-126, and with RCEIL by 1, where the scale is
       2^-127; OCP MX 1.0 section 6.3 divides by the scale.
    3. Elements of NaN blocks mean nothing.
    """
    element = FORMATS[name].element
    x = adversarial_blocks(element)
    amax = np.abs(x).max(-1)
    scales, codes = our_quantize(x, name, recipe)
    their_scales, their_codes = torchao_quantize(x, name, recipe)

    low = their_scales != scales
    if recipe is ScaleRecipe.RCEIL:
        assert low.any(), "torchao has repaired its RCEIL: drop this difference"
        assert close_above_a_power(amax[low], element).all()
        np.testing.assert_array_equal(their_scales[low] + 1, scales[low])
    else:
        assert not low.any()

    nan, least = np.isnan(amax), (scales == 0) & ~low
    assert nan.sum() == 2
    assert (scales[nan] == 0xFF).all()
    ordinary = ~(low | nan | least)
    assert ordinary.sum() > 2000
    np.testing.assert_array_equal(codes[ordinary], their_codes[ordinary])

    assert least.sum() > 20
    divisor = np.full(least.sum(), 1.0 if recipe is ScaleRecipe.RCEIL else 2.0**-126)
    np.testing.assert_array_equal(their_codes[least], ml_dtypes_codes(x[least], name, divisor))
    by_scale = np.full(least.sum(), 2.0**-127)
    np.testing.assert_array_equal(codes[least], ml_dtypes_codes(x[least], name, by_scale))


@each_torchao
@each_recipe
def test_bfloat16_is_torchao(name: str, recipe: ScaleRecipe) -> None:
    x = np.random.default_rng(3).standard_normal((64, 32)).astype(ml_dtypes.bfloat16)
    scales, elements = to_mx(
        torch.from_numpy(x.view(np.int16)).view(torch.bfloat16),
        TORCHAO[name],
        32,
        ScaleCalculationMode[recipe.name],
    )
    q = quantize(x, name, recipe=recipe)
    np.testing.assert_array_equal(q.scales, scales.view(torch.uint8).numpy())
    theirs = elements.view(torch.uint8).numpy()
    theirs = theirs if name == "mxfp4" else pack_elements(theirs, name)
    np.testing.assert_array_equal(q.elements, theirs)


GFLOAT = {
    "mxfp4": gf.format_info_mxfp4_e2m1,
    "mxfp6e2m3": gf.format_info_mxfp6_e2m3,
    "mxfp6e3m2": gf.format_info_mxfp6_e3m2,
    "mxfp8e4m3": gf.format_info_mxfp8_e4m3,
    "mxfp8e5m2": gf.format_info_mxfp8_e5m2,
}


@pytest.mark.parametrize("name", [*GFLOAT, "mxint8"])
def test_floor_is_gfloat(name: str) -> None:
    x = np.random.default_rng(11).standard_normal((8, 32)).astype(np.float32)
    x[3, 5] = -3.999
    info = GFLOAT.get(name, gf.format_info_mxint8)
    wanted: Any = [
        gfloat.quantize_block(info, row.astype(np.float64), gfloat.compute_scale_amax) for row in x
    ]
    found = dequantize(quantize(x, name))
    if name == "mxint8":
        # gfloat saturates to -2, which the specification lets an encoder leave unused.
        least = np.ldexp(1.0, np.frexp(np.abs(x).max(-1, keepdims=True))[1])
        assert (wanted == -least).any()
        wanted = np.where(wanted == -least, -least * 127 / 128, wanted)
    np.testing.assert_array_equal(found, wanted)


@each_recipe
def test_mxint8_is_the_nearest_sixty_fourth(recipe: ScaleRecipe) -> None:
    """The rule of OCP MX 1.0 in float64, written out: torchao has no MXINT8, gfloat FLOOR alone."""
    x = adversarial_blocks(FORMATS["mxint8"].element)
    x = x[np.isfinite(x).all(-1)]
    scales = scale_bytes(np.abs(x).max(-1), FORMATS["mxint8"].element, recipe)
    steps = np.round(np.ldexp(x.astype(np.float64), 6 + 127 - scales[:, None].astype(int)))
    wanted = np.clip(steps, -127, 127)
    np.testing.assert_array_equal(quantize(x, "mxint8", recipe=recipe).elements.view("i1"), wanted)


@pytest.mark.parametrize("name", [*ML_DTYPES, "mxint8"])
def test_every_code_with_every_scale(name: str) -> None:
    """Exact product in float64, then float32: Inf beyond it, subnormals kept, NaN scale -> NaN."""
    format = FORMATS[name]
    codes = (np.arange(256) % (1 << format.element.bits)).astype(np.uint8)
    every = np.repeat(codes[None], 256, axis=0)
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], len(codes) // 32, axis=1)
    q = Quantized(pack_elements(every, name), scales, format, None, 1, every.shape)
    dtype = ML_DTYPES.get(name, np.int8)
    elements = codes.view(dtype).astype(np.float64) / (64 if name == "mxint8" else 1)
    factors = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = (elements * factors[:, None]).astype(np.float32)
    found = dequantize(q)
    np.testing.assert_array_equal(found, wanted)
    zeros = found == 0
    np.testing.assert_array_equal(np.signbit(found)[zeros], np.signbit(wanted)[zeros])
    assert np.isnan(found[255]).all()


def test_gpt_oss_blocks_are_those_of_transformers() -> None:
    """[experts, out, blocks, 16] and scales, all values of the bytes that stay inside bfloat16."""
    rng = np.random.default_rng(5)
    experts, rows, blocks = 3, 64, 3
    packed = rng.integers(0, 256, (experts, rows, blocks, 16)).astype(np.uint8)
    scales = rng.integers(2, 253, (experts, rows, blocks)).astype(np.uint8)
    theirs = convert_moe_packed_tensors(torch.from_numpy(packed), torch.from_numpy(scales))
    assert theirs.dtype == torch.bfloat16
    q = Quantized(
        packed.reshape(experts, rows, -1),
        scales,
        FORMATS["mxfp4"],
        None,
        2,
        (experts, rows, blocks * 32),
    )
    ours = dequantize(q).swapaxes(1, 2)
    # Exact in bfloat16, so the bytes compare; transformers returns the transpose.
    narrow = ours.astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(narrow.astype(np.float32), ours)
    np.testing.assert_array_equal(
        narrow.view(np.uint16), theirs.contiguous().view(torch.int16).numpy().view(np.uint16)
    )


@pytest.mark.parametrize("factor", [1.0, 2.0**-90, 2.0**90])
def test_nvfp4_is_torchao(factor: float) -> None:
    rng = np.random.default_rng(13)
    x = rng.standard_normal((64, 96)) * 10.0 ** rng.integers(-6, 3, (64, 6)).repeat(16, axis=1)
    x[5, :16] = 0
    x[6, 16:32] = -0.0
    x[7, :16] = np.abs(x).max() * np.array([1, 5, 3.5, 2.5, 1.75, 1.25, 0.75, 0.25] * 2) / 6
    x = (x * factor).astype(np.float32)
    # The last rows: ties of their blocks, where the order of the divisions decides.
    first = quantize(x, "nvfp4")
    steps = E4M3.values[first.scales[32:]] * np.float32(first.tensor_scale)
    ties = steps[..., None] * rng.choice(
        np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5], np.float32), 16
    )
    blocks = x.reshape(64, 6, 16)
    leads = np.arange(16) == np.abs(blocks[32:]).argmax(-1)[..., None]
    blocks[32:] = np.where(leads, blocks[32:], ties)
    tensor = torch.from_numpy(x)
    scale = per_tensor_amax_to_scale(tensor.abs().max())
    their_scales, their_elements = nvfp4_quantize(tensor, 16, scale)
    q = quantize(x, "nvfp4")
    assert (q.tensor_scale, q.recipe) == (scale.item(), None)
    np.testing.assert_array_equal(q.scales, their_scales.view(torch.uint8).numpy())
    np.testing.assert_array_equal(q.elements, their_elements.numpy())
    assert len(np.unique(q.scales)) > 30
    assert E4M3.values[q.scales.min()] == E4M3.min_normal  # the least that torchao writes
    theirs = NVFP4Tensor(their_elements, their_scales, 16, torch.float32, scale).dequantize()
    np.testing.assert_array_equal(dequantize(q), theirs.numpy())


def test_the_reference_needs_numpy_alone() -> None:
    """Neither MLIR nor IREE nor an oracle of these tests is imported by the reference."""
    program = (
        "import sys; import mxc.formats.reference; "
        "print([m for m in ('iree', 'torch', 'ml_dtypes', 'gfloat') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
