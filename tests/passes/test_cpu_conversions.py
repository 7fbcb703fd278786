"""Conversions of elements outside of kernels, which IREE compiles for CPUs, against ml_dtypes."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import mxc

BF16 = ml_dtypes.bfloat16
E4M3 = ml_dtypes.float8_e4m3fn
#: Elements to which floats are converted under scales.
SCALED = {
    "f4E2M1FN": ml_dtypes.float4_e2m1fn,
    "f8E4M3FN": E4M3,
    "f8E5M2": ml_dtypes.float8_e5m2,
}
PLAIN = {
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E3M4": ml_dtypes.float8_e3m4,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
}
#: Elements that are decoded to f16: also FNUZ elements, which no block format has.
HALVED = SCALED | {
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}
COUNT = 512
#: Bytes of the E8M0 scales by which numbers are divided.
BYTES = (0, 1, 120, 254)
FLOATS, ROWS = f"tensor<{COUNT}xf32>", f"tensor<{len(BYTES)}x{COUNT}x"
EACH = "indexing_maps = [affine_map<(i) -> (i)>, affine_map<(i) -> (i)>]"
UNDER = (
    "indexing_maps = [affine_map<(s, i) -> (i)>, affine_map<(s, i) -> (s)>, "
    "affine_map<(s, i) -> (s, i)>]"
)


def each(name: str, source: str, result: str, body: str) -> str:
    """Return a function that computes each of COUNT results, %y, from an %x by `body`."""
    return f"""
func.func @{name}(%t: tensor<{COUNT}x{source}>) -> tensor<{COUNT}x{result}> {{
  %e = tensor.empty() : tensor<{COUNT}x{result}>
  %r = linalg.generic {{{EACH}, iterator_types = ["parallel"]}}
      ins(%t : tensor<{COUNT}x{source}>) outs(%e : tensor<{COUNT}x{result}>) {{
  ^bb0(%x: {source}, %o: {result}):
    {body}
    linalg.yield %y : {result}
  }} -> tensor<{COUNT}x{result}>
  return %r : tensor<{COUNT}x{result}>
}}"""


def divided(element: str) -> str:
    """Return a function that converts x to `element` under each scale, as bytes."""
    bits = element[1]
    wide = "" if bits == "8" else "%y = arith.extui %c : i4 to i8"
    return f"""
