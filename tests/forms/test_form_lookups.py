"""A weight that is looked up by rows, an embedding, and multiplied, the head of a model tied to it:
it stays packed in both."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.forms.form_artifacts import compile_forms
from tests.forms.form_programs import MEET, W_MAPS
from tests.forms.form_weights import ELEMENTS, KO, SCALES, TARGETS, K, M, N

W = f"tensor<{N}x{K}xf32>"
#: Name -> the shape of the ids, their type, and how a row is taken.
LOOKUPS = {
    "gather": ((3,), "i32", ""),
    "extract": ((3,), "i32", ""),
    "extract_i64": ((2, 3), "i64", ""),
    "clamped": (
        (3,),
        "i32",
        f"""%least = arith.constant 0 : i32
    %most = arith.constant {N - 1} : i32
    %i1 = arith.maxsi %i, %least : i32
    %i2 = arith.minsi %i1, %most : i32""",
    ),
}


def lookup(name: str) -> str:
    shape, kind, clamp = LOOKUPS[name]
    sizes = "x".join(map(str, shape))
    ids, out = f"tensor<{sizes}x{kind}>", f"tensor<{sizes}x{K}xf32>"
    if name == "gather":
        return f"""
  %l0 = tensor.empty() : {out}
  %l = iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids : {W}, {ids})
    outs(%l0 : {out}) -> {out}"""
    loops = ", ".join("abc"[: len(shape)])
    kinds = ", ".join(['"parallel"'] * (len(shape) + 1))
    return f"""
  %l0 = tensor.empty() : {out}
  %l = linalg.generic {{indexing_maps = [affine_map<({loops}, k) -> ({loops})>,
      affine_map<({loops}, k) -> ({loops}, k)>], iterator_types = [{kinds}]}}
      ins(%ids : {ids}) outs(%l0 : {out}) {{
  ^bb0(%i: {kind}, %o: f32):
    {clamp}
    %n = arith.index_cast {"%i2" if clamp else "%i"} : {kind} to index
    %k = linalg.index {len(shape)} : index
    %v = tensor.extract %w[%n, %k] : {W}
    linalg.yield %v : f32
  }} -> {out}"""


def function(name: str) -> str:
    shape, kind, _ = LOOKUPS[name]
    sizes = "x".join(map(str, shape))
    x, y, out = f"tensor<{M}x{K}xf32>", f"tensor<{M}x{N}xf32>", f"tensor<{sizes}x{K}xf32>"
    decoded = ELEMENTS["extract"]("f32") + SCALES["exp2"]("f32")
    decoded += MEET["blocks" if name == "extract" else "floordiv"]("f32")
    given = f"%bytes: tensor<{N}x{K // 2}xi8>, %scales: tensor<{N}x{KO}xi8>"
    return f"""
func.func @{name}(%x: {x}, {given}, %ids: tensor<{sizes}x{kind}>) -> ({y}, {out}) {{{decoded}
  %acc = arith.constant dense<0.0> : {y}
  %y = linalg.matmul indexing_maps = {W_MAPS} ins(%x, %w : {x}, {W}) outs(%acc : {y}) -> {y}
{lookup(name)}
  return %y, %l : {y}, {out}
}}"""


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return compile_forms(
        tmp_path_factory.mktemp(request.param), request.param, "\n".join(map(function, LOOKUPS))
    )


@pytest.mark.parametrize("name", LOOKUPS)
def test_lookup(compiled: Any, name: str) -> None:
    model, report = compiled
    (row,) = [row for row in report["matmuls"] if row["function"] == name]
    assert row["fallback"] is None
    assert row["kernel"].startswith("mxc_")
    (memory,) = [each for each in report["functions"] if each["name"] == name]
    # The table in f32 is never in memory.
    assert memory["transient_bytes"] < 4 * N * K
    shape, kind, clamp = LOOKUPS[name]
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (N, K), dtype=np.uint8)
    scales = rng.integers(122, 131, (N, KO), dtype=np.uint8)
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32) * np.repeat(factors, 32, axis=1)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).view(np.int8)
    x = rng.integers(-8, 9, (M, K)).astype(np.float32)
    ids = rng.integers(-5 if clamp else 0, N + (5 if clamp else 0), shape)
    given = ids.astype(np.int32 if kind == "i32" else np.int64)
    product, rows = model.call(name, x, packed, scales.view(np.int8), given)
    np.testing.assert_array_equal(product, x @ values.T)
    np.testing.assert_array_equal(rows, values[np.clip(ids, 0, N - 1)])
