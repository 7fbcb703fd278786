"""Kernels of products of floats by plain weights, each alone, on the simulator with its sanitizer.

Results are compared with numpy in float64. A row must have the same bits with every schedule and at
every place among other rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from mxc.compiler.packing.panels import to_panels
from mxc.passes.kernels.gpu.dense.chunks import Chunks
from mxc.passes.kernels.gpu.dense.stream import DenseStream
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.panels import LAYOUT
from mxc.passes.kernels.gpu.ring.dense_kernel import DenseRing
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.count import Counter
from mxc.simulator.watch.observe import ObserverGroup
from mxc.simulator.watch.sanitizer import Sanitizer
from tests.passes.kernels.gpu.rings import compiler, drains, share_of

Array = npt.NDArray[Any]
#: f32 activations that are rounded to bf16 before they are multiplied.
ROUNDED = "f32 as bf16"
BF16 = ml_dtypes.bfloat16
FLOATS = {"bf16": BF16, "f16": np.float16, "f32": np.float32, ROUNDED: np.float32}
#: As the number of waves along K: as many waves as chunks, each with one chunk.
CHUNKS = 0


@dataclass(frozen=True)
class Case:
    """A product of `groups` x [m, k] by [n, k], and the schedule of its kernel.

    `stages`: pipeline stages of a ring; 0 for a stream. `experts`: number of rhs that groups choose
    from. `share`: number of consecutive rows that have the same row of lhs. `panels`: whether rhs
    is stored in panels.
    """

    lhs: str
    rhs: str
    m: int
    n: int
    k: int
    tiles: tuple[int, int] = (1, 1)
    waves: tuple[int, int, int] = (1, 1, CHUNKS)
    stages: int = 0
    groups: int = 1
    experts: int = 0
    share: int = 1
    panels: bool = False

    @property
    def kernel(self) -> DenseStream | DenseRing:
        blocks = self.k // 32
        *waves, along = self.waves
        schedule = GpuSchedule(
            instruction=TileInstruction(16),
            tiles=self.tiles,
            waves=(waves[0], waves[1], along or Chunks.of(blocks).count),
            transport="ring" if self.stages else "stream",
            stages=self.stages,
            k_steps=2 if self.stages else 0,
        )
        source = ("f32", True) if self.lhs == ROUNDED else (self.lhs, False)
        return (DenseRing if self.stages else DenseStream)(
            FloatBlocks(*source, blocks),
            FloatBlocks(self.rhs, False, blocks, panels=int(self.panels)),
            self.groups,
            self.m,
            self.n,
            self.experts,
            schedule,
            self.share,
            decoded=cast(Any, self.rhs),
        )


SQUARE, ACROSS = (2, 2, 1), (1, 4, 1)
CASES = [
    # A chunk of one block; several chunks, of one step each or more; K that chunks do not divide.
    Case("bf16", "bf16", 1, 16, 32),
    Case("bf16", "bf16", 3, 20, 512),
    Case("bf16", "bf16", 16, 36, 2880),
    Case(ROUNDED, "bf16", 17, 12, 1024, tiles=(2, 1)),
    Case("f16", "f16", 5, 33, 544, tiles=(1, 2)),
    Case("f16", "bf16", 5, 20, 320, tiles=(1, 2)),
    Case("f32", "bf16", 20, 24, 800, tiles=(2, 1)),
    # One wave computes all chunks.
    Case("bf16", "bf16", 70, 52, 1056, tiles=(2, 1), waves=SQUARE),
    Case("f32", "bf16", 40, 36, 480, tiles=(1, 2), waves=SQUARE),
    # Rings, with rows in LDS.
    Case("bf16", "bf16", 70, 100, 544, tiles=(2, 2), waves=ACROSS, stages=3),
    Case("f16", "f16", 33, 64, 1024, tiles=(1, 2), waves=ACROSS, stages=8),
    Case(ROUNDED, "bf16", 64, 72, 352, tiles=(4, 2), waves=(1, 2, 1), stages=2),
    Case("bf16", "bf16", 12, 36, 96, groups=3, experts=2, share=4, waves=ACROSS, stages=4),
    Case("bf16", "bf16", 4, 36, 256, groups=3, experts=2, share=4),
    # Fewer stages than cover the memory latency; a chunk of whole iterations of the loop, and of a
    # part of one more.
    Case("bf16", "bf16", 40, 200, 352, tiles=(2, 2), waves=ACROSS, stages=3),
    Case("bf16", "bf16", 20, 140, 2880, tiles=(1, 2), waves=ACROSS, stages=4, panels=True),
    Case("bf16", "bf16", 130, 300, 1056, tiles=(8, 4), waves=ACROSS, stages=2, panels=True),
    Case(ROUNDED, "bf16", 70, 300, 1056, tiles=(4, 4), waves=ACROSS, stages=2, panels=True),
    Case("f16", "f16", 8, 70, 256, (2, 1), ACROSS, 5, groups=3, experts=2, share=4, panels=True),
    # Weights in panels.
    Case("bf16", "bf16", 3, 20, 512, panels=True),
    Case("f32", "bf16", 40, 36, 480, tiles=(1, 2), waves=SQUARE, panels=True),
    Case("bf16", "bf16", 70, 100, 544, tiles=(2, 2), waves=ACROSS, stages=3, panels=True),
    Case("f16", "f16", 4, 36, 256, groups=3, experts=2, share=4, panels=True),
]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Case], Any]:
    """Return a function that compiles the kernel of a case once."""
    return compiler(CASES)


def floats(rng: np.random.Generator, kind: str, rows: int, k: int) -> Array:
    """Draw floats of magnitudes from about 2^-8 to 2^3."""
    return (rng.normal(size=(rows, k)) * 2.0 ** rng.integers(-8, 4, (rows, k))).astype(FLOATS[kind])


@dataclass
class Run:
    found: Array
    wanted: Array
    sanitizer: Sanitizer = field(default_factory=Sanitizer)
    counter: Counter = field(default_factory=Counter)


def simulate(compiled: Any, x: Array, w: Array) -> Run:
    """Run the kernel of a case on rows `x` [rows, k] and weights `w` [experts, n, k]."""
    case = compiled.case
    ids = np.arange(case.groups, dtype=np.int32)[::-1].copy()
    multiplied = x.astype(BF16) if case.lhs == ROUNDED else x
    left = np.repeat(multiplied.astype(np.float64), case.share, axis=0)
    left = left.reshape(case.groups, case.m, case.k)
    right = w.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted = [a @ right[min(e, len(right) - 1)].T for a, e in zip(left, ids, strict=True)]
    out = np.full((case.groups * case.m, case.n), np.nan, np.float32)
    weights = w.view(np.uint8).reshape(-1)
    if case.panels:
        weights = to_panels(weights, case.n, 2 * case.k, LAYOUT)
    given = [x.view(np.uint8), *([ids] if case.experts else []), weights, out]
    observed = TranslatedKernel(compiled.kernel, observed=True)
    assert not observed.unmodelled
    run = Run(out, np.concatenate(wanted))
    launch(
        observed,
        tuple(case.kernel.workgroups),
        given,
        observer=ObserverGroup([run.sanitizer, run.counter]),
    )
    assert not run.sanitizer.findings
    assert run.counter.counts.bank_conflicts == 0 or not case.stages
    return run


def operands(case: Case) -> tuple[Array, Array]:
    rng = np.random.default_rng(case.m + case.n + case.k)
    x = floats(rng, case.lhs, case.groups * case.m // case.share, case.k)
    w = floats(rng, case.rhs, max(case.experts, 1) * case.n, case.k)
    return x, w.reshape(-1, case.n, case.k)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_numpy_and_clean(case: Case, compiled: Callable[[Case], Any]) -> None:
    run = simulate(compiled(case), *operands(case))
    error = np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max()
    assert error < 1e-6


@pytest.mark.parametrize("case", [case for case in CASES if case.stages], ids=str)
def test_no_load_outlives_its_wave(case: Case, compiled: Callable[[Case], Any]) -> None:
    assert drains(compiled(case).assembly)


@pytest.mark.parametrize(
    ("k", "stages", "share"),
    # In the last two, the number of stages of a chunk is not a multiple of an iteration's, 3 or 4.
    [(4096, 4, 0.95), (2880, 3, 0.95), (2048, 4, 0.93), (11008, 4, 0.93)],
)
def test_matrix_cores_are_busy(
    k: int, stages: int, share: float, compiled: Callable[[Case], Any]
) -> None:
    case = Case("bf16", "bf16", 4096, 4096, k, (8, 4), ACROSS, stages, panels=True)
    assert share_of(compiled(case)) > share


@pytest.mark.parametrize("k", [96, 320, 352, 1056])
def test_every_schedule_gives_a_row_the_same_bits(k: int, compiled: Callable[[Case], Any]) -> None:
    """Alone, at any place among others, and by any tile, waves and way to the registers."""
    few = Case("bf16", "bf16", 1, 36, k)
    many = replace(few, m=37)
    x, w = operands(many)
    schedules = [
        many,
        replace(many, tiles=(2, 2)),
        replace(many, tiles=(1, 2), waves=SQUARE),
        replace(many, tiles=(4, 1), waves=SQUARE),
        replace(many, tiles=(2, 2), waves=ACROSS, stages=3),
        replace(many, tiles=(2, 1), waves=ACROSS, stages=5),
    ]
    first, *others = [simulate(compiled(case), x, w).found for case in schedules]
    for other in others:
        np.testing.assert_array_equal(first.view(np.uint32), other.view(np.uint32))
    for row in (0, 20, 36):
        alone = simulate(compiled(few), x[row : row + 1], w).found
        np.testing.assert_array_equal(alone[0].view(np.uint32), first[row].view(np.uint32))


@pytest.mark.parametrize("number", [0, 6, 9, 14])
def test_infinities_stay_and_nan_too(number: int, compiled: Callable[[Case], Any]) -> None:
    case = CASES[number]
    x, w = operands(case)
    x[0, 3], w[0, 7, 5] = np.inf, np.nan
    run = simulate(compiled(case), x, w)
    assert np.isnan(run.found[:, 7]).all()
    np.testing.assert_array_equal(run.found[0], run.wanted[0].astype(np.float32))
    assert np.isinf(run.found[0, :7]).all()
    assert np.isfinite(run.found[1:, :7]).all()


#: Chunks of published sizes of K: those of q_proj and o_proj of gpt-oss, and others.
@pytest.mark.parametrize(
    ("blocks", "size", "count"),
    [(1, 4, 1), (90, 18, 5), (128, 32, 4), (64, 16, 4), (17, 4, 5), (33, 6, 6), (448, 112, 4)],
)
def test_chunks(blocks: int, size: int, count: int) -> None:
    assert Chunks.of(blocks) == Chunks(size, count)


def test_chunks_cover_k_and_have_whole_stages() -> None:
    for blocks in range(1, 700):
        chunks = Chunks.of(blocks)
        assert chunks.size % 2 == 0
        assert chunks.size * (chunks.count - 1) < blocks <= chunks.size * chunks.count
        assert chunks.count <= 8


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case("bf16", "bf16", 64, 64, 2880, waves=(1, 1, 4)), "1 or 5 waves along K"),
        (Case("bf16", "bf16", 64, 64, 512, (8, 8), ACROSS, 2), "registers for 32 tiles"),
        (Case(ROUNDED, "bf16", 64, 64, 512, (8, 4), ACROSS, 2), "registers for 16 tiles"),
        (Case("f32", "bf16", 64, 64, 512, (1, 1), ACROSS, 2), "more than one bf16"),
        (Case("bf16", "bf16", 64, 64, 512, (8, 4), ACROSS, 12), "196608 bytes"),
        (Case("bf16", "bf16", 64, 64, 512, (2, 2), SQUARE, 2), "waves .* have different columns"),
    ],
)
def test_refuses_what_it_cannot_compute(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = case.kernel
