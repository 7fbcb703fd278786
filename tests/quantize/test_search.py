"""`--recipe search`: the scale of least error among neighbours, in the formats that others read."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from mxc.compiler.quantize.blocks import BlockKernel
from mxc.compiler.quantize.checkpoint import quantize_checkpoint
from mxc.compiler.quantize.rows import RowQuantizer
from mxc.compiler.quantize.search import best_powers
from mxc.errors import FormatError
from mxc.formats.formats import FORMATS, block_format
from mxc.formats.packing import decode_elements, decode_scales, pack_elements
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import dequantize, quantize
from mxc.formats.rounding import Ties

MX = [name for name, each in FORMATS.items() if not each.tensor_scale and each.block == 32]
RNG = np.random.default_rng(11)
#: Heavy tails, and columns of outliers, where scales matter most.
WEIGHTS = (0.02 * RNG.standard_t(4, (64, 1024)) * np.where(RNG.random(1024) < 0.01, 8, 1)).astype(
    ml_dtypes.bfloat16
)


def noise(found: NDArray[np.float32], x: NDArray[np.generic]) -> float:
    return float(np.square(found.astype(np.float64) - x.astype(np.float64)).sum())


def searched(name: str, x: NDArray[np.generic]) -> tuple[NDArray[np.float32], float]:
    """The values, float32 of the shape of x [n, K], and the noise that the quantizer states."""
    format = block_format(name)
    one = RowQuantizer(
        format=format, recipe=None if format.tensor_scale else ScaleRecipe.RCEIL, search=True
    )
    whole = one.tensor(np.float32(np.abs(x.astype(np.float32)).max()))
    elements, scales, loss = one.run(x, "w", whole=whole)
    numbers = decode_elements(elements, format).reshape(-1, format.block)
    units = (
        decode_scales(scales, format).reshape(-1, 1)
        if whole is None
        else whole.factors(scales.reshape(-1), format)[:, None]
    )
    return (numbers * units).reshape(x.shape), loss.noise


@pytest.mark.parametrize("name", MX)
def test_bfloat16_and_floats_find_the_same(name: str) -> None:
    format = block_format(name)
    blocks = WEIGHTS.reshape(-1, 32)
    kernel = BlockKernel(format, ScaleRecipe.RCEIL, search=True)
    elements, scales, _ = kernel.run(blocks.view(np.uint16))
    codes, wanted = best_powers(blocks.astype(np.float32), format, Ties.EVEN)
    # Sums of squares in float32 and in float64 may order two scales of equal error differently.
    same = scales == wanted
    assert same.mean() > 0.999
    np.testing.assert_array_equal(elements[same], pack_elements(codes, format)[same])


@pytest.mark.parametrize("name", [*MX, "nvfp4"])
def test_it_loses_no_more_than_any_recipe(name: str) -> None:
    found, stated = searched(name, WEIGHTS)
    own = noise(found, WEIGHTS)
    assert stated == pytest.approx(own, rel=1e-4)
    recipes = [None] if name == "nvfp4" else list(ScaleRecipe)
    for recipe in recipes:
        usual = dequantize(quantize(WEIGHTS, name, recipe=recipe))
        assert own <= noise(usual, WEIGHTS) * (1 + 1e-6)


def test_no_power_of_two_is_better_for_fp4() -> None:
    x = WEIGHTS[:8].astype(np.float32).reshape(-1, 32)
    format = block_format("mxfp4")
    found, _ = searched("mxfp4", WEIGHTS[:8])
    own = np.square(found.reshape(-1, 32).astype(np.float64) - x).sum(axis=1)
    values = format.element.values[np.isfinite(format.element.values)]
    for exponent in range(-24, 4):
        unit = 2.0**exponent
        nearest = values[np.abs(x[..., None] / unit - values).argmin(axis=-1)] * unit
        assert (own <= np.square(nearest - x).sum(axis=1) * (1 + 1e-6) + 1e-12).all()


def test_gains_are_those_of_the_documentation() -> None:
    signal = float(np.square(WEIGHTS.astype(np.float64)).sum())

    def sqnr(values: NDArray[np.float32]) -> float:
        return float(10 * np.log10(signal / noise(values, WEIGHTS)))

    gains = {
        name: sqnr(searched(name, WEIGHTS)[0])
        - sqnr(dequantize(quantize(WEIGHTS, name, recipe=recipe)))
        for name, recipe in (("mxfp4", ScaleRecipe.EVEN), ("nvfp4", None))
    }
    assert gains["mxfp4"] > 0.05
    assert gains["nvfp4"] > 0.4


def test_small_and_zero_blocks_keep_the_usual_scale() -> None:
    x = np.zeros((1, 64), ml_dtypes.bfloat16)
    x[0, 32:] = 2.0**-120
    found, _ = searched("mxfp4", x)
    usual = dequantize(quantize(x, "mxfp4", recipe=ScaleRecipe.RCEIL))
    np.testing.assert_array_equal(found, usual)


@pytest.mark.parametrize(("format", "dialect"), [("mxfp4", "quark"), ("nvfp4", "modelopt")])
def test_a_checkpoint_says_so(tmp_path: Path, format: str, dialect: str) -> None:
    save_file({"a.weight": WEIGHTS}, tmp_path / "w.safetensors")
    sizes, heads = {}, {}
    for recipe in ("search", None):
        result = quantize_checkpoint(
            tmp_path / "w.safetensors",
            tmp_path / f"out-{recipe}",
            format,
            recipe=recipe,
            dialect=dialect,
            include=["a.weight"],
        )
        (file,) = (tmp_path / f"out-{recipe}").glob("*.safetensors")
        raw = file.read_bytes()
        heads[recipe] = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        said = json.loads(heads[recipe].pop("__metadata__")["mxc.quantize"])
        assert said["recipe"] == result.recipe
        sizes[recipe] = result.total.noise
    assert said["recipe"] != "search"
    # The same tensors of the same types: whoever reads the format reads this.
    assert heads["search"] == heads[None]
    assert sizes["search"] < sizes[None]


def test_it_is_no_recipe_of_programs() -> None:
    with pytest.raises(FormatError, match="unknown scale recipe 'search'"):
        quantize(WEIGHTS, "mxfp4", recipe="search")
