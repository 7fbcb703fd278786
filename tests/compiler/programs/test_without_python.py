"""Artifacts run by the programs of IREE's wheel, as docs/artifact.md says."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

import mxc

PAGE = Path(__file__).parents[3] / "docs/programs.md"

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
    mxc.compile(source, target="cpu:x86-64-v3", output=output, listing=False)
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


def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """As they are written there, of a program with weights."""
    random = np.random.default_rng(0)
    x, w = (random.standard_normal((n, 64)).astype(np.float32) for n in (4, 64))
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 64]) for name in ("x", "y")]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", sides[:1], sides[1:], [numpy_helper.from_array(w, "w")])
    opsets = [helper.make_opsetid("", 21)]
    save(helper.make_model(graph, opset_imports=opsets), tmp_path / "f.onnx")
    mxc.compile(tmp_path / "f.onnx", target="cpu:x86-64-v3", output=tmp_path / "f.mxc")
    np.save(tmp_path / "x.npy", x)
    _, section = PAGE.read_text().split("## Run an artifact without Python")
    commands = section.split("```text")[1].split("```")[0]
    assert commands.count("iree-") == 2
    bin = str(Path(sys.executable).parent)
    run = subprocess.run(
        ["bash", "-ec", commands],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{bin}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert "BM_main" in run.stdout
    (wanted,) = mxc.load(tmp_path / "f.mxc").call("main", x)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)
    np.testing.assert_allclose(wanted, x @ w, rtol=1e-4, atol=1e-5)
