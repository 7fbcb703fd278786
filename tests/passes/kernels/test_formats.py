"""Products of every format of weights and activations, with every number of columns up to 40."""

import numpy as np
import pytest

from tests.passes.conftest import Formats
from tests.passes.kernels.conftest import Data, Kernels, Program

WEIGHTS = ("mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2", "mxint8")
FLOATS = ("f32", "bf16")
QUANTIZED = ("int8", "mxfp4", "mxfp8e4m3", "mxfp8e5m2", "mxint8")
PAIRS = [(weight, activation) for weight in WEIGHTS for activation in (*FLOATS, *QUANTIZED)]
#: f32 activations that the program rounds to bf16, for dot products of bf16 and of f32.
PAIRS += [("mxfp4", "bf16r"), ("bf16", "bf16r"), ("f32", "bf16r")]
PAIRS += [(weight, activation) for weight in FLOATS for activation in FLOATS]
#: E4M3 scales for 16 elements; E8M0 scales for 16, 64 and 128 elements; f32 scales.
PAIRS += [("nvfp4", activation) for activation in (*FLOATS, "int8", "nvfp4")]
PAIRS += [("mxfp4/16", "int8"), ("mxfp4/64", "bf16"), ("mxfp8e4m3/128", "mxfp8e5m2")]
PAIRS += [("mxint8/16", "f32"), ("mxfp6e2m3/64", "mxint8"), ("int8", "int8"), ("int8/64", "bf16")]
PAIRS += [("int4", each) for each in (*FLOATS, "int8", "mxfp4", "mxfp8e4m3")]
PAIRS += [("int4/16", "bf16"), ("int4/128", "f32")]
#: K of one block, of odd numbers of blocks, and longer than the distance of a prefetch.
DEPTHS = (32, 96, 64, 2880, 160)


def name(place: int, weight: str, activation: str) -> str:
    columns = place * 7 % 40 + 1
    # With more than 16 columns there is one row: its kernel computes a register of columns at a
    # time, for any number of columns.
    rows = 1 if columns > 16 else place % 3 + 1
    depth, block = DEPTHS[place % len(DEPTHS)], int(weight.partition("/")[2] or 32)
    # Odd numbers of blocks of 16, too.
    depth = depth - 16 if weight == "nvfp4" or block == 16 else -(-depth // block) * block
    return f"{weight} {activation} 1x{rows}x{columns}x{depth}"


CASES = [name(place, *pair) for place, pair in enumerate(PAIRS)]
each_case = pytest.mark.parametrize("case", CASES)


@pytest.fixture(scope="module")
def program(kernels: Kernels) -> Program:
    return kernels(*CASES)


@pytest.fixture(scope="module")
def exact(program: Program) -> Data:
    return program.draw(exact=True)


@pytest.fixture(scope="module")
def usual(program: Program) -> Data:
    return program.draw(exact=False)


def test_every_number_of_columns_is_there(program: Program) -> None:
    assert {case.columns for case in program.cases.values()} == {*range(1, 41)}


@each_case
def test_kernels_are_used(case: str, program: Program) -> None:
    layouts = program.layouts(case)
    planes = "of6" if case.startswith("mxfp6") else ""
    scales = "panel16x4" if case.startswith("int") else "panel16x1"
    assert layouts == [f"panel16x4{planes}", scales][: len(layouts)]


@each_case
def test_sums_that_are_exact(case: str, exact: Data) -> None:
    np.testing.assert_array_equal(exact.found(case), exact.wanted(case))


@each_case
def test_sums_that_are_rounded(case: str, usual: Data) -> None:
    usual.check(case)


@each_case
def test_what_is_not_finite_stays_in_its_row(case: str, exact: Data, formats: Formats) -> None:
    """Infinities and NaNs of floats and of codes, NaN scales; the other rows are not touched."""
    rows = exact.program.cases[case].rows
    for row in range(rows):
        for x in formats.not_finite(exact.activations[case], row):
            wanted = exact.wanted(case)
            wanted[0, row] = np.nan
            found = exact.found(case, x)
            # An infinity times the zero or the sign of a weight is infinite or NaN.
            found = np.where(np.isfinite(found), found, np.nan)
            np.testing.assert_array_equal(found, wanted)
