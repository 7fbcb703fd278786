"""What programs do with a product, element by element, is computed in its kernel.

One line is one epilogue on every target: operations on whole tensors over %y [M, N], which end in
%z, and what numpy makes of it. Sums of products are exact, so that the epilogue's own roundings are
all there are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.forms.form_artifacts import compile_forms
from tests.forms.form_weights import TARGETS, elementwise

M, N, K = 4, 16, 64
Y = f"tensor<{M}x{N}xf32>"
Array = NDArray[Any]
DTYPES = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}


@dataclass(frozen=True)
class Epilogue:
    """`body`: operations; `given`: shape and type of further arguments %a0, %a1; `ulps`: of the
    result's type, 0 where the mathematics is exact but for roundings that numpy does too."""

    body: str
    wanted: Callable[..., Array]
    given: tuple[tuple[tuple[int, ...], str], ...] = ()
    result: str = "f32"
    ulps: int = 0


def constant(name: str, value: float, kind: str = Y) -> str:
    return f"%{name} = arith.constant dense<{value!r}> : {kind}\n"


def broadcast(kind: str) -> str:
    big = f"tensor<{M}x{N}x{kind}>"
    return f"""%e0 = tensor.empty() : {big}
  %big = linalg.broadcast ins(%a0 : tensor<{N}x{kind}>) outs(%e0 : {big}) dimensions = [0]
  """


def bias(kind: str) -> Epilogue:
    widen = f"%wide = arith.extf %big : tensor<{M}x{N}x{kind}> to {Y}\n  "
    body = broadcast(kind) + ("" if kind == "f32" else widen)
    other = "%big" if kind == "f32" else "%wide"
    return Epilogue(
        f"{body}%z = arith.addf %y, {other} : {Y}",
        lambda y, b: y + b.astype(np.float32),
        (((N,), kind),),
    )


def unary(line: str, wanted: Callable[[Array], Array], ulps: int = 0) -> Epilogue:
    return Epilogue(line, wanted, ulps=ulps)


GELU_TANH = (
    constant("half", 0.5)
    + constant("one", 1.0)
    + constant("c", 0.044715)
    + constant("s", 0.7978845608)
    + f"""%y2 = arith.mulf %y, %y : {Y}
  %y3 = arith.mulf %y2, %y : {Y}
  %p = arith.mulf %y3, %c : {Y}
  %q = arith.addf %y, %p : {Y}
  %r = arith.mulf %q, %s : {Y}
  %t = math.tanh %r : {Y}
  %u = arith.addf %t, %one : {Y}
  %h = arith.mulf %y, %half : {Y}
  %z = arith.mulf %h, %u : {Y}"""
)
GELU_ERF = (
    constant("half", 0.5)
    + constant("one", 1.0)
    + constant("s", 0.70710678)
    + f"""%r = arith.mulf %y, %s : {Y}
  %t = math.erf %r : {Y}
  %u = arith.addf %t, %one : {Y}
  %h = arith.mulf %y, %half : {Y}
  %z = arith.mulf %h, %u : {Y}"""
)
SIGMOID = (
    constant("one", 1.0)
    + f"""%n = arith.negf %y : {Y}
  %x0 = math.exp %n : {Y}
  %x1 = arith.addf %x0, %one : {Y}
  %g = arith.divf %one, %x1 : {Y}
  """
)
IN_BF16 = f"""%b = arith.truncf %y : {Y} to tensor<{M}x{N}xbf16>
  {broadcast("bf16")}%c = arith.addf %b, %big : tensor<{M}x{N}xbf16>
  %zero = arith.constant dense<0.0> : tensor<{M}x{N}xbf16>
  %z = arith.maximumf %c, %zero : tensor<{M}x{N}xbf16>"""
RESHAPED = f"""%y3 = tensor.expand_shape %y [[0, 1], [2]] output_shape [2, 2, {N}]
    : {Y} into tensor<2x2x{N}xf32>
  %z3 = arith.addf %y3, %a0 : tensor<2x2x{N}xf32>
  %z = tensor.collapse_shape %z3 [[0, 1], [2]] : tensor<2x2x{N}xf32> into {Y}"""


