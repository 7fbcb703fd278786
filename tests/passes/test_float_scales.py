"""Products of 8-bit elements under float scales, for this CPU and for GPUs, against numpy.

A scale is for a tensor, a row, a square of 128 x 128 or a group along K, as in checkpoints. Scales
multiply elements inside the sum, as dequantized weights do, or the sum. ml_dtypes quantizes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import mxc
from mxc.artifact.manifest import REPORT

Array = NDArray[Any]
M, N, K = 2, 256, 256
DTYPES = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "f8E8M0FNU": np.dtype(ml_dtypes.float8_e8m0fnu),
    "f8E4M3FNUZ": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "f8E5M2FNUZ": np.dtype(ml_dtypes.float8_e5m2fnuz),
    "i8": np.dtype(np.int8),
}


@dataclass(frozen=True)
class Side:
    """Elements [rows, depth], with scales of `shape` that (r, k) reads at `at`; None: no scales."""

    element: str
    rows: int
    scale: str = "f32"
    shape: tuple[int, ...] | None = None
    at: str = ""
    depth: int = K

    @property
    def types(self) -> list[str]:
        found = [f"tensor<{self.rows}x{self.depth}x{self.element}>"]
        if self.shape is not None:
            found.append(f"tensor<{''.join(f'{n}x' for n in self.shape)}{self.scale}>")
        return found

    def arrays(self, rng: np.random.Generator) -> list[Array]:
        values = rng.standard_normal((self.rows, self.depth)) * 40
        found = [values.astype(DTYPES[self.element])]
        if self.shape is not None:
            powers = rng.integers(-50, 50, self.shape, endpoint=True)
            scales = np.ldexp(rng.uniform(1, 2, self.shape), powers)
            found.append(scales.astype(DTYPES[self.scale]))
        return found

    def values(self, elements: Array, scales: Array | None = None) -> Array:
        wide = elements.astype(np.float64)
        if scales is None:
            return wide
        r, k = np.ogrid[: self.rows, : self.depth]
        places = {"": (), "r": (r,), "r, k / 32": (r, k // 32), "r, k / 64": (r, k // 64)}
        places |= {"r, k / 128": (r, k // 128), "r / 128, k / 128": (r // 128, k // 128)}
        return wide * scales.astype(np.float64)[places[self.at]]

    def decoded(self, name: str) -> str:
        """Return an operation that dequantizes the side: elements times scales, as a tensor."""
        at = self.at.replace("/", "floordiv")
        widen = "sitofp" if self.element == "i8" else "extf"
        lines = [f"%v = arith.{widen} %a : {self.element} to f32"]
        scales = ""
        if self.shape is not None:
            wide = "%b" if self.scale == "f32" else "%s"
            lines += [f"%s = arith.extf %b : {self.scale} to f32"] * (self.scale != "f32")
            lines.append(f"%p = arith.mulf %v, {wide} : f32")
            scales = f", affine_map<(r, k) -> ({at})>"
        inputs = ", ".join([f"%{name}", f"%{name}_scale"][: len(self.types)])
        arguments = ", ".join(["%a: " + self.element, "%b: " + self.scale][: len(self.types)])
        result = f"tensor<{self.rows}x{self.depth}xf32>"
        return f"""
  %{name}_empty = tensor.empty() : {result}
  %{name}_values = linalg.generic {{
      indexing_maps = [affine_map<(r, k) -> (r, k)>{scales}, affine_map<(r, k) -> (r, k)>],
      iterator_types = ["parallel", "parallel"]}}
      ins({inputs} : {", ".join(self.types)}) outs(%{name}_empty : {result}) {{
  ^bb0({arguments}, %o: f32):
    {chr(10).join(lines)}
    linalg.yield {"%v" if self.shape is None else "%p"} : f32
  }} -> {result}"""


def program(name: str, x: Side, w: Side) -> str:
    """Return a function that dequantizes both sides and multiplies them; floats are not changed."""
    types = [*x.types, *w.types]
    names = ["%x", "%x_scale"][: len(x.types)] + ["%w", "%w_scale"][: len(w.types)]
    arguments = ", ".join(f"{n}: {t}" for n, t in zip(names, types, strict=True))
    plain = x.element in ("f32", "bf16", "f16")
    shape = f"{x.rows}x{x.depth}"
    left = f"%x : tensor<{shape}x{x.element}>" if plain else f"%x_values : tensor<{shape}xf32>"
    value, kind = left.split(" : ")
    return f"""
