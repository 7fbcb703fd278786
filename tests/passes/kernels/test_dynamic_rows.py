"""Products whose number of rows, or of groups that choose experts, comes with each call."""

from dataclasses import replace

import numpy as np
import pytest

from tests.passes.conftest import Formats, Side
from tests.passes.kernels.conftest import Kernels, Loaded, Program

#: One row, less than a tile, whole tiles and a rest, more rows than stay in a cache.
ROWS = (1, 3, 16, 100, 300)
PLAIN = (
    "mxfp4 bf16 1x?x40x64",
    "mxfp4 int8 1x?x33x2880 plus",
    "mxfp4 f32 1x?x16x96",
    "nvfp4 bf16r 1x?x33x80",
    "mxfp8e4m3 bf16 1x?x17x320 plus",
    "bf16 bf16 1x?x40x64 plus",
    # On AMX tiles, more activations than are in scratch at once.
    "mxint8 bf16 1x?x17x4128",
    "nvfp4 bf16 1x?x33x96",
    # One k-step of tiles.
    "bf16 bf16 1x?x64x32",
    "mxfp4 bf16 1x?x40x32",
)
CHOSEN = ("mxfp4 bf16 ?x1x40x64 of 5", "mxint8 int8 ?x1x17x288 of 3")
CASES = (*PLAIN, *CHOSEN)


@pytest.fixture(scope="module")
def program(kernels: Kernels) -> Program:
    return kernels(*CASES)


@pytest.fixture(scope="module")
def weights(program: Program, formats: Formats) -> dict[str, Side]:
    rng = np.random.default_rng(3)
    return {
        name: formats.draw(
            rng,
            case.weight,
            [max(case.experts, 1), case.columns, case.blocks],
            exact=True,
            size=case.block,
        )
        for name, case in program.cases.items()
    }


@pytest.fixture(scope="module")
def loaded(program: Program, weights: dict[str, Side]) -> Loaded:
    return program.load(weights)


@pytest.mark.parametrize("name", CASES)
def test_any_number_of_rows(
    name: str, program: Program, weights: dict[str, Side], loaded: Loaded, formats: Formats
) -> None:
    """Sums that are exact in any order, of few rows after many and the other way round."""
    assert all(program.layouts(name))
    case, rng = program.cases[name], np.random.default_rng(4)
    for m in (*ROWS, *reversed(ROWS)):
        shape = [m, case.blocks]
        x = formats.draw(rng, case.activation, shape, exact=True, size=case.block)
        ids = rng.integers(0, case.experts, m).astype(np.int32) if case.experts else None
        rows = weights[name].values[np.zeros(m, int) if ids is None else ids]
        wanted = np.einsum("mk,mnk->mn", x.values, rows)
        residual = rng.integers(-9, 9, wanted.shape).astype(np.float32) if case.plus else None
        if residual is not None:
            wanted += residual + np.arange(case.columns)
        found = loaded(name, x, ids, residual)
        np.testing.assert_array_equal(found.reshape(wanted.shape), wanted, f"{m} rows")


@pytest.mark.parametrize("name", CASES)
def test_a_row_alone_has_the_bits_that_it_has_among_others(
    name: str, program: Program, weights: dict[str, Side], loaded: Loaded, formats: Formats
) -> None:
    """Sums that are rounded: both nests of a kernel add up in one order."""
    case, rng = program.cases[name], np.random.default_rng(5)
    x = formats.draw(rng, case.activation, [19, case.blocks], exact=False, size=case.block)
    ids = rng.integers(0, case.experts, 19).astype(np.int32) if case.experts else None
    residual = rng.normal(size=(19, case.columns)).astype(np.float32) if case.plus else None
    together = np.array(loaded(name, x, ids, residual)).reshape(19, -1)
    for row in range(19):
        one = slice(row, row + 1)
        scales = None if x.scales is None else x.scales[one]
        alone = loaded(
            name,
            replace(x, codes=x.codes[one], scales=scales),
            None if ids is None else ids[one],
            None if residual is None else residual[one],
        )
        np.testing.assert_array_equal(alone.reshape(-1), together[row], f"row {row}")


@pytest.mark.parametrize("name", [PLAIN[0], PLAIN[4], CHOSEN[0]])
def test_a_row_alone_where_numbers_leave_the_range_of_f32(
    name: str, program: Program, weights: dict[str, Side], formats: Formats
) -> None:
    """Tiny and huge activations, under scales that make them normal, or subnormal or infinite."""
    case, rng = program.cases[name], np.random.default_rng(6)
    side = weights[name]
    scales = rng.choice([1, 2, 60, 127, 190, 252, 253], side.scales.shape).astype(np.uint8)
    loaded = program.load({name: side.with_scale((...,), scales)})
    x = formats.draw(rng, case.activation, [14, case.blocks], exact=False, size=case.block)
    powers = np.repeat([-126, -119, -118, -60, 0, 100, 118], 2)
    with np.errstate(over="ignore"):
        codes = np.ldexp(x.codes.astype(np.float32), powers[:, None, None]).astype(x.codes.dtype)
    x = replace(x, codes=codes)
    ids = rng.integers(0, case.experts, 14).astype(np.int32) if case.experts else None
    residual = np.zeros((14, case.columns), np.float32) if case.plus else None
    together = np.array(loaded(name, x, ids, residual)).reshape(14, -1)
    assert np.isfinite(together).any()
    assert not np.isfinite(together).all()
    for row in range(14):
        one = slice(row, row + 1)
        own = None if ids is None else ids[one]
        more = None if residual is None else residual[one]
        alone = loaded(name, replace(x, codes=x.codes[one]), own, more)
        np.testing.assert_array_equal(alone.reshape(-1), together[row], f"2^{powers[row]}")


def test_the_report_says_what_multiplies_one_row_where_there_are_tiles(kernels: Kernels) -> None:
    names = PLAIN[0], PLAIN[2], CHOSEN[0], "mxfp4 bf16 1x40x40x64", "mxfp4 bf16 1x?x40x32"
    rows = kernels(*names, target="cpu:sapphirerapids").compiled.report["matmuls"]
    alone = "a call of one row takes vector registers instead of tiles, with the same bits"
    planes = "f32 is three planes, with three products for each weight"
    assert [row["choice"] for row in rows] == [
        alone,
        f"a call of one row takes tiles too: {planes}",
        alone,
        None,
        alone,
    ]


@pytest.mark.parametrize("name", [PLAIN[0], PLAIN[5]])
def test_no_rows(
    name: str, program: Program, weights: dict[str, Side], loaded: Loaded, formats: Formats
) -> None:
    case = program.cases[name]
    shape = [0, case.blocks]
    x = formats.draw(np.random.default_rng(4), case.activation, shape, exact=True, size=case.block)
    residual = np.zeros((0, case.columns), np.float32) if case.plus else None
    assert loaded(name, x, None, residual).size == 0


def test_epilogues_are_computed_with_the_product(program: Program) -> None:
    kernels = {row["kernel"] for row in program.compiled.report["matmuls"]}
    assert {kernel.removesuffix("_tiles") for kernel in kernels if "_then_" in kernel} == {
        "mxc_mxfp4_int8_1xDx33x2880_then_0",
        "mxc_mxfp8e4m3_bf16_1xDx17x320_then_1",
        "mxc_bf16_bf16_1xDx40x64_then_2",
    }
