"""Operands of which a loop that an index divides reads only the first elements."""

from pathlib import Path

import ml_dtypes
import numpy as np

import mxc
from mxc.formats.packing import decode_elements, decode_scales

M, N, K = 4, 16, 64
#: Index of a scale -> sizes of the scales that are stored, and of those that are read.
SCALES = {
    "columns": ("n, k floordiv 32", (N, 5)),
    "rows": ("n floordiv 2, k floordiv 32", (N, 2)),
    "remainders": ("n mod 4, k floordiv 32", (N, 3)),
}
#: Where a dequantized weight is read.
WEIGHTS = {
    "same_rows": "n floordiv 4, k",
    "turns_of_rows": "n mod 4, k",
    "same_columns": "n, k floordiv 2",
}
MAPS = "affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>"
KINDS = 'iterator_types = ["parallel", "parallel", "reduction"]'


def function(name: str, scales: tuple[int, int], body: str) -> str:
    s = f"{scales[0]}x{scales[1]}x"
    return f"""
func.func @{name}(%x: tensor<{M}x{K}xf32>, %w: tensor<{N}x{K // 2}xi8>, %t: tensor<{s}i8>)
    -> tensor<{M}x{N}xf32> {{
  %e = flow.tensor.bitcast %w : tensor<{N}x{K // 2}xi8> -> tensor<{N}x{K}xf4E2M1FN>
  %s = flow.tensor.bitcast %t : tensor<{s}i8> -> tensor<{s}f8E8M0FNU>
  %z = arith.constant dense<0.0> : tensor<{M}x{N}xf32>{body}
  return %y : tensor<{M}x{N}xf32>
}}"""


def with_scales(at: str, sizes: tuple[int, int]) -> str:
    """The product of x and weights under scales at these indices."""
    s = f"tensor<{sizes[0]}x{sizes[1]}xf8E8M0FNU>"
    return f"""
  %y = linalg.generic {{indexing_maps = [{MAPS}, affine_map<(m, n, k) -> ({at})>,
      affine_map<(m, n, k) -> (m, n)>], {KINDS}}}
      ins(%x, %e, %s : tensor<{M}x{K}xf32>, tensor<{N}x{K}xf4E2M1FN>, {s})
      outs(%z : tensor<{M}x{N}xf32>) {{
  ^bb0(%a: f32, %b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %d = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    %p = arith.mulf %a, %d : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  }} -> tensor<{M}x{N}xf32>"""


def with_weights(at: str) -> str:
    """The product of x and a weight that is dequantized, and then read at these indices."""
    same = "affine_map<(n, k) -> (n, k)>"
    return f"""
  %i = tensor.empty() : tensor<{N}x{K}xf32>
  %f = linalg.generic {{indexing_maps = [{same}, affine_map<(n, k) -> (n, k floordiv 32)>, {same}],
      iterator_types = ["parallel", "parallel"]}}
      ins(%e, %s : tensor<{N}x{K}xf4E2M1FN>, tensor<{N}x{K // 32}xf8E8M0FNU>)
      outs(%i : tensor<{N}x{K}xf32>) {{
  ^bb0(%b: f4E2M1FN, %c: f8E8M0FNU, %o: f32):
    %d = arith.scaling_extf %b, %c : f4E2M1FN, f8E8M0FNU to f32
    linalg.yield %d : f32
  }} -> tensor<{N}x{K}xf32>
  %v = linalg.generic {{indexing_maps = [affine_map<(n, k) -> ({at})>, {same}],
      iterator_types = ["parallel", "parallel"]}}
      ins(%f : tensor<{N}x{K}xf32>) outs(%i : tensor<{N}x{K}xf32>) {{
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  }} -> tensor<{N}x{K}xf32>
  %y = linalg.generic {{indexing_maps = [{MAPS}, affine_map<(m, n, k) -> (m, n)>], {KINDS}}}
      ins(%x, %v : tensor<{M}x{K}xf32>, tensor<{N}x{K}xf32>) outs(%z : tensor<{M}x{N}xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %p = arith.mulf %a, %b : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  }} -> tensor<{M}x{N}xf32>"""


def test_only_the_first_elements_are_read(tmp_path: Path) -> None:
    text = [function(name, sizes, with_scales(at, sizes)) for name, (at, sizes) in SCALES.items()]
    text += [function(name, (N, 2), with_weights(at)) for name, at in WEIGHTS.items()]
    (tmp_path / "p.mlir").write_text("".join(text))
    mxc.compile(tmp_path / "p.mlir", target="cpu", output=tmp_path / "p.mxc", listing=False)
    model = mxc.load(tmp_path / "p.mxc")
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 9, (M, K)).astype(np.float32)
    w = rng.integers(0, 256, (N, K // 2), dtype=np.uint8)
    elements = decode_elements(w, "mxfp4")
    n, k = np.arange(N), np.arange(K)
    rows = {"columns": n, "rows": n // 2, "remainders": n % 4}
    for name, (_, sizes) in SCALES.items():
        s = rng.integers(124, 131, sizes, dtype=np.uint8)
        factors = s.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        wanted = x @ (elements * factors[rows[name][:, None], k // 32]).T
        (found,) = model.call(name, x, w.view(np.int8), s.view(np.int8))
        np.testing.assert_array_equal(found, wanted, name)
    s = rng.integers(124, 131, (N, 2), dtype=np.uint8)
    whole = elements * np.repeat(decode_scales(s, "mxfp4"), 32, axis=1)
    read = {
        "same_rows": whole[n // 4],
        "turns_of_rows": whole[n % 4],
        "same_columns": whole[:, k // 2],
    }
    for name, weight in read.items():
        (found,) = model.call(name, x, w.view(np.int8), s.view(np.int8))
        np.testing.assert_array_equal(found, x @ weight.T, name)
