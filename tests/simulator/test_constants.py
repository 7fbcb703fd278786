"""Host programs on the simulator: constants of the module, and lists."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

import mxc
from mxc.simulator.host.vm_steps import _resize

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


def test_a_list_grows_and_shrinks() -> None:
    items: list[int | None] = [1, 2, 3]
    for size, wanted in ((5, [1, 2, 3, None, None]), (2, [1, 2]), (0, [])):
        frame: Any = SimpleNamespace(ref=lambda: items, value=lambda n=size: n)
        _resize(frame)
        assert items == wanted
