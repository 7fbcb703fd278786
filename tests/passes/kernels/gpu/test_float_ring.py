"""Rings whose sides become floats, on the simulator with its sanitizer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F4,
    NVFP4,
    ROUNDED,
    SQUARE,
    Bytes,
    Case,
    Compiled,
    Doubles,
    compiler,
    drains,
    floats,
    loop_of,
    side,
    simulate,
)

#: Every way to split floats and to decode elements; K of one iteration of the loop, of several, and
#: of a last iteration that is cut off.
CASES = [
    Case("bf16", F4, 70, 100, 544, tiles=(2, 1), stages=3, k_steps=1, waves=SQUARE),
    Case("bf16", E2M3, 64, 132, 288, tiles=(1, 2), stages=2, k_steps=1, waves=SQUARE),
    Case("bf16", "mxint8", 64, 64, 1024, stages=5, k_steps=1, waves=SQUARE),
    Case("f16", E5M2, 40, 68, 480, tiles=(3, 1), stages=3, k_steps=1, waves=SQUARE),
    Case("f32", E4M3, 70, 64, 640, tiles=(2, 1), stages=2, k_steps=1, waves=SQUARE),
    Case("f32", E3M2, 64, 64, 256, stages=2, k_steps=1, waves=SQUARE),
    Case(NVFP4, NVFP4, 70, 100, 576, tiles=(2, 1), stages=3, k_steps=1, waves=SQUARE),
    Case("f16", NVFP4, 40, 68, 512, tiles=(1, 2), stages=2, k_steps=1, waves=SQUARE),
    Case(E4M3, NVFP4, 64, 132, 320, tiles=(1, 2), stages=4, k_steps=1, waves=SQUARE),
    Case(NVFP4, E2M3, 68, 36, 512, groups=3, experts=2, share=4, stages=2, k_steps=1, waves=SQUARE),
    Case("mxint8", F4, 70, 64, 544, tiles=(2, 1), stages=3, k_steps=1, waves=SQUARE),
    Case(ROUNDED, F4, 68, 36, 512, groups=3, experts=2, share=4, stages=2, k_steps=1, waves=SQUARE),
    Case("bf16", F4, 40, 300, 544, tiles=(1, 2), stages=4, k_steps=1, waves=ACROSS),
    Case("f32", E4M3, 70, 132, 640, tiles=(2, 1), stages=2, k_steps=1, waves=ACROSS),
    Case(
        NVFP4, E2M3, 68, 132, 512, groups=3, experts=2, share=4, stages=3, k_steps=1, waves=ACROSS
    ),
]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Case], Compiled]:
    """Return a function that compiles the kernel of a case once."""
    return compiler(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_numpy_and_clean(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    run = simulate(case, compiled(case).kernel)
    error = np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max()
    assert error < 1e-6
    assert not run.sanitizer.findings
    assert run.counter.counts.bank_conflicts == 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_load_outlives_its_wave(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    assert drains(compiled(case).assembly)


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_infinities_stay_and_nan_too(kind: str, compiled: Callable[[Case], Compiled]) -> None:
    """What is split into bf16 that add up to it: the sum is infinite with the sign of the weight.

    In f32 a NaN may be so by bits alone that its first bf16 does not have.
    """
    case = next(case for case in CASES if case.lhs == kind)

    def spoil(a: npt.NDArray[Any], q: Bytes, wanted: Doubles) -> None:
        a[0, 3], a[1, 5], a[2, 7] = np.inf, -np.inf, np.nan
        a[3].view(f"u{a.itemsize}")[9] = {"f16": 0x7C01, "f32": 0x7F800001}[kind]
        b = np.random.default_rng(case.m + case.n + case.k)
        floats(b, kind, case.m, case.k)
        _, _, right = side(b, case.rhs, case.n, case.k)
        with np.errstate(invalid="ignore"):
            wanted[0, 0], wanted[0, 1] = np.inf * right[:, 3], -np.inf * right[:, 5]
        wanted[0, 2:4] = np.nan

    run = simulate(case, compiled(case).kernel, spoil)
    np.testing.assert_array_equal(run.found[:4], run.wanted[:4].astype(np.float32))
    assert np.isinf(run.found[:2]).any()
    error = np.abs(run.found[4:] - run.wanted[4:]).max() / np.abs(run.wanted[4:]).max()
    assert error < 1e-6


def test_matrix_cores_have_work(compiled: Callable[[Case], Compiled]) -> None:
    """A pair of weights is decoded after each matrix instruction."""
    case = Case("bf16", F4, 256, 256, 2048, tiles=(4, 4), waves=SQUARE, stages=3, k_steps=1)
    loop, share = loop_of(compiled(case))
    assert loop.census["convert"] == loop.census["matrix"] == 4 * 4 * 16
    assert not {"v_perm", "scratch", "accvgpr"} & loop.census.keys()
    assert share >= 0.94


def test_two_packed_sides_are_decoded_beside_products(
    compiled: Callable[[Case], Compiled],
) -> None:
    """A pair of each in two instructions, after each matrix instruction."""
    case = Case(NVFP4, NVFP4, 256, 256, 2048, tiles=(4, 4), waves=SQUARE, stages=3, k_steps=1)
    loop, share = loop_of(compiled(case))
    assert loop.census["matrix"] == 4 * 4 * 16
    assert not {"v_perm", "scratch", "accvgpr"} & loop.census.keys()
    assert share >= 0.67


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("bf16", F4, 64, 64, 224, waves=SQUARE, k_steps=1), "wants 8"),
        (Case("bf16", F4, 64, 64, 512, waves=SQUARE), "of 1 k-step"),
        (Case("bf16", E4M3, 64, 64, 512, tiles=(4, 4), waves=SQUARE, k_steps=1), "196608 bytes"),
    ],
)
def test_refuses_what_it_cannot_compute(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = case.kernel
