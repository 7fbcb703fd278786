"""Estimated times of kernels, against sums made by hand from the data sheet's figures."""

from dataclasses import replace

import pytest

from mxc.compiler.report.kernel_time import by_schedule, roofline
from mxc.targets.amd import GFX950
from mxc.targets.matrix_unit import MatrixInstruction


def test_memory_bounds_few_rows() -> None:
    found = roofline(GFX950, 8_000_000, 1_000)
    assert found.bound_by == "memory"
    assert found.bound_seconds == pytest.approx(1e-6)
    assert found.seconds == pytest.approx(1.8e-6)
    assert found.tail is None


@pytest.mark.parametrize(
    # AMD's data sheet of MI355X: 2.5, 5.0 and 10.1 PFLOP/s of bf16, MXFP8 and MXFP4.
    ("widths", "peak"),
    [(None, 2.5e15), ((8, 8), 5.0e15), ((8, 4), 5.0e15), ((4, 4), 10.1e15)],
)
def test_matrix_cores_bound_many_rows(widths: tuple[int, int] | None, peak: float) -> None:
    found = roofline(GFX950, 1, 10**15, widths)
    assert found.bound_by == "matrix"
    assert found.bound_seconds == pytest.approx(1e15 / peak, rel=0.02)


def test_a_machine_without_rates_is_bound_by_memory() -> None:
    unknown = MatrixInstruction("v_mfma_f32_16x16x32_bf16")
    gpu = replace(GFX950, matrix=replace(GFX950.matrix, instructions=(unknown,)))
    assert roofline(gpu, 1, 10**15).bound_by == "memory"


@pytest.mark.parametrize(("workgroups", "tail"), [(1, 0.9961), (256, 0), (257, 0.498), (512, 0)])
def test_tails_of_workgroups(workgroups: int, tail: float) -> None:
    bound = roofline(GFX950, 8_000_000, 1_000)
    found = by_schedule(GFX950, bound, 4800, workgroups)
    assert found.seconds == pytest.approx(2e-6)
    assert found.share == pytest.approx(0.5)
    assert found.tail == tail
