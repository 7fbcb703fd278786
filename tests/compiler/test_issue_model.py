"""The issue model on loops whose time can be worked out by hand, and on a stock kernel."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from iree.compiler import tools

from mxc.compiler.report.assembly import bodies_of
from mxc.compiler.report.hot_loop import describe
from mxc.compiler.report.issue_model import Estimate, estimate, waits
from mxc.compiler.report.issue_steps import IssueStep, lane_bytes, read_steps
from mxc.compiler.report.loops import LoopInstruction, hot_loop
from mxc.targets.amd import GFX950
from mxc.targets.compute_unit import ComputeUnit, PipeRates

MATRIX = IssueStep(pipe="matrix", clocks=16)
VALU = IssueStep(pipe="vector", clocks=4)
ALONE = replace(VALU, alone=True)
SALU = IssueStep(pipe="scalar")
READ = IssueStep(pipe="lds", lane_bytes=16)
LOAD = IssueStep(pipe="memory", lane_bytes=16)
TO_LDS = replace(LOAD, to_lds=True)
BARRIER = IssueStep(pipe="barrier")


def nop(clocks: int) -> IssueStep:
    return IssueStep(pipe="nop", clocks=clocks)


def wait(vm: int | None = None, lgkm: int | None = None) -> IssueStep:
    return IssueStep(pipe="wait", vm=vm, lgkm=lgkm)


@pytest.fixture(scope="module")
def gfx950() -> ComputeUnit:
    return GFX950.unit


@pytest.fixture(scope="module")
def run(gfx950: ComputeUnit) -> Callable[..., Estimate]:
    def start(*steps: IssueStep, waves: int = 4, **options: Any) -> Estimate:
        return estimate(steps, gfx950, workgroup_size=64 * waves, **options)

    return start


Run = Callable[..., Estimate]


def test_matrix_instructions_alone_fill_their_cores(run: Run) -> None:
    alone = run(*[MATRIX] * 10)
    assert (alone.clocks, alone.matrix_share, alone.bound_by) == (160, 1, "matrix")


def test_waits_are_behind_what_is_waited_for(gfx950: ComputeUnit) -> None:
    steps = [LOAD, VALU, wait(vm=0), VALU, VALU]
    found = waits(steps, gfx950, workgroup_size=64)
    assert [each for each in found if each] == [found[2]]
    # The load takes 16 clocks and its latency; two instructions are issued meanwhile.
    assert found[2] == 16 + 1000 - 8
    whole = estimate(steps, gfx950, workgroup_size=64)
    assert sum(found) + 4 * len(steps) == whole.clocks


def test_what_a_wave_issues_besides_hides_behind_the_core(run: Run) -> None:
    # An instruction takes 4 clocks to issue, the core 16: three of them fit between. In the first 8
    # clocks none of them is a vector instruction.
    assert run(MATRIX, SALU, *[VALU] * 2).matrix_share == 1
    assert run(MATRIX, *[VALU] * 2).matrix_share == 1
    assert run(MATRIX, *[VALU] * 3).clocks == 20
    assert run(MATRIX, *[VALU] * 7).clocks == 36


def test_no_core_works_beside_a_packed_instruction(run: Run) -> None:
    assert run(MATRIX, ALONE).clocks == 20
    assert run(MATRIX, VALU, ALONE, VALU).clocks == 24
    # Nor beside one of another wave of the SIMD.
    assert run(MATRIX, ALONE, waves=8).clocks == pytest.approx(40, rel=0.02)
    assert run(MATRIX, ALONE, waves=8).shares["vector"] == pytest.approx(0.2, rel=0.02)


def test_a_second_wave_of_the_simd_fills_the_gaps_of_the_first(run: Run) -> None:
    gap = (MATRIX, nop(28))
    assert run(*gap).matrix_share == 0.5
    assert run(*gap, waves=8).matrix_share == 1
    assert run(*gap, workgroups=2).matrix_share == 1


def test_vector_instructions_of_two_waves_share_the_vector_unit(run: Run) -> None:
    both = run(MATRIX, *[VALU] * 7, waves=8)
    assert both.clocks == pytest.approx(72, rel=0.02)
    assert both.shares["vector"] == pytest.approx(7 / 9, rel=0.02)


def test_lds_delivers_128_bytes_a_clock_to_all_waves(run: Run) -> None:
    # 8 reads of 16 bytes by 64 lanes of 4 waves: 32 KiB.
    reads = run(*[READ] * 8)
    assert reads.clocks == pytest.approx(256, rel=0.02)
    assert reads.bound_by == "lds"
    assert run(*[READ] * 8, lds_factor=2.0).clocks == pytest.approx(512, rel=0.02)


def test_memory_delivers_64_bytes_a_clock_and_takes_lds_where_it_goes_there(run: Run) -> None:
    loads = run(*[LOAD] * 4)
    assert loads.clocks == pytest.approx(256, rel=0.02)
    assert loads.shares["lds"] == 0
    direct = run(*[TO_LDS] * 4)
    assert direct.clocks == pytest.approx(256, rel=0.02)
    assert direct.shares["lds"] == pytest.approx(0.5, rel=0.02)


def test_a_wait_lasts_until_its_counter_has_come_down(run: Run) -> None:
    # Issue at 0, 16 clocks of transfer, 1000 of latency, 4 for the wait itself.
    assert run(LOAD, wait(vm=0), waves=1).clocks == 1020
    # With one load ahead each wait finds the load before: two iterations in that time.
    assert run(LOAD, wait(vm=1), waves=1).clocks == pytest.approx(510, rel=0.02)
    assert run(LOAD, wait(lgkm=0), waves=1).clocks < 20
    # 8 clocks of transfer, 64 of latency.
    assert run(READ, wait(lgkm=0), waves=1).clocks == 76
    assert run(READ, wait(lgkm=1), waves=1).clocks == pytest.approx(38, rel=0.03)


def test_a_new_workgroup_has_not_asked_for_anything_yet(run: Run) -> None:
    assert run(LOAD, wait(vm=1), waves=1, restart=True).clocks < 20
    assert run(LOAD, wait(vm=0), waves=1, restart=True).clocks == 1020


def test_all_simds_alternate_at_what_they_share(run: Run) -> None:
    many = run(*[READ] * 8, workgroups=8)
    assert many.clocks == pytest.approx(8 * 256, rel=0.02)


def test_bytes_in_flight_are_latency_times_bandwidth(run: Run) -> None:
    # One wave with one load at a time: 1024 bytes are there for nearly all of the time.
    assert run(LOAD, wait(vm=0), waves=1).bytes_in_flight == pytest.approx(1024, rel=0.02)
    # The path is always busy: 64 bytes a clock for 1000 clocks and more.
    assert run(*[LOAD] * 4).bytes_in_flight > 64_000


def test_waves_wait_for_each_other_at_a_barrier_but_workgroups_do_not(run: Run) -> None:
    assert run(BARRIER, waves=1).clocks == 16
    # A wave of each SIMD has the core for 64 clocks, the other waits: 128, and the barrier.
    together = run(*[MATRIX] * 4, BARRIER, waves=8)
    assert 128 < together.clocks < 170
    # Two workgroups of 4 waves: while one is at its barrier, the other has the core.
    apart = run(*[MATRIX] * 4, BARRIER, workgroups=2)
    assert apart.clocks == pytest.approx(128, rel=0.02)


def test_double_buffering_hides_what_a_wait_at_once_does_not(run: Run) -> None:
    iteration = [MATRIX] * 64
    bare = run(LOAD, wait(vm=0), *iteration)
    assert bare.matrix_share == pytest.approx(1024 / (1024 + 1020), abs=0.03)
    ahead = run(LOAD, *iteration, wait(vm=0))
    assert ahead.matrix_share > 0.95


def test_assembly_becomes_steps(gfx950: ComputeUnit) -> None:
    rates = gfx950.rates
    assert rates is not None
    lines = [
        LoopInstruction(
            "v_mfma_scale_f32_32x32x64_f8f6f4", "a[0:15], v[0:7], v[8:11], a[0:15] blgp:4"
        ),
        LoopInstruction("ds_read_b128", "v[0:3], v4"),
        LoopInstruction("ds_read2_b64", "v[0:3], v4 offset1:4"),
        LoopInstruction("ds_read_u8", "v0, v1"),
        LoopInstruction("ds_write_b16", "v0, v1"),
        LoopInstruction("buffer_load_dwordx4", "v1, s[0:3], 0 offen lds"),
        LoopInstruction("buffer_load_ushort", "v0, v1, s[0:3], 0 offen"),
        LoopInstruction("global_store_dwordx2", "v[0:1], v[2:3], off"),
        LoopInstruction("s_waitcnt", "vmcnt(3) lgkmcnt(0)"),
        LoopInstruction("s_nop", "4"),
        LoopInstruction("v_exp_f32_e32", "v0, v1"),
        LoopInstruction("v_perm_b32", "v0, v1, v2, s3"),
        LoopInstruction("v_pk_fma_f32", "v[0:1], v[2:3], v[4:5], v[0:1]"),
        LoopInstruction("v_cvt_pk_bf16_f32", "v0, v1, v2"),
        LoopInstruction("s_barrier"),
        LoopInstruction("s_cbranch_scc1", ".LBB0_1"),
    ]
    assert read_steps(lines, rates) == [
        IssueStep(pipe="matrix", clocks=64),
        READ,
        READ,
        IssueStep(pipe="lds", lane_bytes=4),
        IssueStep(pipe="lds", lane_bytes=4),
        TO_LDS,
        IssueStep(pipe="memory", lane_bytes=4),
        IssueStep(pipe="memory", lane_bytes=8),
        wait(vm=3, lgkm=0),
        nop(20),
        IssueStep(pipe="vector", clocks=16, alone=True),
        VALU,
        ALONE,
        VALU,
        BARRIER,
        SALU,
    ]


def test_bytes_of_a_lane_are_in_the_name() -> None:
    sizes = {
        "buffer_load_dwordx4": 16, "buffer_load_dword": 4, "buffer_load_ushort": 2,
        "buffer_load_ubyte": 1, "buffer_load_short_d16_hi": 2, "global_load_lds_dwordx3": 12,
        "global_load_b128": 16, "buffer_load_u8": 1, "buffer_load_d16_b16": 2,
        "ds_read_b128": 16, "ds_read2_b64": 16, "ds_read_u8": 1, "ds_read_u16_d16": 2,
        "ds_read_b64_tr_b8": 8,
    }  # fmt: skip
    assert {name: lane_bytes(name) for name in sizes} == sizes


def test_a_unit_without_rates_is_refused(gfx950: ComputeUnit) -> None:
    with pytest.raises(ValueError, match="no rates"):
        estimate([MATRIX], replace(gfx950, rates=None), workgroup_size=64)
    with pytest.raises(ValueError, match="empty"):
        estimate([], gfx950, workgroup_size=64)


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The body of IREE's own kernel for mxfp4 x mxfp4, 4096 x 4096 x 4096."""
    folder = tmp_path_factory.mktemp("stock")
    tools.compile_str(
        (Path(__file__).parent / "stock_f4.mlir").read_text(),
        extra_args=[
            "--iree-hal-target-device=hip",
            "--iree-rocm-target=gfx950",
            f"--iree-hal-dump-executable-intermediates-to={folder}",
        ],
    )
    (file,) = folder.glob("*.rocmasm")
    (body,) = bodies_of(file.read_text()).values()
    return body