def sigmoid(y: Array) -> Array:
    return 1 / (1 + np.exp(-y.astype(np.float64)))


def gelu_tanh(y: Array) -> Array:
    y = y.astype(np.float64)
    return 0.5 * y * (1 + np.tanh(0.7978845608 * (y + 0.044715 * y**3)))


def gelu_erf(y: Array) -> Array:
    y = y.astype(np.float64)
    return 0.5 * y * (1 + np.vectorize(math.erf)(y * 0.70710678))


def in_bf16(y: Array, b: Array) -> Array:
    return np.maximum(y.astype(ml_dtypes.bfloat16) + b, ml_dtypes.bfloat16(0))


EPILOGUES = {
    "bias_f32": bias("f32"),
    "bias_bf16": bias("bf16"),
    "bias_f16": bias("f16"),
    "residual_bf16": Epilogue(
        f"%wide = arith.extf %a0 : tensor<{M}x{N}xbf16> to {Y}\n  %z = arith.addf %y, %wide : {Y}",
        lambda y, r: y + r.astype(np.float32),
        (((M, N), "bf16"),),
    ),
    "scalar": Epilogue(
        elementwise(f"%y : {Y} : m, n", "%a0 : tensor<f32> : ", out=f"{Y} : m, n"),
        lambda y, s: y * s,
        (((), "f32"),),
    ),
    "rows": Epilogue(
        elementwise(f"%y : {Y} : m, n", f"%a0 : tensor<{M}xf32> : m", out=f"{Y} : m, n"),
        lambda y, s: y * s[:, None],
        (((M,), "f32"),),
    ),
    "one_column": Epilogue(
        elementwise(f"%y : {Y} : m, n", f"%a0 : tensor<{M}x1xf32> : m, 0", out=f"{Y} : m, n"),
        lambda y, s: y * s,
        (((M, 1), "f32"),),
    ),
    "gelu_tanh": unary(GELU_TANH, gelu_tanh, 64),
    "gelu_erf": unary(GELU_ERF, gelu_erf, 64),
    "relu": unary(
        constant("zero", 0.0) + f"%z = arith.maximumf %y, %zero : {Y}", lambda y: np.maximum(y, 0)
    ),
    "square": unary(f"%z = arith.mulf %y, %y : {Y}", lambda y: y * y),
    "clamp": unary(
        constant("low", -3.0)
        + constant("high", 3.0)
        + f"%l = arith.maximumf %y, %low : {Y}\n  %z = arith.minimumf %l, %high : {Y}",
        lambda y: np.clip(y, -3, 3),
    ),
    "used_twice": unary(
        SIGMOID + f"%z = arith.addf %y, %g : {Y}", lambda y: y + sigmoid(y), ulps=4
    ),
    "silu_times_other": Epilogue(
        SIGMOID + f"%s = arith.mulf %y, %g : {Y}\n  %z = arith.mulf %s, %a0 : {Y}",
        lambda y, o: y * sigmoid(y) * o,
        (((M, N), "f32"),),
        ulps=8,
    ),
    "to_bf16": Epilogue(
        f"%z = arith.truncf %y : {Y} to tensor<{M}x{N}xbf16>",
        lambda y: y.astype(ml_dtypes.bfloat16),
        result="bf16",
    ),
    "to_f16": Epilogue(
        f"%z = arith.truncf %y : {Y} to tensor<{M}x{N}xf16>",
        lambda y: y.astype(np.float16),
        result="f16",
    ),
    "in_bf16": Epilogue(IN_BF16, in_bf16, (((N,), "bf16"),), result="bf16"),
    "reshaped": Epilogue(
        RESHAPED, lambda y, b: y + b.reshape(M, N), (((2, 2, N), "f32"),)
    ),
}  # fmt: skip


def tensor(shape: tuple[int, ...], kind: str) -> str:
    return f"tensor<{'x'.join(map(str, (*shape, kind)))}>"


