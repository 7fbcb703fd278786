"""Artifacts run by the programs of IREE's wheel, as docs/artifact.md says."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import mxc

PROGRAM = """
func.func @main(%x: tensor<4x64xf32>, %w: tensor<32x64xf32>) -> tensor<4x32xf32> {
  %zero = arith.constant dense<0.0> : tensor<4x32xf32>
  %y = linalg.matmul
      indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                       affine_map<(m, n, k) -> (m, n)>]
      ins(%x, %w : tensor<4x64xf32>, tensor<32x64xf32>)
      outs(%zero : tensor<4x32xf32>) -> tensor<4x32xf32>
  return %y : tensor<4x32xf32>
}
"""


def test_iree_run_module_computes_what_mxc_does(tmp_path: Path) -> None:
    source, output = tmp_path / "p.mlir", tmp_path / "p.mxc"
    source.write_text(PROGRAM)
    mxc.compile(source, target="cpu:x86-64-v3", output=output)
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((n, 64)).astype(np.float32) for n in (4, 32))
    for name, array in (("x", x), ("w", w)):
        np.save(tmp_path / f"{name}.npy", array)
    command = [
        str(Path(sys.executable).with_name("iree-run-module")),
        "--device=local-task",
        f"--module={output / 'module.vmfb'}",
        "--function=main",
        f"--input=@{tmp_path / 'x.npy'}",
        f"--input=@{tmp_path / 'w.npy'}",
        f"--output=@{tmp_path / 'y.npy'}",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (wanted,) = mxc.load(output).call("main", x, w)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)
