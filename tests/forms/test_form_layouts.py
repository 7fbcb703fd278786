"""Weights [K, N] with scales [K / 32, N], as products that are not transposed have them."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mxc
from tests.forms.form_weights import TARGETS, parallel, table

M, N, K = 4, 16, 64
W = f"tensor<{K}x{N}xf32>"

#: Bytes [K / 2, N]: the halves of a byte follow each other along K.
NIBBLES = f"\n  %values = {table('f32')}" + parallel(
    f"%w : tensor<{K // 2}x{N}xi8> : k floordiv 2, n",
    f"%s : tensor<{K // 32}x{N}xi8> : k floordiv 32, n",
    out=f"{W} : k, n",
    result="%d",
    body="""%k = linalg.index 0 : index
    %two = arith.constant 2 : index
    %place = arith.remui %k, %two : index
    %part = arith.index_cast %place : index to i8
    %four = arith.constant 4 : i8
    %by = arith.muli %part, %four : i8
    %moved = arith.shrui %i0, %by : i8
    %low = arith.constant 15 : i8
    %bits = arith.andi %moved, %low : i8
    %code = arith.index_castui %bits : i8 to index
    %v = tensor.extract %values[%code] : tensor<16xf32>
    %wide = arith.extui %i1 : i8 to i32
    %bias = arith.constant 127 : i32
    %e = arith.subi %wide, %bias : i32
    %f = arith.sitofp %e : i32 to f32
    %p = math.exp2 %f : f32
    %q = arith.mulf %v, %p : f32
    linalg.yield %q : f32""",
)
#: Elements of 8 bits.
BYTES = f"""
  %c = flow.tensor.bitcast %w : tensor<{K}x{N}xi8> -> tensor<{K}x{N}xf8E4M3FN>
  %f8 = flow.tensor.bitcast %s : tensor<{K // 32}x{N}xi8> -> tensor<{K // 32}x{N}xf8E8M0FNU>
""" + parallel(
    f"%c : tensor<{K}x{N}xf8E4M3FN> : k, n",
    f"%f8 : tensor<{K // 32}x{N}xf8E8M0FNU> : k floordiv 32, n",
    out=f"{W} : k, n",
    result="%d",
    body="""%q = arith.scaling_extf %i0, %i1 : f8E4M3FN, f8E8M0FNU to f32
    linalg.yield %q : f32""",
)
#: Elements of 4 bits, of which two along N share a byte.
ALONG_N = BYTES.replace(
    f"%w : tensor<{K}x{N}xi8> -> tensor<{K}x{N}xf8E4M3FN>",
    f"%w : tensor<{K}x{N // 2}xi8> -> tensor<{K}x{N}xf4E2M1FN>",
).replace("f8E4M3FN", "f4E2M1FN")
#: Name -> the format, the shape of the bytes, the operations from them to %d.
LAYOUTS = {
    "along_k": ("mxfp4", (K // 2, N), NIBBLES),
    "along_n": ("mxfp4", (K, N // 2), ALONG_N),
    "bytes": ("mxfp8e4m3", (K, N), BYTES),
}


def function(name: str) -> str:
    _, (rows, columns), body = LAYOUTS[name]
    x, y = f"tensor<{M}x{K}xf32>", f"tensor<{M}x{N}xf32>"
    given = f"%x: {x}, %w: tensor<{rows}x{columns}xi8>, %s: tensor<{K // 32}x{N}xi8>"
    return f"""
func.func @{name}({given}) -> {y} {{{body}
  %acc = arith.constant dense<0.0> : {y}
  %y = linalg.matmul ins(%x, %d : {x}, {W}) outs(%acc : {y}) -> {y}
  return %y : {y}
}}"""


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp(request.param)
    source = folder / "layouts.mlir"
    source.write_text("\n".join(map(function, LAYOUTS)))
    output = folder / "layouts.mxc"
    mxc.compile(source, target=request.param, output=output)
    manifest = json.loads((output / "manifest.json").read_text())
    report = json.loads((output / "report.json").read_text())
    return mxc.load(output, device=TARGETS[request.param][0]), report, manifest


@pytest.mark.parametrize("name", LAYOUTS)
def test_columns(compiled: Any, name: str) -> None:
    model, report, manifest = compiled
    (row,) = [row for row in report["matmuls"] if row["function"] == name]
    assert row["fallback"] is None
    assert row["kernel"].startswith("mxc_")
    assert row["rhs"] == LAYOUTS[name][0]
    assert any("transposed" in note for note in manifest["notes"])
    rng = np.random.default_rng(1)
    x = rng.integers(-8, 9, (M, K)).astype(np.float32)
    scales = rng.integers(122, 131, (K // 32, N), dtype=np.uint8)
    if name != "bytes":
        codes, kind = rng.integers(0, 16, (K, N), dtype=np.uint8), ml_dtypes.float4_e2m1fn
        rows = codes if name == "along_k" else codes.T
        given = rows[0::2] | rows[1::2] << 4
        given = given if name == "along_k" else np.ascontiguousarray(given.T)
    else:
        # Of few digits, so that every sum is exact.
        codes = given = rng.choice(np.array([0x38, 0xB0, 0x40, 0xC4, 0x00], np.uint8), (K, N))
        kind = ml_dtypes.float8_e4m3fn
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    values = codes.view(kind).astype(np.float32) * np.repeat(factors, 32, axis=0)
    (found,) = model.call(name, x, given.view(np.int8), scales.view(np.int8))
    np.testing.assert_array_equal(found, x @ values)
