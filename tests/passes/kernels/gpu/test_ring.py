"""Rings of two scaled sides, on the simulator with its sanitizer, against numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith, func, tensor

from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.generic import generic
from mxc.dialects.scaled import scaled_contraction
from mxc.passes.kernels.gpu.choice import choose
from mxc.passes.kernels.gpu.problem import Problem
from mxc.passes.kernels.gpu.ring.staging import Slice, StageLayout
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from tests.passes.kernels.gpu.rings import (
    ACROSS,
    E2M3,
    E3M2,
    E4M3,
    E5M2,
    F4,
    Bytes,
    Case,
    Compiled,
    Doubles,
    compiler,
    loop_of,
    scaled,
    side,
    simulate,
)

#: Every pair of element widths and every element type, each side both straight to registers and
#: through LDS; rows and columns that do not fill tiles; K of whole and cut stages, of half chunks
#: and whole chunks, of one chunk to several in a loop, with one or two chunks in an iteration; two
#: to eight stages.
CASES = [
    Case(F4, F4, 128, 64, 512, tiles=(1, 2)),
    Case(F4, F4, 70, 200, 544, tiles=(2, 1), waves=ACROSS),
    Case(F4, F4, 100, 132, 2880, tiles=(1, 3)),
    Case(F4, F4, 256, 32, 2048, tiles=(2, 1), stages=8),
    Case(E4M3, E4M3, 128, 64, 1024, tiles=(1, 2)),
    Case(E4M3, E5M2, 40, 68, 1184, waves=ACROSS),
    Case(E5M2, F4, 64, 64, 1056, stages=3),
    Case(F4, E4M3, 64, 64, 2048, stages=3, waves=ACROSS),
    Case(E2M3, E3M2, 64, 64, 992, stages=3, tiles=(1, 2)),
    Case(E3M2, E2M3, 60, 64, 1664, stages=2, waves=ACROSS),
    Case(E4M3, E2M3, 64, 128, 640, stages=2, tiles=(1, 2)),
    Case(E3M2, F4, 64, 64, 768, stages=3, waves=(2, 1, 1)),
    # Less than a chunk, and less than a stage.
    Case(E4M3, E4M3, 40, 36, 448),
    Case(F4, E3M2, 40, 36, 224, waves=ACROSS),
    Case(E2M3, F4, 40, 36, 32),
    # Experts that are chosen by ids; a row of lhs for several rows.
    Case(F4, F4, 68, 36, 512, groups=3, experts=2, share=4),
    # A scale for several blocks; chunks in a loop, and cut chunks.
    Case(F4, F4, 70, 100, 2880, tiles=(1, 2), block=64),
    Case(E4M3, E4M3, 64, 68, 2176, waves=ACROSS, block=128),
    Case(E5M2, F4, 40, 36, 1792, stages=3, block=256),
    Case(F4, E4M3, 40, 36, 1536, stages=3, waves=ACROSS, block=512),
]


@pytest.fixture(scope="module")
def compiled() -> Callable[[Case], Compiled]:
    """Return a function that compiles the kernel of a case once."""
    return compiler(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_as_numpy_and_clean(case: Case, compiled: Callable[[Case], Compiled]) -> None:
    run = simulate(case, compiled(case).kernel)
    error = np.abs(run.found - run.wanted).max() / np.abs(run.wanted).max()
    assert error < 1e-6
    assert not run.sanitizer.findings
    assert run.counter.counts.bank_conflicts == 0


def test_a_nan_scale_spoils_its_row_and_column_only(
    compiled: Callable[[Case], Compiled],
) -> None:
    case = CASES[1]

    def spoil(p: Bytes, q: Bytes, wanted: Doubles) -> None:
        # The first scale of a row and the last: scales read past the end belong to another row.
        p[5, 0] = q[7, -1] = 255
        wanted[0, 5] = np.nan
        wanted[0, :, 7] = np.nan

    run = simulate(case, compiled(case).kernel, spoil)
    np.testing.assert_array_equal(np.isnan(run.found), np.isnan(run.wanted))


def test_an_expert_behind_more_than_2_gib(compiled: Callable[[Case], Compiled]) -> None:
    """Offsets of 32 bits reach no farther; of the other experts there is no memory."""
    case = Case(F4, F4, 64, 64, 512, groups=2, experts=131077)
    elements, scales = case.n * case.k // 2, case.n * case.k // 32
    assert elements * case.experts > 1 << 31
    rng = np.random.default_rng(2)
    a, p, left = side(rng, F4, 2 * case.m, case.k)
    b, q, right = side(rng, F4, 2 * case.n, case.k)
    weights = np.zeros(case.experts * elements, np.uint8)
    factors = np.zeros(case.experts * scales, np.uint8)
    ids = np.array([case.experts - 1, 3], np.int32)
    for at, expert in enumerate(ids.tolist()):
        weights[expert * elements :][:elements] = b.reshape(2, -1)[at]
        factors[expert * scales :][:scales] = q.reshape(2, -1)[at]
    out = np.full((2 * case.m, case.n), np.nan, np.float32)
    given: list[Any] = [a, p, ids, weights, factors, out]
    workgroups: Any = tuple(case.kernel.workgroups)
    launch(TranslatedKernel(compiled(case).kernel), workgroups, given)
    wanted = left.reshape(2, case.m, -1) @ np.swapaxes(right.reshape(2, case.n, -1), 1, 2)
    error = np.abs(out - wanted.reshape(out.shape)).max() / np.abs(wanted).max()
    assert error < 1e-6


def test_halves_are_concatenated_on_the_sums(watched: Callable[[str], Any]) -> None:
    """Compiled and run, and by the choice of the compiler: a bias, then a gate, cut ends."""
    m, n, k = 1000, 2016, 544
    found = choose(Problem(rows=m, columns=n, blocks=k // 32, halves=2))
    assert found.transport == "ring"
    assert m % found.rows
    assert n // 2 % (found.columns // 2)
    rng = np.random.default_rng(1)
    (a, p, left), (b, q, right) = (side(rng, F4, rows, k) for rows in (m, n))
    bias = rng.normal(size=n).astype(np.float32) * 2.0**20
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            gated(m, n, k)
        (made,) = watched(str(module)).call(
            "gated",
            *(each.view(np.int8).reshape(len(each), k // 32, -1) for each in (a, b)),
            p.view(np.int8),
            q.view(np.int8),
            bias,
        )
    sums = left @ right.T + bias
    wanted = sums[:, : n // 2] * sums[:, n // 2 :]
    error = np.abs(made.view(np.float32) - wanted).max() / np.abs(wanted).max()
    assert error < 1e-6


def gated(m: int, n: int, k: int) -> None:
    """Build a function: the left half of the columns of a b^T + bias, times the right half."""
    f32, byte = ir.F32Type.get(), ir.IntegerType.get_signless(8)
    e4, e8 = ir.Type.parse("f4E2M1FN"), ir.Type.parse("f8E8M0FNU")
    shapes = [[m, k // 32, 16], [n, k // 32, 16], [m, k // 32], [n, k // 32]]
    kinds = [ir.RankedTensorType.get(shape, byte) for shape in shapes]

    def body(*given: ir.Value) -> ir.Value:
        a, b = (unpack(each, e4) for each in given[:2])
        p, q = (unpack(each, e8) for each in given[2:4])
        y = scaled_contraction(a, b, lhs_scale=p, rhs_scale=q)
        y = generic([(y, "m n"), (given[4], "n")], "m n", f32, arith.addf)
        kind = ir.RankedTensorType.get([m, n // 2], f32)
        halves = [
            tensor.extract_slice(kind, y, [], [], [], [0, at], [m, n // 2], [1, 1])
            for at in (0, n // 2)
        ]
        return generic([(half, "m n") for half in halves], "m n", f32, arith.mulf)

    func.FuncOp.from_py_func(*kinds, ir.RankedTensorType.get([n], f32), name="gated")(body)


@pytest.mark.parametrize(
    ("case", "share"),
    [
        (Case(F4, F4, 256, 256, 2048, tiles=(2, 8)), 0.98),
        (Case(E4M3, E4M3, 256, 256, 2048, tiles=(2, 8)), 0.97),
        (Case(F4, E2M3, 256, 256, 2048, tiles=(8, 2), waves=ACROSS), 0.96),
        (Case(E2M3, E3M2, 256, 256, 2048, tiles=(2, 8)), 0.90),
        (Case(F4, F4, 256, 192, 2048, tiles=(2, 6)), 0.96),
    ],
    ids=str,
)
def test_matrix_cores_have_work(
    case: Case, share: float, compiled: Callable[[Case], Compiled]
) -> None:
    """By the model of issue; sums are in accumulation registers; nothing spills.

    Scales move from memory to where op_sel finds them without an instruction of their own.
    """
    loop, found = loop_of(compiled(case))
    assert not {"v_perm", "scratch", "accvgpr", "convert"} & loop.census.keys()
    assert {line.mnemonic for line in loop.lines if line.kind == "valu"} <= {
        "v_add_u32_e32",
        "v_lshl_add_u32",
    }
    assert found >= share


@pytest.mark.parametrize(("format", "block"), [(F4, 64), (F4, 128), (E4M3, 128), (F4, 256)])
def test_scales_of_several_blocks_are_not_waited_for(
    format: str, block: int, compiled: Callable[[Case], Compiled]
) -> None:
    """They are loaded as they are, and taken apart where they are used."""
    case = Case(format, format, 256, 256, 2048, tiles=(2, 8), block=block)
    _, found = loop_of(compiled(case))
    assert found >= 0.97


def test_a_lane_reads_what_was_put_for_it() -> None:
    """Two k-steps of f6: three pieces, the middle one in halves; of 8 bits: runs of 16."""
    cut = [[(s.first, s.across, s.start, s.stop) for s in k_step] for k_step in slices(E2M3, 2)]
    assert cut == [[(0, 3, 0, 16), (1, 3, 0, 8)], [(1, 3, 8, 16), (2, 3, 0, 16)]]
    cut = [[(s.first, s.across, s.start, s.stop) for s in k_step] for k_step in slices(E4M3, 1)]
    assert cut == [[(0, 1, 0, 16), (2, 1, 0, 16)]]
    with pytest.raises(ValueError, match="halves of their pieces"):
        slices(E2M3, 1)


def slices(format: str, k_steps: int) -> tuple[tuple[Slice, ...], ...]:
    return StageLayout(scaled(format, 16), 64, k_steps, 4).slices


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(F4, F4, 64, 64, 512, stages=1), "2 stages or more"),
        (Case(F4, F4, 64, 64, 512, k_steps=1), "of 2 k-steps"),
        (Case(F4, F4, 64, 64, 512, tiles=(2, 16)), "256 accumulation registers"),
        (Case(F4, F4, 64, 64, 512, waves=(2, 2, 1)), "in a row or a column"),
        (Case(F4, F4, 64, 64, 512, waves=(1, 1, 1)), "2 to 4 waves"),
        (Case(E4M3, E4M3, 64, 64, 512, tiles=(2, 8), stages=8), "266368 bytes of LDS"),
    ],
)
def test_refuses_what_it_cannot_compute(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = case.kernel
