"""8-bit FNUZ floats on GPUs: casts to and from them, and products, against ml_dtypes."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import mxc
from mxc.artifact.manifest import REPORT

DTYPES = {"f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz, "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz}
#: Number of f32 that are rounded: a multiple of every tile.
COUNT = 1 << 14
ROWS, DEPTH, COLUMNS = 5, 256, 48


def casts(element: str) -> str:
    """Return functions that cast f32 to `element`, `element` to f32 and to bf16, and f32 to
    `element` under scales."""
    made = [
        f"""
func.func @to_{element}(%x: tensor<{COUNT}xf32>) -> tensor<{COUNT}x{element}> {{
  %y = arith.truncf %x : tensor<{COUNT}xf32> to tensor<{COUNT}x{element}>
  return %y : tensor<{COUNT}x{element}>
}}"""
    ]
    made += [f"""
func.func @{kind}_{element}(%x: tensor<256x{element}>) -> tensor<256x{kind}> {{
  %y = arith.extf %x : tensor<256x{element}> to tensor<256x{kind}>
  return %y : tensor<256x{kind}>
}}""" for kind in ("f32", "bf16")]  # fmt: skip
    made.append(f"""
func.func @under_{element}(%x: tensor<64xf32>, %s: tensor<64xf8E8M0FNU>) -> tensor<64x{element}> {{
  %y = arith.scaling_truncf %x, %s
      : tensor<64xf32>, tensor<64xf8E8M0FNU> to tensor<64x{element}>
  return %y : tensor<64x{element}>
}}""")
    return "".join(made)


def product(element: str, largest: float) -> str:
    """Return a function that quantizes x, f32 [rows, depth], to `element` with the scale
    amax / `largest` for each row, and multiplies it by weights of `element`."""
    x, w, y = (f"tensor<{size}x" for size in (f"{ROWS}x{DEPTH}", f"{COLUMNS}x{DEPTH}",
                                               f"{ROWS}x{COLUMNS}"))  # fmt: skip
    return f"""
