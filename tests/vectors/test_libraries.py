"""The golden vectors against others' libraries. Every difference has its name, and is checked too.

The names are those of docs/quantization.md. A library that mends one of them fails its test here.
"""

import re
from pathlib import Path
from typing import Any

import gfloat
import gfloat.formats as gf
import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp6.base import MXFP6PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import MXFP4A16, MXFP6A16, MXFP8A16, NVFP4A16
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from gguf import GGMLQuantizationType
from gguf.quants import quantize as gguf_quantize
from numpy.typing import NDArray
from torchao.prototype.mx_formats.constants import DTYPE_FP6_E2M3, DTYPE_FP6_E3M2
from torchao.prototype.mx_formats.mx_tensor import ScaleCalculationMode, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import nvfp4_quantize, per_tensor_amax_to_scale

from mxc.compiler.quantize.outputs import OUTPUTS
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.formats.formats import E8M0, FORMATS
from mxc.formats.packing import unpack_elements
from mxc.formats.recipes import ScaleRecipe
from tests.vectors.mx_vectors import HERE, RECIPES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "quantization.md"
ML_DTYPES = {
    "mxfp4": ml_dtypes.float4_e2m1fn,
    "mxfp6e2m3": ml_dtypes.float6_e2m3fn,
    "mxfp6e3m2": ml_dtypes.float6_e3m2fn,
    "mxfp8e4m3": ml_dtypes.float8_e4m3fn,
    "mxfp8e5m2": ml_dtypes.float8_e5m2,
}
each_float = pytest.mark.parametrize("name", ML_DTYPES)
each_recipe = pytest.mark.parametrize("recipe", RECIPES)