func.func @under_{element}(%t: {FLOATS}, %s: tensor<{len(BYTES)}xi8>) -> {ROWS}i8> {{
  %e = tensor.empty() : {ROWS}i8>
  %r = linalg.generic {{{UNDER}, iterator_types = ["parallel", "parallel"]}}
      ins(%t, %s : {FLOATS}, tensor<{len(BYTES)}xi8>) outs(%e : {ROWS}i8>) {{
  ^bb0(%x: f32, %b: i8, %o: i8):
    %v = arith.bitcast %b : i8 to f8E8M0FNU
    %q = arith.scaling_truncf %x, %v : f32, f8E8M0FNU to {element}
    {"%y" if bits == "8" else "%c"} = arith.bitcast %q : {element} to i{bits}
    {wide}
    linalg.yield %y : i8
  }} -> {ROWS}i8>
  return %r : {ROWS}i8>
}}"""


def halved(element: str) -> str:
    """Return a function that decodes bytes of `element` to f16."""
    bits = f"i{element[1]}"
    narrow = "" if bits == "i8" else f"%n = arith.trunci %x : i8 to {bits}"
    body = f"""{narrow}
    %q = arith.bitcast {"%x" if bits == "i8" else "%n"} : {bits} to {element}
    %y = arith.extf %q : {element} to f16"""
    return each(f"half_{element}", "i8", "f16", body)


#: A reduction that subtracts products, for which there is no kernel.
DIFFERENCE = """
func.func @difference(%x: tensor<4x64xf8E4M3FN>, %w: tensor<16x64xf8E4M3FN>) -> tensor<4x16xf32> {
  %zero = arith.constant dense<0.0> : tensor<4x16xf32>
  %y = linalg.generic {indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>],
      iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%x, %w : tensor<4x64xf8E4M3FN>, tensor<16x64xf8E4M3FN>) outs(%zero : tensor<4x16xf32>) {
  ^bb0(%a: f8E4M3FN, %b: f8E4M3FN, %sum: f32):
    %c = arith.extf %a : f8E4M3FN to f32
    %d = arith.extf %b : f8E4M3FN to f32
    %e = arith.mulf %c, %d : f32
    %f = arith.subf %sum, %e : f32
    linalg.yield %f : f32
  } -> tensor<4x16xf32>
  return %y : tensor<4x16xf32>
}"""
BF16_TENSOR = f"tensor<{COUNT}xbf16>"
#: Two operations, which IREE would fuse.
SQUARE = f"""
func.func @square(%x: {FLOATS}) -> {BF16_TENSOR} {{
  %q = arith.truncf %x : {FLOATS} to {BF16_TENSOR}
  %p = arith.mulf %q, %q : {BF16_TENSOR}
  %y = arith.addf %p, %q : {BF16_TENSOR}
  return %y : {BF16_TENSOR}
}}"""
ROUND_TRIP = """%q = arith.truncf %x : f32 to bf16
    %y = arith.extf %q : bf16 to f32"""
#: x * 0.377 as torch's importer writes it.
TIMES = """%c = arith.constant 0.377 : f64
    %k = arith.truncf %c : f64 to f32
    %y = arith.mulf %x, %k : f32"""
DECODED = "%y = arith.extf %x : f8E4M3FN to f32"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("conversions")
    text = [each("round_trip", "f32", "f32", ROUND_TRIP), SQUARE, DIFFERENCE]
    text += [each("times", "f32", "f32", TIMES)]
    text += [each("decoded", "f8E4M3FN", "f32", DECODED), *map(divided, SCALED)]
    text += map(halved, HALVED)
    text += [
        each(f"to_{kind}", "f32", "i8", f"""%q = arith.truncf %x : f32 to {kind}
    %y = arith.bitcast %q : {kind} to i8""")
        for kind in PLAIN
    ]  # fmt: skip
    (folder / "p.mlir").write_text("\n".join(text))
    mxc.compile(folder / "p.mlir", target="cpu", output=folder / "p.mxc", listing=False)
    return mxc.load(folder / "p.mxc")


def ties(kind: Any) -> NDArray[np.float32]:
    """Return all numbers of an element type, midpoints of adjacent ones, the next floats above
    these midpoints, and NaN, with both signs."""
    numbers = np.arange(128, dtype=np.uint8).view(kind).astype(np.float32)
    numbers = numbers[np.isfinite(numbers)][:85]
    halves = (numbers[1:] + numbers[:-1]) / 2
    edges = [numbers, halves, np.nextafter(halves, np.float32(9)), [np.float32("nan")]]
    found = np.concatenate(edges).astype(np.float32)
    return np.resize(np.concatenate([found, -found]), COUNT)


def test_numbers_that_are_read_again_are_rounded_to_bf16(model: Any) -> None:
    x = np.random.default_rng(0).normal(size=COUNT).astype(np.float32)
    x[:6] = np.inf, -np.inf, np.nan, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38
    rounded = x.astype(BF16)
    (found,) = model.call("round_trip", x)
    np.testing.assert_array_equal(found, rounded.astype(np.float32))
    (found,) = model.call("square", x)
    with np.errstate(all="ignore"):
        wanted = rounded * rounded + rounded
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_constants_are_rounded_to_nearest(model: Any) -> None:
    x = np.random.default_rng(0).normal(size=COUNT).astype(np.float32)
    (found,) = model.call("times", x)
    np.testing.assert_array_equal(found, x * np.float32(0.377))


def test_both_codes_of_nan(model: Any) -> None:
    codes = np.resize(np.arange(256, dtype=np.uint8), COUNT).view(E4M3)
    (found,) = model.call("decoded", codes)
    np.testing.assert_array_equal(found, codes.astype(np.float32))
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-4, 5, (rows, 64)).astype(E4M3) for rows in (4, 16))
    w.view(np.uint8)[3, 7], w.view(np.uint8)[5, 8] = 0xFF, 0x7F
    (found,) = model.call("difference", x, w)
    np.testing.assert_array_equal(found, -(x.astype(np.float32) @ w.astype(np.float32).T))


@pytest.mark.parametrize("element", HALVED)
def test_elements_in_f16(element: str, model: Any) -> None:
    codes = np.resize(np.arange(16 if "f4" in element else 256, dtype=np.uint8), COUNT)
    (found,) = model.call(f"half_{element}", codes)
    np.testing.assert_array_equal(found, codes.view(HALVED[element]).astype(np.float16))


@pytest.mark.parametrize("element", SCALED)
def test_numbers_under_the_least_scale(element: str, model: Any) -> None:
    kind = SCALED[element]
    scales = np.array(BYTES, np.uint8)
    values = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    x = np.resize(np.array([0, -0.0, 2.0**-126, -(2.0**-125), 1.5, -1.75, 0.01], np.float32), COUNT)
    (found,) = model.call(f"under_{element}", x, scales.view(np.int8))
    quotients = x / values[:, None]
    limit = float(ml_dtypes.finfo(kind).max)
    fits = np.abs(quotients) <= limit
    wanted = np.where(fits, quotients, 0).astype(kind)
    np.testing.assert_array_equal(found.view(np.uint8)[fits], wanted.view(np.uint8)[fits])
    assert fits[0].any()


@pytest.mark.parametrize("element", PLAIN)
def test_numbers_next_to_the_least_normal_one(element: str, model: Any) -> None:
    x = ties(PLAIN[element])
    (found,) = model.call(f"to_{element}", x)
    wanted = x.astype(PLAIN[element]).astype(np.float32)
    found = found.view(np.uint8).view(PLAIN[element]).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("kind", ["", "tensor<4x"])
def test_scales_are_not_rounded_to(kind: str, tmp_path: Path) -> None:
    body = """%q = arith.truncf %x : f32 to f8E8M0FNU
    %y = arith.bitcast %q : f8E8M0FNU to i8"""
    text = each("main", "f32", "i8", body)
    if kind:
        text = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf8E8M0FNU> {
  %y = arith.truncf %x : tensor<4xf32> to tensor<4xf8E8M0FNU>
  return %y : tensor<4xf8E8M0FNU>
}"""
    (tmp_path / "p.mlir").write_text(text)
    with pytest.raises(mxc.MxcError, match=r"p\.mlir:\d+.*converts .*f32>? to .*f8E8M0FNU"):
        mxc.compile(tmp_path / "p.mlir", target="cpu", output=tmp_path / "p.mxc")
