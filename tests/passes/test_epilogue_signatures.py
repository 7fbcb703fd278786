"""Signatures of epilogues: products with the same signature share a kernel, so that different
epilogues must have different signatures."""

import pytest
from iree.compiler import ir

from mxc.dialects.context import new_context
from mxc.passes.kernels.epilogues import epilogue
from mxc.passes.rewriting.rebuild import linalg_operations

PRODUCT = """
#m = affine_map<(m, n) -> (m)>
#n = affine_map<(m, n) -> (n)>
#mn = affine_map<(m, n) -> (m, n)>
!row = tensor<32xf32>
!half = tensor<32x16xf32>
!whole = tensor<32x32xf32>
func.func @main(%x: tensor<32x64xf32>, %w: tensor<64x32xf32>, %t: !row) -> {result} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : !whole
  %h = tensor.empty() : !half
  %acc = linalg.fill ins(%zero : f32) outs(%e : !whole) -> !whole
  %y = linalg.matmul ins(%x, %w : tensor<32x64xf32>, tensor<64x32xf32>)
    outs(%acc : !whole) -> !whole
{rest}
}}
"""
STAGE = """
  %{result} = linalg.generic {{
    indexing_maps = [#mn, #{loop}, #mn], iterator_types = ["parallel", "parallel"]}}
    ins(%{read}, %t : !whole, !row) outs(%e : !whole) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.{kind} %a, %b : f32
    linalg.yield %c : f32
  }} -> !whole"""
GATE = """
  %first = tensor.extract_slice %y[0, 0] [32, 16] [1, 1] : !whole to !half
  %second = tensor.extract_slice %y[0, 16] [32, 16] [1, 1] : !whole to !half
  %z = linalg.generic {{
    indexing_maps = [#mn, #mn, #mn], iterator_types = ["parallel", "parallel"]}}
    ins({halves} : !half, !half) outs(%h : !half) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %c = arith.divf %a, %b : f32
    linalg.yield %c : f32
  }} -> !half
  return %z : !half"""


def by_columns_and_rows(last: str) -> str:
    """Return a product with three stages that read a tensor by columns, by rows, and by `last`."""
    stages = [("y", "p", "n", "mulf"), ("p", "q", "m", "addf"), ("q", "z", last, "mulf")]
    lines = [STAGE.format(read=r, result=s, loop=loop, kind=k) for r, s, loop, k in stages]
    lines.append("\n  return %z : !whole")
    return PRODUCT.format(result="!whole", rest="".join(lines))


def halves(first: str, second: str) -> str:
    """Return a product with a gate that divides one half of the columns by the other."""
    rest = GATE.format(halves=f"%{first}, %{second}")
    return PRODUCT.format(result="!half", rest=rest)


def signature(program: str) -> str:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(program)
        operations = linalg_operations(module.operation)
        (product,) = [op for op in operations if op.name == "linalg.matmul"]
        found = epilogue(product, 16)
        assert len(found.stages) in (1, 3)
        assert found.unfused is None
        return found.signature


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (by_columns_and_rows("n"), by_columns_and_rows("m")),
        (halves("first", "second"), halves("second", "first")),
    ],
)
def test_other_code_has_another_signature(one: str, other: str) -> None:
    assert signature(one) == signature(one)
    assert signature(one) != signature(other)
