"""Kernels that stage both sides in LDS, on the simulator with its sanitizer, against numpy.

Elements and scales are decoded by `mxc.dialects.packing`, which has oracles of its own.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from iree.compiler import ir, tools
from iree.compiler.dialects import arith, func, tensor

from mxc.compiler.iree import LLVM_FLAGS
from mxc.compiler.report.issue_model import estimate
from mxc.compiler.report.issue_steps import read_steps
from mxc.compiler.report.loops import hot_loop
from mxc.dialects.boundary import unpack
from mxc.dialects.context import new_context
from mxc.dialects.devices import MI355X
from mxc.dialects.formats import FORMATS
from mxc.dialects.generic import generic
from mxc.dialects.packing import decode_elements, decode_scales
from mxc.dialects.scaled import scaled_contraction
from mxc.passes.kernels.executables import Threads, dispatch, executable_of
from mxc.passes.kernels.gpu.choice import choose
from mxc.passes.kernels.gpu.cost import Problem
from mxc.passes.kernels.gpu.ring import Ring
from mxc.passes.kernels.gpu.schedule import Schedule
from mxc.passes.kernels.gpu.sides import Scaled
from mxc.passes.kernels.gpu.staging import INSTRUCTION, Layout, Slice
from mxc.passes.kernels.reshapes import as_tensor
from mxc.runtime.simulator.code.code_object import Kernel, read_kernels
from mxc.runtime.simulator.run.launch import launch
from mxc.runtime.simulator.run.translate import Program
from mxc.runtime.simulator.watch.count import Counter
from mxc.runtime.simulator.watch.observe import Several
from mxc.runtime.simulator.watch.sanitizer import Sanitizer

Floats = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

F4, E2M3, E3M2, E4M3, E5M2 = "mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2"
#: Codes that are no numbers, by what their bits are under a mask.
NOT_FINITE = {E4M3: (0x7F, 0x7F), E5M2: (0x7C, 0x7C)}


@dataclass(frozen=True)
class Case:
    """groups x [m, k] by [n, k]; tiles of a wave, stages of the ring, turns of a stage.

    experts: how many rhs there are to choose from; share: rows that have the same row of lhs.
    """

    lhs: str
    rhs: str
    m: int
    n: int
    k: int
    tiles: tuple[int, int] = (1, 1)
    waves: tuple[int, int, int] = (4, 1, 1)
    stages: int = 4
    turns: int = 2
    groups: int = 1
    experts: int = 0
    share: int = 1

    @property
    def kernel(self) -> Ring:
        schedule = Schedule(
            instruction=INSTRUCTION,
            tiles=self.tiles,
            waves=self.waves,
            transport="ring",
            stages=self.stages,
            turns=self.turns,
        )
        lhs, rhs = (scaled(name, self.k // 32) for name in (self.lhs, self.rhs))
        return Ring(lhs, rhs, self.groups, self.m, self.n, self.experts, schedule, share=self.share)


def scaled(name: str, blocks: int) -> Scaled:
    return Scaled(FORMATS[name], blocks)


ACROSS = (1, 4, 1)
#: Every pair of widths and every element, each side straight to registers and in LDS; ends of rows
#: and columns; K of whole and cut stages, halves of spans and spans, from one span to some in a
#: loop, of one span and of two a round; two to eight stages.
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
    # Experts that are chosen, one of them none at all; rows that several share.
    Case(F4, F4, 68, 36, 512, groups=3, experts=2, share=4),
]


@dataclass(frozen=True)
class Compiled:
    """A kernel and its text."""

    kernel: Kernel
    assembly: str


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Compiled]:
    """The kernel of a case, compiled once."""

    @cache
    def build(case: Case) -> Compiled:
        folder = tmp_path_factory.mktemp("ring")
        flags = ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx950", *LLVM_FLAGS)
        dumps = [f"--iree-hal-dump-executable-{what}-to={folder}" for what in DUMPS]
        tools.compile_str(program(case.kernel), extra_args=[*flags, *dumps])
        (code,), (text,) = (list(folder.glob(f"*.{end}")) for end in ("hsaco", "rocmasm"))
        (kernel,) = read_kernels(code.read_bytes()).values()
        return Compiled(kernel, text.read_text())

    return build


DUMPS = ("binaries", "intermediates")


def program(kernel: Ring) -> str:
    """A program that only calls the kernel."""
    with new_context(), ir.Location.unknown():
        types = [as_tensor(each.memref) for each in kernel.buffers()]
        arguments = ", ".join(f"%a{n}: {kind}" for n, kind in enumerate(types[:-1]))
        module = ir.Module.parse(
            f"func.func @main({arguments}) -> {types[-1]} {{\n"
            f"  %e = tensor.empty() : {types[-1]}\n  return %e : {types[-1]}\n}}"
        )
        threads = Threads(kernel.schedule.threads, 64, kernel.attributes)
        with ir.InsertionPoint.at_block_begin(module.body):
            executable_of("k", kernel, threads)
        (*_, function) = module.body.operations
        block = function.regions[0].blocks[0]
        (*_, done) = block.operations
        with ir.InsertionPoint(done):
            done.operation.operands[0] = dispatch("k", list(block.arguments), types[-1])
        module.operation.verify()
        return str(module)


def side(rng: np.random.Generator, format: str, rows: int, k: int) -> tuple[Bytes, Bytes, Floats]:
    """All finite codes, scales with both ends of their range, and what they mean, [rows, k]."""
    packed = rng.integers(0, 256, (rows, k * FORMATS[format].element.bits // 8), dtype=np.uint8)
    if format in NOT_FINITE:
        mask, bits = NOT_FINITE[format]
        packed[(packed & mask) == bits] = 0
    scales = rng.integers(115, 140, (rows, k // 32), dtype=np.uint8)
    values = decode_elements(packed, format).astype(np.float64)
    factors = decode_scales(scales, format).astype(np.float64)
    return packed, scales, values * np.repeat(factors, 32, axis=1)


@dataclass(frozen=True)
class Run:
    found: npt.NDArray[np.float32]
    wanted: Floats
    sanitizer: Sanitizer
    counter: Counter


def simulate(case: Case, kernel: Kernel, change: Callable[..., None] | None = None) -> Run:
    rng = np.random.default_rng(case.m + case.n + case.k)
    rows = case.groups * case.m
    a, p, left = side(rng, case.lhs, rows // case.share, case.k)
    b, q, right = side(rng, case.rhs, max(case.experts, 1) * case.n, case.k)
    left = np.repeat(left, case.share, axis=0).reshape(case.groups, case.m, case.k)
    right = right.reshape(-1, case.n, case.k)
    ids = np.arange(case.groups, dtype=np.int32)[::-1].copy()
    wanted = np.stack([x @ right[min(e, len(right) - 1)].T for x, e in zip(left, ids, strict=True)])
    if change is not None:
        change(p, q, wanted)
    out = np.full((rows, case.n), np.nan, np.float32)
    given = [a, p, *([ids] if case.experts else []), b, q, out]
    observed = Program(kernel, observed=True)
    assert not observed.unmodelled
    sanitizer, counter = Sanitizer(), Counter()
    launch(observed, tuple(case.kernel.workgroups()), given, observer=Several([sanitizer, counter]))
    return Run(out, wanted.reshape(rows, case.n), sanitizer, counter)


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

    def spoil(p: Bytes, q: Bytes, wanted: Floats) -> None:
        # The first of a row, and the last: what is read behind a row is another one's.
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
    given = [a, p, ids, weights, factors, out]
    launch(Program(compiled(case).kernel), tuple(case.kernel.workgroups()), given)
    wanted = left.reshape(2, case.m, -1) @ np.swapaxes(right.reshape(2, case.n, -1), 1, 2)
    error = np.abs(out - wanted.reshape(out.shape)).max() / np.abs(wanted).max()
    assert error < 1e-6


def test_halves_are_joined_on_the_sums(watched: Callable[[str], Any]) -> None:
    """By the whole road, and by the choice of the compiler: a bias, then a gate, cut ends."""
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
    """(a b^T + bias), its left half times its right half."""
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
    text = compiled(case).assembly

    def figure(name: str) -> int:
        return int(re.findall(rf"\.{name}:\s+(\d+)", text)[0])

    m, n = case.tiles
    assert figure("agpr_count") >= 16 * m * n
    assert figure("vgpr_count") <= 512
    assert figure("vgpr_spill_count") == figure("private_segment_fixed_size") == 0
    unit = MI355X.unit
    assert unit.rates is not None
    loop = hot_loop(text)
    assert not {"v_perm", "scratch", "accvgpr", "convert"} & loop.census.keys()
    assert {line.mnemonic for line in loop.lines if line.kind == "valu"} <= {
        "v_add_u32_e32",
        "v_lshl_add_u32",
    }
    found = estimate(read_steps(loop.lines, unit.rates), unit, workgroup_size=256)
    assert found.matrix_share >= share


def test_a_lane_reads_what_was_put_for_it() -> None:
    """Two turns of f6: three pieces, the middle one in halves; of 8 bits: runs of 16."""
    cut = [[(s.first, s.across, s.start, s.stop) for s in turn] for turn in slices(E2M3, 2)]
    assert cut == [[(0, 3, 0, 16), (1, 3, 0, 8)], [(1, 3, 8, 16), (2, 3, 0, 16)]]
    cut = [[(s.first, s.across, s.start, s.stop) for s in turn] for turn in slices(E4M3, 1)]
    assert cut == [[(0, 1, 0, 16), (2, 1, 0, 16)]]
    with pytest.raises(ValueError, match="halves of their pieces"):
        slices(E2M3, 1)


def slices(format: str, turns: int) -> tuple[tuple[Slice, ...], ...]:
    return Layout(scaled(format, 16), 64, turns, 4).slices


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (Case(F4, F4, 64, 64, 480), "a span of scales"),
        (Case(F4, F4, 64, 64, 512, stages=1), "2 stages or more"),
        (Case(F4, F4, 64, 64, 512, turns=1), "of 2 turns"),
        (Case(F4, F4, 64, 64, 512, tiles=(2, 16)), "256 accumulation registers"),
        (Case(F4, F4, 64, 64, 512, waves=(2, 2, 1)), "in a row or a column"),
        (Case(F4, F4, 64, 64, 512, waves=(1, 1, 1)), "2 to 4 waves"),
        (Case(E4M3, E4M3, 64, 64, 512, tiles=(2, 8), stages=8), "266368 bytes of LDS"),
    ],
)
def test_refuses_what_it_cannot_compute(case: Case, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _ = case.kernel
