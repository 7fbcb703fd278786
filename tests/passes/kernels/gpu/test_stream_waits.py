"""Streams: how often a wave waits for what it loads."""

import pytest

from mxc.compiler.report.issue_model import estimate
from mxc.compiler.report.issue_steps import read_steps
from mxc.compiler.report.loops import hot_loop
from mxc.targets.amd import GFX942, GFX950
from tests.passes.kernels.gpu.rings import (
    E4M3_F32,
    F4,
    INT4_F32,
    INT8_F32,
    Case,
    compile_rings,
    require_no_scratch,
)


def test_one_k_step_is_loaded_while_another_is_multiplied() -> None:
    """Eight tiles of a wave that is alone on its SIMD; with a wait for each it was 0.3."""
    case = Case("bf16", F4, 128, 128, 2048, (4, 2), (2, 2, 1), target="gfx942", transport="stream")
    (compiled,) = compile_rings([case], case.target)
    loop = hot_loop(compiled.assembly)
    assert loop.is_loop
    steps = read_steps(loop.lines, GFX942.rates)
    found = estimate(steps, GFX942.unit, workgroup_size=256)
    assert found.shares["matrix"] + found.shares["vector"] >= 0.8


@pytest.mark.parametrize(
    ("lhs", "rhs", "tiles", "block", "clocks"),
    [
        ("bf16", E4M3_F32, (1, 1), 128, 2100),
        ("bf16", E4M3_F32, (2, 1), 128, 3100),
        ("bf16", INT8_F32, (4, 1), 128, 5300),
        ("bf16", INT4_F32, (3, 1), 128, 3900),
        ("bf16", INT4_F32, (2, 1), 32, 4300),
        (E4M3_F32, E4M3_F32, (2, 1), 128, 2300),
    ],
)
def test_under_f32_scales_a_step_is_loaded_while_another_is_multiplied(
    lhs: str, rhs: str, tiles: tuple[int, int], block: int, clocks: int
) -> None:
    """A step of 512 elements, of four waves that are alone on their SIMDs. When LLVM loaded parts
    of it between products, and waited for each, it took 2600 to 13900 clocks."""
    case = Case(lhs, rhs, 64, 7168, 16384, tiles, (1, 1, 4), transport="stream", block=block)
    (compiled,) = compile_rings([case])
    steps = read_steps(hot_loop(compiled.assembly).lines, GFX950.rates)
    assert estimate(steps, GFX950.unit, workgroup_size=256).clocks <= clocks
    require_no_scratch(compiled)


def test_fp8_is_decoded_two_at_a_time() -> None:
    """128 elements of a lane in a step. One by one they took 304 registers, so that no other wave
    was on the SIMD."""
    case = Case("bf16", E4M3_F32, 16, 7168, 16384, (1, 1), (1, 1, 4), transport="stream", block=128)
    (compiled,) = compile_rings([case])
    loop = hot_loop(compiled.assembly).lines
    assert sum(line.mnemonic == "v_cvt_scalef32_pk_bf16_fp8" for line in loop) == 64
    assert compiled.resources.vgpr <= 256
