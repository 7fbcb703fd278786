"""Sorts and choices of JAX programs on a CPU and on a simulated GPU: equal elements in their order,
NaN and infinities where JAX has them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import export, lax

import mxc

RNG = np.random.default_rng(0)
EQUAL = RNG.integers(0, 4, (3, 64))
SPECIAL = RNG.choice(np.array([0, -0.0, 1, -2, np.inf, -np.inf, np.nan], np.float32), (3, 64))
MASKED = np.where(np.arange(64) < 2, EQUAL, -np.inf).astype(np.float32)


def chosen(x: Any) -> Any:
    return lax.top_k(x, 5)


#: A function and its operand.
PROGRAMS: dict[str, tuple[Any, Any]] = {
    "argsort": (jnp.argsort, EQUAL.astype(np.int32)),
    "falling": (lambda x: jnp.argsort(x, descending=True), SPECIAL),
    "columns": (lambda x: jnp.argsort(x, axis=0), EQUAL.astype(ml_dtypes.bfloat16)),
    "lexsort": (lambda x: jnp.lexsort((x[0], x[1])), EQUAL.astype(np.float32)),
    "truth": (lambda x: jnp.argsort(x > 1), EQUAL.astype(np.int32)),
    "twice": (lambda x: (jnp.argsort(x), jnp.argsort(-x)), EQUAL.astype(np.int32)),
    "start": (lambda x: jnp.argsort(x, descending=True)[:, :4], EQUAL.astype(np.float32)),
    "top_k": (chosen, EQUAL.astype(ml_dtypes.bfloat16)),
    "top_k_special": (chosen, SPECIAL),
    "top_k_masked": (chosen, MASKED),
    "top_k_bytes": (chosen, (EQUAL * 60).astype(np.uint8)),
    "top_k_integers": (chosen, EQUAL.astype(np.int32) - 2),
}
#: As versions of JAX write it that give no sort beside it.
OLDER = """
func.func @main(%x: tensor<3x64xf32>) -> (tensor<3x5xf32>, tensor<3x5xi32>) {
  %y, %places = chlo.top_k(%x, k = 5) : tensor<3x64xf32> -> (tensor<3x5xf32>, tensor<3x5xi32>)
  %z = stablehlo.negate %y : tensor<3x5xf32>
  return %z, %places : tensor<3x5xf32>, tensor<3x5xi32>
}
"""


TARGETS = {"cpu": None, "gfx950": "simulator"}


@pytest.fixture(scope="module", params=TARGETS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    file = tmp_path_factory.mktemp("sorts") / "p.mxc"
    programs = {
        name: export.export(jax.jit(function))(jax.ShapeDtypeStruct(x.shape, x.dtype))
        for name, (function, x) in PROGRAMS.items()
    }
    mxc.compile(programs, target=request.param, output=file)
    return mxc.load(file, device=TARGETS[request.param])


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_jax(model: Any, name: str) -> None:
    function, x = PROGRAMS[name]
    for found, wanted in zip(model.call(name, x), jax.tree.leaves(function(x)), strict=True):
        each = np.asarray(wanted)
        np.testing.assert_array_equal(found.view(each.dtype), each)


@pytest.mark.parametrize("target", TARGETS)
def test_an_older_top_k(target: str, tmp_path: Path) -> None:
    (tmp_path / "p.mlir").write_text(OLDER)
    mxc.compile(tmp_path / "p.mlir", target=target, output=tmp_path / "p.mxc")
    values, places = lax.top_k(MASKED, 5)
    found = mxc.load(tmp_path / "p.mxc", device=TARGETS[target]).call("main", MASKED)
    np.testing.assert_array_equal(found[0], -np.asarray(values))
    np.testing.assert_array_equal(found[1], places)
