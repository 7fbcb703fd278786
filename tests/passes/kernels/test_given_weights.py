"""Weights that are arguments of the call and stay in rows; only parameters are packed."""

import pytest
from numpy.testing import assert_array_equal

from tests.passes.kernel_cases import Case
from tests.passes.kernels.conftest import Kernels, Program

CASES = (
    "mxfp4 bf16 1x1x40x2880 given",
    "mxfp4 int8 1x24x33x96 given",
    "mxfp4 mxfp4 1x5x17x64 given",
    "nvfp4 f32 1x9x31x80 given",
    "mxfp8e5m2 bf16 1x3x16x96 given",
    "mxint8/64 f32 1x16x40x320 given",
    "int8 int8 1x2x15x96 given",
    "mxfp4 bf16 12x1x33x64 of 5 given",
    "mxfp8e4m3 bf16 3x4x33x64 of 2 given",
    "mxfp4 bf16 3x4x33x64 each given",
    "mxfp4 f16 1x5x17x64 given",
    "mxfp6e2m3 int8 1x7x33x96 given",
    "mxfp6e2m3 bf16 1x1x17x64 given",
    "mxfp6e3m2 mxfp6e3m2 3x9x33x64 of 2 given",
    "mxfp6e3m2 f32 1x9x33x64 given",
    "nvfp4 mxfp8e4m3/32 1x9x33x64 given",
    "mxfp4/64 nvfp4/16 3x2x17x64 of 2 given",
)
each_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def program(kernels: Kernels) -> Program:
    return kernels(*CASES)


@each_case
def test_sums_that_are_exact(case: str, program: Program) -> None:
    exact = program.draw(exact=True)
    assert_array_equal(exact.found(case), exact.wanted(case))


@each_case
def test_sums_that_are_rounded(case: str, program: Program) -> None:
    program.draw(exact=False).check(case)


def test_kernels_read_rows(program: Program) -> None:
    rows = program.compiled.report["matmuls"]
    assert len(rows) == len({Case.parse(name) for name in CASES})
    assert all(row["kernel"].endswith(("_in_rows", "_in_rows_sorted")) for row in rows)
    assert not program.compiled.panels
