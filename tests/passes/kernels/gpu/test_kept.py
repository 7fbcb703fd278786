"""Products that are a result themselves, beside that of their epilogue: one kernel stores both.

Kernels run on the simulator. Elements are multiples of a half and scales are near one, so that sums
are exact.
"""

import re
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from iree.compiler import ir
from numpy.typing import NDArray

from mxc.dialects.context import new_context
from mxc.formats.formats import FORMATS
from mxc.passes.kernels.epilogues import epilogue

K = 512
RING = {"instruction": 32, "tiles": [1, 2], "waves": [4, 1, 1], "transport": "ring", "stages": 3,
        "k_steps": 2}  # fmt: skip

#: Operations after the product %y, the results, and the number of kernels.
AFTER = {
    # The product itself is kept, and the epilogue has two stages.
    "totals": ("%b = BIAS %y\n%r = RELU %b", ["%y", "%r"], 1),
    # The product with its bias is kept; the result after it is stored as bf16.
    "biased": ("%b = BIAS %y\n%r = NARROW %b", ["%b", "%r"], 1),
    # The product is kept in bf16, which the next stage reads.
    "narrow": ("%b = NARROW %y\n%r = WIDE %b", ["%b", "%r"], 1),
    # The result reads the product in two ways; its operations become one stage before kernels are
    # made.
    "again": ("%b = RELU %y\n%r = SUM %b, %y", ["%r"], 1),
    "through": ("%b = RELU %y\n%c = BIAS %y\n%r = SUM %b, %c", ["%r"], 1),
    # The last operation also reads ROWS, which reads the product: the product is stored, and the
    # last operation is a kernel of its own.
    "late": ("%z = ROWS %y\n%r = SCALED %y, %z", ["%y", "%r"], 2),
}  # fmt: skip
MAPS = """
#all = affine_map<(m, n) -> (m, n)>
#column = affine_map<(m, n) -> (n)>
#row = affine_map<(m, n) -> (m)>"""
SHAPES = {"short": (3, 20), "tiles": (20, 96), "ring": (72, 96)}


def operation(name: str, read: list[str], m: int, n: int) -> str:
    y, f = f"tensor<{m}x{n}xf32>", f"tensor<{m}x{n}xbf16>"
    row = f"tensor<{m}xf32>"
    maps, ins, kinds, out, body = {
        "BIAS": ("#all, #column", [y, f"tensor<{n}xf32>"], ["f32", "f32"], y,
                 "%v = arith.addf %p, %q : f32"),
        "RELU": ("#all", [y], ["f32"], y, "%v = arith.maximumf %p, %zero : f32"),
        "NARROW": ("#all", [y], ["f32"], f, "%v = arith.truncf %p : f32 to bf16"),
        "WIDE": ("#all", [f], ["bf16"], y, "%v = arith.extf %p : bf16 to f32"),
        "SUM": ("#all, #all", [y, y], ["f32", "f32"], y, "%v = arith.addf %p, %q : f32"),
        "SCALED": ("#all, #row", [y, row], ["f32", "f32"], y, "%v = arith.mulf %p, %q : f32"),
        "ROWS": ("#all", [y], ["f32"], row, "%v = arith.addf %o, %p : f32"),
    }[name]  # fmt: skip
    given = [*read, "%bias"] if name == "BIAS" else read
    at = "#row" if name == "ROWS" else "#all"
    kind = "bf16" if out == f else "f32"
    loops = '"parallel", "reduction"' if name == "ROWS" else '"parallel", "parallel"'
    start = "%zeros" if name == "ROWS" else "%narrow" if out == f else "%empty"
    arguments = ", ".join(f"%{a}: {k}" for a, k in zip("pq", kinds, strict=False))
    return f"""linalg.generic {{indexing_maps = [{maps}, {at}], iterator_types = [{loops}]}}
        ins({", ".join(given)} : {", ".join(ins)}) outs({start} : {out}) {{
      ^bb0({arguments}, %o: {kind}):
        {body}
        linalg.yield %v : {kind}
      }} -> {out}"""


