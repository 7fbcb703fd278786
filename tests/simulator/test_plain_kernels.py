"""Kernels of the stock compiler for plain programs, run by the host programs of their modules."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import mxc
from mxc.simulator.host.hal import HalBuffer, HalDevice, View
from mxc.simulator.host.vm import Machine
from mxc.simulator.host.vm_module import read_module
from mxc.simulator.run.translate import TranslatedKernel

Array = NDArray[Any]
DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ELEMENTS = {"f32": 0x21000020, "f16": 0x21000010, "bf16": 0x22000010}


def run(compiled: Any, *arguments: tuple[Array, str]) -> Array:
    """Run the host program's function main, and return its only result, in f32."""
    for kernel in compiled.kernels.values():
        assert not TranslatedKernel(kernel).unmodelled
    machine = Machine(read_module(compiled.module), HalDevice().functions())
    views = [View(HalBuffer.over(a.copy()), a.shape, ELEMENTS[t], 1) for a, t in arguments]
    (result,) = machine.call("main", *views)
    return np.asarray(result.buffer.bytes.view(np.float32).reshape(result.shape))


def product(rows: int, columns: int, depth: int, lhs: str, rhs: str) -> str:
    """Return a program that multiplies A [rows, depth] by B [columns, depth], with sums in f32."""
    a, b = f"tensor<{rows}x{depth}x{lhs}>", f"tensor<{columns}x{depth}x{rhs}>"
    c = f"tensor<{rows}x{columns}xf32>"

    def widen(name: str, kind: str) -> str:
        return f"%{name}w = arith.extf %{name} : {kind} to f32" if kind != "f32" else ""

    x, y = ("x" if lhs == "f32" else "xw"), ("y" if rhs == "f32" else "yw")
    return f"""
    func.func @main(%a: {a}, %b: {b}) -> {c} {{
      %z = arith.constant 0.0 : f32
      %e = tensor.empty() : {c}
      %f = linalg.fill ins(%z : f32) outs(%e : {c}) -> {c}
      %r = linalg.generic {{
        indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
          affine_map<(m, n, k) -> (m, n)>],
        iterator_types = ["parallel", "parallel", "reduction"]}}
        ins(%a, %b : {a}, {b}) outs(%f : {c}) {{
      ^bb0(%x: {lhs}, %y: {rhs}, %s: f32):
        {widen("x", lhs)}
        {widen("y", rhs)}
        %p = arith.mulf %{x}, %{y} : f32
        %t = arith.addf %s, %p : f32
        linalg.yield %t : f32
      }} -> {c}
      return %r : {c}
    }}"""


def operands(rows: int, columns: int, depth: int, lhs: str, rhs: str) -> tuple[Array, Array]:
    rng = np.random.default_rng(depth)
    a = rng.normal(0, 1, (rows, depth)).astype(DTYPES[lhs])
    b = rng.normal(0, 1, (columns, depth)).astype(DTYPES[rhs])
    return a, b


@pytest.mark.parametrize("kind", ["f16", "bf16", "f32"])
@pytest.mark.parametrize("shape", [(64, 64, 128), (33, 40, 72)])
def test_products(kind: str, shape: tuple[int, int, int], compiled: Callable[..., Any]) -> None:
    a, b = operands(*shape, kind, kind)
    found = run(compiled(product(*shape, kind, kind)), (a, kind), (b, kind))
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(found, wanted, atol=2e-6 * np.abs(wanted).max(), rtol=0)


SOFTMAX = """
func.func @main(%x: tensor<6x200xf32>) -> tensor<6x200xf32> {
  %e = tensor.empty() : tensor<6x200xf32>
  %r = linalg.softmax dimension(1) ins(%x : tensor<6x200xf32>) outs(%e : tensor<6x200xf32>)
    -> tensor<6x200xf32>
  return %r : tensor<6x200xf32>
}
"""


def test_softmax(compiled: Callable[..., Any]) -> None:
    x = np.random.default_rng(5).normal(0, 3, (6, 200)).astype(np.float32)
    found = run(compiled(SOFTMAX), (x, "f32"))
    wanted = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    np.testing.assert_allclose(found, wanted / wanted.sum(axis=1, keepdims=True), rtol=2e-5)


