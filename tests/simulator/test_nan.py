"""NaN in kernels of the stock compiler and of mxc: maximum and minimum propagate it, if their
operation in the program does."""

from typing import cast

import ml_dtypes
import numpy as np
import pytest

import mxc
from mxc.runtime.simulated import SimulatedModel

TARGETS = ("gfx950", "gfx942")
ROWS, COLUMNS = 20, 300
BINARY = """
func.func @{name}_{kind}(%x: tensor<{n}x{kind}>, %y: tensor<{n}x{kind}>) -> tensor<{n}x{kind}> {{
  %r = arith.{name} %x, %y : tensor<{n}x{kind}>
  return %r : tensor<{n}x{kind}>
}}
"""
REDUCTION = """
func.func @{name}_over_rows_{kind}(%x: tensor<{rows}x{n}x{kind}>) -> tensor<{rows}x{kind}> {{
  %start = arith.constant {start} : {kind}
  %e = tensor.empty() : tensor<{rows}x{kind}>
  %f = linalg.fill ins(%start : {kind}) outs(%e : tensor<{rows}x{kind}>) -> tensor<{rows}x{kind}>
  %r = linalg.reduce {{ arith.{name} }} ins(%x : tensor<{rows}x{n}x{kind}>)
    outs(%f : tensor<{rows}x{kind}>) dimensions = [1]
  return %r : tensor<{rows}x{kind}>
}}
"""
SOFTMAX = """
func.func @softmax(%x: tensor<{rows}x{n}xf32>) -> tensor<{rows}x{n}xf32> {{
  %e = tensor.empty() : tensor<{rows}x{n}xf32>
  %r = linalg.softmax dimension(1) ins(%x : tensor<{rows}x{n}xf32>)
    outs(%e : tensor<{rows}x{n}xf32>) -> tensor<{rows}x{n}xf32>
  return %r : tensor<{rows}x{n}xf32>
}}
"""
#: A product of f32 by mxfp4 with a ReLU, which is the epilogue of its kernel.
PRODUCT = """
func.func @relu(%x: tensor<{m}x{k}xf32>, %w8: tensor<{n}x{blocks}x16xi8>,
    %s8: tensor<{n}x{blocks}xi8>) -> tensor<{m}x{n}xf32> {{
  %w = flow.tensor.bitcast %w8 : tensor<{n}x{blocks}x16xi8> -> tensor<{n}x{blocks}x32xf4E2M1FN>
  %s = flow.tensor.bitcast %s8 : tensor<{n}x{blocks}xi8> -> tensor<{n}x{blocks}xf8E8M0FNU>
  %x3 = tensor.expand_shape %x [[0], [1, 2]] output_shape [{m}, {blocks}, 32]
    : tensor<{m}x{k}xf32> into tensor<{m}x{blocks}x32xf32>
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<{m}x{n}xf32>
  %c = linalg.fill ins(%zero : f32) outs(%e : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %p = linalg.generic {{indexing_maps = [
      affine_map<(m, n, o, b) -> (m, o, b)>, affine_map<(m, n, o, b) -> (n, o, b)>,
      affine_map<(m, n, o, b) -> (n, o)>, affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
    ins(%x3, %w, %s : tensor<{m}x{blocks}x32xf32>, tensor<{n}x{blocks}x32xf4E2M1FN>,
      tensor<{n}x{blocks}xf8E8M0FNU>) outs(%c : tensor<{m}x{n}xf32>) {{
  ^bb0(%a: f32, %b: f4E2M1FN, %t: f8E8M0FNU, %o: f32):
    %0 = arith.scaling_extf %b, %t : f4E2M1FN, f8E8M0FNU to f32
    %1 = arith.mulf %a, %0 : f32
    %2 = arith.addf %o, %1 : f32
    linalg.yield %2 : f32
  }} -> tensor<{m}x{n}xf32>
  %r = linalg.generic {{
      indexing_maps = [affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]}}
    ins(%p : tensor<{m}x{n}xf32>) outs(%e : tensor<{m}x{n}xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %z = arith.constant 0.0 : f32
    %0 = arith.maximumf %a, %z : f32
    linalg.yield %0 : f32
  }} -> tensor<{m}x{n}xf32>
  return %r : tensor<{m}x{n}xf32>
}}
"""
KINDS = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}
EXTREMES = {
    "maximumf": np.maximum,
    "minimumf": np.minimum,
    "maxnumf": np.fmax,
    "minnumf": np.fmin,
}
STARTS = {
    ("maximumf", "f32"): "0xFF800000",
    ("minimumf", "f32"): "0x7F800000",
    ("maximumf", "bf16"): "0xFF80",
    ("minimumf", "f16"): "0x7C00",
}
M, N, K = 20, 64, 96