func.func @{name}({arguments}) -> tensor<{x.rows}x{w.rows}xf32> {{
  {"" if plain else x.decoded("x")}{w.decoded("w")}
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<{x.rows}x{w.rows}xf32>
  %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<{x.rows}x{w.rows}xf32>)
      -> tensor<{x.rows}x{w.rows}xf32>
  %y = linalg.matmul indexing_maps = [affine_map<(m, n, k) -> (m, k)>,
      affine_map<(m, n, k) -> (n, k)>, affine_map<(m, n, k) -> (m, n)>]
      ins({value}, %w_values : {kind}, tensor<{w.rows}x{w.depth}xf32>)
      outs(%acc : tensor<{x.rows}x{w.rows}xf32>) -> tensor<{x.rows}x{w.rows}xf32>
  return %y : tensor<{x.rows}x{w.rows}xf32>
}}"""


ROW: dict[str, Any] = {"shape": (N,), "at": "r"}
SQUARES: dict[str, Any] = {"shape": (N // 128, K // 128), "at": "r / 128, k / 128"}


def grouped(element: str, rows: int, block: int, scale: str = "f32") -> Side:
    """Return a side with a scale for each `block` elements of a row."""
    return Side(element, rows, scale, shape=(rows, K // block), at=f"r, k / {block}")


TOKENS = Side("f8E4M3FN", M, shape=(M,), at="r")
CASES: dict[str, tuple[Side, Side]] = {
    "tensor_by_tensor": (Side("f8E4M3FN", M, shape=(), at=""), Side("f8E4M3FN", N, shape=())),
    "token_by_channel": (TOKENS, Side("f8E4M3FN", N, "bf16", **ROW)),
    "fnuz": (Side("f8E4M3FNUZ", M, shape=(), at=""), Side("f8E5M2FNUZ", N, **ROW)),
    "deepseek": (grouped("f8E4M3FN", M, 128), Side("f8E4M3FN", N, "f32", **SQUARES)),
    "mxfp8_by_squares": (grouped("f8E4M3FN", M, 32, "f8E8M0FNU"), Side("f8E4M3FN", N, **SQUARES)),
    "groups_of_64": (TOKENS, grouped("f8E4M3FN", N, 64, "bf16")),
    "int8_groups": (Side("f32", M), grouped("i8", N, 128)),
    "partial_squares": (
        Side("bf16", M),
        Side("f8E4M3FN", 192, shape=(2, K // 128), at="r / 128, k / 128"),
    ),
}


def numbers_are_right(
    artifact: Path, name: str, device: str | None = None, sides: tuple[Side, Side] | None = None
) -> None:
    x, w = sides or CASES[name]
    rng = np.random.default_rng(sum(map(ord, name)))
    left, right = x.arrays(rng), w.arrays(rng)
    (found,) = mxc.load(artifact, device=device).call(name, *left, *right)
    a, b = x.values(*left), w.values(*right)
    assert (np.abs(found - a @ b.T) <= 2.0**-20 * (np.abs(a) @ np.abs(b).T)).all()


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("float_scales")
    text = "\n".join(program(name, x, w) for name, (x, w) in CASES.items())
    (folder / "p.mlir").write_text(text)
    mxc.compile(folder / "p.mlir", target="cpu", output=folder / "p.mxc")
    return folder / "p.mxc"


@pytest.mark.parametrize("name", CASES)
def test_numbers(compiled: Path, name: str) -> None:
    numbers_are_right(compiled, name)


def test_each_product_is_in_a_kernel(compiled: Path) -> None:
    rows = rows_of(compiled)
    assert set(rows) == set(CASES)
    for name, row in rows.items():
        assert (row["fallback"], row["kernel"][:4]) == (None, "mxc_"), name


def rows_of(artifact: Path) -> dict[str, Any]:
    report = json.loads((artifact / REPORT).read_text())
    return {row["function"]: row for row in report["matmuls"]}


def test_on_gfx950_a_scale_of_rows_is_in_the_epilogue_of_scaled_mfma(tmp_path: Path) -> None:
    name = "token_by_channel"
    (tmp_path / "p.mlir").write_text(program(name, *CASES[name]))
    mxc.compile(tmp_path / "p.mlir", target="gfx950", output=tmp_path / "p.mxc")
    row = rows_of(tmp_path / "p.mxc")[name]
    assert (row["fallback"], row["kernels"]) == (None, 1)
    assert row["lowering"].startswith("v_mfma_scale_f32")
    numbers_are_right(tmp_path / "p.mxc", name, "simulator")


def on_gpus(rows: int, depth: int) -> dict[str, tuple[Side, Side]]:
    """Return products under scales that differ along K, by floats, scales of rows or the same."""
    blocks = depth // 128
    squares: dict[str, Any] = {"shape": (2, blocks), "at": "r / 128, k / 128", "depth": depth}
    groups: dict[str, Any] = {"at": "r, k / 128", "depth": depth}
    floats = {kind: Side(kind, rows, depth=depth) for kind in ("f32", "bf16", "f16")}
    return {
        "deepseek": (
            Side("f8E4M3FN", rows, shape=(rows, blocks), **groups),
            Side("f8E4M3FN", 256, **squares),
        ),
        "partial_squares": (floats["bf16"], Side("f8E4M3FN", 192, **squares)),
        "columns_in_no_tile": (
            floats["f32"],
            Side("f8E4M3FN", 100, shape=(100, blocks), **groups),
        ),
        "e5m2": (floats["f16"], Side("f8E5M2", 64, shape=(64, blocks), **groups)),
        "groups_of_32": (
            floats["bf16"],
            Side("f8E4M3FN", 100, shape=(100, depth // 32), at="r, k / 32", depth=depth),
        ),
        "groups_of_64": (
            Side("f8E4M3FN", rows, shape=(rows,), at="r", depth=depth),
            Side("f8E4M3FN", 64, shape=(64, depth // 64), at="r, k / 64", depth=depth),
        ),
        "int8": (floats["f32"], Side("i8", 100, shape=(100, blocks), **groups)),
        "fnuz": (
            Side("f8E4M3FNUZ", rows, shape=(rows, blocks), **groups),
            Side("f8E4M3FNUZ", 100, shape=(100, blocks), **groups),
        ),
        "fnuz_by_floats": (floats["f16"], Side("f8E5M2FNUZ", 64, shape=(64, blocks), **groups)),
        "one_side": (
            Side("f8E4M3FN", rows, shape=(rows,), at="r", depth=depth),
            Side("f8E4M3FN", 256, **squares),
        ),
    }


#: Rows and K: a partial tile of rows; K that ends within a step, and of several waves; a ring.
SIZES = [(37, 640), (1, 2176), (300, 1408)]


@pytest.fixture(scope="module")
def compiled_for_gpu(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that compiles all products for a target; none may have a fallback."""

    @cache
    def compile_all(target: str) -> Path:
        folder = tmp_path_factory.mktemp("float_scales")
        cases = [(rows, on_gpus(rows, depth)) for rows, depth in SIZES]
        texts = [program(f"{n}_{rows}", *sides) for rows, all in cases for n, sides in all.items()]
        (folder / "p.mlir").write_text("\n".join(texts))
        mxc.compile(folder / "p.mlir", target=target, output=folder / "p.mxc", strict=True)
        return folder / "p.mxc"

    return compile_all


