"""Norms of rows of any length compile for a CPU: IREE refuses vectors of 32 KiB."""

from pathlib import Path
from typing import Any, cast

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

import mxc
from mxc.compiler.models.blocks.norms import Norm
from mxc.dialects.context import new_context


class Given:
    """Parameters of a norm, whose weight is an argument of the function."""

    def __init__(self, weight: ir.Value) -> None:
        self.weight = weight

    def load(self, name: str, size: int) -> ir.Value:
        return self.weight


# The hidden sizes of Qwen2.5 32B, of the DeepSeek models, of Llama 3 70B and of Llama 3 405B.
@pytest.mark.parametrize("width", [5120, 7168, 8192, 16384])
@pytest.mark.parametrize("rows", [1, 9])
def test_a_norm(width: int, rows: int, tmp_path: Path) -> None:
    norm = Norm(epsilon=1e-5)
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        size, f32, bf16 = ir.ShapedType.get_dynamic_size(), ir.F32Type.get(), ir.BF16Type.get()
        kinds = [
            ir.RankedTensorType.get([size, width], f32),
            ir.RankedTensorType.get([width], bf16),
        ]
        with ir.InsertionPoint(module.body):

            def body(x: ir.Value, weight: ir.Value) -> ir.Value:
                return norm.build(cast(Any, Given(weight)), x, "norm")

            func.FuncOp.from_py_func(*kinds, name="norm")(body)
        (tmp_path / "norm.mlir").write_text(str(module))
    mxc.compile(tmp_path / "norm.mlir", output=tmp_path / "norm.mxc", listing=False)
    rng = np.random.default_rng(width)
    x = rng.standard_normal((rows, width)).astype(np.float32)
    weight = rng.standard_normal(width).astype(ml_dtypes.bfloat16)
    (found,) = mxc.load(tmp_path / "norm.mxc").call("norm", x, weight)
    wide = x.astype(np.float64)
    wanted = wide / np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(
        np.asarray(found), wanted * weight.astype(np.float64), rtol=2e-5, atol=1e-7
    )
