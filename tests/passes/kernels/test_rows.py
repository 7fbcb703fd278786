"""Products of any number of rows: chosen and sorted experts, shared rows, many workgroups."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.passes.conftest import Formats
from tests.passes.kernels.conftest import Data, Kernels, Program

#: A format of activations for each kind of dot product: pairs, quads, floats.
KINDS = ("bf16", "int8", "f32")
#: Numbers of rows. The height of a tile is chosen to divide the rows evenly: these give every
#: height and every rest.
HEIGHTS = [*range(1, 13), *range(13, 41, 3), 17, 23, 33, 39]
RAGGED = [f"mxfp4 {KINDS[i % 3]} 1x{rows}x15x64" for i, rows in enumerate(HEIGHTS)]
#: 41 experts, of which each has another number of rows, from 0 to 40.
SORTED = [f"mxfp4 {kind} 820x1x{n}x64 of 41" for kind, n in zip(KINDS, (40, 31, 16), strict=True)]
#: Products whose weights are decoded to memory, some blocks at a time.
STAGED = [
    "mxfp8e4m3 bf16 820x1x17x320 of 41",
    "mxfp8e5m2 f32 1x23x31x544",
    "mxint8 bf16 1x24x16x288",
]
#: nvfp4, which has two scales for 32 elements.
HALVED = ["nvfp4 bf16 820x1x17x80 of 41", "nvfp4 bf16r 12x1x40x48 of 5 share 4"]
CHOSEN = [
    "mxfp4 bf16 4x1x96x2880 of 7",
    "mxfp4 int8 3x5x33x96 of 2",
    "mxint8 f32 2x9x17x64 of 1",
    "mxfp6e3m2 mxfp8e4m3 5x2x1x32 of 3",
]
SHARED = [
    "mxfp4 bf16r 12x1x40x64 of 5 share 4",
    "mxfp4 int8 6x1x17x96 of 5 share 2",
    "mxint8 mxfp4 32x1x16x64 of 3 share 4",
    "mxfp4 mxfp8e5m2 1x12x31x32 share 3",
]
#: More rows than stay in a cache, and more columns than a workgroup has.
MANY = ["mxfp4 bf16 1x200x16x2880", "bf16 f32 1x3x330x160", "mxfp4 int8 1x67x130x2880"]
CASES = [*RAGGED, *SORTED, *STAGED, *HALVED, *CHOSEN, *SHARED, *MANY]
each_case = pytest.mark.parametrize("case", CASES)
each_kind = pytest.mark.parametrize("case", [*SORTED, *STAGED, *MANY])


@pytest.fixture(scope="module")
def program(kernels: Kernels) -> Program:
    return kernels(*CASES)


@pytest.fixture(scope="module")
def exact(program: Program) -> Data:
    return program.draw(exact=True)


@pytest.fixture(scope="module")
def usual(program: Program) -> Data:
    return program.draw(exact=False)


def ids_of(name: str, program: Program) -> NDArray[Any]:
    """Draw the expert of each group. Of 41 experts, expert e has e rows, in random order."""
    case = program.cases[name]
    if case.experts != 41:
        return case.ids()
    ids = np.repeat(np.arange(41, dtype=np.int32), np.arange(41))
    return np.random.default_rng(7).permutation(ids)


@each_case
def test_kernels_are_used(case: str, program: Program) -> None:
    assert all(program.layouts(case))


@each_case
def test_sums_that_are_exact(case: str, exact: Data) -> None:
    ids = ids_of(case, exact.program)
    np.testing.assert_array_equal(exact.found(case, ids=ids), exact.wanted(case, ids))


@each_case
def test_sums_that_are_rounded(case: str, usual: Data) -> None:
    usual.check(case, ids_of(case, usual.program))


@pytest.mark.parametrize("case", [*SORTED, *CHOSEN, *SHARED[:3]])
def test_any_choice_of_experts(case: str, exact: Data) -> None:
    """All rows by one expert, the first or the last, and by turns."""
    shape = exact.program.cases[case]
    last = shape.experts - 1
    for ids in (
        np.zeros(shape.groups),
        np.full(shape.groups, last),
        -np.arange(shape.groups) % (last + 1),
    ):
        ids = ids.astype(np.int32)
        np.testing.assert_array_equal(exact.found(case, ids=ids), exact.wanted(case, ids))


@pytest.mark.parametrize("case", [*SORTED, *CHOSEN])
def test_an_expert_that_is_none_is_the_last(case: str, exact: Data) -> None:
    shape = exact.program.cases[case]
    ids = shape.ids()
    wrong, wanted = ids.copy(), ids.copy()
    wrong[::2] = np.resize([shape.experts, -1, 2**31 - 1, -(2**31)], wrong[::2].shape)
    wanted[::2] = shape.experts - 1
    np.testing.assert_array_equal(exact.found(case, ids=wrong), exact.wanted(case, wanted))


@each_kind
def test_threads_do_not_change_a_bit(case: str, usual: Data) -> None:
    ids = ids_of(case, usual.program)
    alone = usual.on(threads=1)
    for _ in range(3):
        np.testing.assert_array_equal(usual.found(case, ids=ids), alone.found(case, ids=ids))


@pytest.mark.parametrize("case", [case for case in CASES if "f32 " in case or "bf16 " in case])
def test_zeros_and_subnormals(case: str, exact: Data, formats: Formats) -> None:
    """Subnormal activations are zeros, of either sign; small normal ones are what they are."""
    x = exact.activations[case]
    smallest = np.finfo(np.float32).tiny
    for values in (
        np.zeros_like(x.codes),
        -np.zeros_like(x.codes),
        np.full_like(x.codes, smallest / 2),
    ):
        assert not exact.found(case, formats.floats(x.format, values)).any()
    values = np.where(np.arange(values.size).reshape(values.shape) % 2, 2.0**-100, -(2.0**-100))
    x = formats.floats(x.format, values)
    np.testing.assert_array_equal(exact.found(case, x), exact.wanted(case, x=x))


@pytest.mark.parametrize("case", [case for case in CASES if "f32 " in case or "bf16 " in case])
def test_large_activations(case: str, usual: Data, formats: Formats) -> None:
    x = usual.activations[case]
    large = (x.codes.astype(np.float64) * 2.0**90).astype(x.codes.dtype)
    usual.check(case, ids_of(case, usual.program), formats.floats(x.format, large))
