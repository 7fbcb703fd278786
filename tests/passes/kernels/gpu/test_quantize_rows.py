"""Kernels that quantize rows to nvfp4, on the simulator, bit for bit as ml_dtypes rounds."""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir
from iree.compiler.dialects import func

import mxc
from mxc.dialects.boundary import pack
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.quantize import quantize_nvfp4
from mxc.passes.base import run
from mxc.passes.kernels.reshapes import reshape
from mxc.passes.lower_quantize_to_gpu_kernels import LowerQuantizeToGpuKernels
from mxc.simulator.run.translate import TranslatedKernel

Floats = npt.NDArray[np.float32]
#: Rows, depth and type of a tensor; -1: the number of rows comes with the call. A wave that is not
#: full; a last iteration that is not full; rows that the largest workgroup needs several iterations
#: for.
CASES = {
    "short": ([5], 48, "f32"),
    "odd": ([3], 2896, "f32"),
    "long": ([2], 9216, "f32"),
    "narrow": ([2, 3], 512, "bf16"),
    "half": ([4], 64, "f16"),
    "given": ([-1], 96, "f32"),
    # The rows that are quantized are not those of the tensor, as where heads are rows.
    "heads": ([3, 4], 32, "f32"),
}


def program(cases: dict[str, tuple[list[int], int, str]]) -> str:
    """Return a program with a function for each case; its results are elements and scales of blocks
    as bytes, and scales of rows."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        for name, (lead, depth, kind) in cases.items():
            dynamic = ir.ShapedType.get_dynamic_size()
            shape = [dynamic if size < 0 else size for size in (*lead, depth)]
            tensor = ir.RankedTensorType.get(shape, ir.Type.parse(kind))

            def build(
                x: ir.Value, name: str = name, kind: str = kind, rank: int = len(shape)
            ) -> list[ir.Value]:
                if name == "heads":
                    x = reshape(x, [3, 4 * 32])
                if kind != "f32":
                    loops = " ".join("abc"[:rank])
                    f32 = ir.F32Type.get()
                    x = generic([(x, loops)], loops, f32, lambda a: arith_extf(f32, a))
                elements, scales, rows = quantize_nvfp4(x)
                return [pack(elements), pack(scales), rows]

            with ir.InsertionPoint(module.body):
                func.FuncOp.from_py_func(tensor, name=name)(build)
        return str(module)


def arith_extf(kind: ir.Type, value: ir.Value) -> ir.Value:
    return ir.Operation.create("arith.extf", results=[kind], operands=[value]).result


def wanted(x: Floats) -> tuple[npt.NDArray[np.generic], ...]:
    """Return the expected results: torchao's nvfp4_quantize, operation by operation, with each row
    as a tensor."""
    rows = np.maximum(np.abs(x).max(axis=-1) / np.float32(448 * 6), np.float32(2.0**-120))
    blocks = x.reshape(*x.shape[:-1], -1, 16)
    peak = np.abs(blocks).max(axis=-1) / np.float32(6)
    scales = np.clip(peak / rows[..., None], np.float32(2.0**-6), np.float32(448))
    scales = scales.astype(ml_dtypes.float8_e4m3fn)
    unit = np.float32(1) / rows[..., None] / scales.astype(np.float32)
    values = np.clip(blocks * unit[..., None], -6, 6).astype(ml_dtypes.float4_e2m1fn)
    codes = values.view(np.uint8).reshape(*x.shape[:-1], -1, 2)
    return codes[..., 0] & 15 | codes[..., 1] << 4, scales.view(np.uint8), rows


def numbers(shape: tuple[int, ...], dtype: Any) -> npt.NDArray[np.generic]:
    """Draw rows of many magnitudes, with ties, zeros, -0.0, and blocks far below the largest."""
    rng = np.random.default_rng(shape[-1])
    x = rng.standard_normal(shape).astype(np.float32)
    small = dtype == np.float16
    x *= np.exp2(rng.integers(-9 if small else -90, 9 if small else 90, (*shape[:-1], 1)))
    flat = x.reshape(-1, shape[-1])
    flat[0] = (
        np.resize(np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6, -0.0], np.float32), shape[-1])
        * 448
    )
    flat[1, :16], flat[1, -16:] = 0, flat[1, -16:] * np.float32(2.0**-20)
    # The largest magnitude of the last row is its last number.
    flat[-1, -1] = 4 * np.abs(flat[-1]).max()
    return x.astype(dtype)


@pytest.fixture(scope="module", params=["gfx950", "gfx942"])
def compiled(request: pytest.FixtureRequest, watched: Callable[..., Any]) -> Any:
    return watched(program(CASES), target=request.param)


@pytest.mark.parametrize("name", CASES)
def test_rows_become_what_the_roundings_say(name: str, compiled: Any) -> None:
    lead, depth, kind = CASES[name]
    dtype = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[kind]
    shape = tuple(7 if size < 0 else size for size in lead)
    x = numbers((*shape, depth), dtype)
    found = compiled.call(name, x)
    if name == "heads":
        depth = 4 * depth
        x = x.reshape(-1, depth)
    right = wanted(x.astype(np.float32))
    for one, expected in zip(found, right, strict=True):
        np.testing.assert_array_equal(one.reshape(-1), expected.reshape(-1).view(np.uint8))
    for row, code in zip(x[:2].reshape(-1, depth), right[0].reshape(-1, depth // 2), strict=False):
        np.testing.assert_array_equal(
            mxc.quantize(row[None].astype(np.float32), "nvfp4").elements.ravel(), code
        )


def test_floats_are_read_once_and_codes_are_converted(compiled: Any) -> None:
    compiled.call("odd", numbers((3, 2896), np.float32))
    names = [each.name for each in TranslatedKernel(compiled.kernel).instructions]
    # 2896 floats are 362 runs of 8 for the lanes of 6 waves: one iteration of two loads.
    assert sum(n.startswith("buffer_load") for n in names) == 2
    assert sum(n.startswith("buffer_store") for n in names) == 3
    assert not any(n.startswith("scratch_") for n in names)
    converts = any(n.startswith("v_cvt_scalef32_pk_fp4_f32") for n in names)
    assert converts == (compiled.model.manifest.target.name == "gfx950")


@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(odd: float, compiled: Any) -> None:
    x = numbers((5, 48), np.float32)
    x[3, 20] = odd
    _, _, rows = compiled.call("short", x)
    assert np.flatnonzero(np.isnan(rows.view(np.float32))).tolist() == [3]


@pytest.mark.parametrize(
    "change",
    [("2.688000e+03", "2.689000e+03"), ("maxsi", "minsi"), ("58720256", "58720257")],
    ids=["row scale", "largest", "least"],
)
def test_only_what_is_known_is_lowered(change: tuple[str, str]) -> None:
    with new_context(), ir.Location.unknown():
        for old, new in (("", ""), change):
            text = program({"f": ([4], 64, "f32")})
            if old:
                text = text.replace(old, new)
            module = ir.Module.parse(text)
            run((LowerQuantizeToGpuKernels(),), module)
            assert ("flow.dispatch" in str(module)) == (not old), (old, new)
