"""Cases of GPU kernels for scaled products: compile them, and run them on the simulator.

Each kernel is compiled alone, without a model around it, and its result is compared with numpy.
Elements and scales are decoded by `mxc.formats.packing`, which has tests of its own.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from iree.compiler import ir

from mxc.compiler.packing.panels import to_panels
from mxc.compiler.report.issue_model import estimate
from mxc.compiler.report.issue_steps import read_steps
from mxc.compiler.report.loops import Loop, hot_loop
from mxc.dialects.context import new_context
from mxc.formats import formats
from mxc.formats.formats import F32, FORMATS, BlockFormat
from mxc.formats.packing import decode_elements, decode_scales
from mxc.passes.kernels.calls import build
from mxc.passes.kernels.executables import Threads, dispatch
from mxc.passes.kernels.gpu.decode import Register
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import TileInstruction
from mxc.passes.kernels.gpu.panels import LAYOUT
from mxc.passes.kernels.gpu.ring.decoded_kernel import DecodedRing
from mxc.passes.kernels.gpu.ring.float_kernel import FloatRing
from mxc.passes.kernels.gpu.ring.kernel import Ring, StagedProduct
from mxc.passes.kernels.gpu.ring.split import COUNTERS
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION
from mxc.passes.kernels.gpu.ring.summed_kernel import SummedRing
from mxc.passes.kernels.gpu.scaled_blocks import ScaledBlocks
from mxc.passes.kernels.gpu.schedule import GpuSchedule, Transport
from mxc.passes.kernels.gpu.stream import StreamKernel
from mxc.passes.kernels.reshapes import as_tensor
from mxc.simulator.code.code_object import CodeObjectKernel
from mxc.simulator.run.launch import launch
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch.count import Counter
from mxc.simulator.watch.observe import ObserverGroup
from mxc.simulator.watch.sanitizer import Sanitizer
from mxc.targets.amd import GFX950, known_gpu
from mxc.targets.compute_unit import ComputeUnit
from tests.kernel_objects import CompiledKernel, compile_kernels

Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

F4, E2M3, E3M2, E4M3, E5M2 = "mxfp4", "mxfp6e2m3", "mxfp6e3m2", "mxfp8e4m3", "mxfp8e5m2"
NVFP4 = "nvfp4"
#: f32 activations that are rounded to bf16 before they are multiplied.
ROUNDED = "f32 as bf16"
FLOATS = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, ROUNDED: np.float32}
#: Elements under f32 scales, one for 128 elements along K, or for `Case.block` elements.
E4M3_F32, E5M2_F32, INT8_F32, INT4_F32 = "e4m3_f32", "e5m2_f32", "int8_f32", "int4_f32"
UNDER_F32 = {
    E4M3_F32: formats.E4M3,
    E5M2_F32: formats.E5M2,
    INT8_F32: formats.INT8,
    INT4_F32: formats.INT4,
}
#: Codes of NaN and infinity, as (mask, value): those whose bits under the mask have the value.
NOT_FINITE = {E4M3: (0x7F, 0x7F), E5M2: (0x7C, 0x7C)}
NOT_FINITE |= {E4M3_F32: NOT_FINITE[E4M3], E5M2_F32: NOT_FINITE[E5M2]}


@dataclass(frozen=True)
class Case:
    """A product of `groups` x [m, k] by [n, k], and the schedule of its kernel.

    `tiles`: those of a wave, rows by columns. `waves`: waves of a workgroup along rows, columns and
    K. `stages`: pipeline stages of the ring. `k_steps`: k-steps of a stage. `experts`: number of
    rhs that groups choose from. `share`: number of consecutive rows that have the same row of lhs.
    `block`: elements of a scale; 0 for the formats' own number. `splits`: workgroups that share K.
    `panels`: whether rhs is stored in panels. `rows`: number of rows of rhs that share scales.
    """

    lhs: str
    rhs: str
    m: int
    n: int
    k: int
    tiles: tuple[int, int] = (1, 1)
    waves: tuple[int, int, int] = (4, 1, 1)
    stages: int = 4
    k_steps: int = 2
    groups: int = 1
    experts: int = 0
    share: int = 1
    block: int = 0
    target: str = "gfx950"
    transport: Transport = "ring"
    splits: int = 1
    panels: bool = False
    rows: int = 1

    @property
    def kernel(self) -> StagedProduct | StreamKernel:
        unit = known_gpu(self.target).matrix
        streams = self.transport == "stream"
        schedule = GpuSchedule(
            instruction=TileInstruction(16 if streams else INSTRUCTION.rows, unit),
            tiles=self.tiles,
            waves=self.waves,
            transport=self.transport,
            stages=0 if streams else self.stages,
            k_steps=0 if streams else self.k_steps,
            splits=self.splits,
        )
        blocks = self.k // 32 // self.splits
        lhs: FloatBlocks | ScaledBlocks
        if self.lhs not in FLOATS:
            lhs = scaled(self.lhs, blocks, self.block)
        else:
            source = ("f32", True) if self.lhs == ROUNDED else (self.lhs, False)
            lhs = FloatBlocks(*source, blocks)
        rhs, register = scaled(self.rhs, blocks, self.block, self.rows), self.register
        rhs = replace(rhs, panels=self.splits if self.panels else 0)
        rest = (rhs, self.groups, self.m, self.n, self.experts, schedule, self.share)
        if streams:
            return StreamKernel(lhs, *rest, decoded=register)
        if self.rhs in UNDER_F32 and self.transport == "ring":
            return SummedRing(lhs, *rest, decoded=register)
        if register is None:
            assert isinstance(lhs, ScaledBlocks)
            return Ring(lhs, *rest)
        return (DecodedRing if self.transport == "decoded" else FloatRing)(
            lhs, *rest, decoded=register
        )

    @property
    def register(self) -> Register | None:
        """The float type that both sides are decoded to; None if they are multiplied packed."""
        if not known_gpu(self.target).matrix.converts:
            return "bf16"
        if {self.lhs, self.rhs} <= FORMATS.keys() - {NVFP4, "mxint8"}:
            return None
        known = {E4M3, E5M2, F4, E4M3_F32, E5M2_F32}
        if {self.lhs, self.rhs} <= known and self.transport == "ring":
            return None
        return "f16" if self.lhs == "f16" and self.rhs in {NVFP4, *UNDER_F32} else "bf16"


def format_of(name: str) -> BlockFormat:
    return FORMATS[name] if name in FORMATS else BlockFormat(name, UNDER_F32[name], 128, F32)


def scaled(name: str, blocks: int, block: int = 0, rows: int = 1) -> ScaledBlocks:
    format = format_of(name)
    return ScaledBlocks(replace(format, block=block or format.block, rows=rows), blocks)


ACROSS, SQUARE = (1, 4, 1), (2, 2, 1)


@dataclass(frozen=True)
class Compiled(CompiledKernel):
    """The compiled kernel of a case."""

    case: Any


def compile_rings(cases: Sequence[Any], target: str = "gfx950") -> list[Compiled]:
    """Compile the kernels of cases as one program."""
    found = compile_kernels(program([case.kernel for case in cases]), target)
    return [Compiled(**vars(found[f"k{number}"]), case=case) for number, case in enumerate(cases)]


def compiler(together: Sequence[Any], target: str = "gfx950") -> Callable[[Any], Compiled]:
    """Return a function that compiles the kernel of a case once; `together` are one program."""

    @cache
    def known() -> dict[Any, Compiled]:
        return {each.case: each for each in compile_rings(together, target)}

    @cache
    def compiled(case: Any) -> Compiled:
        return known()[case] if case in together else compile_rings([case], target)[0]

    return compiled


def drains(assembly: str) -> bool:
    """Whether a wave waits for all of its loads to LDS after it has issued the last of them.

    That is a wait whose `vmcnt` is at most the number of loads to registers issued since then.
    """
    _, *lines = assembly[assembly.rindex("offen lds") :].splitlines()
    loads = 0
    for line in lines:
        loads += "buffer_load" in line
        found = re.search(r"vmcnt\((\d+)\)", line)
        if found and int(found[1]) <= loads:
            return True
    return False


def program(kernels: Sequence[StagedProduct | StreamKernel]) -> str:
    """Return a program that has a function for each kernel, which only dispatches the kernel."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        for number, kernel in enumerate(kernels):
            types = [as_tensor(each.memref) for each in kernel.buffers]
            # Last come the result and, with splits, the buffer of partial sums: both are written.
            # The counters, directly before them, are updated in place.
            made = 1 + (kernel.splits > 1)
            result, updated = types[-made], [len(types) - made - 1][: made - 1]
            arguments = ", ".join(f"%a{n}: {kind}" for n, kind in enumerate(types[:-made]))
            text = ir.Module.parse(
                f"func.func @main{number}({arguments}) -> {result} {{\n"
                f"  %e = tensor.empty() : {result}\n  return %e : {result}\n}}"
            )
            (read,) = text.body.operations
            name = f"k{number}"
            threads = Threads(kernel.schedule.threads, 64, kernel.attributes)
            with ir.InsertionPoint(module.body):
                build(name, kernel, threads)
                function = read.operation.clone()
            block = function.regions[0].blocks[0]
            (*_, done) = block.operations
            with ir.InsertionPoint(done):
                results = [*types[-made:], *(types[each] for each in updated)]
                tied = [*[-1] * made, *updated]
                called = dispatch(name, list(block.arguments), results, tied=tied)
                done.operation.operands[0] = called.results[0]
        module.operation.verify()
        return str(module)


