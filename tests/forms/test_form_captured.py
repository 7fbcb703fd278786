"""Epilogues whose bodies read a scalar from outside: of a tensor, computed, or an argument."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.forms.form_artifacts import compile_forms
from tests.forms.form_programs import MEET, W_MAPS
from tests.forms.form_weights import ELEMENTS, KO, SCALES, TARGETS, K, M, N

#: Name -> type of the argument, operations from %t to %factor, what is given where 4.0 is meant.
FACTORS: dict[str, tuple[str, str, Any]] = {
    "argument": ("f32", "%factor = arith.negf %t : f32", np.float32(-4)),
    "scalar": ("tensor<f32>", "%factor = tensor.extract %t[] : tensor<f32>", np.float32(4)),
    "element": (
        "tensor<4xf32>",
        "%c2 = arith.constant 2 : index\n  %factor = tensor.extract %t[%c2] : tensor<4xf32>",
        np.array([1, 2, 4, 8], np.float32),
    ),
    "computed": (
        "tensor<f32>",
        "%root = tensor.extract %t[] : tensor<f32>\n  %factor = math.sqrt %root : f32",
        np.float32(16),
    ),
}


def function(name: str) -> str:
    kind, factor, _ = FACTORS[name]
    x, w, y = f"tensor<{M}x{K}xf32>", f"tensor<{N}x{K}xf32>", f"tensor<{M}x{N}xf32>"
    decoded = ELEMENTS["extract"]("f32") + SCALES["exp2"]("f32") + MEET["blocks"]("f32")
    given = f"%bytes: tensor<{N}x{K // 2}xi8>, %scales: tensor<{N}x{KO}xi8>, %t: {kind}"
    identity = "affine_map<(m, n) -> (m, n)>"
    return f"""
func.func @{name}(%x: {x}, {given}) -> {y} {{{decoded}
  %acc = arith.constant dense<0.0> : {y}
  %y = linalg.matmul indexing_maps = {W_MAPS} ins(%x, %w : {x}, {w}) outs(%acc : {y}) -> {y}
  {factor}
  %z0 = tensor.empty() : {y}
  %z = linalg.generic {{indexing_maps = [{identity}, {identity}],
      iterator_types = ["parallel", "parallel"]}} ins(%y : {y}) outs(%z0 : {y}) {{
  ^bb0(%a: f32, %o: f32):
    %q = arith.mulf %a, %factor : f32
    linalg.yield %q : f32
  }} -> {y}
  return %z : {y}
}}"""


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param, *compile_forms(
        tmp_path_factory.mktemp(request.param), request.param, "\n".join(map(function, FACTORS))
    )


@pytest.mark.parametrize("name", FACTORS)
def test_captured(compiled: Any, name: str) -> None:
    target, model, report = compiled
    (row,) = [row for row in report["matmuls"] if row["function"] == name]
    assert row["fallback"] is None
    assert "_then_" in row["kernel"]
    (function,) = [each for each in report["functions"] if each["name"] == name]
    # Beside the kernel: activations are prepared on CPUs, an argument is written to memory.
    assert function["dispatches"] == 1 + (target == "cpu") + (name == "argument")
    if (target, name) == ("gfx950", "argument"):
        return  # the simulator's host has no floats
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (N, K), dtype=np.uint8)
    scales = rng.integers(122, 131, (N, KO), dtype=np.uint8)
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * np.repeat(factors, 32, axis=1)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).view(np.int8)
    x = rng.integers(-8, 9, (M, K)).astype(np.float32)
    (found,) = model.call(name, x, packed, scales.view(np.int8), np.asarray(FACTORS[name][2]))
    np.testing.assert_array_equal(found, 4 * (x @ values.T))
