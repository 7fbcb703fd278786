"""mxc-lower-to-x86-kernels: contractions with weights become kernels of our own, on packed panels.

A contraction whose weights are a parameter, MX or bf16, becomes one dispatch of a hand-scheduled
body (passes/kernels/gemm.py). The parameter takes the layout that the body reads, which the
compiler writes when it packs: nothing is reordered when the program loads or runs. Where the
experts' weights were gathered, the body reads them in place, by the ids.

before:
    util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<8x96x2x16xi8>
    %b = flow.tensor.bitcast (util.global.load @w) : .. -> tensor<8x96x2x32xf4E2M1FN>
    %g = iree_linalg_ext.gather ins(%b, %ids) ..
    %y = linalg.generic ins(%x, %g, %s) outs(%zero) { scaling_extf, mulf, addf }
after:
    stream.executable private @mxc_mxfp4_bf16_4x1x96x64_of_8 { .. }
    util.global private @w {mxc.layout = "panel16x4"} = .. : tensor<8x6x2x4x64xi8>
    %y = flow.dispatch @mxc_mxfp4_bf16_..(%pairs, %ids, %w, %scales) {mxc.contraction = {..}}

Leaves alone: weights that are no parameter, or that something else reads too, or in another
layout; dynamic rows; elements other than e2m1 and bf16; blocks other than 32 and K that is no
multiple of 32; accumulators other than zero; a batch without gathered experts, and one gathered
expert, which MLIR makes a slice; activations that are neither f32 nor bf16, and bf16 ones where
the target has no vdpbf16ps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.kernel_calls import KernelCall
from mxc.dialects.parameters import LAYOUT
from mxc.passes.base import Pass
from mxc.passes.kernels.activations import prepare
from mxc.passes.kernels.executables import dispatch, executable
from mxc.passes.kernels.gemm import Buffers, Shape, buffer_types, gemm
from mxc.passes.kernels.matches import Call, match
from mxc.passes.kernels.weights import BLOCK, LANES, Weights, weights_for
from mxc.passes.rebuild import linalg_operations, replace, sweep


@dataclass(frozen=True)
class LowerToX86Kernels(Pass):
    """Give contractions with parameters to kernels of AVX-512; `bf16`: vdpbf16ps is there.

    `panels` is how many panels of 16 columns a workgroup computes.
    """

    name = "mxc-lower-to-x86-kernels"
    bf16: bool = True
    panels: int = 4

    def run(self, module: ir.Operation) -> None:
        """Lower every contraction whose weights no other operation reads."""
        calls = [
            call
            for op in linalg_operations(module)
            if (call := match(op)) is not None and (self.bf16 or not call.pairs)
        ]
        named = _parameters(module, {name for call in calls for name in call.parameters})
        calls = [call for call in calls if named.issuperset(call.parameters)]
        calls = _with_weights_of_their_own(module, calls)
        built: set[str] = set()
        for call in calls:
            self._lower(module, call, built)
        for name, (kind, layout) in _relaid(calls).items():
            _relay(module, name, kind, layout)
        sweep(module)

    def _lower(self, module: ir.Operation, call: Call, built: set[str]) -> None:
        weights = weights_for(call.format, pairs=call.pairs)
        shape = Shape(
            groups=call.groups,
            rows=call.rows,
            columns=call.columns,
            blocks=call.depth // BLOCK,
            gathered=call.ids is not None,
            panels_a_workgroup=self.panels,
        )
        experts = call.experts if call.ids is not None else None
        types = buffer_types(shape, weights, experts)
        name = f"mxc_{call.format}_{call.activation}_{call.groups}x{call.rows}x{call.columns}"
        name += f"x{call.depth}" + (f"_of_{experts}" if experts is not None else "")
        if name not in built:
            built.add(name)
            with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
                _build(name, shape, weights, types)
        with ir.InsertionPoint(call.op), call.op.location:
            operands = [prepare(call)]
            operands += [] if call.ids is None else [call.ids]
            operands += [
                _load(parameter, kind)
                for parameter, kind in zip(call.parameters, _tensors(types, call), strict=True)
            ]
            result = dispatch(name, operands, _tensor(types[-1]))
            _described(call).write(result.owner)
            replace(call.op, call.reshape_result(result))


def _build(name: str, shape: Shape, weights: Weights, types: list[ir.Type]) -> None:
    def body(*memrefs: ir.Value) -> None:
        rest = list(memrefs)
        activations, result = rest.pop(0), rest.pop()
        ids = rest.pop(0) if shape.gathered else None
        elements = rest.pop(0)
        scales = rest.pop(0) if rest else None
        gemm(shape, weights, Buffers(activations, ids, elements, scales, result))

    executable(name, types, shape.workgroups, body)


def _tensor(memref: ir.Type) -> ir.Type:
    kind = ir.MemRefType(memref)
    return ir.RankedTensorType.get(kind.shape, kind.element_type)


def _tensors(types: list[ir.Type], call: Call) -> list[ir.Type]:
    first = 1 if call.ids is None else 2
    return [_tensor(kind) for kind in types[first:-1]]


def _load(parameter: str, kind: ir.Type) -> ir.Value:
    return ir.Operation.create(
        "util.global.load",
        results=[kind],
        attributes={
            "global": ir.FlatSymbolRefAttr.get(parameter),
            "is_immutable": ir.UnitAttr.get(),
        },
    ).result


def _described(call: Call) -> KernelCall:
    return KernelCall(
        batch=call.groups,
        m=call.rows,
        n=call.columns,
        k=call.depth,
        experts=call.experts,
        lhs=call.activation,
        rhs=call.format,
        out="f32",
    )


def _parameters(module: ir.Operation, names: set[str]) -> set[str]:
    """Those globals of `names` that are parameters for good: only they are packed by us."""
    return {
        name
        for op in (view.operation for view in module.regions[0].blocks[0].operations)
        if op.name == "util.global"
        and (name := ir.StringAttr(op.attributes["sym_name"]).value) in names
        and "is_mutable" not in op.attributes
        and "initial_value" in op.attributes
        and str(op.attributes["initial_value"]).startswith("#flow.parameter.named")
    }


def _with_weights_of_their_own(module: ir.Operation, calls: list[Call]) -> list[Call]:
    """The calls whose parameters no other operation reads, and all in the same layout."""
    lowered = {op for call in calls for op in (call.op, *call.chain)}
    shared: set[str] = set()
    layouts: dict[str, str] = {}
    for call in calls:
        for parameter, layout in zip(call.parameters, call.layouts, strict=True):
            if layouts.setdefault(parameter, layout) != layout:
                shared.add(parameter)
    for load in _loads(module):
        name = ir.FlatSymbolRefAttr(load.attributes["global"]).value
        if name in layouts and not _read_only_by(load, lowered):
            shared.add(name)
    kept = [call for call in calls if shared.isdisjoint(call.parameters)]
    # A call that stays makes its weights shared for those that would have gone.
    return kept if len(kept) == len(calls) else _with_weights_of_their_own(module, kept)


def _read_only_by(load: ir.Operation, lowered: set[ir.Operation]) -> bool:
    pending = [load]
    while pending:
        for use in pending.pop().results[0].uses:
            user = use.owner.operation
            if user not in lowered:
                return False
            if user.name != "linalg.generic":
                pending.append(user)
            elif use.operand_number == 0:
                return False  # as the activations of a contraction
    return True


def _loads(module: ir.Operation) -> Iterable[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "util.global.load":
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return found


def _relaid(calls: list[Call]) -> dict[str, tuple[ir.Type, str]]:
    """Parameter -> (its new type, its layout)."""
    relaid: dict[str, tuple[ir.Type, str]] = {}
    for call in calls:
        lead = [] if call.ids is None else [call.experts]
        panels = -(-call.columns // LANES)
        weights = weights_for(call.format, pairs=call.pairs)
        kinds = weights.memrefs([*lead, panels, call.depth // BLOCK])
        for parameter, kind, layout in zip(call.parameters, kinds, call.layouts, strict=True):
            relaid[parameter] = (_tensor(kind), layout)
    return relaid


def _relay(module: ir.Operation, name: str, kind: ir.Type, layout: str) -> None:
    for view in module.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "util.global" and ir.StringAttr(op.attributes["sym_name"]).value == name:
            source = str(op.attributes["initial_value"]).rpartition(" : ")[0]
            op.attributes["type"] = ir.TypeAttr.get(kind)
            op.attributes["initial_value"] = ir.Attribute.parse(f"{source} : {kind}")
            op.attributes[LAYOUT] = ir.StringAttr.get(layout)
