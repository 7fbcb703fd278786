"""Bodies that read the number of an iteration, of a loop that an index divides by blocks, or the
sum itself."""

from pathlib import Path

import ml_dtypes
import numpy as np

import mxc
from mxc.formats.packing import decode_elements, decode_scales

M, N, K, KEPT = 5, 32, 128, 72
SCALED = f"tensor<{N}x{K}xf4E2M1FN>, tensor<{N}x{K // 32}xf8E8M0FNU>"
MASK = f"""
    %d = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %most = arith.constant {KEPT} : index
    %p = arith.cmpi slt, %i, %most : index
    %zero = arith.constant 0.0 : f32"""
PROGRAM = f"""
func.func @of_products(%x: tensor<{M}x{K}xbf16>, %w: tensor<{N}x{K // 2}xi8>,
    %s: tensor<{N}x{K // 32}xi8>) -> tensor<{M}x{N}xf32> {{
  %e = flow.tensor.bitcast %w : tensor<{N}x{K // 2}xi8> -> tensor<{N}x{K}xf4E2M1FN>
  %f = flow.tensor.bitcast %s : tensor<{N}x{K // 32}xi8> -> tensor<{N}x{K // 32}xf8E8M0FNU>
  %z = arith.constant dense<0.0> : tensor<{M}x{N}xf32>
  %y = linalg.generic {{
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (n, k floordiv 32)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %e, %f : tensor<{M}x{K}xbf16>, {SCALED}) outs(%z : tensor<{M}x{N}xf32>) {{
  ^bb0(%a: bf16, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %i = linalg.index 2 : index{MASK}
    %l = arith.extf %a : bf16 to f32
    %g = arith.mulf %d, %l : f32
    %q = arith.select %p, %g, %zero : f32
    %h = arith.addf %o, %q : f32
    linalg.yield %h : f32
  }} -> tensor<{M}x{N}xf32>
  return %y : tensor<{M}x{N}xf32>
}}

func.func @of_weights(%x: tensor<{M}x{K}xbf16>, %w: tensor<{N}x{K // 2}xi8>,
    %s: tensor<{N}x{K // 32}xi8>) -> tensor<{M}x{N}xf32> {{
  %e = flow.tensor.bitcast %w : tensor<{N}x{K // 2}xi8> -> tensor<{N}x{K}xf4E2M1FN>
  %f = flow.tensor.bitcast %s : tensor<{N}x{K // 32}xi8> -> tensor<{N}x{K // 32}xf8E8M0FNU>
  %empty = tensor.empty() : tensor<{N}x{K}xf32>
  %v = linalg.generic {{
      indexing_maps = [affine_map<(n, k) -> (n, k)>, affine_map<(n, k) -> (n, k floordiv 32)>,
          affine_map<(n, k) -> (n, k)>], iterator_types = ["parallel", "parallel"]}}
      ins(%e, %f : {SCALED}) outs(%empty : tensor<{N}x{K}xf32>) {{
  ^bb0(%b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %i = linalg.index 1 : index{MASK}
    %q = arith.select %p, %d, %zero : f32
    linalg.yield %q : f32
  }} -> tensor<{N}x{K}xf32>
  %z = arith.constant dense<0.0> : tensor<{M}x{N}xf32>
  %y = linalg.generic {{
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%x, %v : tensor<{M}x{K}xbf16>, tensor<{N}x{K}xf32>) outs(%z : tensor<{M}x{N}xf32>) {{
  ^bb0(%a: bf16, %b: f32, %o: f32):
    %l = arith.extf %a : bf16 to f32
    %p = arith.mulf %l, %b : f32
    %h = arith.addf %o, %p : f32
    linalg.yield %h : f32
  }} -> tensor<{M}x{N}xf32>
  return %y : tensor<{M}x{N}xf32>
}}
"""

