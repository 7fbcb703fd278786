"""The parameters of contractions: which may be packed, and the layout that a kernel gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iree.compiler import ir

from mxc.dialects.contraction import read_contraction
from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.named_operations import symbol_of
from mxc.dialects.parameters import LAYOUT, MATRICES
from mxc.dialects.reasons import Reason
from mxc.formats.panels import are_one_order

_LOAD = "util.global.load"


def parameters_of(module: ir.Operation, wanted: Mapping[str, set[tuple[int, int]]]) -> set[str]:
    """The names of those globals in `wanted` that mxc may pack: parameters that are never written,
    and for whose readers the panels lie in one order (`are_one_order`).

    `wanted`: name -> what its readers take it for, each as (number of matrices, rows of each).
    """
    return {
        name
        for op in (view.operation for view in module.regions[0].blocks[0].operations)
        if op.name == "util.global"
        and (name := symbol_of(op)) in wanted
        and "is_mutable" not in op.attributes
        and "initial_value" in op.attributes
        and str(op.attributes["initial_value"]).startswith("#flow.parameter.named")
        and are_one_order(wanted[name])
    }


def not_packed(name: str, wanted: set[tuple[int, int]]) -> Reason:
    """The reason why `parameters_of` does not have the weights `name`, whose readers take them for
    the matrices `wanted`."""
    if are_one_order(wanted):
        return Reason(f"its weights @{name} are no parameter that is read only")
    shapes = " and as ".join(f"{count} matrices of {rows} rows" for count, rows in sorted(wanted))
    return Reason(f"products read its weights @{name} as {shapes}")


def relay(
    module: ir.Operation, name: str, kind: ir.Type, layout: str, matrices: tuple[int, int]
) -> None:
    """Set the type and the layout of the parameter `name` to those that a kernel reads. `matrices`:
    see MATRICES."""
    for view in module.regions[0].blocks[0].operations:
        op = view.operation
        if op.name == "util.global" and symbol_of(op) == name:
            source = str(op.attributes["initial_value"]).rpartition(" : ")[0]
            op.attributes["type"] = ir.TypeAttr.get(kind)
            op.attributes["initial_value"] = ir.Attribute.parse(f"{source} : {kind}")
            op.attributes[LAYOUT] = ir.StringAttr.get(layout)
            op.attributes[MATRICES] = ir.DenseI64ArrayAttr.get(list(matrices))


def load(name: str, kind: ir.Type) -> ir.Value:
    """Build a load of the parameter `name`, of the type `kind`, at the insertion point."""
    return ir.Operation.create(
        _LOAD,
        results=[kind],
        attributes={
            "global": ir.FlatSymbolRefAttr.get(name),
            "is_immutable": ir.UnitAttr.get(),
        },
    ).result


def loads(module: ir.Operation) -> list[tuple[str, ir.Operation]]:
    """(name of the global, operation) for each load of a global outside of kernels."""
    return [
        (ir.FlatSymbolRefAttr(op.attributes["global"]).value, op)
        for op in walk_outside_kernels(module)
        if op.name == _LOAD
    ]


def read_only_by(
    load: ir.Operation,
    lowered: set[ir.Operation],
    spared: Callable[[ir.OpOperand], bool] | None = None,
) -> bool:
    """Whether the parameter that `load` loads is read only by operations in `lowered`, and by
    contractions among them only as weights or their scales.

    `spared`: selects direct uses of the loaded parameter that do not count.
    """
    pending = [load]
    while pending:
        op = pending.pop()
        for use in op.results[0].uses:
            user = use.owner.operation
            if spared is not None and op is load and spared(use):
                continue
            if user not in lowered:
                return False
            if user.name != "linalg.generic":
                pending.append(user)
            elif use.operand_number not in _weights(user):
                return False  # as activations, or as their scales
    return True


def _weights(op: ir.Operation) -> tuple[int, int]:
    """The numbers of the operands of a contraction that are its weights and their scales; the first
    twice if the weights have no scales."""
    of = read_contraction(op)
    return 1, len(op.operands) - 2 if of is not None and of.rhs.scale else 1
