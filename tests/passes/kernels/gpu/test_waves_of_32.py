"""Kernels of products in waves of 32, which the simulator does not execute, interpreted as MLIR.

The interpreter has the layouts of matrix instructions from documents (lane_interpreter.py), so that
a kernel which fills lanes otherwise gives wrong numbers. The code that LLVM makes of kernels does
not run.
"""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from mxc.compiler.packing.panels import to_panels
from mxc.dialects.context import new_context
from mxc.dialects.parameters import take_layouts
from mxc.formats.formats import FORMATS
from mxc.passes.kernels.gpu.dense.chunks import Chunks
from tests.passes.kernels.gpu import lane_interpreter
from tests.passes.kernels.gpu.kernel_stage import with_kernels
from tests.passes.kernels.gpu.test_stream import (
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F4,
    FLOATS,
    NVFP4,
    ROUNDED,
    Array,
    operand,
    program,
)

CASES = [
    # K that ends within the scales of a lane, and K of less than a step; several waves along K and
    # along rows and columns; rows and columns that do not fill tiles.
    ("gfx1201", 5, 20, 544, F4, E2M3),
    ("gfx1201", 3, 12, 64, E4M3, E5M2),
    ("gfx1201", 40, 33, 96, "bf16", E3M2),
    ("gfx1201", 4, 16, 288, "f32", F4),
    ("gfx1201", 2, 16, 96, "f16", NVFP4),
    ("gfx1151", 5, 20, 544, F4, E2M3),
    ("gfx1151", 40, 33, 96, "bf16", E3M2),
    ("gfx1151", 4, 16, 288, "f32", F4),
    ("gfx1151", 3, 18, 96, "f16", NVFP4),
    ("gfx1250", 5, 20, 544, F4, E4M3),
    ("gfx1250", 40, 33, 160, F4, F4),
    ("gfx1250", 3, 12, 288, E5M2, E4M3),
    ("gfx1250", 4, 16, 96, E2M3, F4),
    ("gfx1250", 4, 16, 288, "bf16", "mxint8"),
    # Two tiles of rows, whose floats are loaded a k-step ahead, or one after the other where a lane
    # has few registers.
    ("gfx1250", 40, 36, 544, "bf16", E4M3),
    ("gfx1250", 40, 20, 2080, ROUNDED, E4M3),
    ("gfx1201", 40, 20, 2080, ROUNDED, E4M3),
    ("gfx1151", 40, 20, 544, ROUNDED, F4),
]