#: What each term is multiplied by, %f: the number of the term, a table at it, and the sum.
FACTORS = {
    "by_number": """%j = arith.index_cast %i : index to i32
    %f = arith.sitofp %j : i32 to f32""",
    "by_table": f"%f = tensor.extract %t[%i] : tensor<{K}xf32>",
    "by_sum": """%small = arith.constant 0.00048828125 : f32
    %f = arith.mulf %o, %small : f32""",
}
#: The loop of the sum is the first one.
TIMES = "".join(f"""
func.func @{name}(%x: tensor<{M}x{K}xf32>, %w: tensor<{N}x{K // 2}xi8>,
    %s: tensor<{N}x{K // 32}xi8>, %t: tensor<{K}xf32>, %z: tensor<{M}x{N}xf32>)
    -> tensor<{M}x{N}xf32> {{
  %e = flow.tensor.bitcast %w : tensor<{N}x{K // 2}xi8> -> tensor<{N}x{K}xf4E2M1FN>
  %g = flow.tensor.bitcast %s : tensor<{N}x{K // 32}xi8> -> tensor<{N}x{K // 32}xf8E8M0FNU>
  %y = linalg.generic {{
      indexing_maps = [affine_map<(k, m, n) -> (m, k)>, affine_map<(k, m, n) -> (n, k)>,
          affine_map<(k, m, n) -> (n, k floordiv 32)>, affine_map<(k, m, n) -> (m, n)>],
      iterator_types = ["reduction", "parallel", "parallel"]}}
      ins(%x, %e, %g : tensor<{M}x{K}xf32>, {SCALED}) outs(%z : tensor<{M}x{N}xf32>) {{
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %d = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %l = arith.mulf %a, %d : f32
    %i = linalg.index 0 : index
    {factor}
    %q = arith.mulf %l, %f : f32
    %h = arith.addf %o, %q : f32
    linalg.yield %h : f32
  }} -> tensor<{M}x{N}xf32>
  return %y : tensor<{M}x{N}xf32>
}}""" for name, factor in FACTORS.items())  # fmt: skip


def test_factors_of_the_iteration(tmp_path: Path) -> None:
    (tmp_path / "p.mlir").write_text(TIMES)
    mxc.compile(tmp_path / "p.mlir", target="cpu", output=tmp_path / "p.mxc", listing=False)
    model = mxc.load(tmp_path / "p.mxc")
    rng = np.random.default_rng(1)
    x, table, start = (rng.normal(size=n).astype(np.float32) for n in ((M, K), K, (M, N)))
    w = rng.integers(0, 256, (N, K // 2), dtype=np.uint8)
    s = rng.integers(125, 129, (N, K // 32), dtype=np.uint8)
    weights = decode_elements(w, "mxfp4") * np.repeat(decode_scales(s, "mxfp4"), 32, axis=1)
    total = start.astype(np.float64)
    for k in range(K):
        total += x[:, k, None] * weights[:, k].astype(np.float64) * 2.0**-11 * total
    wanted = {
        "by_number": start + (x * np.arange(K, dtype=np.float64)) @ weights.T,
        "by_table": start + (x * table.astype(np.float64)) @ weights.T,
        "by_sum": total,
    }
    for name, right in wanted.items():
        (found,) = model.call(name, x, w.view(np.int8), s.view(np.int8), table, start)
        assert np.abs(found - right).max() < 1e-5 * np.abs(right).max(), name


def test_masks_of_k(tmp_path: Path) -> None:
    (tmp_path / "p.mlir").write_text(PROGRAM)
    mxc.compile(tmp_path / "p.mlir", target="cpu", output=tmp_path / "p.mxc", listing=False)
    model = mxc.load(tmp_path / "p.mxc")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(M, K)).astype(ml_dtypes.bfloat16)
    w = rng.integers(0, 256, (N, K // 2), dtype=np.uint8)
    s = rng.integers(120, 130, (N, K // 32), dtype=np.uint8)
    weights = decode_elements(w, "mxfp4") * np.repeat(decode_scales(s, "mxfp4"), 32, axis=1)
    wanted = x.astype(np.float64)[:, :KEPT] @ weights.astype(np.float64)[:, :KEPT].T
    for name in ("of_products", "of_weights"):
        (found,) = model.call(name, x, w.view(np.int8), s.view(np.int8))
        assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