def program() -> str:
    found = [BINARY.format(name=name, kind=kind, n=COLUMNS) for name in EXTREMES for kind in KINDS]
    found += [
        REDUCTION.format(name=name, kind=kind, rows=ROWS, n=COLUMNS, start=start)
        for (name, kind), start in STARTS.items()
    ]
    found.append(SOFTMAX.format(rows=ROWS, n=COLUMNS))
    found.append(PRODUCT.format(m=M, n=N, k=K, blocks=K // 32))
    return "".join(found)


@pytest.fixture(scope="module", params=TARGETS)
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SimulatedModel:
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "program.mlir").write_text(program())
    mxc.compile(
        folder / "program.mlir", target=request.param, output=folder / "program.mxc", listing=False
    )
    return cast(SimulatedModel, mxc.load(folder / "program.mxc", device="simulator"))


def numbers(shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Draw random numbers with zeros of both signs, infinities and NaN."""
    rng = np.random.default_rng(5)
    edges = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-6, -1e-6])
    found = np.where(rng.random(shape) < 0.3, rng.choice(edges, shape), rng.normal(0, 3, shape))
    return found.astype(KINDS[kind])


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    """Assert that arrays are equal, with NaN in the same places. Zeros of either sign are equal."""
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", EXTREMES)
def test_elementwise(name: str, kind: str, model: SimulatedModel) -> None:
    x, y = numbers((COLUMNS,), kind), numbers((COLUMNS,), kind)[::-1].copy()
    (found,) = model.call(f"{name}_{kind}", x, y)
    wanted = EXTREMES[name](x, y)
    assert np.isfinite(wanted.astype(np.float32)).any()
    same(found, wanted)


@pytest.mark.parametrize(("name", "kind"), STARTS)
def test_reductions(name: str, kind: str, model: SimulatedModel) -> None:
    x = numbers((ROWS, COLUMNS), kind)
    # Most rows have no NaN, one has only NaN, and one has NaN at its end.
    x[: ROWS - 3] = np.nan_to_num(x[: ROWS - 3], nan=1.0, posinf=2.0, neginf=-2.0)
    x[0, 0], x[1, :], x[2, -1] = -np.inf, np.nan, np.nan
    (found,) = model.call(f"{name}_over_rows_{kind}", x)
    same(found, EXTREMES[name].reduce(x, axis=1))


def test_softmax(model: SimulatedModel) -> None:
    """NaN comes through the sum, whatever the maximum is."""
    x = np.random.default_rng(6).normal(0, 1, (ROWS, COLUMNS)).astype(np.float32)
    x[1, 7], x[2, :] = np.nan, np.nan
    (found,) = model.call("softmax", x)
    assert np.isnan(found[1:3]).all()
    assert np.isfinite(np.delete(found, [1, 2], axis=0)).all()


def test_relu_behind_a_product(model: SimulatedModel) -> None:
    rng = np.random.default_rng(7)
    x = rng.normal(0, 1, (M, K)).astype(np.float32)
    codes = rng.integers(0, 256, (N, K // 32, 16), np.uint8)
    scales = rng.integers(120, 130, (N, K // 32), np.uint8)
    x[3, 5], scales[9, 1] = np.nan, 255
    (found,) = model.call("relu", x, codes.view(np.int8), scales.view(np.int8))
    assert np.isnan(found[3]).all()
    assert np.isnan(found[:, 9]).all()
    rest = np.delete(np.delete(found, 3, axis=0), 9, axis=1)
    assert (rest >= 0).all()
    assert 0 < np.count_nonzero(rest) < rest.size
