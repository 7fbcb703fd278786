"""f32 scales that several rows of weights share, as in squares of 128 x 128 of fp8.

Every kernel that multiplies sums by such scales runs on the simulator with its sanitizer.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E4M3_F32,
    E5M2_F32,
    INT8_F32,
    SQUARE,
    Case,
    Compiled,
    compiler,
    share_of,
    simulate,
)

RING: dict[str, Any] = {"stages": 3, "k_steps": 2, "waves": ACROSS}
DECODED: dict[str, Any] = {"stages": 2, "k_steps": 1, "waves": SQUARE, "transport": "decoded"}
STREAM: dict[str, Any] = {"transport": "stream"}
#: Scales for as many rows as a tile has, for several times as many, and for numbers with which a
#: tile has several scales or begins between the rows of one; a last scale for fewer rows; experts,
#: splits and panels.
CASES = [
    Case("bf16", E4M3_F32, 70, 300, 640, (2, 1), rows=128, **RING),
    Case(E4M3_F32, E4M3_F32, 70, 200, 640, (2, 2), rows=32, panels=True, **RING),
    Case(E4M3_F32, E4M3_F32, 40, 100, 512, rows=24, **RING),
    Case("bf16", E4M3_F32, 68, 96, 512, groups=3, experts=2, share=4, rows=64, **RING),
    Case(E4M3_F32, E5M2_F32, 40, 196, 1024, splits=2, block=512, rows=64, **RING),
    Case(INT8_F32, INT8_F32, 70, 200, 384, (2, 1), rows=64, **DECODED),
    Case("f32", E4M3_F32, 40, 70, 512, splits=2, rows=128, **DECODED),
    Case("bf16", E4M3_F32, 5, 300, 640, (1, 2), (1, 1, 4), rows=128, **STREAM),
    Case(E4M3_F32, E4M3_F32, 40, 200, 512, (2, 2), (1, 1, 2), rows=128, panels=True, **STREAM),
    Case("f16", INT8_F32, 20, 100, 256, (2, 1), (1, 2, 1), block=32, rows=40, **STREAM),
]
CASES_OF_GFX942 = [
    replace(case, target="gfx942")
    for case in (
        Case("bf16", E4M3_F32, 70, 300, 640, (2, 2), rows=128, **DECODED),
        Case(E4M3_F32, E4M3_F32, 40, 100, 512, rows=24, **DECODED),
        Case("bf16", E4M3_F32, 20, 200, 512, (2, 1), (1, 1, 4), rows=128, **STREAM),
        Case(E4M3_F32, E5M2_F32, 4, 70, 512, (1, 1), (1, 1, 2), rows=24, **STREAM),
    )
]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Case], Compiled]:
    """Return a function that compiles the kernel of a case once."""
    known = {
        target: compiler(cases, target)
        for target, cases in (("gfx942", CASES_OF_GFX942), ("gfx950", CASES))
    }
    return lambda case: known[case.target](case)


@pytest.mark.parametrize("case", [*CASES, *CASES_OF_GFX942], ids=str)
def test_as_numpy_and_clean(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    run = simulate(case, compiled(case).kernel)
    error = np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max()
    assert error < 1e-6
    assert not run.sanitizer.findings


@pytest.mark.parametrize(
    ("case", "share"),
    [
        (Case("bf16", E4M3_F32, 4096, 4096, 4096, (4, 2)), 0.91),
        (Case(E4M3_F32, E4M3_F32, 4096, 4096, 4096, (4, 2)), 0.89),
    ],
    ids=str,
)
def test_matrix_cores_are_busy(
    case: Case, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    given = {**RING, "stages": 2 if case.lhs == "bf16" else 3}
    assert share_of(compiled(replace(case, rows=128, panels=True, **given))) > share
