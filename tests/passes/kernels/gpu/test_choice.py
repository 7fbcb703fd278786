"""The schedules that the cost model chooses for products of known models."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mxc.dialects.expert_groups import rows_of_groups
from mxc.formats.formats import FORMATS
from mxc.passes.kernels.gpu.candidates import candidates
from mxc.passes.kernels.gpu.choice import choose, choose_by_rows
from mxc.passes.kernels.gpu.cost import cost, padding, workgroups
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.ring.float_kernel import FloatRing
from mxc.passes.kernels.gpu.ring.kernel import Ring
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.targets.amd import GFX942, GFX950, GFX1151, GFX1201, GFX1250, GPUS
from mxc.targets.gpu import Gpu

WIDTHS = [(4, 4), (8, 8), (8, 4), (4, 8), (6, 6), (8, 6), (6, 4)]
FORMAT = {4: "mxfp4", 6: "mxfp6e2m3", 8: "mxfp8e4m3"}


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("size", [4096, 8192])
def test_large_products_take_the_largest_tile(size: int, bits: tuple[int, int]) -> None:
    found = choose(Problem(rows=size, columns=size, blocks=size // 32, bits=bits))
    assert (found.transport, found.rows, found.columns) == ("ring", 256, 256)


@pytest.mark.parametrize("rows", [128, 256, 1024, 4096])
@pytest.mark.parametrize("columns", [2880, 5760])
def test_little_is_computed_for_nothing(rows: int, columns: int) -> None:
    """gpt-oss: neither 2880 nor 5760 is a multiple of 256, and K = 2880 is none of 512."""
    for halves in (1, 2):
        problem = Problem(rows=rows, columns=columns, blocks=90, halves=halves)
        found = choose(problem)
        # With whole tiles of rows, only columns and K are padded.
        rows = -(-rows // found.rows) * found.rows
        assert padding(replace(problem, rows=rows), found) <= 0.07


#: A workgroup computes 128 x 192, in k-steps of 4 blocks of 32; the ring has three stages of four
#: k-steps.
STREAM = GpuSchedule(instruction=TileInstruction(16), tiles=(4, 2), waves=(2, 6, 1))
RING = replace(STREAM, transport="ring", stages=3, k_steps=4)


def test_workgroups_and_what_they_compute_for_nothing() -> None:
    problem = Problem(rows=300, columns=400, blocks=20, groups=5)
    assert (STREAM.rows, STREAM.columns, STREAM.threads) == (128, 192, 768)
    assert workgroups(problem, STREAM) == 3 * 3 * 5
    # Rows up to 384, columns up to 576; blocks up to 32, a multiple of 4 k-steps of 4 blocks.
    assert padding(problem, STREAM) == 1 - (300 * 400 * 20) / (384 * 576 * 32)
    assert padding(problem, replace(STREAM, waves=(2, 6, 2))) == 1 - (300 * 400 * 20) / (
        384 * 576 * 32
    )
    assert padding(problem, replace(RING, k_steps=1)) == 1 - (300 * 400 * 20) / (384 * 576 * 20)


def test_what_a_small_product_costs() -> None:
    """The formula at the top of cost.py with the figures of a device, by hand."""
    device = GFX950
    rates, start = device.rates, device.rates.memory_latency + device.rates.lds_latency
    problem = Problem(rows=128, columns=192, blocks=64)
    # One workgroup: 16 k-steps of 4 blocks of 17 bytes, for 64 and 32 rows of each of 12 waves.
    k_step = max(3 * 8 * STREAM.instruction.clocks, 12 * 96 * 4 * 17 / rates.memory_bytes_per_clock)
    computed = 16 * k_step + 128 * 192 * 4 / rates.memory_bytes_per_clock + start
    moved = (128 + 192) * 64 * 17 + 128 * 192 * 4
    # In flight is a step (four k-steps) of the side with more rows.
    asked = min(4 * 192 * 4 * 17, moved)
    reached = min(device.bytes_a_clock, asked / device.latency_clocks)
    assert cost(problem, STREAM, device) == max(computed, moved / reached + start)


ROW = Problem(rows=1, columns=4096, blocks=128)
EXPERTS = Problem(rows=16, columns=5760, blocks=90, groups=64, halves=2, experts=32)
MIXED = Problem(rows=300, columns=2880, blocks=90, bits=(6, 4))
FLOAT = Problem(rows=64, columns=4096, blocks=128, bits=(16, 4), parts=1)
SPLIT = Problem(rows=2048, columns=4096, blocks=128, bits=(32, 8), parts=3)
INTEGERS = Problem(rows=16, columns=4096, blocks=128, bits=(8, 8), parts=1, integers=(True, True))
DENSE = Problem(rows=512, columns=4096, blocks=128, bits=(16, 16), parts=1)
SHARED = Problem(rows=512, columns=4096, blocks=128, bits=(8, 8), parts=1, shared=(4, 4))
FLOAT_SHARED = Problem(rows=4096, columns=4096, blocks=128, bits=(16, 8), parts=1, shared=(0, 4))
BYTES_SHARED = replace(SHARED, rows=4096, parts=0)
#: Problem, GPU, and the schedule: rows of the instruction, tiles, waves, stages and k-steps.
CHOSEN = [
    (ROW, GFX950, (16, (1, 1), (1, 1, 8), 0, 0)),
    (replace(ROW, rows=32, blocks=90, bits=(8, 8)), GFX950, (16, (1, 1), (1, 1, 6), 0, 0)),
    (replace(ROW, rows=4096), GFX950, (32, (2, 8), (4, 1, 1), 4, 2)),
    (replace(ROW, rows=4096), GFX1250, (16, (4, 4), (2, 2, 1), 0, 0)),
    (EXPERTS, GFX950, (16, (1, 2), (1, 1, 6), 0, 0)),
    (EXPERTS, GFX1250, (16, (2, 2), (1, 1, 4), 0, 0)),
    (MIXED, GFX950, (32, (1, 1), (1, 4, 1), 8, 2)),
    (MIXED, GFX1250, (16, (2, 2), (2, 2, 1), 0, 0)),
    (FLOAT, GFX950, (16, (1, 4), (1, 1, 8), 0, 0)),
    (FLOAT, GFX1151, (16, (4, 1), (1, 1, 4), 0, 0)),
    (SPLIT, GFX950, (32, (1, 4), (2, 2, 1), 2, 1)),
    (SPLIT, GFX942, (32, (1, 4), (2, 2, 1), 2, 1)),
    (replace(INTEGERS, rows=512), GFX950, (32, (2, 1), (2, 2, 1), 2, 1)),
    (replace(INTEGERS, rows=4096), GFX950, (32, (4, 4), (2, 2, 1), 2, 1)),
    (replace(ROW, rows=4096, parts=1), GFX942, (32, (4, 4), (2, 2, 1), 2, 1)),
    (replace(ROW, rows=4096, parts=1, bits=(32, 4)), GFX942, (32, (2, 2), (2, 2, 1), 2, 1)),
    (replace(ROW, rows=64, parts=1), GFX942, (16, (4, 1), (1, 1, 4), 0, 0)),
    (DENSE, GFX950, (16, (4, 2), (1, 4, 1), 8, 2)),
    (DENSE, GFX942, (16, (4, 2), (2, 2, 1), 0, 0)),
    (DENSE, GFX1201, (16, (2, 2), (2, 2, 1), 0, 0)),
    (DENSE, GFX1151, (16, (2, 1), (1, 1, 4), 0, 0)),
    (SHARED, GFX950, (16, (2, 2), (2, 2, 1), 0, 0)),
    (FLOAT_SHARED, GFX950, (32, (4, 2), (1, 4, 1), 2, 2)),
    (
        replace(
            ROW, rows=100, columns=2880, blocks=90, parts=1, bits=(16, 4), e4m3_scales=(False, True)
        ),
        GFX950,
        (16, (2, 1), (1, 1, 3), 0, 0),
    ),
    (replace(FLOAT_SHARED, rows=16), GFX950, (16, (1, 1), (1, 1, 8), 0, 0)),
    # Under scales for 32 elements, products of few tiles, or whose K is not a multiple of a stage,
    # are streamed.
    (replace(FLOAT_SHARED, rows=100, shared=(0, 1)), GFX950, (16, (2, 2), (1, 1, 4), 0, 0)),
    (replace(FLOAT_SHARED, blocks=126, shared=(0, 1)), GFX950, (16, (4, 2), (2, 2, 1), 0, 0)),
    (replace(FLOAT_SHARED, shared=(0, 1)), GFX950, (32, (3, 2), (1, 4, 1), 3, 2)),
    (BYTES_SHARED, GFX950, (32, (4, 2), (1, 4, 1), 3, 2)),
    (SHARED, GFX942, (32, (2, 1), (2, 2, 1), 2, 1)),
    (
        replace(FLOAT_SHARED, bits=(16, 4), integers=(False, True)),
        GFX950,
        (32, (4, 2), (1, 4, 1), 2, 2),
    ),
    (replace(FLOAT_SHARED, rows=16), GFX942, (16, (1, 1), (1, 1, 8), 0, 0)),
    (FLOAT_SHARED, GFX942, (32, (2, 2), (2, 2, 1), 2, 1)),
]


@pytest.mark.parametrize(("problem", "device", "wanted"), CHOSEN)
def test_schedules_that_are_chosen_today(
    problem: Problem, device: Gpu, wanted: tuple[object, ...]
) -> None:
    """A change here is a change of speed: look at both (benchmarks/gpu)."""
    s = choose(problem, device=device)
    assert (s.instruction.rows, s.tiles, s.waves, s.stages, s.k_steps) == wanted
    assert (s.transport != "stream") is bool(s.stages)


def test_a_split_under_scales_for_32_elements_has_whole_stages() -> None:
    problem = replace(FLOAT_SHARED, rows=64, blocks=136, shared=(0, 1), splits=(2, 4))
    assert {s.splits for s in candidates(problem) if s.transport == "ring"} == {1, 2}


@pytest.mark.parametrize("columns", [2880, 4096, 28672])
def test_one_row_is_streamed_by_all_units(columns: int) -> None:
    problem = Problem(rows=1, columns=columns, blocks=128)
    found = choose(problem)
    assert (found.transport, found.tiles) == ("stream", (1, 1))
    assert workgroups(problem, found) * found.threads // 64 >= 4 * GFX950.units


@pytest.mark.parametrize("rows", [16, 32, 64, 128, 256])
def test_few_rows_keep_memory_busy(rows: int) -> None:
    """Weights of Llama 405B: the time is that of reading them, or of multiplying."""
    problem = Problem(rows=rows, columns=53248, blocks=512)
    bytes_of_weights = 53248 * 512 * 17
    bound = bytes_of_weights / GFX950.bytes_a_clock
    assert cost(problem, choose(problem), GFX950) < 1.25 * bound


@pytest.mark.parametrize(
    ("bits", "parts"), [((16, 4), 1), ((32, 4), 1), ((16, 8), 2), ((32, 6), 3)]
)
def test_floats_of_many_rows_pass_through_a_ring(bits: tuple[int, int], parts: int) -> None:
    """Those of few are streamed. Every ring fits in LDS."""
    for rows, transport in ((16, "stream"), (4096, "ring")):
        problem = Problem(rows=rows, columns=4096, blocks=128, bits=bits, parts=parts)
        assert choose(problem).transport == transport
    kinds = {
        16: FloatBlocks("f16" if parts > 1 else "bf16", False, 128),
        32: FloatBlocks("f32", parts == 1, 128),
    }
    rhs = ScaledBlocks(FORMATS[FORMAT[bits[1]]], 128)
    rings = [each for each in candidates(problem) if each.transport == "ring"]
    assert max(m * n for each in rings for m, n in [each.tiles]) >= 12
    for each in rings:
        kernel = FloatRing(kinds[bits[0]], rhs, 1, 4096, 4096, 0, each, decoded="bf16")
        assert kernel.lds_bytes <= GFX950.unit.lds_bytes
        assert kernel.lhs.parts("bf16") == parts


@pytest.mark.parametrize(
    ("bits", "few", "sides"),
    [
        ((4, 4), "decoded", {"e4m3_scales": (True, True)}),
        ((8, 4), "ring", {"e4m3_scales": (False, True)}),
        ((8, 8), "decoded", {"integers": (True, True)}),
    ],
)
def test_sides_that_are_both_decoded_pass_through_a_ring(
    bits: tuple[int, int], few: str, sides: dict[str, Any]
) -> None:
    """Many rows are decoded once for a workgroup, with as many tiles as there are registers for; of
    fewer rows a workgroup leaves room for another one, so that one works while the other waits."""
    problem = Problem(rows=4096, columns=4096, blocks=128, bits=bits, parts=1, **sides)
    chosen = choose(problem)
    assert (chosen.transport, chosen.tiles) == ("decoded", (4, 4))
    some = choose(replace(problem, rows=512))
    assert (some.transport, some.tiles) == (few, (2, 1))
    assert choose(replace(problem, rows=16)).transport == "stream"


@pytest.mark.parametrize(("integers", "transport"), [(False, "ring"), (True, "decoded")])
def test_floats_by_integers_are_decoded_once(integers: bool, transport: str) -> None:
    problem = replace(FLOAT, rows=4096, bits=(16, 8), integers=(False, integers))
    assert choose(problem).transport == transport


@pytest.mark.parametrize("blocks", [2, 8, 14])
@pytest.mark.parametrize("bits", [(4, 4), (8, 8)])
def test_of_short_rows_the_result_is_what_costs(blocks: int, bits: tuple[int, int]) -> None:
    """4096 x 4096 floats are 8.4 us of memory, and the rest is little beside them."""
    problem = Problem(rows=4096, columns=4096, blocks=blocks, bits=bits)
    store = 4096 * 4096 * 4 / GFX950.bytes_a_clock
    assert cost(problem, choose(problem), GFX950) < 1.12 * store


@pytest.mark.parametrize("rows", [1, 8, 15])
@pytest.mark.parametrize("blocks", [2, 15, 90])
def test_few_rows_are_streamed(rows: int, blocks: int) -> None:
    problem = Problem(rows=rows, columns=4096, blocks=blocks)
    assert choose(problem).transport == "stream"
    with pytest.raises(ValueError, match="empty"):
        choose(problem, transports=("ring",))


@pytest.mark.parametrize(("columns", "blocks"), [(4096, 128), (5760, 90), (28672, 256), (512, 224)])
@pytest.mark.parametrize("bits", [(4, 4), (8, 8)])
def test_a_few_schedules_do_for_any_number_of_rows(
    columns: int, blocks: int, bits: tuple[int, int]
) -> None:
    """Never twice the time of the best one; a bound is where the next becomes cheaper."""
    problem = Problem(rows=1, columns=columns, blocks=blocks, bits=bits)
    chosen = choose_by_rows(problem)
    assert 2 <= len(chosen.schedules) <= 3
    assert list(chosen.bounds) == sorted(set(chosen.bounds))
    for rows in (1, 16, 40, 100, 200, 400, 1000, 2000, 4096, 8192):
        own = replace(problem, rows=rows)
        (schedule,) = chosen.only(rows).schedules
        assert cost(own, schedule, GFX950) < 2 * cost(own, choose(own), GFX950)
    for bound, few, more in zip(
        chosen.bounds, chosen.schedules, chosen.schedules[1:], strict=False
    ):
        below, above = (replace(problem, rows=rows) for rows in (bound - 1, bound))
        assert cost(below, few, GFX950) <= cost(below, more, GFX950)
        assert cost(above, more, GFX950) < cost(above, few, GFX950)


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.name)
@pytest.mark.parametrize("pairs", [8, 16, 32, 64, 128, 256])
def test_groups_have_nearly_the_best_number_of_rows(pairs: int, device: Gpu) -> None:
    """For so many pairs of an expert of gpt-oss-20b on average."""
    experts = 32
    counts = np.random.default_rng(0).multinomial(experts * pairs, [1 / experts] * experts)

    def clocks(rows: int) -> float:
        groups = int(np.sum(-(-counts // rows)))
        problem = Problem(
            rows=rows, columns=5760, width=2880, halves=2, blocks=90, bits=(16, 4), parts=1,
            groups=groups, experts=experts, panels=True,
        )  # fmt: skip
        return cost(problem, choose(problem, device=device), device)

    found = rows_of_groups(experts * pairs, experts, device.group_rows)
    assert isinstance(found, int)
    assert clocks(found) <= 1.12 * min(clocks(rows) for rows in (16, 32, 64, 128))


@pytest.mark.parametrize("bits", WIDTHS)
@pytest.mark.parametrize("halves", [1, 2])
def test_every_ring_fits(bits: tuple[int, int], halves: int) -> None:
    problem = Problem(rows=1000, columns=2880, blocks=90, bits=bits, halves=halves)
    rings = [each for each in candidates(problem) if each.transport == "ring"]
    assert rings
    for each in rings:
        lhs, rhs = (ScaledBlocks(FORMATS[FORMAT[width]], 90) for width in bits)
        kernel = Ring(lhs, rhs, 1, 1000, 2880, 0, each)
        assert kernel.lds_bytes <= GFX950.unit.lds_bytes
        assert each.tiles[1] % halves == 0
        assert each.stages >= 2
        assert 0 < kernel.pipeline.pace <= 1
        assert all(layout.slices for layout in kernel.layouts)
