"""Quantization to nvfp4 with a float32 scale for each row, on CPUs and on gfx950."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func
from numpy.typing import NDArray

import mxc
from mxc.dialects.boundary import pack
from mxc.dialects.context import new_context
from mxc.dialects.quantize import quantize_nvfp4
from mxc.runtime import Model

ROWS, DEPTH = 12, 64
Floats, Bytes = NDArray[np.float32], NDArray[np.uint8]


def program(lead: list[int]) -> str:
    """Return a program with a function of x, f32 [*lead, K], whose results are elements as bytes,
    scales of blocks as bytes, and scales of rows."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            dynamic = ir.ShapedType.get_dynamic_size()
            shape = [dynamic if size < 0 else size for size in (*lead, DEPTH)]
            kind = ir.RankedTensorType.get(shape, ir.F32Type.get())

            @func.FuncOp.from_py_func(kind, name="main")
            def main(x: ir.Value) -> list[ir.Value]:
                elements, scales, rows = quantize_nvfp4(x)
                return [pack(elements), pack(scales), rows]

        return str(module)


def wanted(
    x: NDArray[np.float32],
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.float32]]:
    """Return the expected results: torchao's nvfp4_quantize, operation by operation, with each row
    as a tensor and the roundings of ml_dtypes."""
    amax = np.abs(x).max(axis=-1)
    rows = np.maximum(amax / np.float32(448 * 6), np.float32(2.0**-120))
    blocks = x.reshape(*x.shape[:-1], -1, 16)
    peak = np.abs(blocks).max(axis=-1) / np.float32(6)
    scales = np.clip(peak / rows[..., None], np.float32(2.0**-6), np.float32(448))
    scales = scales.astype(ml_dtypes.float8_e4m3fn)
    unit = np.float32(1) / rows[..., None] / scales.astype(np.float32)
    values = np.clip(blocks * unit[..., None], -6, 6).astype(ml_dtypes.float4_e2m1fn)
    codes = values.view(np.uint8).reshape(*x.shape[:-1], -1, 2)
    return codes[..., 0] & 15 | codes[..., 1] << 4, scales.view(np.uint8), rows


def numbers() -> NDArray[np.float32]:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((ROWS, DEPTH)).astype(np.float32)
    x *= np.exp2(rng.integers(-20, 20, (ROWS, 1))).astype(np.float32)
    # Blocks far below the largest, zeros, ties, -0.0, large and small rows.
    x[0, :16] *= 2.0**-20
    x[1], x[2, :32] = 0, 0
    x[3] = (
        np.resize(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.0], np.float32), DEPTH) * 448
    )
    x[4], x[5] = x[4] * 2.0**90, x[5] * 2.0**-80
    return x


@pytest.fixture(scope="module", params=["cpu", "gfx950"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("nvfp4")
    (folder / "p.mlir").write_text(program([-1]))
    mxc.compile(folder / "p.mlir", target=request.param, output=folder / "p.mxc", listing=False)
    device = "simulator" if request.param == "gfx950" else None
    return mxc.load(folder / "p.mxc", device=device)


def test_each_row_is_quantized_as_a_tensor(model: Model) -> None:
    x = numbers()
    rights: tuple[Any, ...] = wanted(x)
    for found, right in zip(model.call("main", x), rights, strict=True):
        np.testing.assert_array_equal(found.view(right.dtype).reshape(right.shape), right)
    for row in x[:3]:
        q = mxc.quantize(row[None], "nvfp4")
        elements, scales, _ = model.call("main", row[None])
        np.testing.assert_array_equal(elements.view(np.uint8).ravel(), q.elements.ravel())
        np.testing.assert_array_equal(scales.view(np.uint8).ravel(), q.scales.ravel())


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(model: Model, odd: float) -> None:
    x = numbers()
    x[6, 20] = odd
    _, _, rows = model.call("main", x)
    assert np.flatnonzero(np.isnan(rows)).tolist() == [6]