@pytest.mark.parametrize(("rows", "depth"), SIZES)
@pytest.mark.parametrize("name", on_gpus(1, 128))
@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
def test_on_gpus_float_scales_of_blocks_multiply_sums(
    target: str, name: str, rows: int, depth: int, compiled_for_gpu: Callable[[str], Path]
) -> None:
    x, w = on_gpus(rows, depth)[name]
    artifact, function = compiled_for_gpu(target), f"{name}_{rows}"
    row = rows_of(artifact)[function]
    assert (row["fallback"], row["kernels"]) == (None, 1)
    # A scaled instruction multiplies 128 elements along K, so all must have the same f32 scale.
    scaled = target == "gfx950" and x.shape is not None and "128" in w.at
    # Scaled instructions do not accept FNUZ elements.
    scaled = scaled and name != "fnuz"
    assert row["lowering"].startswith("v_mfma_scale_f32") == scaled
    numbers_are_right(artifact, function, "simulator", (x, w))


def numbers_of(name: str, target: str, schedule: dict[str, Any], folder: Path) -> None:
    """Compile a product by a schedule, and check its numbers on the simulator."""
    sides = on_gpus(37, 1664)[name]
    (folder / "p.mlir").write_text(program(name, *sides))
    (folder / "s.json").write_text(json.dumps([{"schedule": schedule}]))
    mxc.compile(
        folder / "p.mlir",
        target=target,
        output=folder / "p.mxc",
        schedule=folder / "s.json",
        strict=True,
    )
    numbers_are_right(folder / "p.mxc", name, "simulator", sides)