ATTENTION = """
func.func @main(%q: tensor<2x64x64xf16>, %k: tensor<2x64x64xf16>, %v: tensor<2x64x64xf16>)
    -> tensor<2x64x64xf32> {
  %scale = arith.constant 0.125 : f16
  %e = tensor.empty() : tensor<2x64x64xf32>
  %r = iree_linalg_ext.attention <{
    indexing_maps = [affine_map<(b, m, n, d, s) -> (b, m, d)>,
      affine_map<(b, m, n, d, s) -> (b, s, d)>, affine_map<(b, m, n, d, s) -> (b, s, n)>,
      affine_map<(b, m, n, d, s) -> ()>, affine_map<(b, m, n, d, s) -> (b, m, n)>]}>
    ins(%q, %k, %v, %scale : tensor<2x64x64xf16>, tensor<2x64x64xf16>, tensor<2x64x64xf16>, f16)
    outs(%e : tensor<2x64x64xf32>) {
  ^bb0(%s: f32):
    iree_linalg_ext.yield %s : f32
  } -> tensor<2x64x64xf32>
  return %r : tensor<2x64x64xf32>
}
"""


def test_attention(compiled: Callable[..., Any]) -> None:
    rng = np.random.default_rng(6)
    q, k, v = (rng.normal(0, 1, (2, 64, 64)).astype(np.float16) for _ in range(3))
    found = run(compiled(ATTENTION), (q, "f16"), (k, "f16"), (v, "f16"))
    score = np.einsum("bmd,bsd->bms", q.astype(np.float64), k.astype(np.float64)) * 0.125
    weight = np.exp(score - score.max(axis=2, keepdims=True))
    weight /= weight.sum(axis=2, keepdims=True)
    wanted = weight @ v.astype(np.float64)
    # Weights are rounded to f16 before the second product.
    np.testing.assert_allclose(found, wanted, atol=3e-3)


@pytest.mark.parametrize("narrow", ["bf16", "f16"])
def test_stock_products_of_one_row_with_mixed_widths_are_wrong(
    narrow: str, compiled: Callable[..., Any]
) -> None:
    """IREE 3.13 adds the rows of a workgroup up and stores one of eight.

    The assembly shows it: a workgroup has eight rows, and one lane stores one number. With equal
    widths the same product is right. When this fails the compiler has been repaired.
    """
    shape = (1, 64, 128)
    a, b = operands(*shape, "f32", "f32")
    found = run(compiled(product(*shape, "f32", "f32")), (a, "f32"), (b, "f32"))
    np.testing.assert_allclose(found, a.astype(np.float64) @ b.T, rtol=1e-4, atol=1e-4)
    short = b.astype(DTYPES[narrow])
    found = run(compiled(product(*shape, "f32", narrow)), (a, "f32"), (short, narrow))
    wanted = a.astype(np.float64) @ short.astype(np.float64).T
    with np.errstate(invalid="ignore"):
        wrong = ~np.isclose(found, wanted, rtol=1e-3, atol=1e-2)
    assert wrong.sum() > 32


@pytest.mark.parametrize("rows", ["1", "1x1"])
@pytest.mark.parametrize(("columns", "depth"), [(64, 128), (66, 256)])
@pytest.mark.parametrize("narrow", ["bf16", "f16"])
def test_our_products_of_one_row_with_mixed_widths_are_right(
    narrow: str, columns: int, depth: int, rows: str, tmp_path: Path
) -> None:
    """The pipeline for gfx950 has a schedule of its own for them, also with a batch of one."""
    text = product(1, columns, depth, "f32", narrow)
    if rows == "1x1":
        text = text.replace("tensor<", "tensor<1x").replace("(m, n, k) ->", "(b, m, n, k) ->")
        text = re.sub(r"-> \((\w, \w)\)>", r"-> (b, \1)>", text)
        text = text.replace("iterator_types = [", 'iterator_types = ["parallel", ')
    (tmp_path / "row.mlir").write_text(text)
    mxc.compile(tmp_path / "row.mlir", target="gfx950", output=tmp_path / "row.mxc")
    a, b = operands(1, columns, depth, "f32", narrow)
    batch = (1,) if rows == "1x1" else ()
    model = mxc.load(tmp_path / "row.mxc", device="simulator")
    (found,) = model.call("main", a.reshape(*batch, *a.shape), b.reshape(*batch, *b.shape))
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(found.reshape(1, columns), wanted, rtol=1e-4, atol=1e-4)


def test_our_products_of_one_row_without_scratch_memory(tmp_path: Path) -> None:
    """Few rows of weights, of a depth with which IREE's own schedule spills: --strict takes it."""
    text = product(1, 256, 5120, "bf16", "bf16")
    (tmp_path / "row.mlir").write_text(text)
    output = tmp_path / "row.mxc"
    mxc.compile(tmp_path / "row.mlir", target="gfx950", output=output, strict=True)
    a, b = operands(1, 256, 5120, "bf16", "bf16")
    (found,) = mxc.load(output, device="simulator").call("main", a, b)
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
