"""Functions of the `math` dialect in kernels of the stock compiler, against numpy in float64.

The code of powers and logarithms splits pairs of registers (v_pk_mov_b32).
"""

import math
from typing import cast

import numpy as np
import pytest

import mxc
from mxc.runtime.simulated import SimulatedModel

UNARY = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log1p")},
    **{name: getattr(np, name) for name in ("sin", "cos", "tanh", "sqrt")},
    "log10": np.log10,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf),
}
SIGNED = ("sin", "cos", "tanh", "erf", "exp", "exp2", "expm1")
SIZE = 300


def program() -> str:
    kind = f"tensor<{SIZE}xf32>"
    lines = [
        f"func.func @{name}(%x: {kind}) -> {kind} {{\n  %y = math.{name} %x : {kind}\n"
        f"  return %y : {kind}\n}}"
        for name in UNARY
    ]
    lines.append(
        f"func.func @powf(%x: {kind}, %n: {kind}) -> {kind} {{\n"
        f"  %y = math.powf %x, %n : {kind}\n  return %y : {kind}\n}}"
    )
    return "\n".join(lines)


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> SimulatedModel:
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.mlir").write_text(program())
    mxc.compile(folder / "math.mlir", target="gfx950", output=folder / "math.mxc", listing=False)
    return cast(SimulatedModel, mxc.load(folder / "math.mxc", device="simulator"))


@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, functions: SimulatedModel) -> None:
    rng = np.random.default_rng(3)
    x = rng.uniform(-4 if name in SIGNED else 0.01, 4, SIZE).astype(np.float32)
    (found,) = functions.call(name, x)
    np.testing.assert_allclose(found, UNARY[name](x.astype(np.float64)), rtol=3e-6, atol=3e-7)


def test_power(functions: SimulatedModel) -> None:
    rng = np.random.default_rng(4)
    x, n = rng.uniform(0.1, 5, SIZE).astype(np.float32), rng.uniform(-4, 4, SIZE)
    x[:100], n[:100] = -x[:100], rng.integers(-4, 5, 100)
    (found,) = functions.call("powf", x, n.astype(np.float32))
    wanted = np.power(x.astype(np.float64), n.astype(np.float32).astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