RING: dict[str, Any] = {"instruction": 32, "waves": [1, 4, 1], "transport": "ring", "k_steps": 2}
DECODED: dict[str, Any] = {**RING, "waves": [2, 2, 1], "transport": "decoded", "k_steps": 1}


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        ("deepseek", {"instruction": 16, "tiles": [2, 4], "waves": [2, 2, 1]}),
        ("deepseek", {"instruction": 32, "tiles": [1, 2], "waves": [1, 1, 3]}),
        ("columns_in_no_tile", {"instruction": 16, "tiles": [2, 4], "waves": [2, 2, 1]}),
        ("columns_in_no_tile", {"instruction": 32, "tiles": [1, 2], "waves": [1, 1, 3]}),
        # A k-step has two sums.
        ("groups_of_32", {"instruction": 32, "tiles": [1, 1], "waves": [1, 1, 3]}),
        ("deepseek", {**RING, "tiles": [2, 2], "stages": 2}),
        ("columns_in_no_tile", {**DECODED, "tiles": [1, 2], "stages": 2}),
        ("partial_squares", {**RING, "tiles": [2, 1], "stages": 4}),
        ("e5m2", {**RING, "tiles": [1, 1], "stages": 3}),
        ("groups_of_64", {**DECODED, "tiles": [1, 2], "stages": 2}),
        ("int8", {**DECODED, "tiles": [2, 2], "stages": 2}),
        ("fnuz", {**DECODED, "tiles": [1, 2], "stages": 2}),
    ],
)
def test_on_gpus_each_tile_has_its_own_factors(
    name: str, schedule: dict[str, Any], tmp_path: Path
) -> None:
    numbers_of(name, "gfx950", schedule, tmp_path)


@pytest.mark.parametrize(
    "name", ["deepseek", "partial_squares", "fnuz", "fnuz_by_floats", "one_side"]
)
def test_on_gfx942_sides_are_decoded_once(name: str, tmp_path: Path) -> None:
    schedule = {**DECODED, "tiles": [2, 1], "stages": 2}
    numbers_of(name, "gfx942", schedule, tmp_path)


GATE = """
  %g = tensor.extract_slice %y[0, 0] [37, 128] [1, 1] : tensor<37x256xf32> to tensor<37x128xf32>
  %u = tensor.extract_slice %y[0, 128] [37, 128] [1, 1] : tensor<37x256xf32> to tensor<37x128xf32>
  %gated_empty = tensor.empty() : tensor<37x128xf32>
  %gated = linalg.generic {indexing_maps = [affine_map<(m, n) -> (m, n)>,
      affine_map<(m, n) -> (m, n)>, affine_map<(m, n) -> (m, n)>],
      iterator_types = ["parallel", "parallel"]}
      ins(%g, %u : tensor<37x128xf32>, tensor<37x128xf32>)
      outs(%gated_empty : tensor<37x128xf32>) {
  ^bb0(%a: f32, %b: f32, %o: f32):
    %none = arith.constant 0.0 : f32
    %positive = arith.maximumf %a, %none : f32
    %p = arith.mulf %positive, %b : f32
    linalg.yield %p : f32
  } -> tensor<37x128xf32>
  return %gated : tensor<37x128xf32>
}"""


