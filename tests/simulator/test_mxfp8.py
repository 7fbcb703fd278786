"""mxfp8 products that mxc compiles for gfx950: scaled matrix instructions, with the right scales.

test_scaled_matmul.py tests the kernels of the stock compiler.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import mxc

PROGRAM = """
func.func @main(%x: tensor<32x4x32xi8>, %xs: tensor<32x4xi8>, %w: tensor<48x4x32xi8>,
                %ws: tensor<48x4xi8>) -> tensor<32x48xf32> {
  %0 = flow.tensor.bitcast %x : tensor<32x4x32xi8> -> tensor<32x4x32xELEMENT>
  %1 = flow.tensor.bitcast %xs : tensor<32x4xi8> -> tensor<32x4xf8E8M0FNU>
  %2 = flow.tensor.bitcast %w : tensor<48x4x32xi8> -> tensor<48x4x32xELEMENT>
  %3 = flow.tensor.bitcast %ws : tensor<48x4xi8> -> tensor<48x4xf8E8M0FNU>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<32x48xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%e : tensor<32x48xf32>) -> tensor<32x48xf32>
  %y = linalg.generic {
      indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>,
                       affine_map<(m, n, o, b) -> (m, o)>, affine_map<(m, n, o, b) -> (n, o)>,
                       affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}
      ins(%0, %2, %1, %3 : tensor<32x4x32xELEMENT>, tensor<48x4x32xELEMENT>,
                           tensor<32x4xf8E8M0FNU>, tensor<48x4xf8E8M0FNU>)
      outs(%acc : tensor<32x48xf32>) {
  ^bb0(%a: ELEMENT, %b: ELEMENT, %s: f8E8M0FNU, %t: f8E8M0FNU, %o: f32):
    %c = arith.scaling_extf %a, %s : ELEMENT, f8E8M0FNU to f32
    %d = arith.scaling_extf %b, %t : ELEMENT, f8E8M0FNU to f32
    %p = arith.mulf %c, %d : f32
    %q = arith.addf %o, %p : f32
    linalg.yield %q : f32
  } -> tensor<32x48xf32>
  return %y : tensor<32x48xf32>
}
"""


@pytest.mark.parametrize(
    ("format", "element"), [("mxfp8e4m3", "f8E4M3FN"), ("mxfp8e5m2", "f8E5M2")]
)
def test_rows_under_different_scales(tmp_path: Path, format: str, element: str) -> None:
    source = tmp_path / "program.mlir"
    source.write_text(PROGRAM.replace("ELEMENT", element))
    mxc.compile(source, target="gfx950", output=tmp_path / "program.mxc")
    report = json.loads((tmp_path / "program.mxc" / "report.json").read_text())
    (contraction,) = report["matmuls"]
    assert contraction["fallback"] is None
    assert contraction["lowering"].startswith("v_mfma_scale_f32_")
    rng = np.random.default_rng(0)
    sides = []
    for rows in (32, 48):
        values = rng.standard_normal((rows, 128)) * np.exp2(rng.integers(-6, 6, (rows, 1)))
        sides.append(mxc.quantize(values.astype(np.float32), format, recipe="even"))
    arguments = [
        part.view(np.int8).reshape(
            side.scales.shape[0], 4, *([32] if part is side.elements else [])
        )
        for side in sides
        for part in (side.elements, side.scales)
    ]
    (found,) = mxc.load(tmp_path / "program.mxc", device="simulator").call("main", *arguments)
    x, w = (mxc.dequantize(side).astype(np.float64) for side in sides)
    wanted = x @ w.T
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