def test_the_stock_kernel_reaches_two_fifths_to_a_half(stock: str, gfx950: ComputeUnit) -> None:
    loop = hot_loop(stock)
    assert loop.census["matrix"] == 32
    assert loop.census["v_perm"] == 6
    assert gfx950.rates is not None
    steps = read_steps(loop.lines, gfx950.rates)

    def share(**rates: int) -> float:
        own: PipeRates = replace(gfx950.rates or PipeRates(), **rates)
        return estimate(steps, gfx950, workgroup_size=512, rates=own).matrix_share

    assert share() == pytest.approx(0.41, abs=0.02)
    assert share(memory_latency=500) == pytest.approx(0.41, abs=0.02)
    assert share(lds_bytes_per_clock=256) == pytest.approx(0.51, abs=0.02)
    # A single buffer: what is asked for in an iteration is waited for at its end.
    assert share(memory_latency=3000) == pytest.approx(0.33, abs=0.02)


def test_the_report_has_the_loop_and_the_model(stock: str, gfx950: ComputeUnit) -> None:
    held = gfx950.occupancy(registers=215, lds_bytes=34816, workgroup_size=512)
    found = describe(stock, gfx950, held, 512)
    assert found.is_loop
    assert found.census["ds_read"] == 24
    assert found.matrix_share == pytest.approx(0.41, abs=0.02)
    assert found.bound_by == "lds"
    assert found.load_bytes == pytest.approx((4 * 16 + 2 * 2) / 6, abs=0.05)
    text = "\tbuffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen\n\ts_waitcnt vmcnt(0)\n"
    plain = describe(text, gfx950, held, 64)
    assert (plain.is_loop, plain.load_bytes, plain.clocks) == (False, 16, None)
    whole = describe(
        f"{text}\tv_mfma_f32_16x16x16_bf16 v[0:3], v[4:5], v[6:7], 0", gfx950, held, 64
    )
    assert (whole.is_loop, whole.clocks) == (False, 1024)
    assert whole.bytes_in_flight == pytest.approx(1024, rel=0.02)
