"""Weights that are rounded to bf16 or f16 once they have their scale: so are those of the kernels.

The scales are small, so that what is rounded are subnormal numbers, which lose digits, and some are
large: f16 has none above 65504. CPUs take subnormal numbers of f32 and bf16 for zero. Float scales
have so many digits that every product is rounded; on gfx950 such a product has its reason.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.forms.form_artifacts import compile_forms
from tests.forms.form_weights import TARGETS, parallel

SCALES = ("f8E8M0FNU", "f32")
M, N, K = 4, 16, 64
KO = K // 32
#: Type -> what numpy calls it, and scale bytes at which its subnormal numbers are.
KINDS = {"bf16": (ml_dtypes.bfloat16, (1, 2, 120)), "f16": (np.float16, (98, 104, 112, 142))}


def function(kind: str, sides: int, scale: str = "f8E8M0FNU") -> str:
    """One side is rounded, or both."""
    value = {
        "f8E8M0FNU": "%v = arith.scaling_extf %i0, %i1 : f8E4M3FN, f8E8M0FNU to f32",
        "f32": "%w = arith.extf %i0 : f8E4M3FN to f32\n    %v = arith.mulf %w, %i1 : f32",
    }[scale]
    bits = {"f8E8M0FNU": "i8", "f32": "f32"}[scale]
    text = ""
    for name, rows in (("x", M), ("w", N))[2 - sides :]:
        text += f"""
  %{name}s = flow.tensor.bitcast %{name}_scales : tensor<{rows}x{KO}x{bits}>
    -> tensor<{rows}x{KO}x{scale}>
  %{name}e = flow.tensor.bitcast %{name}_bytes : tensor<{rows}x{K}xi8>
    -> tensor<{rows}x{K}xf8E4M3FN>
""" + parallel(
            f"%{name}e : tensor<{rows}x{K}xf8E4M3FN> : r, k",
            f"%{name}s : tensor<{rows}x{KO}x{scale}> : r, k floordiv 32",
            out=f"tensor<{rows}x{K}x{kind}> : r, k",
            result=f"%{name}",
            body=f"""{value}
    %t = arith.truncf %v : f32 to {kind}
    linalg.yield %t : {kind}""",
        )
    x, w, y = f"tensor<{M}x{K}x{kind}>", f"tensor<{N}x{K}x{kind}>", f"tensor<{M}x{N}xf32>"
    left = f"%x_bytes: tensor<{M}x{K}xi8>, %x_scales: tensor<{M}x{KO}x{bits}>"
    given = left if sides == 2 else f"%x: {x}"
    maps = "affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>"
    return f"""
func.func @{kind}_{sides}_{scale}({given}, %w_bytes: tensor<{N}x{K}xi8>,
    %w_scales: tensor<{N}x{KO}x{bits}>) -> {y} {{{text}
  %acc = arith.constant dense<0.0> : {y}
  %y = linalg.matmul indexing_maps = [{maps}, affine_map<(m, n, k) -> (m, n)>]
    ins(%x, %w : {x}, {w}) outs(%acc : {y}) -> {y}
  return %y : {y}
}}"""


@pytest.fixture(scope="module", params=TARGETS)
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return request.param, *compile_forms(
        tmp_path_factory.mktemp(request.param),
        request.param,
        "\n".join(
            function(kind, sides, scale) for kind in KINDS for sides in (1, 2) for scale in SCALES
        ),
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sides", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_rounding(compiled: Any, kind: str, sides: int, scale: str) -> None:
    target, model, report = compiled
    name = f"{kind}_{sides}_{scale}"
    (row,) = [row for row in report["matmuls"] if row["function"] == name]
    if scale == "f32" and target == "gfx950":
        assert "elements under f32 scales are rounded" in row["fallback"]
    else:
        assert row["fallback"] is None
        assert row["kernel"].startswith("mxc_")
    rng = np.random.default_rng(7)
    of, some = KINDS[kind]

    def drawn(rows: int, bytes_: tuple[int, ...]) -> tuple[Any, Any]:
        codes = rng.integers(0, 256, (rows, K), dtype=np.uint8)
        codes[(codes & 0x7F) == 0x7F] = 0
        # Of all the blocks of a row one size: no sum is of few large terms and many small ones.
        scales = np.repeat(rng.choice(np.array(bytes_, np.uint8), (rows, 1)), KO, axis=1)
        values = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        factors = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        given = scales.view(np.int8)
        if scale == "f32":
            given = factors = factors * rng.uniform(1, 2, factors.shape).astype(np.float32)
        with np.errstate(over="ignore"):
            rounded = (values * np.repeat(factors, 32, axis=1)).astype(of)
        return (codes.view(np.int8), given), rounded

    w, weights = drawn(N, some)
    x, rows = drawn(M, some[:-1])
    if sides == 1:
        rows = rng.integers(-8, 9, (M, K)).astype(of)
        x = (rows,)
    wide = [side.astype(np.float64) for side in (rows, weights)]
    with np.errstate(invalid="ignore"):
        wanted = wide[0] @ wide[1].T
        bound = K * 2.0**-23 * (np.abs(wide[0]) @ np.abs(wide[1]).T)
        bound += K * 2.0**-126 * (1 + np.abs(wide[0]).max())
    (found,) = model.call(name, *x, *w)
    finite = np.isfinite(wanted) & np.isfinite(bound)
    assert finite.mean() > 0.5
    assert (np.abs(found - wanted)[finite] <= bound[finite]).all()
    np.testing.assert_array_equal(np.isfinite(found), finite)