def side(
    rng: np.random.Generator, format: str, rows: int, k: int, block: int = 0
) -> tuple[Bytes, Bytes, Doubles]:
    """Draw one side: its packed elements, all finite, its scales as bytes, and the scaled elements
    in float64, [rows, k]."""
    bits = format_of(format).element.bits
    packed = rng.integers(0, 256, (rows, k * bits // 8), dtype=np.uint8)
    if format in NOT_FINITE:
        mask, bits = NOT_FINITE[format]
        packed[(packed & mask) == bits] = 0
    block = block or format_of(format).block
    if format in UNDER_F32:
        powers = np.ldexp(rng.uniform(1, 2, (rows, k // block)), rng.integers(-8, 8))
        factors = (powers * rng.choice([-1, 1], powers.shape)).astype(np.float32)
        elements = under_f32(packed, format) * np.repeat(factors.astype(np.float64), block, axis=1)
        return packed, factors.view(np.uint8), elements
    # Scales of nvfp4 are at most 0x7E, because 0x7F is NaN.
    most = 127 if format == NVFP4 else 140
    scales = rng.integers(most - 25, most, (rows, k // block), dtype=np.uint8)
    values = decode_elements(packed, format).astype(np.float64)
    factors = decode_scales(scales, format).astype(np.float64)
    return packed, scales, values * np.repeat(factors, block, axis=1)


def shared_by_rows(case: Case, packed: Bytes, scales: Bytes) -> tuple[Bytes, Doubles]:
    """Let every `case.rows` rows of an expert share the scales of the first of them.

    Return these scales as bytes, and rhs under them in float64, [rows of all experts, k].
    """
    block = case.block or 128
    few = scales.view(np.float32).reshape(-1, case.n, case.k // block)[:, :: case.rows].copy()
    rows = np.repeat(few.astype(np.float64), case.rows, axis=1)[:, : case.n]
    wide = np.repeat(rows, block, axis=2).reshape(-1, case.k)
    return few.reshape(-1, few.shape[-1]).view(np.uint8), under_f32(packed, case.rhs) * wide


def under_f32(packed: Bytes, format: str) -> Doubles:
    """Decode elements that have f32 scales, without the scales, by ml_dtypes."""
    if format == INT4_F32:
        both = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
        return both.astype(ml_dtypes.int4).astype(np.float64)
    kinds = {E4M3_F32: ml_dtypes.float8_e4m3fn, E5M2_F32: ml_dtypes.float8_e5m2}
    return packed.view(kinds.get(format, np.int8)).astype(np.float64)


def floats(
    rng: np.random.Generator, kind: str, rows: int, k: int
) -> tuple[npt.NDArray[Any], Doubles]:
    """Draw activations of magnitudes from about 2^-8 to 2^3: as they are in memory, and in float64
    as they are multiplied."""
    x = rng.normal(size=(rows, k)) * 2.0 ** rng.integers(-8, 4, (rows, k))
    given = x.astype(FLOATS[kind])
    return given, given.astype(FLOATS["bf16" if kind == ROUNDED else kind]).astype(np.float64)


@dataclass(frozen=True)
class Run:
    found: npt.NDArray[np.float32]
    wanted: Doubles
    sanitizer: Sanitizer
    counter: Counter


def simulate(
    case: Case, kernel: CodeObjectKernel, change: Callable[..., None] | None = None
) -> Run:
    rng = np.random.default_rng(case.m + case.n + case.k)
    rows = case.groups * case.m
    if case.lhs in FLOATS:
        a, left = floats(rng, case.lhs, rows // case.share, case.k)
        p = np.empty(0, np.uint8)
    else:
        a, p, left = side(rng, case.lhs, rows // case.share, case.k, case.block)
    b, q, right = side(rng, case.rhs, max(case.experts, 1) * case.n, case.k, case.block)
    if case.rows > 1:
        q, right = shared_by_rows(case, b, q)
    left = np.repeat(left, case.share, axis=0).reshape(case.groups, case.m, case.k)
    right = right.reshape(-1, case.n, case.k)
    ids = np.arange(case.groups, dtype=np.int32)[::-1].copy()
    wanted = np.stack([x @ right[min(e, len(right) - 1)].T for x, e in zip(left, ids, strict=True)])
    if change is not None:
        change(a if case.lhs in FLOATS else p, q, wanted)
    out = np.full((rows, case.n), np.nan, np.float32)
    lhs = [a.view(np.uint8)] if case.lhs in FLOATS else [a, p]
    # Counters are zero before the call and must be zero after it; partial sums begin as NaN.
    counters, parts = [], []
    if case.splits > 1:
        elements = case.kernel.split_tiles.elements
        assert isinstance(elements, int)
        counters.append(np.zeros(COUNTERS, np.int32))
        parts.append(np.full(elements, np.nan, np.float32))
    if case.panels:
        b = to_panels(b.reshape(-1), case.n, b.shape[1], LAYOUT)
    given = [*lhs, *([ids] if case.experts else []), b, q, *counters, out, *parts]
    observed = TranslatedKernel(kernel, observed=True)
    assert not observed.unmodelled
    sanitizer, counter = Sanitizer(), Counter()
    workgroups: Any = tuple(case.kernel.workgroups)
    launch(observed, workgroups, given, observer=ObserverGroup([sanitizer, counter]))
    assert not any(each.any() for each in counters)
    return Run(out, wanted.reshape(rows, case.n), sanitizer, counter)


def busy_with_two(compiled: Compiled) -> float:
    """Return the share of time that matrix cores are busy with two workgroups on a compute unit.

    Asserts that there are registers for both, that no instruction moves values between VGPRs and
    accumulation registers, and that nothing spills.
    """
    text, taken = compiled.assembly, compiled.resources
    unit = known_gpu(compiled.case.target).unit
    assert taken.vgpr <= unit.registers // 2
    assert (taken.spills, "v_accvgpr" in text) == (0, False)
    return _share(hot_loop(text), unit, workgroups=2)


def require_no_scratch(compiled: CompiledKernel) -> None:
    """Assert that a kernel neither spills nor uses scratch memory."""
    assert (compiled.resources.spills, compiled.resources.scratch_bytes) == (0, 0)


def _share(loop: Loop, unit: ComputeUnit, workgroups: int = 1) -> float:
    assert unit.rates is not None
    steps = read_steps(loop.lines, unit.rates)
    return estimate(steps, unit, workgroup_size=256, workgroups=workgroups).matrix_share


def share_of(compiled: Compiled) -> float:
    """Return the share of time that matrix cores are busy with one workgroup on a unit of gfx950.

    Asserts that nothing spills.
    """
    require_no_scratch(compiled)
    return _share(hot_loop(compiled.assembly), GFX950.unit)


def loop_of(compiled: Compiled) -> tuple[Loop, float]:
    """Return the hot loop, and the share of time that matrix cores are busy by the issue model.

    Asserts that all sums are in accumulation registers, and that nothing spills.
    """
    (m, n), taken = compiled.case.tiles, compiled.resources
    assert taken.agpr >= 16 * m * n
    assert taken.vgpr <= 512
    require_no_scratch(compiled)
    loop = hot_loop(compiled.assembly)
    return loop, _share(loop, known_gpu(compiled.case.target).unit)
