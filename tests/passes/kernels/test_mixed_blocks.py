"""Weights and activations whose scales are for different numbers of elements."""

import pytest
from numpy.testing import assert_array_equal

from tests.passes.kernels.conftest import Kernels, Program

PANELS = (
    "nvfp4 mxfp8e4m3/32 1x1x33x96",
    "nvfp4 mxfp4/32 1x5x17x2880",
    "nvfp4 mxfp6e3m2/32 1x40x33x64",
    "nvfp4 int8/32 12x1x33x64 of 5",
    "nvfp4 mxint8/64 3x2x33x128 of 2",
    "mxfp8e4m3 nvfp4/16 1x9x40x96",
    "mxfp4 nvfp4/16 1x3x16x64",
    "mxfp4/64 mxfp8e5m2/32 1x4x31x320",
    "mxint8 mxfp4/128 1x2x15x256",
    "int8/64 mxfp8e4m3/32 1x2x15x128",
)
#: Weights of 6 bits, whose packed planes need blocks of 32: they stay in rows.
ROWS = ("mxfp6e2m3 nvfp4/16 1x6x33x96", "mxfp6e3m2 nvfp4/16 3x2x17x64 of 2")
each_case = pytest.mark.parametrize("case", PANELS + ROWS)


@pytest.fixture(scope="module")
def program(kernels: Kernels) -> Program:
    return kernels(*PANELS, *ROWS, assembly=True)  # which the report finds kernels in


@each_case
def test_sums_that_are_exact(case: str, program: Program) -> None:
    exact = program.draw(exact=True)
    assert_array_equal(exact.found(case), exact.wanted(case))


@each_case
def test_sums_that_are_rounded(case: str, program: Program) -> None:
    program.draw(exact=False).check(case)


@each_case
def test_all_are_kernels_on_panels_or_rows(case: str, program: Program) -> None:
    (row,) = (each for each in program.compiled.report["matmuls"] if each["function"] == case)
    assert row["kernel"].startswith("mxc_")
    assert not row["fallback"]
    assert row["kernel"].endswith("_in_rows") == (case in ROWS)
    assert all(program.layouts(case)) == (case in PANELS)
