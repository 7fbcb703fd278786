"""Rings whose sums are multiplied by f32 scales, on the simulator with its sanitizer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E4M3,
    E4M3_F32,
    E5M2,
    E5M2_F32,
    F4,
    FLOATS,
    INT4_F32,
    INT8_F32,
    SQUARE,
    Case,
    Compiled,
    compiler,
    drains,
    share_of,
    simulate,
)

RING: dict[str, Any] = {"k_steps": 2, "waves": ACROSS}
#: Fields of a case whose scales are for 64 elements, or for an odd multiple of 64.
HALF: dict[str, Any] = {"k_steps": 1, "waves": ACROSS}
#: Fields of a case whose scales are for 32 elements.
RUNS: dict[str, Any] = {"k_steps": 2, "waves": ACROSS, "block": 32}
#: Every element type, beside bf16, f16 and fp8; scales for one stage, for several and for all; rows
#: and columns that do not fill tiles; numbers of stages that are no multiple of those of an
#: iteration; experts, shared rows, splits and panels.
CASES = [
    Case("bf16", E4M3_F32, 70, 100, 640, tiles=(2, 1), stages=3, **RING),
    Case("bf16", E5M2_F32, 64, 132, 384, tiles=(1, 2), stages=2, block=64, **HALF),
    Case("bf16", INT4_F32, 130, 68, 512, tiles=(2, 2), stages=3, panels=True, **RING),
    Case("bf16", INT8_F32, 64, 64, 576, stages=4, block=192, **HALF),
    Case("bf16", E4M3_F32, 33, 65, 640, tiles=(1, 1), stages=5, block=640, **RING),
    Case("bf16", E4M3_F32, 130, 260, 1152, tiles=(4, 2), stages=2, panels=True, **RING),
    Case("f16", E4M3_F32, 40, 68, 512, tiles=(1, 2), stages=3, **RING),
    Case("f16", INT8_F32, 40, 36, 256, stages=2, **RING),
    Case("bf16", INT4_F32, 68, 36, 512, groups=3, experts=2, share=4, stages=2, **RING),
    Case(E4M3_F32, E5M2_F32, 70, 100, 640, tiles=(2, 1), stages=3, panels=True, **RING),
    Case(E5M2_F32, E4M3_F32, 130, 132, 1024, tiles=(3, 2), stages=2, block=256, **RING),
    Case(E4M3_F32, E4M3_F32, 68, 36, 512, groups=3, experts=2, share=4, stages=3, **RING),
    Case(E4M3_F32, E4M3_F32, 40, 68, 1024, stages=3, splits=2, block=512, **RING),
    Case("bf16", E4M3_F32, 70, 68, 1024, stages=3, splits=4, panels=True, **RING),
    Case("bf16", INT4_F32, 70, 300, 640, tiles=(2, 1), stages=3, **RUNS),
    Case("bf16", INT8_F32, 100, 132, 384, tiles=(3, 2), stages=2, **RUNS),
    Case("f16", INT4_F32, 40, 68, 512, tiles=(1, 2), stages=2, panels=True, **RUNS),
    Case("bf16", E4M3_F32, 33, 68, 1024, stages=3, splits=2, rows=64, **RUNS),
    Case("bf16", INT4_F32, 68, 36, 512, groups=3, experts=2, share=4, stages=3, **RUNS),
    # Activations with E8M0 scales for 32 elements, which the matrix instruction accepts.
    Case(E4M3, E4M3_F32, 70, 100, 640, tiles=(2, 1), stages=3, panels=True, **RING),
    Case(E5M2, E4M3_F32, 130, 132, 1024, tiles=(3, 2), stages=2, rows=64, **RING),
    Case(F4, E5M2_F32, 68, 36, 512, groups=3, experts=2, share=4, stages=3, **RING),
    Case(F4, E4M3_F32, 40, 68, 1024, stages=3, splits=2, **RING),
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


def test_scales_near_the_largest_float(compiled: Callable[[Case], Compiled]) -> None:
    """Sixteenths of integers are multiplied by 16 behind all sums: scales have no room for it."""
    case, scales, rows = CASES[2], np.float32(2.0**121), FLOATS["bf16"](2.0**-25)
    assert case.rhs == INT4_F32

    def change(
        a: npt.NDArray[Any], q: npt.NDArray[np.uint8], wanted: npt.NDArray[np.float64]
    ) -> None:
        a *= rows
        factors = q.view(np.float32)
        factors *= scales
        assert np.abs(factors).max() > 2.0**124
        wanted *= 2.0**96

    run = simulate(case, compiled(case).kernel, change)
    assert np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max() < 1e-6


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_load_outlives_its_wave(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    assert drains(compiled(case).assembly)


@pytest.mark.parametrize(
    ("case", "share"),
    [
        (Case("bf16", E4M3_F32, 4096, 4096, 4096, (4, 2), stages=2, panels=True, **RING), 0.92),
        (Case("bf16", E4M3_F32, 1000, 2880, 7168, (4, 2), stages=2, panels=True, **RING), 0.92),
        (Case("bf16", E4M3_F32, 4096, 4096, 4096, (3, 2), stages=3, panels=True, **RING), 0.86),
        (Case("bf16", E4M3_F32, 4096, 4096, 4096, (2, 2), stages=3, panels=True, **RING), 0.75),
        (Case("bf16", INT8_F32, 4096, 4096, 4096, (3, 2), stages=3, panels=True, **RING), 0.68),
        (Case("bf16", INT4_F32, 4096, 4096, 4096, (4, 2), stages=2, panels=True, **RING), 0.76),
        (Case("bf16", INT4_F32, 4096, 4096, 4096, (4, 1), stages=3, **RUNS), 0.45),
        (Case("bf16", INT8_F32, 4096, 4096, 4096, (4, 1), stages=3, **RUNS), 0.45),
        (Case("bf16", E4M3_F32, 4096, 4096, 4096, (3, 2), stages=3, **RUNS), 0.52),
        (Case(E4M3_F32, E4M3_F32, 4096, 4096, 4096, (4, 2), stages=3, panels=True, **RING), 0.64),
    ],
)
def test_matrix_cores_are_busy(
    case: Case, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    assert share_of(compiled(case)) > share


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("bf16", E4M3_F32, 64, 64, 512, (3, 3), **RING), "registers for 8 tiles"),
        (Case("bf16", INT8_F32, 64, 64, 512, (4, 2), **RING), "registers for 6 tiles"),
        (Case("bf16", INT4_F32, 64, 64, 512, (4, 2), **RUNS), "registers for 6 tiles"),
        (Case("bf16", INT4_F32, 64, 64, 320, **RUNS), "and whole stages"),
        (Case("bf16", INT4_F32, 64, 64, 768, **{**RUNS, "block": 96}), "32 elements or a multiple"),
        (Case(E4M3_F32, E4M3_F32, 64, 64, 512, **RUNS), "by those of 128 or a multiple"),
        (Case("f32", E4M3_F32, 64, 64, 512, **RING), "takes bf16 or f16 by weights"),
        (Case("bf16", E4M3_F32, 64, 64, 512, waves=SQUARE), "different columns"),
        (Case("bf16", E4M3_F32, 64, 64, 512, block=64, **RING), "here of 1 k-step"),
        (Case("bf16", E4M3_F32, 64, 64, 512, **HALF), "here of 2 k-steps"),
    ],
)
def test_refuses_what_it_cannot_compute(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = case.kernel
