"""Kernels on AMX tiles in the interpreter, without IREE: sizes that do not fit tiles, experts,
every format, extreme scales.

Memory past the end of an axis is NaN, and results that no statement writes keep their value.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.formats.formats import block_format
from mxc.kernels.amx import plans, scheduled, steps
from mxc.kernels.decode import ExponentTable, decoder, element_of, panel_layout, scale_element
from mxc.kernels.tiles import tdpbf16ps
from tests.kernels.conftest import Problem

UNTOUCHED = -7.0

CASES: dict[str, tuple[Any, ...]] = {
    "one tile": ("mxfp4", 16, 16, 32, {}),
    "ragged rows, columns and chunks": ("mxfp4", 37, 40, 288, {}),
    "few rows": ("mxfp4", 3, 17, 64, {}),
    "sums in tiles along K": ("mxfp4", 20, 17, 544, {}),
    "planes in tiles along K": ("mxfp4", 20, 17, 288, {"planes": 3}),
    "rows of two workgroups": ("mxfp4", 45, 33, 96, {"wide": 32}),
    "rows that come with the call": ("mxfp4", 21, 40, 64, {"rows": None}),
    "f32 as three planes": ("mxfp4", 19, 40, 64, {"planes": 3}),
    "a gate": ("mxfp4", 20, 48, 64, {"halves": 2}),
    "chosen experts": ("mxfp4", 5, 24, 64, {"choice": "chosen", "experts": 3, "groups": 4}),
    "groups of their own": ("mxfp4", 5, 24, 64, {"choice": "own", "experts": 3, "groups": 3}),
    "sorted rows": ("mxfp4", 50, 24, 64, {"choice": "sorted", "experts": 4, "groups": 4}),
    "scales of 64": ("mxfp4", 18, 20, 128, {"block": 64}),
    "nvfp4": ("nvfp4", 18, 20, 96, {}),
    "mxfp6e2m3": ("mxfp6e2m3", 18, 20, 96, {}),
    "mxfp6e3m2": ("mxfp6e3m2", 18, 20, 96, {}),
    "mxfp8e4m3": ("mxfp8e4m3", 18, 20, 96, {}),
    "mxfp8e5m2": ("mxfp8e5m2", 18, 20, 96, {}),
    "mxint8": ("mxint8", 18, 20, 96, {}),
    "bf16": ("bf16", 18, 20, 96, {}),
}


def built(draw: Callable[..., Problem], name: str) -> tuple[Problem, int]:
    """Draw a problem; return it, and the rows of a workgroup."""
    format, rows, columns, depth, more = CASES[name]
    more = dict(more)
    wide = more.pop("wide", 128)
    return draw(format, rows, columns, depth, **more), wide


def check(problem: Problem, found: NDArray[Any]) -> None:
    """Assert that results are the product within the roundings of f32 sums, and that nothing else
    is written."""
    c = problem.contraction
    wanted = problem.wanted
    assert (found[problem.rows :] == UNTOUCHED).all()
    x = problem.x.astype(np.float64)
    size = np.abs(x.sum(axis=2) if x.ndim == 3 else x)
    size = size @ np.abs(problem.weights).max(axis=(0, 1))
    error = np.abs(found[: problem.rows, : c.columns] - wanted)
    assert (error <= 3 * 2.0**-20 * size.max()).all(), error.max() / size.max()


@pytest.mark.parametrize("name", CASES)
def test_every_step_of_the_schedule_computes_the_definition(
    draw: Callable[..., Problem], name: str
) -> None:
    problem, wide = built(draw, name)
    pitch = problem.contraction.depth // 32 | 1
    plan = replace(plans(problem.contraction)[0], rows=wide)
    for what, kernel in steps(problem.contraction, plan, pitch):
        found = problem.run(kernel)
        assert found.shape[1] >= problem.contraction.columns, what
        check(problem, found)


@pytest.mark.parametrize(
    "sizes",
    [
        {"count": 140, "columns": 40, "depth": 288},
        {"count": 20, "columns": 33, "depth": 416},
        {"count": 70, "columns": 64, "depth": 288, "halves": 2, "together": 32},
        {"count": 140, "columns": 24, "depth": 160, "choice": "sorted", "experts": 2, "groups": 2},
    ],
    ids=["many rows", "few rows", "a gate in blocks", "sorted rows"],
)
def test_every_plan_gives_the_same_bits(draw: Callable[..., Problem], sizes: Any) -> None:
    problem = draw("mxfp4", **sizes)
    offered = plans(problem.contraction)
    assert len({str(each) for each in offered}) == len(offered) > 5
    first, *others = (problem.run(scheduled(problem.contraction, each)) for each in offered)
    check(problem, first)
    for plan, found in zip(offered[1:], others, strict=True):
        shown = (slice(problem.rows), slice(problem.contraction.columns))
        np.testing.assert_array_equal(
            found[shown].view(np.int32), first[shown].view(np.int32), str(plan)
        )


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxint8"])
def test_the_exponent_takes_every_scale_that_is_said_to_be_exact(format: str) -> None:
    """A block of codes under each scale byte is the product in f32 with the bits of a bf16."""
    known = block_format(format).element
    table = ExponentTable.of(known.values)
    assert table is not None
    allowed = range(table.least, table.most + 1)
    assert {"mxfp4": range(2, 253), "mxint8": range(7, 254)}.get(format, allowed) == allowed
    codes, scales = element_of(known), scale_element("f8E8M0FNU")
    raw = panel_layout(known.bits)
    atom = decoder(codes, scales)
    assert "exponent" in atom.name
    rng = np.random.default_rng(1)
    for byte in allowed:
        given = rng.integers(0, 1 << known.bits, raw.shape).astype(np.uint8)
        by = np.full((1, 16, 1), byte, np.uint8)
        found = atom.run(None, given, by).astype(np.float64)
        # The place of each code follows from the coordinates of layouts, not from the code under
        # test.
        places, wanted = atom.layouts[0].coordinates(), np.zeros((32, 16))
        k, n = (raw.coordinates()[axis] for axis in "kn")
        wanted[k, n] = known.values[given].astype(np.float64) * 2.0 ** (byte - 127.0)
        np.testing.assert_array_equal(found, wanted[places["k"], places["n"]], str(byte))


def test_scales_behind_the_exact_ones_are_multiplied(draw: Callable[..., Problem]) -> None:
    """NaN is NaN in its block of its column alone; the others are f32 products."""
    for low, high in ((0, 3), (240, 246), (127, 127)):
        problem = draw("mxfp4", 16, 20, 64, scales=(low, high))
        problem.x = np.where(problem.x == 0, problem.x, np.sign(problem.x)).astype(problem.x.dtype)
        found = problem.run(scheduled(problem.contraction))[:16, :20]
        tiny = 2.0**-126
        wanted = problem.wanted
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=64 * tiny)
    problem = draw("mxfp4", 16, 20, 64)
    assert problem.scales is not None
    problem.scales[0, 5, 1] = 255
    found = problem.run(scheduled(problem.contraction))[:16]
    assert np.isnan(found[:, 5]).all()
    assert np.isfinite(np.delete(found[:, :20], 5, axis=1)).all()


def test_a_product_of_tiles_is_that_of_matrices() -> None:
    """Small whole numbers are exact; subnormal ones are zero."""
    atom = tdpbf16ps(panel_layout(4).paired())
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-9, 9, (16, 16, 2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    sums = rng.integers(-9, 9, (16, 16, 1)).astype(np.float32)
    rows = a.astype(np.float64).reshape(16, 32)
    columns = b.astype(np.float64).transpose(1, 0, 2).reshape(16, 32)
    found = atom.run(sums, a, b)
    np.testing.assert_array_equal(found[..., 0], sums[..., 0] + rows @ columns.T)
    tiny = np.full_like(a, 2.0**-130)
    np.testing.assert_array_equal(atom.run(sums, tiny, b), sums)
