"""Math functions of programs on CPUs with and without fused multiply-adds, against numpy in f64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import mxc

COUNT = 4096
Floats = NDArray[np.float32]
UNARY: dict[str, Callable[..., Any]] = {
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
}
BINARY: dict[str, Callable[..., Any]] = {"powf": np.power, "atan2": np.arctan2}
#: The largest error in units of the last place.
ULP = 4


def function(name: str, operands: int) -> str:
    names = ["x", "y"][:operands]
    kind = f"tensor<{COUNT}xf32>"
    maps = ", ".join(["affine_map<(i) -> (i)>"] * (operands + 1))
    return f"""
func.func @{name}({", ".join(f"%{each}: {kind}" for each in names)}) -> {kind} {{
  %e = tensor.empty() : {kind}
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel"]}}
      ins({", ".join(f"%{each}" for each in names)} : {", ".join([kind] * operands)})
      outs(%e : {kind}) {{
  ^bb0({", ".join(f"%{each}0: f32" for each in names)}, %o: f32):
    %f = math.{name} {", ".join(f"%{each}0" for each in names)} : f32
    linalg.yield %f : f32
  }} -> {kind}
  return %r : {kind}
}}"""


@pytest.fixture(scope="module", params=["cpu", "cpu:x86-64"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("math")
    text = [function(name, 1) for name in UNARY] + [function(name, 2) for name in BINARY]
    (folder / "p.mlir").write_text("\n".join(text))
    mxc.compile(folder / "p.mlir", target=request.param, output=folder / "p.mxc", listing=False)
    return mxc.load(folder / "p.mxc", threads=1)


def require_near(found: Floats, wanted: Any) -> None:
    """Assert that normal results are within ULP, and that zero, infinite and NaN ones are equal."""
    with np.errstate(all="ignore"):
        rounded = np.asarray(wanted).astype(np.float32)
        normal = np.isfinite(rounded) & (np.abs(rounded) >= np.finfo(np.float32).tiny)
        error = np.abs(found.astype(np.float64) - wanted)[normal]
        assert (error <= ULP * np.spacing(np.abs(rounded[normal]))).all()
    special = ~np.isfinite(rounded) | (rounded == 0)
    np.testing.assert_array_equal(found[special], rounded[special])
    zero = rounded == 0
    np.testing.assert_array_equal(np.signbit(found[zero]), np.signbit(rounded[zero]))


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("largest", [1, 1e3, 1e5, 3e6])
def test_functions_of_a_number(model: Any, name: str, largest: float) -> None:
    x = (np.random.default_rng(0).uniform(-1, 1, COUNT) * largest).astype(np.float32)
    x[:5] = 0, -0.0, np.inf, -np.inf, np.nan
    with np.errstate(all="ignore"):
        wanted = UNARY[name](x.astype(np.float64))
    require_near(model.call(name, x)[0], wanted)


@pytest.mark.parametrize("name", BINARY)
def test_special_values(model: Any, name: str) -> None:
    numbers = [0, 0.5, 1, 2, 3, 2.5, 1 + 2**-23, 1e-30, 1e30, 16777217, 88.5, np.inf]
    each = np.array([*numbers, *(-number for number in numbers), np.nan], np.float32)
    x, y = (np.resize(grid, COUNT) for grid in np.meshgrid(each, each))
    with np.errstate(all="ignore"):
        wanted = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    require_near(model.call(name, x, y)[0], wanted)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(model: Any, name: str) -> None:
    random = np.random.default_rng(0)
    x = np.exp(random.uniform(-20, 20, COUNT)).astype(np.float32)
    y = random.uniform(-8, 8, COUNT).astype(np.float32)
    with np.errstate(all="ignore"):
        wanted = BINARY[name](x.astype(np.float64), y.astype(np.float64))
    require_near(model.call(name, x, y)[0], wanted)


@pytest.mark.parametrize("name", ["cos", "tan"])
def test_the_product_is_small_next_to_a_zero(model: Any, name: str) -> None:
    """The f32 numbers nearest to multiples of pi / 2, where most of the angle is subtracted."""
    x = (np.arange(1, COUNT + 1, dtype=np.float64) * np.pi / 2).astype(np.float32)
    require_near(model.call(name, x)[0], UNARY[name](x.astype(np.float64)))
