"""Rings that decode both sides once for a workgroup, on the simulator with its sanitizer."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.passes.kernels.gpu.rings import (
    E2M3,
    E3M2,
    E4M3,
    E4M3_F32,
    E5M2,
    E5M2_F32,
    F4,
    INT4_F32,
    INT8_F32,
    NVFP4,
    ROUNDED,
    SQUARE,
    Bytes,
    Case,
    Compiled,
    Doubles,
    busy_with_two,
    compiler,
    loop_of,
    simulate,
)

_OTHER = Case(
    F4, F4, 64, 64, 64, waves=SQUARE, stages=2, k_steps=1, target="gfx942", transport="decoded"
)


def case(lhs: str, rhs: str, m: int, n: int, k: int, tiles: tuple[int, int] = (1, 1)) -> Case:
    """Return a case for gfx942."""
    return replace(_OTHER, lhs=lhs, rhs=rhs, m=m, n=n, k=k, tiles=tiles)


def of_gfx950(lhs: str, rhs: str, m: int, n: int, k: int, tiles: tuple[int, int] = (1, 1)) -> Case:
    """Return a case for gfx950, which has conversions."""
    return replace(case(lhs, rhs, m, n, k, tiles), target="gfx950")


#: Every way to decode; K of no, one and several iterations of four stages, with 0 to 3 stages left.
CASES = [
    case(F4, F4, 70, 100, 544, (2, 1)),
    case(F4, E2M3, 64, 132, 32, (1, 2)),
    case(E3M2, E4M3, 130, 68, 192, (3, 1)),
    case(E5M2, "mxint8", 64, 64, 256),
    case(E3M2, F4, 64, 64, 96),
    case(NVFP4, NVFP4, 70, 100, 352, (2, 1)),
    case(E4M3, NVFP4, 64, 132, 320, (1, 4)),
    case("bf16", F4, 260, 100, 288, (4, 1)),
    case("f16", E2M3, 40, 68, 128, (1, 2)),
    case("f32", E4M3, 70, 64, 160),
    replace(case(ROUNDED, F4, 68, 36, 256), groups=3, experts=2, share=4),
    # f32 scales, which multiply the sums of one run of four stages, of several, or of all; and such
    # scales on both sides.
    case("bf16", E4M3_F32, 130, 100, 640, (2, 2)),
    case("f16", INT8_F32, 64, 132, 128, (1, 2)),
    case("f32", INT4_F32, 70, 64, 384, (2, 1)),
    case(E5M2_F32, E4M3_F32, 100, 70, 512, (2, 2)),
    replace(case("bf16", E4M3_F32, 70, 68, 512), block=512, panels=True),
    replace(case("bf16", INT4_F32, 70, 68, 576, (2, 2)), block=64),
    replace(case("f32", E4M3_F32, 64, 64, 576), block=192),
    replace(case(INT8_F32, INT4_F32, 68, 36, 512), block=256, groups=3, experts=2, share=4),
    replace(case(F4, E4M3_F32, 40, 68, 512), splits=2),
]
#: Two packed sides that no scaled instruction accepts, integers, and rows with fewer blocks than
#: the scales that a wave loads at once.
CASES_OF_GFX950 = [
    of_gfx950(NVFP4, NVFP4, 70, 100, 576, (2, 1)),
    of_gfx950(E4M3, NVFP4, 64, 132, 320, (1, 2)),
    of_gfx950(E3M2, NVFP4, 130, 68, 32, (3, 1)),
    replace(of_gfx950(NVFP4, E2M3, 68, 36, 512), groups=3, experts=2, share=4),
    of_gfx950("mxint8", F4, 70, 64, 544, (2, 1)),
    of_gfx950("mxint8", "mxint8", 64, 64, 256),
    of_gfx950("bf16", "mxint8", 64, 64, 1024),
    of_gfx950("f32", "mxint8", 64, 64, 96),
    of_gfx950("bf16", F4, 64, 64, 224, (1, 4)),
    of_gfx950("bf16", INT4_F32, 130, 100, 640, (2, 2)),
    of_gfx950(INT8_F32, INT8_F32, 64, 132, 384, (1, 2)),
    replace(of_gfx950(INT8_F32, INT8_F32, 64, 64, 512, (2, 2)), block=64),
    of_gfx950(ROUNDED, INT8_F32, 68, 64, 384, (2, 2)),
    replace(of_gfx950("f32", E4M3_F32, 68, 36, 512), splits=4),
]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Case], Compiled]:
    """Return a function that compiles the kernel of a case once."""
    known = {
        target: compiler(cases, target)
        for target, cases in (("gfx942", CASES), ("gfx950", CASES_OF_GFX950))
    }
    return lambda case: known[case.target](case)


@pytest.mark.parametrize("case", [*CASES, *CASES_OF_GFX950], ids=str)
def test_as_numpy_and_clean(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    run = simulate(case, compiled(case).kernel)
    error = np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max()
    assert error < 1e-6
    assert not run.sanitizer.findings
    assert run.counter.counts.bank_conflicts == 0


@pytest.mark.parametrize(
    ("lhs", "rhs", "target"),
    [
        *((lhs, F4, "gfx942") for lhs in (F4, E4M3, E2M3, NVFP4)),
        *((lhs, "mxint8", "gfx950") for lhs in (NVFP4, "mxint8", E4M3)),
    ],
)
def test_a_scale_that_is_nan_makes_its_row_nan(
    lhs: str, rhs: str, target: str, compiled: Callable[[Case], Compiled]
) -> None:
    own = replace(case(lhs, rhs, 64, 64, 128), target=target)

    def spoil(p: Bytes, q: Bytes, wanted: Doubles) -> None:
        p[3, 1], q[5, 0] = 0x7F if lhs == NVFP4 else 0xFF, 0xFF
        wanted[0, 3], wanted[0, :, 5] = np.nan, np.nan

    run = simulate(own, compiled(own).kernel, spoil)
    assert (np.isnan(run.found) == np.isnan(run.wanted)).all()


@pytest.mark.parametrize(
    ("lhs", "rhs", "share"),
    [
        (F4, F4, 0.98),
        (E4M3, E4M3, 0.95),
        (E2M3, E3M2, 0.86),
        (NVFP4, NVFP4, 0.95),
        ("bf16", F4, 0.92),
    ],
)
def test_matrix_cores_have_work(
    lhs: str, rhs: str, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    """A hundred instructions decode a block, and stand between products."""
    own = case(lhs, rhs, 256, 256, 2048, (4, 4))
    loop, found = loop_of(compiled(own))
    assert loop.census["matrix"] == 4 * 4 * 16
    assert not {"scratch", "accvgpr"} & loop.census.keys()
    assert found >= share


@pytest.mark.parametrize(
    ("lhs", "rhs", "share"),
    [
        (NVFP4, NVFP4, 0.94),
        (F4, NVFP4, 0.93),
        (E4M3, NVFP4, 0.92),
        (E2M3, NVFP4, 0.87),
        ("mxint8", "mxint8", 0.85),
        (F4, "mxint8", 0.85),
        ("bf16", "mxint8", 0.79),
    ],
)
def test_matrix_cores_of_gfx950_have_work(
    lhs: str, rhs: str, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    """Its instruction is twice as fast, and conversions decode."""
    loop, found = loop_of(compiled(of_gfx950(lhs, rhs, 256, 256, 2048, (4, 4))))
    assert loop.census["matrix"] == 4 * 4 * 8
    assert not {"scratch", "accvgpr"} & loop.census.keys()
    assert found >= share


@pytest.mark.parametrize(("lhs", "rhs", "share"), [(F4, F4, 0.98), ("bf16", NVFP4, 0.90)])
def test_scales_of_rows_that_end_within_four_are_not_waited_for(
    lhs: str, rhs: str, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    """What is computed of them stands a stage behind their load, which is one."""
    _, found = loop_of(compiled(case(lhs, rhs, 256, 256, 2880, (4, 4))))
    assert found >= share


@pytest.mark.parametrize(
    ("lhs", "rhs", "tiles", "share"),
    [
        (F4, F4, (2, 2), 0.67),
        (E4M3, E4M3, (2, 2), 0.61),
        ("bf16", F4, (2, 2), 0.69),
        ("f32", F4, (1, 4), 0.84),
    ],
)
def test_a_block_of_few_rows_is_decoded_by_several_lanes(
    lhs: str, rhs: str, tiles: tuple[int, int], share: float, compiled: Callable[[Case], Compiled]
) -> None:
    """No lane decodes what another one does."""
    _, found = loop_of(compiled(case(lhs, rhs, 256, 256, 2048, tiles)))
    assert found >= share


@pytest.mark.parametrize(
    ("case", "share"),
    [
        (case("bf16", E4M3_F32, 4096, 4096, 4096, (2, 2)), 0.85),
        (case("bf16", INT4_F32, 4096, 4096, 4096, (2, 2)), 0.9),
        (case(E4M3_F32, E4M3_F32, 4096, 4096, 4096, (2, 2)), 0.67),
        (of_gfx950("bf16", INT4_F32, 4096, 4096, 4096, (2, 2)), 0.58),
        (of_gfx950(INT8_F32, INT8_F32, 4096, 4096, 4096, (2, 2)), 0.51),
    ],
    ids=str,
)
def test_f32_scales_keep_no_matrix_core_waiting(
    case: Case, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    """Sums are multiplied while those of the next four stages begin."""
    assert busy_with_two(compiled(replace(case, panels=True))) > share


@pytest.mark.parametrize(
    "case",
    [
        case(F4, F4, 4097, 4097, 256, (4, 4)),
        case(ROUNDED, F4, 256, 256, 256, (4, 3)),
        case("bf16", E4M3, 256, 256, 256, (4, 4)),
    ],
    ids=str,
)
def test_nothing_spills(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    """Where stores are masked, and where most of a side waits in registers."""
    loop_of(compiled(case))


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (case("f16", F4, 64, 64, 512, (4, 4)), "of LDS, where there are 65536"),
        (case(F4, F4, 64, 64, 512, (5, 4)), "256 accumulation registers"),
        (case(F4, F4, 64, 64, 512, (5, 1)), "a lane for 256 rows"),
        (replace(case(F4, F4, 64, 64, 512), stages=3), "and 2 stages"),
        (replace(case(F4, F4, 64, 64, 512), waves=(2, 1, 1)), "has 256 lanes"),
        (replace(case("bf16", E4M3_F32, 64, 64, 512), block=32), "64 elements or a multiple"),
        (case("bf16", E4M3_F32, 64, 64, 512, (4, 2)), "registers for 4 tiles"),
    ],
)
def test_refuses_what_it_cannot_compute(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = case.kernel
