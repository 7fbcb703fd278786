"""mxc-lower-to-gpu-kernels: contractions become kernels of mxc on matrix instructions.

With scales on both sides, the kernel uses scaled MFMA directly on elements and scales
(passes/kernels/gpu/stream.py), for every pair of elements. It first decodes elements to bf16 or f16
in registers where activations are floats, a scale is for 16 elements, the program rounds
dequantized values, or the `target` has no scaled instruction. No tensor holds a dequantized or a
gathered weight. Elements of weights that are parameters get the layout that kernels read
(passes/kernels/gpu/packed_weights.py), in which the compiler packs them.

An elementwise epilogue (bias, gate, residual, row weights) is computed on the totals, and a result
that is rounded to bf16 or f16 is stored so. Totals with other readers are returned as a second
result. Where the result is only read by a rotary embedding whose pairs are halves of heads, into
pages of floats, the kernel rotates queries and keys and writes keys and values
(passes/kernels/gpu/heads.py).

8-bit floats, and integers of 8 or 4 bits, with f32 scales for 32 elements or a multiple are
multiplied without scales; each sum under one scale of both sides is multiplied by these scales
before it is added to the total.

Plain bf16 and f16 weights are multiplied directly (passes/kernels/gpu/dense/), parameters or not.

The schedule (mxc-choose-gpu-schedule) determines whether operands are loaded straight from memory
or through a ring of stages in shared memory (passes/kernels/gpu/ring/kernel.py), and how much a
wave computes.

before:
    util.global private @w = .. : tensor<96x2x16xi8>
    %y = linalg.generic {mxc.schedule = {..}} ins(%x, %w, %p, %s) outs(%zero) { scaling_extf, .. }
after:
    util.global private @w {mxc.layout = "panel16x16"} = .. : tensor<3072xi8>
    stream.executable private @mxc_mxfp4_mxfp4_1x16x96x64_panels { .. amdgpu.scaled_mfma .. }
    %y = flow.dispatch @mxc_mxfp4_mxfp4_1x16x96x64_panels(%x, %p, %w, %s) {mxc.contraction = {..}}

Where groups choose an expert as dialects/expert_groups.py sorts them, workgroups of a group without
pairs end at once.

The number of rows, and of groups that choose their experts, may be dynamic: it is then the workload
of the dispatch and a scalar of the kernel. With several schedules the kernel is a switch on the
rows, from which mxc-split-kernels makes a kernel for each case.

Leaves alone: contractions without a schedule, which are those with other dynamic sizes; blocks
whose size is not a power of two from 16 on, or with f32 scales not a multiple of 32; elements with
f32 scales that are neither 8-bit floats nor integers; K that is not a multiple of 32; sides rounded
to f16 beside others; accumulators other than zero; operands whose dimensions are in another order;
gated weights of 2 GiB or more per expert; plain f32 weights, and f16 weights beside other
activations.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.contraction import OperandFormat
from mxc.dialects.expert_groups import unclamped
from mxc.dialects.locations import place_of
from mxc.dialects.reasons import Reason
from mxc.dialects.samples import Sample, Sizes, read_samples, write_estimates
from mxc.dialects.split_sums import SplitSums
from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls, take_over
from mxc.passes.kernels.epilogues import Epilogue
from mxc.passes.kernels.gpu.by_rows import ByRows
from mxc.passes.kernels.gpu.calls import GpuContractionCall, match
from mxc.passes.kernels.gpu.contraction import GpuContraction
from mxc.passes.kernels.gpu.conversions import BlockConversion
from mxc.passes.kernels.gpu.cost import cost, workgroups
from mxc.passes.kernels.gpu.counters import Counters
from mxc.passes.kernels.gpu.dense.stream import DenseStream
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.packed_weights import PackedWeights
from mxc.passes.kernels.gpu.problem_of_call import problem_of
from mxc.passes.kernels.gpu.results import Results
from mxc.passes.kernels.gpu.ring.decoded_kernel import DecodedRing
from mxc.passes.kernels.gpu.ring.dense_kernel import DenseRing
from mxc.passes.kernels.gpu.ring.float_kernel import FloatRing
from mxc.passes.kernels.gpu.ring.kernel import Ring
from mxc.passes.kernels.gpu.ring.split import split_side
from mxc.passes.kernels.gpu.ring.summed_kernel import SummedRing
from mxc.passes.kernels.gpu.schedule import GpuSchedule, Schedules, read_schedules, text_of
from mxc.passes.kernels.gpu.stream import StreamKernel
from mxc.passes.kernels.rotary_writes import entry_and_pages, pool_after, results_of
from mxc.passes.rewriting.rebuild import linalg_operations, sweep
from mxc.passes.rewriting.worklist import replace_op
from mxc.targets.amd import known_gpu
from mxc.targets.gpu import Gpu
from mxc.targets.matrix_unit import MatrixUnit
from mxc.targets.target import Kind

#: Advice for a schedule that does not fit.
_CURE = "leave the schedule to mxc-choose-gpu-schedule, or give another one"


@dataclass(frozen=True)
class LowerToGpuKernels(Pass):
    """Lower contractions to kernels of the matrix instructions of `target`."""

    name = "mxc-lower-to-gpu-kernels"
    target: str = "gfx950"

    def run(self, module: ir.Operation) -> None:
        """Lower every contraction that has a schedule. PassError for a target without kernels."""
        gpu = known_gpu(self.target)
        unit = gpu.matrix
        chosen = [
            (op, schedules)
            for op in linalg_operations(module)
            if (schedules := read_schedules(op, unit)) is not None
        ]
        packed = PackedWeights(module, [_call(op, unit) for op, _ in chosen], unit)
        kernels = _Kernels(module, gpu, packed)
        for op, schedules in chosen:
            # Matched again, because an earlier kernel may have replaced its operands.
            kernels.lower(_call(op, unit), schedules)
        kernels.counters.chain()
        kernels.packed.relay()
        sweep(module)


def _call(op: ir.Operation, unit: MatrixUnit) -> GpuContractionCall:
    """Match a contraction that has a schedule. Raises PassError where no kernel computes it."""
    call = match(op, unit)
    if isinstance(call, Reason):
        raise PassError(f"no kernel computes it: {call.text}; {_CURE}", place_of(op.location))
    return call


class _Kernels:
    def __init__(self, module: ir.Operation, gpu: Gpu, packed: PackedWeights) -> None:
        self.packed = packed
        self._calls, self._gpu, self._samples = Calls(module), gpu, read_samples(module)
        self._epilogues: dict[str, int] = {}
        self.counters = Counters()

    def lower(self, call: GpuContractionCall, chosen: Schedules) -> None:
        """Replace the contraction by a dispatch. PassError for a schedule that does not fit."""
        chosen = chosen if call.of.m is None else chosen.only(call.of.m)
        unit = chosen.schedules[0].instruction.unit
        results = Results.of(call, unit)
        after, blocks, rotary = results.after, results.blocks, results.rotary
        last = results.last(call.op)
        with ir.InsertionPoint(last), call.op.location:
            call = self.packed.read_by(call)
        out = None if blocks is None else BlockConversion.of(blocks, unit.converts)
        try:
            kernels = [self._kernel(call, each, results, out) for each in chosen.schedules]
            kernel = ByRows(kernels, chosen.bounds)
        except ValueError as error:
            raise PassError(f"{error}; {_CURE}", place_of(call.op.location)) from error
        name = self._name(call, after) + (f"_as_{out.name}" if out is not None else "")
        name += f"_as_{after.stores}" if blocks is None and after.stores != "f32" else ""
        name += f"_to_{rotary.heads_name}" if rotary is not None else ""
        with ir.InsertionPoint(last), call.op.location:
            ids = [] if call.ids is None else [call.ids]
            beside = [value for _, value in after.operands]
            # Ids were clamped for readers that are no kernels; kernels read them from before that.
            ids, beside = ([unclamped(v) or v for v in each] for each in (ids, beside))
            given = [*call.lhs.tensors, *ids, *call.rhs, *beside]
            scalars, tables = call.scalars(), len(given)
            updated: list[int] = []
            if results.write is not None:
                given += results.write.beside
                scalars = [*entry_and_pages(results.write), *scalars]
                updated.append(pool_after(tables))
            if kernel.counts:
                updated.insert(0, len(given))
                given.append(self.counters.of(last.block))
            made = self._calls.dispatch(
                name, kernel, given, scalars, kernel.threads, kernel.cases, updated
            )
            found = list(made.results)
            if kernel.counts:
                split = SplitSums(len(kernel.kernels[0].results), len(given) - 1)
                split.write(made)
                found = [each for at, each in enumerate(found) if at not in split.results]
            kind: Kind = "scaled matrix" if call.decoded is None else "matrix"
            clocks, count = self._estimate(call, chosen, results)
            of = dataclasses.replace(call.of, clocks=clocks, workgroups=count, plan=text_of(chosen))
            sampled = [self._at(sample, call, chosen, results) for sample in self._samples]
            if call.scalars() and sampled:
                write_estimates(made, sampled)
            if rotary is None:
                take_over(made, of, call.op, after, blocks, kind=kind, results=found)
                return
            dataclasses.replace(of, out=OperandFormat(after.stores), kind=kind).write(made)
            replace_op(last, results_of(made, rotary, tables, found))

    def _at(
        self, sample: Sample, call: GpuContractionCall, chosen: Schedules, results: Results
    ) -> tuple[int, int]:
        """`_estimate` for the numbers of rows and groups in a sample of sizes; zeros where the
        sample does not have them."""
        known = iter([Sizes(sample).number(scalar) for scalar in call.scalars()])
        batch, m = (
            next(known, None) if size is None else size for size in (call.of.batch, call.of.m)
        )
        of = dataclasses.replace(call.of, batch=batch, m=m)
        chosen = chosen if m is None else chosen.only(m)
        return self._estimate(dataclasses.replace(call, of=of), chosen, results)

    def _estimate(
        self, call: GpuContractionCall, chosen: Schedules, results: Results
    ) -> tuple[int, int]:
        """Clocks by the time model, and number of workgroups; (0, 0) if sizes are dynamic."""
        if call.of.m is None or call.of.batch is None:
            return 0, 0
        (schedule,) = chosen.schedules
        problem = problem_of(call, results, self._gpu.matrix)
        clocks = math.ceil(cost(problem, schedule, self._gpu))
        return clocks, workgroups(problem, schedule)

    def _kernel(
        self,
        call: GpuContractionCall,
        schedule: GpuSchedule,
        results: Results,
        out: BlockConversion | None,
    ) -> GpuContraction:
        return _kind(call, schedule)(
            split_side(call.left, schedule.splits),
            split_side(call.right, schedule.splits),
            groups=call.of.batch,
            rows=call.of.m,
            columns=call.of.n,
            experts=call.of.experts,
            schedule=schedule,
            share=call.lhs.share,
            after=results.after,
            out=out,
            rotary=results.rotary,
            chosen=call.ids is not None,
            unused=_has_unused(call),
            decoded=call.decoded,
        )

    def _name(self, call: GpuContractionCall, after: Epilogue) -> str:
        source, left = call.lhs.source, call.left
        name = f"mxc_{source.name if isinstance(left, FloatBlocks) else left.format.name}"
        if isinstance(call.right, FloatBlocks):
            name += f"_{call.right.memory}"
        else:
            name += f"_{call.right.format.name}" + ("_in_f16" if call.decoded == "f16" else "")
        name += f"_{call.of.symbol}"
        name += f"_share_{call.lhs.share}" if call.lhs.share > 1 else ""
        name += "_panels" if call.right.panels else ""
        name += "_sorted" if _has_unused(call) else ""
        if not after.stages:
            return name
        number = self._epilogues.setdefault(after.signature, len(self._epilogues))
        return f"{name}_then_{number}"


def _has_unused(call: GpuContractionCall) -> bool:
    """Whether the ids of a call are those of groups of rows sorted by expert, some of which may be
    unused."""
    return call.ids is not None and unclamped(call.ids) is not None


def _kind(call: GpuContractionCall, schedule: GpuSchedule) -> type[GpuContraction]:
    """The class of kernel that computes a call by a schedule. ValueError where there is none."""
    if schedule.transport == "stream":
        return DenseStream if call.is_dense else StreamKernel
    if schedule.transport == "decoded":
        if not call.decodes:
            raise ValueError("the kernel decodes nothing, so no schedule has the transport decoded")
        return DecodedRing
    if call.decodes and not schedule.instruction.unit.converts:
        raise ValueError("without conversions the transport of a ring is decoded")
    if call.sums_blocks:
        return SummedRing
    return FloatRing if call.decodes else DenseRing if call.is_dense else Ring
