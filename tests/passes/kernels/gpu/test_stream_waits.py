"""How much of the time waves of streams wait for their loads, by the issue model."""

from dataclasses import replace

import pytest

from mxc.compiler.report.issue_model import estimate
from mxc.compiler.report.issue_steps import read_steps
from mxc.compiler.report.loops import hot_loop
from mxc.targets.amd import GFX942, known_gpu
from tests.passes.kernels.gpu.rings import (
    E4M3,
    E4M3_F32,
    F4,
    INT4_F32,
    INT8_F32,
    NVFP4,
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
    ("lhs", "rhs", "tiles", "block", "target"),
    [
        ("bf16", F4, (1, 1), 0, "gfx950"),
        ("bf16", F4, (2, 4), 0, "gfx950"),
        ("bf16", E4M3, (1, 2), 0, "gfx950"),
        ("bf16", "mxint8", (1, 1), 0, "gfx950"),
        ("f32", F4, (1, 1), 0, "gfx950"),
        (NVFP4, NVFP4, (1, 1), 0, "gfx950"),
        (F4, F4, (2, 4), 0, "gfx950"),
        ("bf16", E4M3_F32, (2, 1), 128, "gfx950"),
        ("bf16", INT8_F32, (4, 1), 128, "gfx950"),
        ("bf16", INT4_F32, (3, 1), 128, "gfx950"),
        ("bf16", INT4_F32, (2, 1), 32, "gfx950"),
        (E4M3_F32, E4M3_F32, (2, 1), 128, "gfx950"),
        ("bf16", E4M3, (1, 1), 0, "gfx942"),
        (F4, F4, (1, 1), 0, "gfx942"),
    ],
)
def test_a_pipe_is_busy_where_each_wave_is_alone_on_its_simd(
    lhs: str, rhs: str, tiles: tuple[int, int], block: int, target: str
) -> None:
    """When LLVM loaded a step where it is used, or took scales apart where they are loaded, or
    counted the loads of another order, the busiest pipe worked for as little as 0.6 of the time."""
    waves = (1, 1, 4)
    case = Case(lhs, rhs, 64, 7168, 16384, tiles, waves, transport="stream", block=block)
    case = replace(case, target=target)
    (compiled,) = compile_rings([case], target)
    gpu = known_gpu(target)
    steps = read_steps(hot_loop(compiled.assembly).lines, gpu.rates)
    found = estimate(steps, gpu.unit, workgroup_size=gpu.unit.wave * waves[2])
    assert max(found.shares.values()) >= 0.8
    require_no_scratch(compiled)


def test_fp8_is_decoded_two_at_a_time() -> None:
    """128 elements of a lane in a step. One by one they took 304 registers, so that no other wave
    was on the SIMD."""
    case = Case("bf16", E4M3_F32, 16, 7168, 16384, (1, 1), (1, 1, 4), transport="stream", block=128)
    (compiled,) = compile_rings([case])
    loop = hot_loop(compiled.assembly).lines
    assert sum(line.mnemonic == "v_cvt_scalef32_pk_bf16_fp8" for line in loop) == 64
    assert compiled.resources.vgpr <= 256