def load(name: str) -> dict[str, NDArray[Any]]:
    with np.load(HERE / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


class Blocks:
    """Vectors of a format, those of finite numbers alone unless said."""

    def __init__(self, name: str, finite: bool = True) -> None:
        vectors = load(name)
        x = vectors["x"].view(np.float32)
        self.keep = np.isfinite(x).all(1) if finite else np.ones(len(x), bool)
        self.x = x[self.keep]
        self.amax = np.abs(self.x).max(1)
        self.vectors = vectors

    def scales(self, recipe: str) -> NDArray[Any]:
        return self.vectors[f"scales_{recipe}"][self.keep].astype(int)

    def codes(self, recipe: str, ties: str = "even") -> NDArray[Any]:
        return self.vectors[f"codes_{recipe}_{ties}"][self.keep]


def steps(x: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
    return np.ldexp(x.astype(np.float64), 127 - scales[:, None])


def near_a_power(amax: NDArray[Any], ulps: float) -> NDArray[Any]:
    """Whether amax is at most so many float32 from a power of two, but no power itself."""
    power = np.ldexp(1.0, np.rint(np.log2(amax.astype(np.float64))).astype(int))
    distance = np.abs(amax.astype(np.float64) / power - 1) * 2.0**24
    return (distance > 0) & (distance <= ulps)


@each_float
def test_ml_dtypes(name: str) -> None:
    """Values of all codes, and rounding to even of what was clamped before."""
    blocks, element = Blocks(name), FORMATS[name].element
    dtype = ML_DTYPES[name]
    for recipe in RECIPES:
        clamped = np.clip(steps(blocks.x, blocks.scales(recipe)), -element.max, element.max)
        found = clamped.astype(dtype).view(np.uint8)
        np.testing.assert_array_equal(found, blocks.codes(recipe))
    codes = np.arange(1 << element.bits, dtype=np.uint8)
    one = blocks.vectors["values"][127].view(np.float32)
    np.testing.assert_array_equal(codes.view(dtype).astype(np.float32), one)


def test_ml_dtypes_rounds_scales_and_does_not_saturate() -> None:
    """[ml-dtypes-scale] and [ml-dtypes-overflow]."""
    one_and_a_half = np.array([1.49, 1.5], np.float32).astype(ml_dtypes.float8_e8m0fnu)
    assert one_and_a_half.view(np.uint8).tolist() == [127, 128]  # an exponent's extraction: 127
    beyond = np.array([1e6], np.float32)
    assert np.isnan(beyond.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)).all()
    assert np.isinf(beyond.astype(ml_dtypes.float8_e5m2).astype(np.float32)).all()


GFLOAT = {
    "mxfp4": gf.format_info_mxfp4_e2m1,
    "mxfp6e2m3": gf.format_info_mxfp6_e2m3,
    "mxfp6e3m2": gf.format_info_mxfp6_e3m2,
    "mxfp8e4m3": gf.format_info_mxfp8_e4m3,
    "mxfp8e5m2": gf.format_info_mxfp8_e5m2,
    "mxint8": gf.format_info_mxint8,
}


@pytest.mark.parametrize("name", GFLOAT)
@pytest.mark.parametrize(
    ("ties", "mode"),
    [("even", gfloat.RoundMode.TiesToEven), ("away", gfloat.RoundMode.TiesToAway)],
)
def test_gfloat(name: str, ties: str, mode: Any) -> None:
    """Elements; of mxint8 all that do not saturate: it goes down to -2, [gfloat-int8]."""
    blocks, info = Blocks(name), GFLOAT[name].etype
    lower = 0
    for recipe in RECIPES:
        wide = steps(blocks.x, blocks.scales(recipe))
        found = gfloat.round_ndarray(info, wide, mode, sat=True)
        wanted = FORMATS[name].element.values[blocks.codes(recipe, ties)]
        lowest = (found == -2) & (name == "mxint8")
        lower += lowest.sum()
        np.testing.assert_array_equal(found[~lowest], wanted[~lowest])
        np.testing.assert_array_equal(wanted[lowest], -127 / 64)
    assert (lower > 0) == (name == "mxint8")


TORCHAO = {
    "mxfp4": torch.float4_e2m1fn_x2,
    "mxfp6e2m3": DTYPE_FP6_E2M3,
    "mxfp6e3m2": DTYPE_FP6_E3M2,
    "mxfp8e4m3": torch.float8_e4m3fn,
    "mxfp8e5m2": torch.float8_e5m2,
}


@pytest.mark.parametrize("name", TORCHAO)
@each_recipe
def test_torchao(name: str, recipe: str) -> None:
    """All of it but [torchao-rceil-log2], [torchao-least-scale] and [torchao-nan-elements]."""
    blocks = Blocks(name, finite=False)
    mode = ScaleCalculationMode[ScaleRecipe(recipe).name]
    scales, elements = to_mx(torch.from_numpy(blocks.x.copy()), TORCHAO[name], 32, mode)
    found = scales.view(torch.uint8).numpy()[:, 0].astype(int)
    codes = elements.view(torch.uint8).numpy()
    codes = unpack_elements(codes, name) if name == "mxfp4" else codes
    wanted = blocks.scales(recipe)
    low = found != wanted
    if recipe == "rceil":
        fraction = np.frexp(blocks.amax[low].astype(np.float64) / FORMATS[name].element.max)[0]
        assert low.any()
        assert ((fraction > 0.5) & (fraction < 0.5 + 2.0**-17)).all()
        np.testing.assert_array_equal(found[low] + 1, wanted[low])
    else:
        assert not low.any()
    nan, least = wanted == 255, wanted == 0
    assert (codes[nan] != 0).any()
    differs = (codes != blocks.codes(recipe)).any(1)
    assert (differs & least).any()
    assert not (differs & ~nan & ~least & ~low).any()


def test_torchao_nvfp4() -> None:
    vectors = load("nvfp4")
    for number, x in enumerate(vectors["x"].view(np.float32)[:4]):
        tensor = torch.from_numpy(x.copy())
        whole = per_tensor_amax_to_scale(tensor.abs().max())
        scales, elements = nvfp4_quantize(tensor, 16, whole)
        assert whole.item() == vectors["tensor_scale"][number]
        np.testing.assert_array_equal(
            scales.view(torch.uint8).numpy()[:, 0], vectors["scales"][number]
        )
        codes = unpack_elements(elements.numpy(), "nvfp4")
        np.testing.assert_array_equal(codes, vectors["codes_even"][number])


COMPRESSED_TENSORS = {
    "mxfp4": (MXFP4A16, MXFP4PackedCompressor),
    "mxfp6e2m3": (MXFP6A16, MXFP6PackedCompressor),
    "mxfp8e4m3": (MXFP8A16, MXFP8QuantizationCompressor),
}


def compressed(x: NDArray[Any], name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Scale bytes and codes that compressed-tensors stores of float32 blocks."""
    preset, compressor = COMPRESSED_TENSORS[name]
    weight = torch.from_numpy(x.copy())
    scale, _ = calculate_qparams(weight.amin(1, True), weight.amax(1, True), preset["weights"])
    scheme = QuantizationScheme(targets=["Linear"], weights=preset["weights"])
    parts = compressor.compress({"weight": weight, "weight_scale": scale}, scheme)
    elements = parts.get("weight_packed", parts.get("weight")).view(torch.uint8).numpy()
    scales = parts["weight_scale"].numpy()[:, 0].astype(int)
    return scales, unpack_elements(elements, name)


@pytest.mark.parametrize("name", COMPRESSED_TENSORS)
def test_compressed_tensors(name: str) -> None:
    """Recipe even, but [ct-even-overflow], [ct-fp8-threshold] and [ct-negative-zero]."""
    blocks = Blocks(name)
    scales, codes = compressed(blocks.x, name)
    wanted = blocks.scales("even")
    differs = scales != wanted
    mantissa = np.frexp(blocks.amax)[0] * 2
    threshold = 1.9375 if name == "mxfp6e2m3" else 1.75
    overflow = blocks.amax.astype(np.float64) >= threshold * 2.0**127
    assert overflow.any()
    assert (scales[overflow] == 127).all()
    early = ~overflow & (mantissa >= 1.75) & (mantissa < 1.9375) & (wanted > 0)
    if name == "mxfp8e4m3":
        np.testing.assert_array_equal(scales[early], wanted[early] + 1)
        assert early.sum() > 20
    else:
        assert not differs[early].any()
        early[:] = False
    assert not differs[~overflow & ~early & (blocks.amax >= 2.0**-110)].any()
    same = ~differs
    zeros = (codes != blocks.codes("even")) & same[:, None]
    assert zeros.any() == (name == "mxfp4")
    assert (codes[zeros] == 0).all()
    assert (blocks.x[zeros] == 0).all()
    assert np.signbit(blocks.x[zeros]).all()


def compressed_nvfp4(weight: torch.Tensor) -> tuple[float, NDArray[Any], NDArray[Any]]:
    """Tensor scale, E4M3 bytes [n] and codes [n, 16] that compressed-tensors stores of [n, 16]."""
    args = NVFP4A16["weights"]
    low, high = weight.amin(1, True), weight.amax(1, True)
    whole = generate_gparam(low.min(), high.max())
    scale, _ = calculate_qparams(low, high, args, whole)
    parts = {"weight": weight, "weight_scale": scale, "weight_global_scale": whole}
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    found = NVFP4PackedCompressor.compress(parts, scheme)
    codes = unpack_elements(found["weight_packed"].numpy(), "nvfp4")
    return whole.item(), found["weight_scale"].view(torch.uint8).numpy()[:, 0], codes


def test_compressed_tensors_nvfp4() -> None:
    """float32 weights; those in bfloat16 differ, [ct-nvfp4-bfloat16]; and [ct-negative-zero]."""
    vectors = load("nvfp4")
    for number, x in enumerate(vectors["x"].view(np.float32)):
        whole, scales, codes = compressed_nvfp4(torch.from_numpy(x.copy()))
        assert whole == vectors["reciprocal_tensor_scale"][number]
        np.testing.assert_array_equal(scales, vectors["reciprocal_scales"][number])
        wanted = vectors["reciprocal_codes_even"][number].copy()
        wanted[(x == 0) & (wanted == 8)] = 0
        np.testing.assert_array_equal(codes, wanted)
    short = torch.from_numpy(vectors["x"].view(np.float32)[0].copy()).bfloat16()
    as_bfloat, as_float = compressed_nvfp4(short), compressed_nvfp4(short.float())
    assert as_bfloat[0] != as_float[0] or (as_bfloat[1] != as_float[1]).any()


def test_ggml() -> None:
    """mxfp4 of gguf: floor, ties to zero; [gguf-log2], [gguf-wraparound], [gguf-negative-zero]."""
    blocks = Blocks("mxfp4")
    with np.errstate(over="ignore"):
        raw = gguf_quantize(blocks.x, GGMLQuantizationType.MXFP4)
    found = raw[:, 0].astype(int)
    halves = raw[:, 1:]
    codes = np.concatenate([halves & 15, halves >> 4], 1)
    wanted = blocks.scales("floor")
    wraps = (blocks.amax > 0) & (blocks.amax < 2.0**-125)
    assert (found[wraps] > 230).sum() > 20
    log2 = (found != wanted) & ~wraps
    assert log2.any()
    assert near_a_power(blocks.amax[log2], 64).all()
    np.testing.assert_array_equal(found[log2], wanted[log2] + 1)
    quantizer = RowQuantizer(
        format=FORMATS["mxfp4"],
        recipe=ScaleRecipe.FLOOR,
        ties=OUTPUTS["gguf"].ties,
        negative_zero=OUTPUTS["gguf"].negative_zero,
    )
    elements, scales, _ = quantizer.run(blocks.x, "blocks")
    usable = ~log2 & ~wraps & (wanted < 254)
    np.testing.assert_array_equal(scales[usable, 0], found[usable])
    np.testing.assert_array_equal(unpack_elements(elements, "mxfp4")[usable], codes[usable])
    assert (blocks.codes("floor", "zero")[usable] == 8).any()
    assert not (codes == 8).any()
    assert (blocks.codes("floor")[usable] != blocks.codes("floor", "zero")[usable]).any()


@each_float
@pytest.mark.parametrize("mode", ["even", "floor", "ceil"])
def test_quark(name: str, mode: str) -> None:
    """amd-quark 0.13 as quark_vectors.py recorded it, and what `--dialect quark` writes.

    But [quark-least-scale], [quark-log2] and [quark-even-overflow].
    """
    with np.load(HERE / "quark.npz") as file:
        chosen = file[f"{name}_blocks"]
        theirs = file[f"{name}_scales_{mode}"].astype(int)
        elements = file.get(f"{name}_elements_{mode}")
    vectors = load(name)
    x = vectors["x"][chosen].view(np.float32)
    amax = np.abs(x).max(1).astype(np.float64)
    dialect = OUTPUTS["quark"]
    quantizer = RowQuantizer(
        format=FORMATS[name],
        recipe=ScaleRecipe(mode),
        ties=dialect.ties,
        negative_zero=dialect.negative_zero,
        zero_scale=dialect.zero_scale(ScaleRecipe(mode)),
    )
    packed, scales, _ = quantizer.run(x, "blocks")
    found = scales[:, 0].astype(int)
    least = (amax > 0) & (vectors[f"scales_{mode}"][chosen] == 0)
    assert (theirs[least] >= 1).all()
    overflow = (mode == "even") & (theirs != found) & (amax > 1.7 * 2.0**127)
    assert overflow.any() == (mode == "even")
    assert (theirs[overflow] == 254).all()
    # float32 powers below the normal ones are read as zero there, and log2 has 24 bits.
    log2 = (mode != "even") & (theirs != found) & ~least & (amax > 0)
    assert (near_a_power(amax[log2], 64) | (amax[log2] < 2.0**-110)).all()
    usable = ~least & ~overflow & ~log2
    assert (amax[usable] == 0).sum() == 3
    assert usable.sum() > 230
    np.testing.assert_array_equal(found[usable], theirs[usable])
    if elements is not None:
        normal = usable & ((amax == 0) | (amax > 2.0**-100))
        np.testing.assert_array_equal(packed[normal], elements[normal])
        assert not (unpack_elements(elements, name) == FORMATS[name].element.sign_bit).any()


def test_scales_of_the_libraries_mean_the_same() -> None:
    powers = np.append(np.ldexp(1.0, np.arange(-127, 128)), np.nan)
    every = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(E8M0.values, powers)
    np.testing.assert_array_equal(
        torch.from_numpy(every).view(torch.float8_e8m0fnu).float().numpy(), powers
    )
    np.testing.assert_array_equal(every.view(ml_dtypes.float8_e8m0fnu).astype(np.float64), powers)


def test_every_difference_is_in_the_documentation() -> None:
    name = r"(?:torchao|quark|ct|gguf|gfloat|ml-dtypes)-[\w-]+"
    named = set(re.findall(rf"\[({name})\]", Path(__file__).read_text()))
    told = set(re.findall(rf"^- `({name})`: ", DOCS.read_text(), re.M))
    assert len(told) > 10
    assert named == told
