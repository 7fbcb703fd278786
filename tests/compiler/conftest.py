"""Scaled contractions as a frontend writes them, and an empty folder for temporary files."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from mxc.formats.formats import E8M0, block_format

TYPES = {
    "e2m1": "f4E2M1FN",
    "e2m3": "f6E2M3FN",
    "e3m2": "f6E3M2FN",
    "e4m3": "f8E4M3FN",
    "e5m2": "f8E5M2",
}


def _bytes(format: str) -> int:
    return block_format(format).block_bytes


def _argument(name: str, rows: int | str, k: int, format: str | None) -> str:
    if format is None:
        return f"%{name}w: tensor<{rows}x{k}xf32>"
    blocks = k // block_format(format).block
    packed = f"tensor<{rows}x{blocks}x{_bytes(format)}xi8>"
    return f"%{name}: {packed}, %{name}s: tensor<{rows}x{blocks}xi8>"


def _dequantize(name: str, rows: int | str, k: int, format: str | None) -> str:
    """%{name}w: the f32 rows of the packed operand, %{name}m how many there are."""
    if format is None:
        return f"  %{name}m = tensor.dim %{name}w, %c0 : tensor<{rows}x{k}xf32>\n"
    f = block_format(format)
    blocks, element = k // f.block, TYPES[f.element.name]
    scale = "f8E8M0FNU" if f.scale is E8M0 else "f8E4M3FN"
    given, dims = (f"{{%{name}m}}", f"(%{name}m)") if rows == "?" else ("", "()")
    whole, thin = f"tensor<{rows}x{blocks}x{f.block}x", f"tensor<{rows}x{blocks}x"
    packed = f"{thin}{_bytes(format)}xi8>"
    if f.scale is E8M0:
        body = f"%y = arith.scaling_extf %a, %b : {element}, {scale} to f32"
    else:
        body = f"""%l = arith.extf %a : {element} to f32
    %r = arith.extf %b : {scale} to f32
    %y = arith.mulf %l, %r : f32"""
    cube, flat = "affine_map<(n, a, b) -> (n, a, b)>", "affine_map<(n, a, b) -> (n, a)>"
    return f"""  %{name}m = tensor.dim %{name}, %c0 : {packed}
  %{name}e = flow.tensor.bitcast %{name} : {packed}{given} -> {whole}{element}>{given}
  %{name}t = flow.tensor.bitcast %{name}s : {thin}i8>{given} -> {thin}{scale}>{given}
  %{name}o = tensor.empty{dims} : {whole}f32>
  %{name}d = linalg.generic {{
      indexing_maps = [{cube}, {flat}, {cube}],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%{name}e, %{name}t : {whole}{element}>, {thin}{scale}>) outs(%{name}o : {whole}f32>) {{
  ^bb0(%a: {element}, %b: {scale}, %o: f32):
    {body}
    linalg.yield %y : f32
  }} -> {whole}f32>
  %{name}w = tensor.collapse_shape %{name}d [[0], [1, 2]] : {whole}f32> into tensor<{rows}x{k}xf32>
"""


def _linear(
    name: str, rhs: str, *, lhs: str | None = None, m: int | str = "?", n: int = 97, k: int = 96
) -> str:
    """func @name: x [m, k] (f32, or packed as `lhs`) times the rows w [n, k] packed as `rhs`.

    Arguments: x or its bytes and scales, then the bytes and scales of w.
    """
    dims = "(%xm)" if m == "?" else "()"
    a, b, c = (f"affine_map<(m, n, k) -> ({read})>" for read in ("m, k", "n, k", "m, n"))
    arguments = f"{_argument('x', m, k, lhs)}, {_argument('w', n, k, rhs)}"
    return f"""func.func @{name}({arguments}) -> tensor<{m}x{n}xf32> {{
  %c0 = arith.constant 0 : index
{_dequantize("x", m, k, lhs)}{_dequantize("w", n, k, rhs)}  %zero = arith.constant 0.0 : f32
  %out = tensor.empty{dims} : tensor<{m}x{n}xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%out : tensor<{m}x{n}xf32>) -> tensor<{m}x{n}xf32>
  %r = linalg.matmul indexing_maps = [{a}, {b}, {c}]
    ins(%xw, %ww : tensor<{m}x{k}xf32>, tensor<{n}x{k}xf32>) outs(%acc : tensor<{m}x{n}xf32>)
    -> tensor<{m}x{n}xf32>
  return %r : tensor<{m}x{n}xf32>
}}
"""


@pytest.fixture
def linear() -> Callable[..., str]:
    """Text of a function that dequantizes and multiplies; see `_linear`."""
    return _linear


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder
