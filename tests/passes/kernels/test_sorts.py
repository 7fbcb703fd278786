"""Sorts on CPUs, against a stable sort of numpy."""

from typing import Any

import numpy as np
import pytest

import mxc
from tests.passes.sort_cases import CASES, SortCase

#: Functions: two sorts with the same initial indices, a sort of i1, and a sort as long as a
#: vocabulary.
OTHERS = """
#id = affine_map<(i) -> (i)>
func.func @both(%x: tensor<40xi32>, %y: tensor<40xi32>) -> (tensor<40xi32>, tensor<40xi32>) {
  %e = tensor.empty() : tensor<40xi32>
  %n = linalg.generic {indexing_maps = [#id], iterator_types = ["parallel"]}
      outs(%e : tensor<40xi32>) {
  ^bb0(%o: i32):
    %i = linalg.index 0 : index
    %c = arith.index_cast %i : index to i32
    linalg.yield %c : i32
  } -> tensor<40xi32>
  %a:2 = iree_linalg_ext.sort dimension(0) outs(%x, %n : tensor<40xi32>, tensor<40xi32>) {
  ^bb0(%p: i32, %q: i32, %i: i32, %j: i32):
    %l = arith.cmpi slt, %p, %q : i32
    iree_linalg_ext.yield %l : i1
  } -> tensor<40xi32>, tensor<40xi32>
  %b:2 = iree_linalg_ext.sort dimension(0) outs(%y, %n : tensor<40xi32>, tensor<40xi32>) {
  ^bb0(%p: i32, %q: i32, %i: i32, %j: i32):
    %l = arith.cmpi sgt, %p, %q : i32
    iree_linalg_ext.yield %l : i1
  } -> tensor<40xi32>, tensor<40xi32>
  return %a#1, %b#1 : tensor<40xi32>, tensor<40xi32>
}
func.func @truth(%x: tensor<40xi32>, %n: tensor<40xi32>) -> tensor<40xi32> {
  %e = tensor.empty() : tensor<40xi1>
  %t = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel"]}
      ins(%x : tensor<40xi32>) outs(%e : tensor<40xi1>) {
  ^bb0(%p: i32, %o: i1):
    %zero = arith.constant 0 : i32
    %l = arith.cmpi sgt, %p, %zero : i32
    linalg.yield %l : i1
  } -> tensor<40xi1>
  %a:2 = iree_linalg_ext.sort dimension(0) outs(%t, %n : tensor<40xi1>, tensor<40xi32>) {
  ^bb0(%p: i1, %q: i1, %i: i32, %j: i32):
    %l = arith.cmpi ult, %p, %q : i1
    iree_linalg_ext.yield %l : i1
  } -> tensor<40xi1>, tensor<40xi32>
  return %a#1 : tensor<40xi32>
}
func.func @long(%x: tensor<131072xf32>) -> tensor<131072xf32> {
  %a = iree_linalg_ext.sort dimension(0) outs(%x : tensor<131072xf32>) {
  ^bb0(%p: f32, %q: f32):
    %l = arith.cmpf olt, %p, %q : f32
    iree_linalg_ext.yield %l : i1
  } -> tensor<131072xf32>
  return %a : tensor<131072xf32>
}
"""


@pytest.fixture(scope="module", params=["cpu", "cpu:x86-64"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("sorts")
    (folder / "p.mlir").write_text("\n".join([OTHERS, *{case.text for case in CASES}]))
    made = mxc.compile(folder / "p.mlir", target=request.param, output=folder / "p.mxc")
    return mxc.load(made.path, threads=1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_sorted_rows(model: Any, case: SortCase) -> None:
    case.check(model.call(case.name, *case.operands()))


def test_sorts_that_begin_with_the_same_numbers(model: Any) -> None:
    x, y = np.random.default_rng(0).integers(0, 5, (2, 40), dtype=np.int32)
    first, second = model.call("both", x, y)
    np.testing.assert_array_equal(first, np.argsort(x, kind="stable"))
    np.testing.assert_array_equal(second, np.argsort(-y, kind="stable"))


def test_truth_values(model: Any) -> None:
    x = np.random.default_rng(0).integers(-3, 4, 40, dtype=np.int32)
    (found,) = model.call("truth", x, np.arange(40, dtype=np.int32))
    np.testing.assert_array_equal(found, np.argsort(x > 0, kind="stable"))


def test_a_vocabulary(model: Any) -> None:
    x = np.random.default_rng(0).normal(size=131072).astype(np.float32)
    np.testing.assert_array_equal(model.call("long", x)[0], np.sort(x))