def program(name: str, m: int, n: int) -> str:
    after, results, _ = AFTER[name]
    kinds = {"%y": "f32"}
    lines = []
    for line in after.split("\n"):
        made, op, *read = re.findall(r"%?\w+", line)
        kinds[made] = "bf16" if op == "NARROW" else "f32"
        lines.append(f"{made} = {operation(op, read, m, n)}")
    types = ", ".join(f"tensor<{m}x{n}x{kinds[each]}>" for each in results)
    y = f"tensor<{m}x{n}xf32>"
    x, s = f"tensor<{m}x{K // 32}x32xf4E2M1FN>", f"tensor<{m}x{K // 32}xf8E8M0FNU>"
    w, t = f"tensor<{n}x{K // 32}x32xf4E2M1FN>", f"tensor<{n}x{K // 32}xf8E8M0FNU>"
    return f"""
    func.func @{name}(%px: tensor<{m}x{K // 2}xi8>, %s: {s}, %pw: tensor<{n}x{K // 2}xi8>, %t: {t},
        %bias: tensor<{n}xf32>) -> ({types}) {{
      %zero = arith.constant 0.0 : f32
      %ex = tensor.expand_shape %px [[0], [1, 2]] output_shape [{m}, {K // 32}, 16]
          : tensor<{m}x{K // 2}xi8> into tensor<{m}x{K // 32}x16xi8>
      %ew = tensor.expand_shape %pw [[0], [1, 2]] output_shape [{n}, {K // 32}, 16]
          : tensor<{n}x{K // 2}xi8> into tensor<{n}x{K // 32}x16xi8>
      %x = flow.tensor.bitcast %ex : tensor<{m}x{K // 32}x16xi8> -> {x}
      %w = flow.tensor.bitcast %ew : tensor<{n}x{K // 32}x16xi8> -> {w}
      %empty = tensor.empty() : {y}
      %narrow = tensor.empty() : tensor<{m}x{n}xbf16>
      %rows = tensor.empty() : tensor<{m}xf32>
      %zeros = linalg.fill ins(%zero : f32) outs(%rows : tensor<{m}xf32>) -> tensor<{m}xf32>
      %acc = linalg.fill ins(%zero : f32) outs(%empty : {y}) -> {y}
      %y = linalg.generic {{indexing_maps = [
          affine_map<(m, n, o, i) -> (m, o, i)>, affine_map<(m, n, o, i) -> (n, o, i)>,
          affine_map<(m, n, o, i) -> (m, o)>, affine_map<(m, n, o, i) -> (n, o)>,
          affine_map<(m, n, o, i) -> (m, n)>],
          iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
          ins(%x, %w, %s, %t : {x}, {w}, {s}, {t}) outs(%acc : {y}) {{
      ^bb0(%a: f4E2M1FN, %b: f4E2M1FN, %c: f8E8M0FNU, %d: f8E8M0FNU, %o: f32):
        %l = arith.scaling_extf %a, %c : f4E2M1FN, f8E8M0FNU to f32
        %r = arith.scaling_extf %b, %d : f4E2M1FN, f8E8M0FNU to f32
        %p = arith.mulf %l, %r : f32
        %q = arith.addf %o, %p : f32
        linalg.yield %q : f32
      }} -> {y}
      {chr(10).join(lines)}
      return {", ".join(results)} : {types}
    }}"""


def wanted(name: str, y: NDArray[Any], bias: NDArray[Any]) -> list[NDArray[Any]]:
    relu, b = np.maximum(y, 0), y + bias
    narrow = y.astype(ml_dtypes.bfloat16)
    return {
        "totals": [y, np.maximum(b, 0)],
        "biased": [b, b.astype(ml_dtypes.bfloat16)],
        "narrow": [narrow, narrow.astype(np.float32)],
        "again": [relu + y],
        "through": [relu + b],
        "late": [y, y * y.sum(axis=1, keepdims=True)],
    }[name]


@pytest.fixture(scope="module", params=SHAPES)
def compiled(request: pytest.FixtureRequest, watched: Callable[..., Any]) -> Any:
    text = MAPS + "".join(program(name, *SHAPES[request.param]) for name in AFTER)
    schedules = [{"m": 72, "schedule": RING}] if request.param == "ring" else []
    return request.param, watched(text, schedules)


@pytest.mark.parametrize("name", AFTER)
def test_both_results_are_right(name: str, compiled: Any) -> None:
    shape, model = compiled
    m, n = SHAPES[shape]
    rng = np.random.default_rng(m)
    x, w = (rng.integers(0, 256, (rows, K // 2)).astype(np.uint8) for rows in (m, n))
    s, t = (rng.integers(126, 129, (rows, K // 32)).astype(np.uint8) for rows in (m, n))
    bias = rng.integers(-50, 50, n).astype(np.float32)

    def values(codes: NDArray[Any], scales: NDArray[Any]) -> NDArray[Any]:
        both = np.stack([codes & 15, codes >> 4], axis=-1).reshape(len(codes), K)
        numbers = FORMATS["mxfp4"].element.values[both]
        return numbers * np.repeat(np.exp2(scales.astype(np.float32) - 127), 32, axis=1)

    y = (values(x, s).astype(np.float64) @ values(w, t).T).astype(np.float32)
    e8m0 = ml_dtypes.float8_e8m0fnu
    given = (x.view(np.int8), s.view(e8m0), w.view(np.int8), t.view(e8m0), bias)
    found = model.call(name, *given, kernels=AFTER[name][2])
    for one, right in zip(found, wanted(name, y, bias), strict=True):
        one = one.reshape(-1).view(right.dtype).astype(np.float64)
        if name == "late":
            np.testing.assert_allclose(one, right.reshape(-1).astype(np.float64), rtol=1e-4, atol=1)
        else:
            np.testing.assert_array_equal(one, right.reshape(-1).astype(np.float64))


@pytest.mark.parametrize(
    ("name", "kept", "stages"),
    # In the last two, the second stage reads the kept product, or a result that is computed from it
    # outside of the epilogue, so the epilogue ends after one stage.
    [("totals", 0, 2), ("biased", 1, 2), ("late", None, 0), ("again", 0, 1), ("through", 0, 1)],
)
def test_no_stage_reads_what_others_make_of_the_totals(
    name: str, kept: int | None, stages: int
) -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(MAPS + program(name, 3, 20))
        function = module.body.operations[0].operation
        products = [
            each.operation
            for each in function.regions[0].blocks[0].operations
            if len(each.operation.operands) == 5
        ]
        (op,) = [op for op in products if op.name == "linalg.generic"]
        found = epilogue(op, 16, keeps=True)
        assert (found.kept, len(found.stages)) == (kept, stages)
        assert epilogue(op, 16).kept is None
