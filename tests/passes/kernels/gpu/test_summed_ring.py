"""Rings whose sums f32 scales multiply, on the simulator with its sanitizer."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.passes.kernels.gpu.rings import (
    E4M3_F32,
    E5M2_F32,
    INT4_F32,
    INT8_F32,
    ROUNDED,
    SQUARE,
    Case,
    Compiled,
    busy_with_two,
    compiler,
    drains,
    simulate,
)

RING: dict[str, Any] = {"k_steps": 1, "waves": SQUARE}
#: 8-bit floats as they are.
BYTES: dict[str, Any] = {"k_steps": 2, "waves": SQUARE}
#: Each element, each float beside it, scales of one stage, two, three and all; sides that end
#: within a tile; experts, shared rows, splits and panels.
CASES = [
    Case("bf16", E4M3_F32, 70, 100, 640, tiles=(2, 1), stages=3, **RING),
    Case("bf16", E5M2_F32, 64, 132, 384, tiles=(1, 2), stages=2, block=64, **RING),
    Case("bf16", INT4_F32, 130, 68, 512, tiles=(2, 2), stages=3, panels=True, **RING),
    Case("bf16", INT8_F32, 64, 64, 576, stages=4, block=192, **RING),
    Case("bf16", E4M3_F32, 33, 65, 640, tiles=(1, 1), stages=3, block=640, **RING),
    Case("f16", E4M3_F32, 40, 68, 512, tiles=(1, 2), stages=3, **RING),
    Case("f16", INT8_F32, 40, 36, 256, stages=2, **RING),
    Case("f32", E4M3_F32, 70, 64, 512, tiles=(2, 1), stages=2, **RING),
    Case("f32", INT4_F32, 64, 64, 256, stages=2, block=64, **RING),
    Case(ROUNDED, INT4_F32, 68, 36, 512, groups=3, experts=2, share=4, stages=2, **RING),
    Case(E4M3_F32, E4M3_F32, 70, 100, 640, tiles=(2, 1), stages=3, panels=True, **RING),
    Case(E4M3_F32, E5M2_F32, 70, 100, 640, tiles=(2, 1), stages=3, panels=True, **BYTES),
    Case(E5M2_F32, E4M3_F32, 130, 132, 1024, tiles=(2, 2), stages=2, block=256, **BYTES),
    Case(E4M3_F32, E4M3_F32, 68, 36, 512, groups=3, experts=2, share=4, stages=3, **BYTES),
    Case(E4M3_F32, E4M3_F32, 40, 68, 1024, stages=3, splits=2, block=512, **BYTES),
    Case(INT8_F32, INT8_F32, 66, 130, 512, tiles=(1, 2), stages=3, block=64, **RING),
    Case("bf16", E4M3_F32, 70, 68, 1024, stages=3, splits=4, panels=True, **RING),
    Case(E4M3_F32, E4M3_F32, 40, 68, 1024, stages=3, splits=2, **RING),
]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Compiled]:
    """The kernel of a case, compiled once."""
    return compiler(tmp_path_factory, CASES, texts=True)


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


@pytest.mark.parametrize(
    ("case", "share"),
    [
        (Case("bf16", E4M3_F32, 4096, 4096, 4096, (2, 2), stages=3, panels=True, **RING), 0.71),
        (Case("bf16", INT8_F32, 4096, 4096, 4096, (2, 2), stages=3, panels=True, **RING), 0.59),
        (Case("bf16", INT4_F32, 4096, 4096, 4096, (2, 2), stages=3, panels=True, **RING), 0.47),
        (Case("f32", E4M3_F32, 4096, 4096, 4096, (1, 2), stages=3, panels=True, **RING), 0.49),
        (Case(E4M3_F32, E4M3_F32, 4096, 4096, 4096, (2, 2), stages=2, **BYTES), 0.5),
    ],
)
def test_matrix_cores_are_busy(
    case: Case, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    """Two workgroups share a unit."""
    assert busy_with_two(compiled(case)) > share


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("bf16", E4M3_F32, 64, 64, 512, (4, 2), **RING), "registers for 4 tiles"),
        (Case("bf16", E4M3_F32, 64, 64, 512, block=32, **RING), "64 elements or a multiple"),
        (Case("bf16", E4M3_F32, 64, 64, 512, **BYTES), "here of 1 k-step"),
    ],
)
def test_refuses_what_it_cannot_compute(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = case.kernel
