"""Kernels for one row on vector registers that add in the order of tiles: they give the same bits
as tiles."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from mxc.formats.formats import block_format
from mxc.kernels import amx
from mxc.kernels.tile_rows import CHUNK, ScaleRange, scheduled, steps
from tests.kernels.conftest import Problem

CASES: dict[str, tuple[Any, ...]] = {
    "one step": ("mxfp4", 16, 32, {}),
    "ragged columns": ("mxfp4", 70, 96, {}),
    "activations in two chunks": ("mxfp4", 16, 224, {"most": 96}),
    "a gate": ("mxfp4", 48, 96, {"halves": 2}),
    "results in blocks": ("mxfp4", 64, 96, {"together": 32}),
    "chosen experts": ("mxfp4", 24, 64, {"choice": "chosen", "experts": 3, "groups": 4}),
    "scales of 64": ("mxfp4", 20, 128, {"block": 64}),
    "nvfp4": ("nvfp4", 20, 96, {}),
    "mxfp6e2m3": ("mxfp6e2m3", 20, 96, {}),
    "mxfp6e3m2": ("mxfp6e3m2", 20, 96, {}),
    "mxfp8e4m3": ("mxfp8e4m3", 20, 96, {}),
    "mxfp8e5m2": ("mxfp8e5m2", 20, 96, {}),
    "mxint8": ("mxint8", 20, 96, {}),
    "bf16": ("bf16", 20, 96, {}),
}
#: Columns of a workgroup.
WIDTH = 64
#: Formats whose scales multiply sums of k-steps, not elements.
LATE = [name for name in CASES if name.startswith("mx")] + ["mxfp4"]


def built(draw: Callable[..., Problem], name: str) -> tuple[Problem, int]:
    """Draw a problem; return it, and how many activations are in scratch at once."""
    format, columns, depth, more = CASES[name]
    more = dict(more)
    most = more.pop("most", CHUNK)
    return draw(format, 1, columns, depth, **more), most


def both(problem: Problem, most: int = CHUNK) -> Iterator[NDArray[Any]]:
    """Yield the results of the kernel on tiles, then those of the kernel for one row."""
    kernels = amx.scheduled(problem.contraction), scheduled(problem.contraction, WIDTH, most)
    found = [problem.run(kernel) for kernel in kernels]
    return (each[: problem.rows, : problem.contraction.columns] for each in found)


@pytest.mark.parametrize("name", CASES)
def test_a_row_has_the_bits_that_it_has_in_a_tile(draw: Callable[..., Problem], name: str) -> None:
    tiles, alone = both(*built(draw, name))
    np.testing.assert_array_equal(alone.view(np.int32), tiles.view(np.int32))


@pytest.mark.parametrize("name", CASES)
def test_every_step_of_the_schedule_computes_the_definition(
    draw: Callable[..., Problem], name: str
) -> None:
    problem, most = built(draw, name)
    c, wanted = problem.contraction, problem.wanted
    for what, kernel in steps(c, WIDTH, most):
        found = problem.run(kernel)[: problem.rows, : c.columns]
        error = np.abs(found - wanted).max()
        assert error <= 1e-5 * np.abs(problem.weights).max() * c.depth**0.5, what


@pytest.mark.parametrize("format", LATE)
def test_the_bits_are_the_same_wherever_the_range_says_so(
    draw: Callable[..., Problem], format: str
) -> None:
    """The least and the largest exponents of activations, with the least and the largest scale
    bytes that they allow."""
    known = ScaleRange.of(block_format(format).element.values)
    for exponent in (known.least_exponent, 120, known.most_exponent):
        least = max(known.least_byte, known.least_sum - exponent)
        most = min(known.most_byte, known.most_sum - exponent)
        for byte in (least, most):
            problem = draw(format, 1, 16, 64, scales=(byte, byte), seed=byte)
            mantissas = 1 + np.random.default_rng(byte).integers(0, 128, problem.x.shape) / 128
            x = np.ldexp(np.copysign(mantissas, problem.x), exponent - 127)
            x[0, ::5] = 0
            tiles, alone = both(replace(problem, x=x.astype(ml_dtypes.bfloat16)))
            assert np.isfinite(tiles).all()
            assert (tiles != 0).any()
            np.testing.assert_array_equal(alone, tiles, f"2^{exponent - 127}, scales {byte}")


def test_the_ranges_of_formats() -> None:
    """An element of mxfp4 is a multiple of a half and at most 6; scaled it is normal and finite."""
    fp4, int8 = (ScaleRange.of(block_format(name).element.values) for name in ("mxfp4", "mxint8"))
    assert (fp4, int8) == (ScaleRange(-1, 3), ScaleRange(-6, 1))
    assert (fp4.least_byte, fp4.most_byte) == (2, 251)
    # The last bit of a bf16 near 2^-118 is 2^-125, which times a half is 2^-126. The sum of 32
    # products of 2^120 and 8 is 2^128.
    assert (fp4.least_exponent - 127, fp4.most_exponent - 127) == (-118, 118)
    assert (fp4.least_sum - 254, fp4.most_sum - 254) == (-118, 118)


def test_outside_of_the_range_tiles_lose_what_sums_keep(draw: Callable[..., Problem]) -> None:
    """Products under the least scale are subnormal in a tile, one by one; their sum is not."""
    problem = draw("mxfp4", 1, 16, 32, scales=(2, 2))
    tiles, alone = both(replace(problem, x=(problem.x * 0.01).astype(ml_dtypes.bfloat16)))
    assert (tiles != alone).any()
