"""mxc-lower-to-cpu-kernels: contractions with weights become kernels of mxc, on packed panels.

A contraction whose weights are a parameter, MX or dense, becomes one dispatch of a loop nest of the
kernel language, on vector registers (passes/kernels/cpu/gemm.py) or on tiles (tiles.py). It follows
a dispatch that puts its activations in the order of the dot products (activations.py), and
quantizes them if the program does; all contractions of the same activations share it. The parameter
gets the layout that the kernel reads, which the compiler writes when it packs: nothing is reordered
when the program loads or runs. Where the weights of experts were gathered, the kernel reads them in
place, by the ids; with many rows of one expert each, it processes them expert by expert
(routes.py). An elementwise epilogue (bias, gate, residual, row weights) is computed on the totals
(epilogues.py). If the result is only quantized to MX blocks, the kernel stores the blocks.

before:
    util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x96x2x16xi8>
    %b = flow.tensor.bitcast (util.global.load @w) : .. -> tensor<8x96x2x32xf4E2M1FN>
    %g = iree_linalg_ext.gather ins(%b, %ids) ..
    %y = linalg.generic ins(%x, %g, %s) outs(%zero) { scaling_extf, mulf, addf }
after:
    stream.executable private @mxc_mxfp4_bf16_4x1x96x64_of_8 { .. }
    util.global private @w {mxc.layout = "panel16x4"} = .. : tensor<8x6x2x4x64xi8>
    %p = flow.dispatch @mxc_prepare_..(%x)
    %y = flow.dispatch @mxc_mxfp4_bf16_..(%p, %ids, %w, %scales) {mxc.contraction = {..}}

The number of rows, and of groups that choose their experts, may be dynamic: it is then the workload
of the dispatch and a scalar of the kernel.

Block-quantized weights that are not a parameter lie in rows, and are read from there
(row_weights.py), which is slower with few rows of activations. Parameters with other readers are
treated the same, if a reader is a product that needs other panels or an operation that is not a
lookup. An embedding is looked up in the panels (panel_lookups.py).

Leaves alone: plain weights that are not a parameter, or that have other readers; blocks that are
neither 16 nor a multiple of 32, and blocks of 16 elements of 6 bits; K that is not a multiple of
16; accumulators other than zero; one gathered expert, which MLIR turns into a slice; pairs of
formats for which the instruction set has no dot product.

Where the program rounds dequantized values to f16, the kernel rounds elements to f16 in registers
too, and multiplies them as f32.

A product has up to eight schedules (passes/kernels/cpu/schedule.py, on tiles kernels/amx.py), of
which it uses the first, or the one that `file` gives it (passes/kernels/given_schedules.py), by its
text or by its number from 0, or from the end if negative. An entry for all products falls back to
the first schedule where a product has fewer. All schedules give the same bits.

    [{"m": 16, "rhs": "mxfp4", "schedule": "tiles of 8 x 32 in 64 columns"}]
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.contractions import is_contraction
from mxc.dialects.kernel_calls import mark_quantizes, write_reason
from mxc.dialects.quantizations import Quantization
from mxc.dialects.reasons import Reason
from mxc.errors import PassError
from mxc.formats.panels import PANEL
from mxc.passes.base import Pass
from mxc.passes.kernels.calls import Calls, KernelExport, blocks_around, take_over
from mxc.passes.kernels.cpu.activations import Prepare, Prepared
from mxc.passes.kernels.cpu.gemm import Gemm
from mxc.passes.kernels.cpu.isa import ISAS, Amx, Isa, Kind
from mxc.passes.kernels.cpu.matches import ContractionMatch, match
from mxc.passes.kernels.cpu.panel_lookups import look_up_in_panels
from mxc.passes.kernels.cpu.quantize.blocks import quantizer
from mxc.passes.kernels.cpu.quantize.rounding import Rounding
from mxc.passes.kernels.cpu.routes import Routes
from mxc.passes.kernels.cpu.row_weights import RowWeights
from mxc.passes.kernels.cpu.rows import GroupedRows
from mxc.passes.kernels.cpu.schedule import Cuts
from mxc.passes.kernels.cpu.shared_weights import in_rows, with_weights_of_their_own
from mxc.passes.kernels.cpu.sorted_rows import SortedRows
from mxc.passes.kernels.cpu.tiles import TileKernel, padded, prepared_for_tiles
from mxc.passes.kernels.cpu.weights import RegisterWeights
from mxc.passes.kernels.epilogues import Epilogue, epilogue
from mxc.passes.kernels.extents import Size, value_of
from mxc.passes.kernels.given_schedules import GivenSchedules
from mxc.passes.kernels.parameters import load, not_packed, parameters_of, relay
from mxc.passes.kernels.quantized import quantized_result
from mxc.passes.kernels.reshapes import as_tensor, scalars_of
from mxc.passes.kernels.sources import BLOCK
from mxc.passes.rewriting.rebuild import linalg_operations, sweep
from mxc.passes.rewriting.worklist import Worklist
from mxc.targets.target import Kind as InstructionKind

#: Characters that cannot be part of a symbol.
_NO_NAME = r"\W+"

#: Kind of product of registers -> kind of instruction that computes it, for the report.
_KINDS: dict[Kind, InstructionKind] = {
    "floats": "multiply-add",
    "pairs": "dot product",
    "quads": "dot product",
}

#: Rows that choose an expert each are sorted by expert from this number of rows on. Fewer rows
#: mostly have different experts.
SORTED_ROWS = 8


@dataclass(frozen=True)
class LowerToCpuKernels(Pass):
    """Lower contractions with parameters to kernels for `isa`, a name in passes/kernels/cpu/isa.

    `file`: schedules of the user, which take precedence over those that the compiler chooses.
    """

    name = "mxc-lower-to-cpu-kernels"
    isa: str = "avx512-bf16"
    file: str = ""

    def run(self, module: ir.Operation) -> None:
        """Lower every contraction that a kernel computes. Raises PassError for an unknown isa."""
        if self.isa not in ISAS:
            raise PassError(f"{self.name}: unknown isa {self.isa!r}; known: {', '.join(ISAS)}")
        isa = ISAS[self.isa]
        calls, shared = with_weights_of_their_own(module, _calls(module, isa))
        given = GivenSchedules(self.file)
        kernels = _Kernels(module, isa, given)
        for op in Worklist(call.op for call in calls):
            # Matched again, because the kernel of an earlier contraction may have replaced
            # operations that the first match refers to.
            again = match(op)
            assert not isinstance(again, Reason)
            kernels.lower(in_rows(again, shared))
        for name, (kind, layout, matrices) in kernels.relaid.items():
            relay(module, name, kind, layout, matrices)
        look_up_in_panels(module, {name: kind for name, (kind, *_) in kernels.relaid.items()})
        given.require_taken()
        sweep(module)


def _calls(module: ir.Operation, isa: Isa) -> list[ContractionMatch]:
    """The contractions that a kernel computes. The reason is recorded on the others."""
    found: list[ContractionMatch] = []
    for op in linalg_operations(module):
        call = match(op)
        fits = call if isinstance(call, Reason) else _kind(isa, call)
        if not isinstance(call, Reason) and not isinstance(fits, Reason):
            found.append(call)
        elif isinstance(fits, Reason) and is_contraction(op):
            write_reason(op, fits)
    wanted: dict[str, set[tuple[int, int]]] = {}
    for call in found:
        for name in call.parameters:
            wanted.setdefault(name, set()).add(call.matrices)
    named = parameters_of(module, wanted)
    kept = []
    for call in found:
        others = [name for name in call.parameters if name not in named]
        if others:
            write_reason(call.op, not_packed(others[0], wanted[others[0]]))
        else:
            kept.append(call)
    return kept


def _kind(isa: Isa, call: ContractionMatch) -> Kind | Reason:
    """The kind of product of a call, or the reason why the instruction set has none.

    It is `quads` of bytes where both sides are integers, `pairs` of bf16 where bf16 holds both
    sides exactly, else `floats` (f32), as far as the instruction set has them.
    """
    source, elements = call.lhs.source, call.elements
    possible: list[Kind] = []
    whole = not source.to and not call.of.rhs.rounded
    if whole and source.is_integer and "quads" in elements.kinds:
        possible.append("quads")
    if whole and source.format not in ("f32", "f16") and "pairs" in elements.kinds:
        possible.append("pairs")
    possible.append("floats")
    found = [kind for kind in possible if kind in isa.kinds and isa.decodes(elements.bits, kind)]
    if found:
        return found[0]
    pair = f"{source.format} and {call.of.rhs.name}"
    return Reason(f"this instruction set has no dot product of {pair}")


class _Kernels:
    """Builds the kernels of a module, each once, and replaces contractions by dispatches of them.

    `relaid`: parameter -> the type, layout and matrices that its kernels read.
    """

    def __init__(self, module: ir.Operation, isa: Isa, given: GivenSchedules) -> None:
        self._given = given
        self.relaid: dict[str, tuple[ir.Type, str, tuple[int, int]]] = {}
        self._calls, self._isa = Calls(module), isa
        self._made: dict[tuple[str, tuple[ir.Value, ...]], ir.Operation] = {}
        self._epilogues: dict[str, int] = {}

    def lower(self, call: ContractionMatch) -> None:
        """Replace the contraction by dispatches."""
        many = call.of.batch is None or call.of.batch >= SORTED_ROWS
        routed = call.ids is not None and call.of.m == 1 and many
        prepared = prepared_for_tiles(self._isa, call, sorted=routed)
        if isinstance(prepared, Reason):
            has_tiles = isinstance(self._isa, Amx)
            self._lower_to_vectors(call, routed, f"no tiles: {prepared.text}" * has_tiles)
        else:
            self._lower_to_tiles(call, prepared, routed)

    def _lower_to_vectors(self, call: ContractionMatch, routed: bool, choice: str) -> None:
        """Lower to vector registers (gemm.py). `routed`: whether rows are sorted by expert.
        `choice`: why the tiles that the CPU has are not used, for the report."""
        kind = _kind(self._isa, call)
        assert not isinstance(kind, Reason)
        source = call.lhs.source
        elements = call.elements if call.parameters else call.elements.in_rows
        blocks = call.of.k // elements.block
        quads = kind == "quads"
        weights = RegisterWeights(elements, kind, call.scales, call.of.rhs.rounded)
        if not call.parameters:
            weights = RowWeights(
                elements, kind, call.scales, call.of.rhs.rounded, rows=call.of.n, blocks=blocks
            )
        scaled = source.scale is not None and not source.to
        # Weights that are rounded with their scales may be large until the scales of activations
        # make the product small. So those scales are multiplied into the activations, as f32.
        folded = scaled and bool(call.of.rhs.rounded)
        prepared = Prepared(
            kind,
            # Activations in quads have scales in any case, which include the unit of the integers.
            scaled=(scaled and not folded) or quads,
            order=elements.order(kind),
            unit=source.unit if quads else 1.0,
            offset=elements.offset(self._isa) if quads else 0,
            weight_unit=weights.unit,
            folded=folded,
        )
        rows, after = _rows(call, routed), epilogue(call.op, PANEL)
        made, out = _blocks_of(call, after)
        halves = 2 if after.gated else 1
        cuts = Cuts(
            self._isa,
            weights,
            prepared,
            rows,
            call.of.k,
            columns=call.of.n // halves,
            halves=halves,
            quantized=out is not None,
        )
        cut, schedule = self._given.choose(call.of, cuts.plans)
        made, out = (made, out) if cut.blocks else (None, None)
        gemm = Gemm(weights, prepared, rows, call.of.n, blocks, after, out, isa=self._isa, plan=cut)
        with ir.InsertionPoint(call.op), call.op.location:
            scalars, prepare = _scalars(call), Prepare(source, prepared, rows.sources, blocks)
            given = rows.given(scalars)
            operands = [self._prepare(call, prepare, given)]
            if call.ids is not None:
                operands.append(self._route(call, given) if routed else call.ids)
        name = self._name(call, routed, after, out)
        self._dispatch(call, gemm, scalars, operands, name, made, choice, schedule, str(cut))

    def _lower_to_tiles(self, call: ContractionMatch, prepared: Prepared, routed: bool) -> None:
        """Lower to tile registers (tiles.py). `routed`: whether rows are sorted by expert."""
        steps = call.of.k // prepared.block
        rows, after = _rows(call, routed), epilogue(call.op, PANEL)
        made, out = _blocks_of(call, after)
        weights = RegisterWeights(call.elements, "pairs", call.scales)
        with ir.InsertionPoint(call.op), call.op.location:
            scalars = _scalars(call)
            given = rows.given(scalars)
            prepare = Prepare(call.lhs.source, prepared, rows.sources, steps)
            operands = [self._prepare(call, prepare, given)]
            if routed:
                sort = SortedRows(padded(prepared), rows, steps)
                operands.append(self._route(call, given))
                operands[0] = self._once(sort.name, sort, operands, given.groups).results[0]
            elif call.ids is not None:
                operands.append(call.ids)
        kernel = TileKernel(weights, padded(prepared), rows, call.of.n, steps, after, out)
        plan, schedule = self._given.choose(call.of, kernel.plans)
        kernel = dataclasses.replace(kernel, plan=plan)
        name = f"{self._name(call, routed, after, out)}_tiles"
        self._dispatch(call, kernel, scalars, operands, name, made, kernel.choice, schedule)

    def _dispatch(
        self,
        call: ContractionMatch,
        kernel: Gemm | TileKernel,
        scalars: list[ir.Value],
        operands: list[ir.Value],
        name: str,
        made: Quantization | None = None,
        choice: str = "",
        schedule: str = "",
        plan: str = "",
    ) -> None:
        """Replace the contraction and its epilogue by a dispatch of `kernel`.

        `operands`: the first operands of the dispatch; weights and the operands of the epilogue are
        added. `made`: the quantization that the kernel computes too, if any. `choice`, `schedule`,
        `plan`: for the report; see Contraction.
        """
        after = kernel.epilogue
        with ir.InsertionPoint(after.last(call.op)), call.op.location:
            tensors = kernel.buffers[len(operands) :]
            for parameter, layout, buffer in zip(
                call.parameters, kernel.weights.layouts, tensors, strict=False
            ):
                kind_ = as_tensor(buffer.memref)
                self.relaid[parameter] = (kind_, layout, call.matrices)
                operands.append(load(parameter, kind_))
            operands += [] if call.parameters else call.tensors
            operands += [*(value for _, value in after.operands)]
            found = self._calls.dispatch(name, kernel, operands, scalars)
            kind = _KINDS[kernel.weights.kind] if isinstance(kernel, Gemm) else "matrix"
            of = dataclasses.replace(call.of, schedule=schedule, plan=plan)
            take_over(found, of, call.op, after, made, kind=kind, choice=choice)

    def _prepare(self, call: ContractionMatch, kernel: Prepare, rows: GroupedRows) -> ir.Value:
        """Build the dispatch that brings activations to the order of the kernel. Return them."""
        tensors = call.lhs.tensors
        read = call.lhs.source
        own = not read.is_float and read.scales == "own" and not read.to
        found = quantizer(*tensors) if own else None
        if found is not None and kernel.prepared.block == call.lhs.source.block == BLOCK:
            kernel, tensors = dataclasses.replace(kernel, quantizer=found[0]), found[1]
        made = self._once(kernel.name, kernel, tensors, rows.sources)
        if not kernel.source.is_float:
            mark_quantizes(made, kernel.source.format)
        return made.results[0]

    def _once(
        self, name: str, kernel: KernelExport, tensors: Sequence[ir.Value], size: Size
    ) -> ir.Operation:
        """Build the dispatch of a kernel with at most one scalar, `size`. An earlier dispatch on
        the same operands is reused, unless it is in a block that is not visible here."""
        key = (name, tuple(tensors))
        if key not in self._made or self._made[key].block not in blocks_around():
            scalars = [value_of(size)] if kernel.scalars else []
            self._made[key] = self._calls.dispatch(name, kernel, tensors, scalars)
        return self._made[key]

    def _route(self, call: ContractionMatch, rows: GroupedRows) -> ir.Value:
        """Build the dispatch that sorts rows by expert. Return its table."""
        kernel = Routes(call.of.batch, call.of.experts)
        return self._once(kernel.name, kernel, [call.ids], rows.groups).results[0]

    def _name(
        self, call: ContractionMatch, routed: bool, after: Epilogue, out: Rounding | None
    ) -> str:
        name = _name(call, routed)
        if after.stages:
            number = self._epilogues.setdefault(after.signature, len(self._epilogues))
            name = f"{name}_then_{number}"
        return name if out is None else f"{name}_as_{out.name}"


def _rows(call: ContractionMatch, routed: bool) -> GroupedRows:
    of = call.of
    return GroupedRows(of.batch, of.m, of.experts, routed, call.lhs.share, own=of.is_own)


def _blocks_of(
    call: ContractionMatch, after: Epilogue
) -> tuple[Quantization | None, Rounding | None]:
    """The quantization that alone reads the result of a call and its epilogue, and its rounding;
    (None, None) without one."""
    last = after.last(call.op)
    made = quantized_result(last.results[0]) if after.stores == "f32" else None
    return made, None if made is None else Rounding(made.format, made.recipe)


def _scalars(call: ContractionMatch) -> list[ir.Value]:
    """Build the dynamic numbers of groups and of rows of a call at the insertion point."""
    return scalars_of(call.op.results[0], call.of.batch, call.of.m)


def _name(call: ContractionMatch, routed: bool) -> str:
    weights = re.sub(_NO_NAME, "_", call.of.rhs.name)
    name = f"mxc_{weights}_{call.lhs.source.name}_{call.of.symbol}"
    name += f"_to_{call.of.rhs.rounded}" if call.of.rhs.rounded else ""
    name += "" if call.parameters else "_in_rows"
    name += "_sorted" if routed else ""
    return name + (f"_share_{call.lhs.share}" if call.lhs.share > 1 else "")