def run(
    target: str, text: str, given: list[Array], m: int, n: int, schedules: str | Path = ""
) -> Array:
    """Interpret @main, which must become one kernel, and return its result, f32 [m, n].

    `schedules`: a file of schedules. If the program has a parameter, it is the first of `given`
    with n rows, and is packed in the layout that the kernel reads.
    """
    result = np.full(m * n * 4, 0xFF, np.uint8)
    with new_context():
        module = with_kernels(text, target, schedules=str(schedules))
        buffers = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in given]
        layouts, _ = take_layouts(module)
        assert bool(layouts) == ("util.global" in text)
        for layout in layouts.values():
            at = next(at for at, each in enumerate(given) if len(each) == n)
            buffers[at] = to_panels(buffers[at], n, len(buffers[at]) // n, layout)
        lane_interpreter.run(module, [*buffers, result])
    return result.view(np.float32).reshape(m, n)


@pytest.mark.parametrize(("target", "m", "n", "k", "lhs", "rhs"), CASES)
def test_products(target: str, m: int, n: int, k: int, lhs: str, rhs: str) -> None:
    multiply(target, (m, n, k, lhs, rhs), program(main=(m, n, k, lhs, rhs)))


@pytest.mark.parametrize(
    ("target", "m", "n", "k", "lhs", "rhs"), [case for case in CASES if case[5] not in (E2M3, E3M2)]
)
def test_products_with_panels(target: str, m: int, n: int, k: int, lhs: str, rhs: str) -> None:
    text = with_a_parameter(program(main=(m, n, k, lhs, rhs)))
    multiply(target, (m, n, k, lhs, rhs), text)


def with_a_parameter(text: str) -> str:
    """Return the text of a program of `program` with a parameter in place of its last argument but
    one, the elements of rhs."""
    *_, (name, kind), _ = re.findall(r"(%arg\d+): (tensor<\S+>)[,)]", text)
    changed = text.replace(f"{name}: {kind}, ", "", 1)
    first = f"{{\n    {name} = util.global.load immutable @w : {kind}\n"
    changed = re.sub(r"(func\.func @main.*) \{\n", lambda found: f"{found[1]} {first}", changed)
    parameter = f'util.global private @w = #flow.parameter.named<"model"::"w"> : {kind}'
    return changed.replace("  func.func @main", f"  {parameter}\n  func.func @main")


def multiply(target: str, shape: tuple[int, int, int, str, str], text: str) -> None:
    """Interpret a product of scaled weights, and compare it with numpy."""
    m, n, k, lhs, rhs = shape
    rng = np.random.default_rng(m + n + k)
    block = FORMATS[rhs].block
    w, t, right = operand(rng, (n, k), rhs, (40, 120) if rhs == NVFP4 else (117, 137))
    given: list[Array] = [w, t]
    if lhs in FLOATS:
        x = rng.normal(size=(m, k // block, block)).astype(FLOATS[lhs])
        own = x.astype(FLOATS["bf16"]) if lhs == ROUNDED else x
        left = own.reshape(m, k).astype(np.float64)
        given.insert(0, x)
    else:
        x, s, left = operand(rng, (m, k), lhs, (117, 137))
        given = [x, s, *given]
    found = run(target, text, given, m, n)
    wanted = left @ right.T
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["gfx1151", "gfx1201", "gfx1250"])
@pytest.mark.parametrize(
    ("m", "n", "k", "lhs", "rhs"),
    [
        # K that ends within a step, several chunks; rows and columns that do not fill tiles.
        (5, 20, 544, "bf16", "bf16"),
        (40, 33, 96, "f32", "bf16"),
        (3, 12, 320, "f16", "f16"),
    ],
)
def test_dense_products(target: str, m: int, n: int, k: int, lhs: str, rhs: str) -> None:
    multiply_dense(target, m, n, k, lhs, rhs)


@pytest.mark.parametrize("target", ["gfx1151", "gfx1201"])
def test_wide_tiles_of_a_chunk(target: str, tmp_path: Path) -> None:
    """On gfx1151 there are no registers for two steps of four tiles of columns."""
    file, schedule = tmp_path / "schedules.json", {"instruction": 16, "tiles": [1, 4]}
    waves = Chunks.of(544 // 32).count
    file.write_text(json.dumps([{"n": 64, "schedule": {**schedule, "waves": [1, 1, waves]}}]))
    multiply_dense(target, 5, 64, 544, "bf16", "bf16", file)


def multiply_dense(
    target: str, m: int, n: int, k: int, lhs: str, rhs: str, schedules: str | Path = ""
) -> None:
    """Interpret a dense product of these shapes, and compare it with numpy."""
    rng = np.random.default_rng(m + n + k)
    x = rng.normal(size=(m, k)).astype(FLOATS[lhs])
    w = rng.normal(size=(n, k)).astype(FLOATS[rhs])
    a, left = ("%a", "") if lhs == "f32" else ("%l", f"%l = arith.extf %a : {lhs} to f32")
    text = f"""
      util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<{n}x{k}x{rhs}>
      func.func @main(%x: tensor<{m}x{k}x{lhs}>) -> tensor<{m}x{n}xf32> {{
        %w = util.global.load immutable @w : tensor<{n}x{k}x{rhs}>
        %zero = arith.constant 0.0 : f32
        %empty = tensor.empty() : tensor<{m}x{n}xf32>
        %acc = linalg.fill ins(%zero : f32) outs(%empty : tensor<{m}x{n}xf32>)
            -> tensor<{m}x{n}xf32>
        %y = linalg.generic {{
            indexing_maps = [affine_map<(m, n, k) -> (m, k)>, affine_map<(m, n, k) -> (n, k)>,
                             affine_map<(m, n, k) -> (m, n)>],
            iterator_types = ["parallel", "parallel", "reduction"]}}
            ins(%x, %w : tensor<{m}x{k}x{lhs}>, tensor<{n}x{k}x{rhs}>)
            outs(%acc : tensor<{m}x{n}xf32>) {{
        ^bb0(%a: {lhs}, %b: {rhs}, %o: f32):
          {left}
          %r = arith.extf %b : {rhs} to f32
          %p = arith.mulf {a}, %r : f32
          %q = arith.addf %o, %p : f32
          linalg.yield %q : f32
        }} -> tensor<{m}x{n}xf32>
        return %y : tensor<{m}x{n}xf32>
      }}"""
    found = run(target, text, [x, w], m, n, schedules)
    wanted = x.astype(np.float64) @ w.astype(np.float64).T
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()


def test_a_nan_scale_is_nan_in_its_row_alone() -> None:
    """The next row's first scales lie past the end of a row: they are not its own."""
    rng = np.random.default_rng(3)
    m, n, k = 4, 16, 288
    x, s, left = operand(rng, (m, k), E4M3, (120, 130))
    w, t, right = operand(rng, (n, k), F4, (120, 130))
    t[5, 0] = 0xFF
    found = run("gfx1250", program(main=(m, n, k, E4M3, F4)), [x, s, w, t], m, n)
    assert np.isnan(found[:, 5]).all()
    rest = np.delete(np.arange(n), 5)
    wanted = left @ right[rest].T
    assert np.abs(found[:, rest] - wanted).max() < 1e-6 * np.abs(wanted).max()


@pytest.mark.parametrize("target", ["gfx1151", "gfx1201", "gfx1250"])
def test_a_clamp_keeps_nan(target: str) -> None:
    rng = np.random.default_rng(4)
    m, n, k = 4, 16, 96
    x, s, left = operand(rng, (m, k), E4M3, (125, 129))
    w, t, right = operand(rng, (n, k), F4, (125, 129))
    t[5, 0] = 0xFF
    text = re.sub(
        r"return (%\S+) : (tensor<\S+>)",
        r"""%least = arith.constant dense<-8.0> : \2
      %most = arith.constant dense<64.0> : \2
      %low = arith.maximumf \1, %least : \2
      %clamped = arith.minimumf %low, %most : \2
      return %clamped : \2""",
        program(main=(m, n, k, E4M3, F4)),
    )
    found = run(target, text, [x, s, w, t], m, n)
    assert np.isnan(found[:, 5]).all()
    rest = np.delete(np.arange(n), 5)
    wanted = left @ right[rest].T
    assert (wanted < -8).any()
    assert (wanted > 64).any()
    bound = 1e-6 * np.abs(wanted).max()
    assert np.abs(found[:, rest] - np.clip(wanted, -8, 64)).max() < bound
