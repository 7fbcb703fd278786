"""mxc-split-kernels: split a kernel that is a switch on its workload into one kernel per case.

Such a kernel would use the registers and the shared memory of its largest case, and has one
workgroup size. After this pass each case is a function with its own export. The host program
evaluates the conditions of the cases when it records the dispatch, at the cost of some comparisons.
The first value of the workload selects the case. Because of the barrier IREE keeps all cases where
this value is a constant.

Runs after IREE's phase executable-sources. Earlier, IREE still changes the signature of the one
function; later, functions become code.

before:
    hal.executable.export public @k ordinal(0) layout(..) count(%d, %rows, ..) -> (..) { .. }
    func.func @k() attributes {mxc.cases = {bounds = array<i64: 48>, ..}} {
      %barrier = util.optimization_barrier %case : index
      scf.index_switch %barrier case 0 { A } default { B }
    }
after:
    hal.executable.export public @k ordinal(0) layout(..)
        condition(%d, %rows, ..) -> i1 { %rows < 48 } fallback(@k_from_48) count(..) { .. }
    hal.executable.export public @k_from_48 ordinal(1) layout(..) count(..) { .. }
    func.func @k() { A }
    func.func @k_from_48() { B }

Leaves alone: functions without cases.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.artifact.kernel_names import case_name
from mxc.dialects.named_operations import symbol_of
from mxc.passes.base import Pass
from mxc.passes.kernels.executables import BARRIER, CASES, EXPORT, TRANSLATION, inside
from mxc.passes.kernels.vectors import below
from mxc.passes.rewriting.worklist import erase

_SWITCH = "scf.index_switch"
_SYMBOL = "sym_name"


@dataclass(frozen=True)
class SplitKernels(Pass):
    """Make a function of each case of a kernel."""

    name = "mxc-split-kernels"

    def run(self, module: ir.Operation) -> None:
        """Split every kernel that has cases."""
        for variant in inside([module], "hal.executable", "hal.executable.variant"):
            found = inside([variant], "builtin.module", "func.func")
            functions = {symbol_of(op): op for op in found}
            for export in inside([variant], EXPORT):
                function = functions.get(symbol_of(export))
                if function is not None and CASES in function.attributes:
                    _split(export, function)


@dataclass(frozen=True)
class _Case:
    """One case of a kernel: its symbol, its translation info, and its `place` in the switch, None
    for the default.

    It runs where the first value of the workload is below `bound`; otherwise the case with the
    symbol `next` is tried. The last case has no bound.
    """

    symbol: str
    translation: ir.Attribute
    place: int | None
    bound: int | None = None
    next: str = ""


def _split(export: ir.Operation, function: ir.Operation) -> None:
    given = ir.DictAttr(function.attributes[CASES])
    first = ir.IntegerAttr(export.attributes["ordinal"]).value
    del function.attributes[CASES]
    cases = _cases(symbol_of(export), given)
    for number, case in reversed(list(enumerate(cases[1:], first + 1))):
        own = export.clone(ip=ir.InsertionPoint.after(export))
        body = function.clone(ip=ir.InsertionPoint.after(function))
        own.attributes["ordinal"] = ir.IntegerAttr.get(ir.IndexType.get(), number)
        own.attributes[_SYMBOL] = body.attributes[_SYMBOL] = ir.StringAttr.get(case.symbol)
        _become(own, body, case)
    _become(export, function, cases[0])


def _cases(symbol: str, given: ir.DictAttr) -> list[_Case]:
    bounds = list(ir.DenseI64ArrayAttr(given["bounds"]))
    names = [symbol, *(case_name(symbol, bound) for bound in bounds)]
    *others, last = ir.ArrayAttr(given["translations"])
    found = [
        _Case(names[place], translation, place, bounds[place], names[place + 1])
        for place, translation in enumerate(others)
    ]
    return [*found, _Case(names[-1], last, None)]


def _become(export: ir.Operation, function: ir.Operation, case: _Case) -> None:
    """Turn a copy of the kernel, its export and its function, into one case."""
    function.attributes[TRANSLATION] = case.translation
    _choose(function, case.place)
    if case.bound is None:
        return
    export.attributes["condition_fallback"] = ir.FlatSymbolRefAttr.get(case.next)
    count, condition = export.regions
    with export.location:
        block = condition.blocks.append(*(value.type for value in count.blocks[0].arguments))
        with ir.InsertionPoint(block):
            # The device is the first argument, before the workload.
            fits = below(block.arguments[1], case.bound)
            ir.Operation.create("hal.return", operands=[fits])


def _choose(function: ir.Operation, place: int | None) -> None:
    """Replace the switch in a function by its case `place`; None selects the default."""
    block = function.regions[0].blocks[0]
    (switch,) = (op.operation for op in block.operations if op.operation.name == _SWITCH)
    default, *regions = switch.regions
    chosen = default if place is None else regions[place]
    *body, _ = chosen.blocks[0].operations
    for op in body:
        op.operation.move_before(switch)
    barrier = switch.operands[0].owner
    assert barrier.name == BARRIER, barrier
    erase(switch)
    erase(barrier)
