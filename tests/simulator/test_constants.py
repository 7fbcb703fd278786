"""Constants of a program: the host reads them from the module as from a file."""

from pathlib import Path

import numpy as np

import mxc

PROGRAM = """
func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {{
  %c = arith.constant dense<"0x{digits}"> : tensor<8x64xf32>
  %y = arith.addf %x, %c : tensor<8x64xf32>
  return %y : tensor<8x64xf32>
}}
"""


def test_constants_are_read_from_the_module(tmp_path: Path) -> None:
    constant, x = np.random.default_rng(0).normal(size=(2, 8, 64)).astype(np.float32)
    program = tmp_path / "program.mlir"
    program.write_text(PROGRAM.format(digits=constant.tobytes().hex()))
    mxc.compile(program, target="gfx950", output=tmp_path / "program.mxc", listing=False)
    (y,) = mxc.load(tmp_path / "program.mxc", device="simulator").call("main", x)
    np.testing.assert_array_equal(y, x + constant)