def function(name: str, epilogue: Epilogue) -> str:
    further = "".join(f", %a{i}: {tensor(*each)}" for i, each in enumerate(epilogue.given))
    result = tensor((M, N), epilogue.result)
    return f"""
func.func @{name}(%x: tensor<{M}x{K // 32}x32xf32>, %bytes: tensor<{N}x{K // 2}xi8>,
    %scales: tensor<{N}x{K // 32}xi8>{further}) -> {result} {{
  %weight = flow.tensor.bitcast %bytes
    : tensor<{N}x{K // 2}xi8> -> tensor<{N}x{K // 32}x32xf4E2M1FN>
  %factors = flow.tensor.bitcast %scales
    : tensor<{N}x{K // 32}xi8> -> tensor<{N}x{K // 32}xf8E8M0FNU>
  %acc = arith.constant dense<0.0> : {Y}
  %y = linalg.generic {{indexing_maps = [affine_map<(m, n, o, b) -> (m, o, b)>,
      affine_map<(m, n, o, b) -> (n, o, b)>, affine_map<(m, n, o, b) -> (n, o)>,
      affine_map<(m, n, o, b) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction", "reduction"]}}
      ins(%x, %weight, %factors : tensor<{M}x{K // 32}x32xf32>, tensor<{N}x{K // 32}x32xf4E2M1FN>,
                        tensor<{N}x{K // 32}xf8E8M0FNU>) outs(%acc : {Y}) {{
  ^bb0(%i: f32, %j: f4E2M1FN, %k: f8E8M0FNU, %o: f32):
    %l = arith.scaling_extf %j, %k : f4E2M1FN, f8E8M0FNU to f32
    %q = arith.mulf %i, %l : f32
    %r = arith.addf %o, %q : f32
    linalg.yield %r : f32
  }} -> {Y}
  {epilogue.body}
  return %z : {result}
}}"""


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The target, the loaded artifact, and the contractions and dispatches by function."""
    return compile_forms(
        tmp_path_factory.mktemp(request.param),
        request.param,
        "\n".join(function(*each) for each in EPILOGUES.items()),
    )


def weights() -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(2)
    codes = rng.integers(0, 16, (N, K), dtype=np.uint8)
    scales = rng.integers(122, 126, (N, K // 32), dtype=np.uint8)
    values = codes.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).view(np.int8)
    return packed, scales.view(np.int8), values * np.repeat(factors, 32, axis=1)


@pytest.mark.parametrize("name", EPILOGUES)
def test_epilogue(compiled: Any, name: str) -> None:
    model, report = compiled
    epilogue = EPILOGUES[name]
    (row,) = [row for row in report["matmuls"] if row["function"] == name]
    assert row["fallback"] is None
    assert row["kernel"].startswith("mxc_")
    assert row["unfused"] is None
    rng = np.random.default_rng(9)
    x = rng.integers(-4, 5, (M, K)).astype(np.float32) / 4
    packed, scales, values = weights()
    given = [
        (rng.integers(-16, 17, shape) / 8).astype(DTYPES[kind]) for shape, kind in epilogue.given
    ]
    (found,) = model.call(name, x.reshape(M, K // 32, 32), packed, scales, *given)
    y = x @ values.T
    wanted = np.asarray(epilogue.wanted(y, *given))
    assert found.dtype == DTYPES[epilogue.result]
    if epilogue.ulps:
        bound = epilogue.ulps * 2.0**-24 * np.maximum(np.abs(wanted), 2.0**-3)
        assert (np.abs(found - wanted) <= bound).all()
    else:
        np.testing.assert_array_equal(found, wanted)


def test_nothing_is_left_behind_the_kernels(compiled: Any) -> None:
    """Each function is one kernel, after one that prepares activations on a CPU."""
    _, report = compiled
    before = 1 if report["target"] == "cpu" else 0
    assert {each["name"]: each["dispatches"] for each in report["functions"]} == dict.fromkeys(
        EPILOGUES, 1 + before
    )


def test_the_greater_of_two_keeps_nan(compiled: Any) -> None:
    """arith.maximumf is NaN where one of its operands is: v_max_f32 forgets it."""
    model, _ = compiled
    x = np.ones((M, K), np.float32)
    x[1, 3] = np.nan
    packed, scales, _ = weights()
    for name in ("relu", "clamp"):
        (found,) = model.call(name, x.reshape(M, K // 32, 32), packed, scales)
        np.testing.assert_array_equal(np.isnan(found).all(axis=1), [False, True, False, False])