#all = affine_map<(r, k) -> (r, k)>
#row = affine_map<(r, k) -> (r)>
#column = affine_map<(r, k) -> (k)>
#one = affine_map<(r) -> (r)>
func.func @product(%x: {x}f32>, %w: {w}{element}>, %t: tensor<{COLUMNS}xf32>)
    -> ({y}f32>, {x}{element}>, tensor<{ROWS}xf32>) {{
  %zero = arith.constant 0.0 : f32
  %most = arith.constant {largest} : f32
  %least = arith.constant -{largest} : f32
  %r = tensor.empty() : tensor<{ROWS}xf32>
  %none = linalg.fill ins(%zero : f32) outs(%r : tensor<{ROWS}xf32>) -> tensor<{ROWS}xf32>
  %amax = linalg.generic {{indexing_maps = [#all, #row],
      iterator_types = ["parallel", "reduction"]}}
      ins(%x : {x}f32>) outs(%none : tensor<{ROWS}xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %m = math.absf %a : f32
    %n = arith.maximumf %m, %o : f32
    linalg.yield %n : f32
  }} -> tensor<{ROWS}xf32>
  %s = linalg.generic {{indexing_maps = [#one, #one], iterator_types = ["parallel"]}}
      ins(%amax : tensor<{ROWS}xf32>) outs(%r : tensor<{ROWS}xf32>) {{
  ^bb0(%a: f32, %o: f32):
    %q = arith.divf %a, %most : f32
    linalg.yield %q : f32
  }} -> tensor<{ROWS}xf32>
  %e = tensor.empty() : {x}{element}>
  %c = linalg.generic {{indexing_maps = [#all, #row, #all],
      iterator_types = ["parallel", "parallel"]}}
      ins(%x, %s : {x}f32>, tensor<{ROWS}xf32>) outs(%e : {x}{element}>) {{
  ^bb0(%a: f32, %b: f32, %o: {element}):
    %q = arith.divf %a, %b : f32
    %u = arith.minimumf %q, %most : f32
    %v = arith.maximumf %u, %least : f32
    %n = arith.truncf %v : f32 to {element}
    linalg.yield %n : {element}
  }} -> {x}{element}>
  %f = tensor.empty() : {y}f32>
  %acc = linalg.fill ins(%zero : f32) outs(%f : {y}f32>) -> {y}f32>
  %p = linalg.generic {{indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%c, %w : {x}{element}>, {w}{element}>) outs(%acc : {y}f32>) {{
  ^bb0(%a: {element}, %b: {element}, %o: f32):
    %i = arith.extf %a : {element} to f32
    %j = arith.extf %b : {element} to f32
    %m = arith.mulf %i, %j : f32
    %n = arith.addf %o, %m : f32
    linalg.yield %n : f32
  }} -> {y}f32>
  %y = linalg.generic {{indexing_maps = [#all, #row, #column, #all],
      iterator_types = ["parallel", "parallel"]}}
      ins(%p, %s, %t : {y}f32>, tensor<{ROWS}xf32>, tensor<{COLUMNS}xf32>) outs(%f : {y}f32>) {{
  ^bb0(%a: f32, %b: f32, %d: f32, %o: f32):
    %m = arith.mulf %a, %b : f32
    %n = arith.mulf %m, %d : f32
    linalg.yield %n : f32
  }} -> {y}f32>
  return %y, %c, %s : {y}f32>, {x}{element}>, tensor<{ROWS}xf32>
}}"""


def floats(element: str) -> NDArray[np.float32]:
    """Return COUNT f32: midpoints of adjacent numbers of `element` and the floats next to these,
    numbers beyond the largest, Inf, NaN, and random floats of all exponents."""
    kind = DTYPES[element]
    codes = np.arange(128, dtype=np.uint8).view(kind).astype(np.float32)
    ties = np.append((codes[1:] + codes[:-1]) / 2, [codes[-1] * 1.0625, 3e38, np.inf, np.nan])
    ties = ties.astype(np.float32)
    edges = np.concatenate([codes, np.nextafter(ties, 0), ties, np.nextafter(ties, np.float32(9))])
    bits = np.random.default_rng(5).integers(0, 1 << 32, COUNT, dtype=np.uint64).astype(np.uint32)
    x = bits.view(np.float32).copy()
    # Half of the random floats are in the range of the element.
    near = np.ldexp(1 + (bits & 0xFFFF) / 65536, bits.view(np.int32) % 24 - 18)
    x[::2] = (near * np.where(bits >> 31, -1, 1)).astype(np.float32)[::2]
    both = np.concatenate([edges, -edges])
    x[: len(both)] = both
    return x


@pytest.fixture(scope="module", params=["gfx942", "gfx950"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fnuz")
    (folder / "p.mlir").write_text("".join(map(casts, DTYPES)))
    mxc.compile(folder / "p.mlir", target=request.param, output=folder / "p.mxc", listing=False)
    return folder / "p.mxc"


@pytest.mark.parametrize("element", DTYPES)
def test_casts_are_those_of_ml_dtypes(element: str, compiled: Path) -> None:
    model, kind = mxc.load(compiled, device="simulator"), DTYPES[element]
    x = floats(element)
    with np.errstate(all="ignore"):
        right = x.astype(kind)
    found: Any = model.call(f"to_{element}", x)
    found = found[0] if isinstance(found, list | tuple) else found
    np.testing.assert_array_equal(found.view(np.uint8), right.view(np.uint8))
    assert (right.view(np.uint8) == 0x80).sum() > 1
    codes = np.arange(256, dtype=np.uint8).view(kind)
    for name, wide in (("f32", np.dtype(np.float32)), ("bf16", np.dtype(ml_dtypes.bfloat16))):
        found = model.call(f"{name}_{element}", codes)
        found = found[0] if isinstance(found, list | tuple) else found
        np.testing.assert_array_equal(found.astype(np.float32), codes.astype(wide).astype("f4"))


@pytest.mark.parametrize("element", DTYPES)
def test_zeros_and_numbers_under_the_least_scales(element: str, compiled: Path) -> None:
    model, kind = mxc.load(compiled, device="simulator"), DTYPES[element]
    scales = np.resize(np.array([0, 1, 7], np.uint8), 64).view(ml_dtypes.float8_e8m0fnu)
    x = np.resize(np.array([0, -0.0, 2.0**-126, -(2.0**-125), 1.5 * 2.0**-120], np.float32), 64)
    found: Any = model.call(f"under_{element}", x, scales)
    found = found[0] if isinstance(found, list | tuple) else found
    right = (x / scales.astype(np.float64)).astype(kind)
    np.testing.assert_array_equal(found.view(np.uint8), right.view(np.uint8))


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("element", DTYPES)
def test_a_product_of_quantized_rows(element: str, target: str, tmp_path: Path) -> None:
    kind = DTYPES[element]
    largest = float(np.uint8(127).view(kind).astype(np.float32))
    (tmp_path / "p.mlir").write_text(product(element, largest))
    mxc.compile(tmp_path / "p.mlir", target=target, output=tmp_path / "p.mxc")
    rng = np.random.default_rng(7)
    x = rng.standard_normal((ROWS, DEPTH)).astype(np.float32)
    w = (rng.standard_normal((COLUMNS, DEPTH)) * 9).astype(np.float32).astype(kind)
    # The largest and the least numbers, and a NaN, which makes only its column NaN.
    w.view(np.uint8)[0, :6] = 0x7F, 0xFF, 0x01, 0x81, 0x07, 0x08
    w.view(np.uint8)[9, 77] = 0x80
    t = rng.uniform(0.5, 2, COLUMNS).astype(np.float32)
    y, codes, scales = mxc.load(tmp_path / "p.mxc", device="simulator").call("product", x, w, t)
    wanted = mxc.quantize_scaled(x, f"{element[2:].lower()}:float32_t0")
    np.testing.assert_array_equal(scales, np.asarray(wanted.scales).reshape(-1))
    np.testing.assert_array_equal(codes.view(np.uint8), np.asarray(wanted.codes).view(np.uint8))
    a = codes.astype(np.float64) * scales[:, None]
    assert np.isnan(y[:, 9]).all()
    y, w, t = (np.delete(each, 9, axis) for each, axis in ((y, 1), (w, 0), (t, 0)))
    b = w.astype(np.float64) * t[:, None]
    assert (np.abs(y - a @ b.T) <= 2.0**-20 * (np.abs(a) @ np.abs(b).T)).all()
    (row,) = json.loads((tmp_path / "p.mxc" / REPORT).read_text())["matmuls"]
    assert (row["fallback"], row["kernels"]) == (None, 1)
    assert row["lowering"].startswith("v_mfma_f32_16x16x")
