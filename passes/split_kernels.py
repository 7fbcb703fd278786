"""mxc-split-kernels: a kernel whose body is a switch on its workload becomes one for each case.

Such a kernel would take the registers and the shared memory of its largest case, and has one size
of workgroups. Here each case becomes a function and an export of its own; the host program goes
through their conditions when it records the dispatch, which costs it some comparisons.

Runs after IREE's phase executable-sources: before it, what a dispatch brings is still moved about
in the signature of the one function; after it, functions become code.

before:
    hal.executable.export public @k ordinal(0) layout(..) count(%d, %rows) -> (..) { .. }
    func.func @k() attributes {mxc.cases = {bounds = array<i64: 48>, ..}} {
      scf.index_switch %case case 0 { A } default { B }
    }
after:
    hal.executable.export public @k ordinal(0) layout(..)
        condition(%d, %rows) -> i1 { %rows < 48 } fallback(@k_from_48) count(..) { .. }
    hal.executable.export public @k_from_48 ordinal(1) layout(..) count(..) { .. }
    func.func @k() { A }
    func.func @k_from_48() { B }

Leaves alone: functions without cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.dispatches import walk
from mxc.dialects.kernel_names import case_name
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import CASES, TRANSLATION
from mxc.passes.kernels.vectors import i1, index

_EXPORT = "hal.executable.export"
_SWITCH = "scf.index_switch"
_SYMBOL = "sym_name"


@dataclass(frozen=True)
class SplitKernels(Pass):
    """Give each case of a kernel a function of its own."""

    name = "mxc-split-kernels"

    def run(self, module: ir.Operation) -> None:
        """Split every kernel that has cases."""
        variants = [op for op in walk(module) if op.name == "hal.executable.variant"]
        for variant in variants:
            inside = list(walk(variant))
            functions = {_symbol(op): op for op in inside if op.name == "func.func"}
            for export in [op for op in inside if op.name == _EXPORT]:
                function = functions.get(_symbol(export))
                if function is not None and CASES in function.attributes:
                    _split(export, function)


def _split(export: ir.Operation, function: ir.Operation) -> None:
    cases = ir.DictAttr(function.attributes[CASES])
    bounds = list(ir.DenseI64ArrayAttr(cases["bounds"]))
    workload = ir.IntegerAttr(cases["workload"]).value
    first = ir.IntegerAttr(export.attributes["ordinal"]).value
    translations = list(ir.ArrayAttr(cases["translations"]))
    del function.attributes[CASES]
    names = [_symbol(export), *(case_name(_symbol(export), bound) for bound in bounds)]
    for number in reversed(range(1, len(names))):
        own = export.clone(ip=ir.InsertionPoint.after(export))
        body = function.clone(ip=ir.InsertionPoint.after(function))
        own.attributes["ordinal"] = ir.IntegerAttr.get(ir.IndexType.get(), first + number)
        own.attributes[_SYMBOL] = body.attributes[_SYMBOL] = ir.StringAttr.get(names[number])
        _become(own, body, number, names, bounds, workload, translations)
    _become(export, function, 0, names, bounds, workload, translations)


def _become(
    export: ir.Operation,
    function: ir.Operation,
    number: int,
    names: list[str],
    bounds: list[int],
    workload: int,
    translations: list[ir.Attribute],
) -> None:
    """Make a copy case `number`, which the next one stands in for where it is not the last."""
    function.attributes[TRANSLATION] = translations[number]
    _choose(function, number if number < len(bounds) else None)
    if number == len(bounds):
        return
    export.attributes["condition_fallback"] = ir.FlatSymbolRefAttr.get(names[number + 1])
    count, condition = export.regions
    with export.location:
        block = condition.blocks.append(*(value.type for value in count.blocks[0].arguments))
        with ir.InsertionPoint(block):
            # The device comes first.
            given, bound = block.arguments[1 + workload], index(bounds[number])
            fits = arith.cmpi(arith.CmpIPredicate.ult, given, bound)
            assert fits.type == i1()
            ir.Operation.create("hal.return", operands=[fits])


def _choose(function: ir.Operation, case: int | None) -> None:
    """Put one case of the switch in its place, None: the default."""
    block = function.regions[0].blocks[0]
    (switch,) = (op.operation for op in block.operations if op.operation.name == _SWITCH)
    default, *regions = switch.regions
    chosen = default if case is None else regions[case]
    *body, _ = chosen.blocks[0].operations
    for op in body:
        op.operation.move_before(switch)
    switch.erase()


def _symbol(op: ir.Operation) -> str:
    return str(ir.StringAttr(op.attributes[_SYMBOL]).value)
