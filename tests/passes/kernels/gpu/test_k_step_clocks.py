"""The cost model against compiled kernels: clocks of a k-step, and registers of streams."""

from dataclasses import replace
from typing import Any

import pytest

from mxc.compiler.report.issue_model import estimate
from mxc.compiler.report.issue_steps import read_steps
from mxc.compiler.report.loops import hot_loop
from mxc.formats import formats
from mxc.passes.kernels.gpu.choice import choose
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.k_step_clocks import k_step_clocks
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.targets.amd import GFX950, known_gpu
from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E4M3,
    E4M3_F32,
    F4,
    INT4_F32,
    NVFP4,
    SQUARE,
    Case,
    compile_rings,
    require_no_scratch,
)

ALONG: dict[str, Any] = {"waves": (1, 1, 4), "transport": "stream", "panels": True}
RING: dict[str, Any] = {"waves": SQUARE, "k_steps": 1, "panels": True}
ONCE: dict[str, Any] = {**RING, "transport": "decoded", "stages": 2}


def problem_of(case: Case) -> Problem:
    """Return the product of a case as the cost model describes it."""
    kernel = case.kernel
    sides = kernel.lhs, kernel.rhs
    packed = [side if isinstance(side, ScaledBlocks) else None for side in sides]
    parts = 0
    if kernel.decoded is not None:
        parts = 1 if packed[0] else kernel.lhs.parts(kernel.decoded)
    lhs, rhs = (
        (
            bool(side) and not side.format.element.exponent,
            bool(side) and side.format.scale == formats.E4M3,
            side.shared if side and side.has_f32_scales else 0,
        )
        for side in packed
    )
    return Problem(
        rows=case.m,
        columns=case.n,
        blocks=case.k // BLOCK,
        bits=(sides[0].bits, sides[1].bits),
        parts=parts,
        integers=(lhs[0], rhs[0]),
        e4m3_scales=(lhs[1], rhs[1]),
        shared=(lhs[2], rhs[2]),
        panels=case.panels,
    )


@pytest.mark.parametrize(
    "case",
    [
        # With few tiles and one workgroup on a unit, a k-step takes 1.4 to 1.8 times as long as its
        # matrix instructions.
        Case("bf16", F4, 512, 5760, 4096, (1, 3), **RING, stages=4),
        Case("bf16", F4, 512, 5760, 4096, (2, 2), **RING, stages=4),
        Case("bf16", F4, 512, 5760, 4096, (4, 4), **RING, stages=3),
        Case("bf16", F4, 512, 5760, 4096, (2, 2), **RING | {"waves": ACROSS}, stages=4),
        Case("bf16", E4M3, 512, 5760, 4096, (1, 2), **RING | {"waves": ACROSS}, stages=4),
        Case("f32", F4, 512, 5760, 4096, (2, 2), **RING, stages=3),
        Case(E4M3, NVFP4, 512, 5760, 4096, (2, 2), **ONCE),
        Case("bf16", F4, 512, 5760, 16384, (4, 1), **ALONG),
        Case("bf16", F4, 512, 5760, 16384, (2, 4), **ALONG),
        Case("f32", F4, 512, 5760, 16384, (1, 2), **ALONG),
        Case("bf16", NVFP4, 512, 5760, 16384, (2, 1), **ALONG),
        Case("bf16", E4M3_F32, 512, 5760, 16384, (2, 1), **ALONG),
        Case("bf16", F4, 512, 5760, 4096, (2, 2), **ONCE, target="gfx942"),
        Case("bf16", E4M3, 512, 5760, 16384, (4, 1), **ALONG, target="gfx942"),
    ],
    ids=str,
)
def test_clocks_are_those_of_the_code(case: Case) -> None:
    """From 0.8 to 1.25 of them, of one workgroup on a unit, and of each of two."""
    (compiled,) = compile_rings([case], case.target)
    require_no_scratch(compiled)
    problem, schedule, device = problem_of(case), case.kernel.schedule, known_gpu(case.target)
    loop = hot_loop(compiled.assembly)
    steps = read_steps(loop.lines, device.rates)
    (m, n), products = schedule.tiles, loop.census["matrix"]
    k_steps = products / (m * n * problem.parts * BLOCK // schedule.instruction.fragment)
    for count in (1, 2):
        found = estimate(
            steps, device.unit, workgroup_size=schedule.threads, workgroups=count
        ).clocks
        known = k_step_clocks(problem, schedule, device, alone=count == 1)
        assert 0.8 < known / (found / count / k_steps) < 1.25


@pytest.mark.parametrize(
    ("lhs", "rhs", "block"),
    [
        ("bf16", F4, 0),
        ("bf16", "mxint8", 0),
        ("bf16", NVFP4, 0),
        ("bf16", E4M3, 0),
        ("f32", E4M3, 0),
        ("mxint8", "mxint8", 0),
        (NVFP4, NVFP4, 0),
        ("bf16", E4M3_F32, 128),
        ("bf16", INT4_F32, 32),
        (E4M3_F32, E4M3_F32, 128),
    ],
)
@pytest.mark.parametrize("target", ["gfx950", "gfx942"])
@pytest.mark.parametrize("rows", [16, 128, 4096])
def test_a_stream_that_is_chosen_does_not_spill(
    lhs: str, rhs: str, block: int, rows: int, target: str
) -> None:
    """K is long enough for a loop. Up to 300 registers were spilled: with two waves on a SIMD, or
    where all k-steps of a step are decoded at once."""
    case = Case(lhs, rhs, rows, 7168, 16384, **ALONG, block=block, target=target)
    found = choose(problem_of(case), device=known_gpu(target), transports=("stream",))
    (compiled,) = compile_rings([replace(case, tiles=found.tiles, waves=found.waves)], target)
    require_no_scratch(compiled)
    assert compiled.resources.vgpr * found.threads <= GFX950.unit.registers * 256
