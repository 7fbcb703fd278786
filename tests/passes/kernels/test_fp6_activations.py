"""Products of mxfp6 activations by mxfp4 weights: a kernel on this CPU, with exact results."""

import json
from pathlib import Path

import numpy as np
import pytest

import mxc
from mxc.artifact.manifest import REPORT

M, N, K = 3, 32, 128
ELEMENTS = {"mxfp6e2m3": "f6E2M3FN", "mxfp6e3m2": "f6E3M2FN"}


def program(name: str, element: str) -> str:
    return f"""
func.func @{name}(%x: tensor<{M}x{K * 6 // 8}xi8>, %xs: tensor<{M}x{K // 32}xi8>,
    %w: tensor<{N}x{K // 2}xi8>, %ws: tensor<{N}x{K // 32}xi8>) -> tensor<{M}x{N}xf32> {{
  %0 = flow.tensor.bitcast %x : tensor<{M}x{K * 6 // 8}xi8> -> tensor<{M}x{K}x{element}>
  %1 = flow.tensor.bitcast %xs : tensor<{M}x{K // 32}xi8> -> tensor<{M}x{K // 32}xf8E8M0FNU>
  %2 = flow.tensor.bitcast %w : tensor<{N}x{K // 2}xi8> -> tensor<{N}x{K}xf4E2M1FN>
  %3 = flow.tensor.bitcast %ws : tensor<{N}x{K // 32}xi8> -> tensor<{N}x{K // 32}xf8E8M0FNU>
  %zero = arith.constant dense<0.0> : tensor<{M}x{N}xf32>
  %y = linalg.generic {{
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (m, k floordiv 32)>,
                       affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (n, k floordiv 32)>,
                       affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%0, %1, %2, %3 : tensor<{M}x{K}x{element}>, tensor<{M}x{K // 32}xf8E8M0FNU>,
                           tensor<{N}x{K}xf4E2M1FN>, tensor<{N}x{K // 32}xf8E8M0FNU>)
      outs(%zero : tensor<{M}x{N}xf32>) {{
  ^bb0(%a: {element}, %as: f8E8M0FNU, %b: f4E2M1FN, %bs: f8E8M0FNU, %sum: f32):
    %c = arith.scaling_extf %a, %as : {element}, f8E8M0FNU to f32
    %d = arith.scaling_extf %b, %bs : f4E2M1FN, f8E8M0FNU to f32
    %e = arith.mulf %c, %d : f32
    %f = arith.addf %sum, %e : f32
    linalg.yield %f : f32
  }} -> tensor<{M}x{N}xf32>
  return %y : tensor<{M}x{N}xf32>
}}"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fp6")
    (folder / "p.mlir").write_text("".join(program(*each) for each in ELEMENTS.items()))
    mxc.compile(folder / "p.mlir", target="cpu", output=folder / "p.mxc")
    return folder / "p.mxc"


@pytest.mark.parametrize("name", ELEMENTS)
def test_products_are_exact_in_a_kernel(compiled: Path, name: str) -> None:
    rng = np.random.default_rng(6)
    x = mxc.quantize(rng.standard_normal((M, K)), name)
    w = mxc.quantize(rng.standard_normal((N, K)), "mxfp4")
    (found,) = mxc.load(compiled).call(name, x.elements, x.scales, w.elements, w.scales)
    np.testing.assert_array_equal(found, x @ w[:].T)
    rows = json.loads((compiled / REPORT).read_text())["matmuls"]
    (row,) = (row for row in rows if row["function"] == name)
    assert (row["fallback"], row["kernel"][:4]) == (None, "mxc_")
