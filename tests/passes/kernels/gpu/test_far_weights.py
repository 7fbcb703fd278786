"""Weights larger than a buffer can address: the buffer of a workgroup has only its own columns."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from iree.compiler import ir

from mxc.dialects.amdgpu import BEYOND
from mxc.dialects.context import new_context
from mxc.dialects.dispatches import walk
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.gpu import contraction
from mxc.passes.kernels.gpu.calls import match
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.gpu.stream import StreamKernel
from tests.passes.kernels.gpu import test_dense as dense
from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E4M3,
    E4M3_F32,
    F4,
    SQUARE,
    Case,
    compile_rings,
    scaled,
    simulate,
)
from tests.passes.kernels.gpu.test_ring import gated

#: Rows and columns that do not fill tiles; each side both straight to registers and through LDS.
RINGS = [
    Case(F4, F4, 70, 200, 544, tiles=(2, 1), waves=ACROSS),
    Case(E4M3, E4M3, 64, 100, 512, tiles=(1, 2)),
    Case("bf16", F4, 70, 100, 544, tiles=(2, 1), stages=3, k_steps=1, waves=SQUARE),
    Case(F4, F4, 68, 132, 512, groups=3, experts=2, share=4),
    Case("bf16", E4M3_F32, 70, 300, 640, tiles=(2, 1), waves=ACROSS, stages=3, rows=24),
]
DENSE = [
    dense.Case("bf16", "bf16", 3, 36, 544),
    dense.Case("f32", "bf16", 20, 84, 800, tiles=(2, 1)),
    dense.Case("bf16", "bf16", 70, 164, 544, tiles=(2, 2), waves=dense.ACROSS, stages=3),
]


@dataclass(frozen=True)
class Streamed(Case):
    """A case that is streamed."""

    @property
    def kernel(self) -> Any:
        schedule = GpuSchedule(
            instruction=TileInstruction(16), tiles=self.tiles, waves=self.waves, transport="stream"
        )
        lhs, rhs = (scaled(each, self.k // 32) for each in (self.lhs, self.rhs))
        return StreamKernel(lhs, rhs, self.groups, self.m, self.n, self.experts, schedule)


STREAMS = [Streamed(F4, E4M3, 5, 84, 544, tiles=(1, 2), waves=(1, 2, 1))]


def reaches(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(contraction, "BEYOND", size)


@pytest.mark.parametrize("case", [*RINGS, *STREAMS], ids=str)
def test_scaled(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As numpy has it, and clean."""
    reaches(monkeypatch, case.kernel.columns * max(case.kernel.rhs.row_sizes))
    assert case.kernel.cut
    run = simulate(case, compile_rings([case])[0].kernel)
    assert np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max() < 1e-6
    assert not run.sanitizer.findings


@pytest.mark.parametrize("case", DENSE, ids=str)
def test_dense(case: dense.Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """As numpy has it, and clean."""
    reaches(monkeypatch, case.kernel.columns * max(case.kernel.rhs.row_sizes))
    assert case.kernel.cut
    run = dense.simulate(compile_rings([case])[0], *dense.operands(case))
    assert np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max() < 1e-6


def test_a_workgroup_has_columns_in_one_place() -> None:
    """A gate reads two halves, which may be farther apart."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            gated(4, 1 << 17, 1 << 15)
        assert BEYOND <= (1 << 17) * (1 << 15) // 2
        found = [match(op) for op in walk(module.operation) if op.name == "linalg.generic"]
    reasons = [each.text for each in found if isinstance(each, Reason)]
    assert any("of which a gate reads two halves" in each for each in reasons)
