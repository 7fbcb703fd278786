"""Products of two to eight rows: the stock compiler crashes on its own schedule; mxc gives one."""

from pathlib import Path

import ml_dtypes
import numpy as np

import mxc

PRODUCT = """
func.func @m{m}n{n}k{k}(%a: tensor<{m}x{k}xbf16>, %b: tensor<{n}x{k}xbf16>)
    -> tensor<{m}x{n}xf32> {{
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %c = linalg.fill ins(%z : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %p = linalg.generic {{indexing_maps = [
      affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
      affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}}
    ins(%a, %b : tensor<{m}x{k}xbf16>, tensor<{n}x{k}xbf16>) outs(%c : tensor<{m}x{n}xf32>) {{
  ^bb0(%x: bf16, %y: bf16, %o: f32):
    %0 = arith.extf %x : bf16 to f32
    %1 = arith.extf %y : bf16 to f32
    %2 = arith.mulf %0, %1 : f32
    %3 = arith.addf %o, %2 : f32
    linalg.yield %3 : f32
  }} -> tensor<{m}x{n}xf32>
  return %p : tensor<{m}x{n}xf32>
}}
"""
SHAPES = [(2, 32, 128), (4, 64, 128), (5, 33, 256), (8, 64, 1024), (8, 256, 384), (9, 64, 128)]


def test_few_rows(tmp_path: Path) -> None:
    text = "".join(PRODUCT.format(m=m, n=n, k=k) for m, n, k in SHAPES)
    (tmp_path / "products.mlir").write_text(text)
    mxc.compile(
        tmp_path / "products.mlir", target="gfx950", output=tmp_path / "products.mxc", listing=False
    )
    model = mxc.load(tmp_path / "products.mxc", device="simulator")
    rng = np.random.default_rng(8)
    for m, n, k in SHAPES:
        a, b = (rng.integers(-8, 9, (rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
        # Operands are integers, so that every sum is exact in any order.
        wanted = a.astype(np.float32) @ b.astype(np.float32).T
        (found,) = model.call(f"m{m}n{n}k{k}", a, b)
        np.testing.assert_array_equal(found, wanted)
        assert np.abs(wanted).max() > 0