@pytest.mark.parametrize("half", [128, 80])
@pytest.mark.parametrize(
    ("target", "transport"), [("gfx950", "ring"), ("gfx950", "decoded"), ("gfx942", "decoded")]
)
def test_both_halves_of_a_gate_have_their_scales(
    target: str, transport: str, half: int, tmp_path: Path
) -> None:
    """Scales of rows, and of squares that begin within a tile of the second half."""
    n, weights = 2 * half, Side("f8E4M3FN", 160, shape=(2, 5), at="r / 128, k / 128", depth=640)
    if half == 128:
        weights = Side("i8", n, shape=(n, 5), at="r, k / 128", depth=640)
    sides = Side("bf16", 37, depth=640), weights
    text = program("gate", *sides).replace(f"-> tensor<37x{n}x", f"-> tensor<37x{half}x", 1)
    text = text[: text.rindex("  return")] + GATE.replace("128", str(half)).replace("256", str(n))
    (tmp_path / "p.mlir").write_text(text)
    schedule = {**(RING if transport == "ring" else DECODED), "tiles": [1, 2], "stages": 2}
    (tmp_path / "s.json").write_text(json.dumps([{"schedule": schedule}]))
    output = tmp_path / "p.mxc"
    mxc.compile(
        tmp_path / "p.mlir",
        target=target,
        output=output,
        schedule=tmp_path / "s.json",
        strict=True,
    )
    assert rows_of(output)["gate"]["kernels"] == 1
    rng = np.random.default_rng(0)
    left, (elements, scales) = (side.arrays(rng) for side in sides)
    # The halves are multiplied, so their scales are reduced to 0.5 .. 1: f32 holds the product.
    right = [elements, np.frexp(scales)[0]]
    (found,) = mxc.load(output, device="simulator").call("gate", *left, *right)
    y = sides[0].values(*left) @ sides[1].values(*right).T
    wanted = np.maximum(y[:, :half], 0) * y[:, half:]
    assert (np.abs(found - wanted) <= 2.0**-20 * np.abs(wanted).max()).all()


@pytest.mark.parametrize("name", ["groups_of_64", "fnuz", "one_side", "int8"])
def test_scales_that_no_ring_multiplies_by(name: str, tmp_path: Path) -> None:
    (tmp_path / "p.mlir").write_text(program(name, *on_gpus(512, 1024)[name]))
    given = [{"schedule": {**RING, "tiles": [1, 1], "stages": 3}}]
    (tmp_path / "s.json").write_text(json.dumps(given))
    with pytest.raises(mxc.MxcError, match="with f32 scales of 32 elements or a multiple"):
        mxc.compile(
            tmp_path / "p.mlir",
            target="gfx950",
            output=tmp_path / "p.mxc",
            schedule=tmp_path / "s.json",
        )


def test_many_rows_take_a_ring(tmp_path: Path) -> None:
    name = "deepseek"
    squares: dict[str, Any] = {"shape": (8, 8), "at": "r / 128, k / 128", "depth": 1024}
    sides = Side("bf16", 8192, depth=1024), Side("f8E4M3FN", 1024, **squares)
    (tmp_path / "p.mlir").write_text(program(name, *sides))
    mxc.compile(tmp_path / "p.mlir", target="gfx950", output=tmp_path / "p.mxc", strict=True)
    kernels = json.loads((tmp_path / "p.mxc" / REPORT).read_text())["kernels"]
    (kernel,) = (each for each in kernels if each["name"].startswith("mxc_bf16"))
    assert kernel["hot_loop"]["census"]["load_to_lds"] > 0
    assert kernel["hot_loop"]["shares"]["matrix"] > 0.5
