"""Weights by name: a global that is a named parameter, loaded where it is used.

    util.global private @"norm" = #flow.parameter.named<"model"::"norm"> : tensor<64xbf16>
    %w = util.global.load immutable @"norm" : tensor<64xbf16>

The bytes are in weights.irpa under the same name, and not in the program.
"""

from collections.abc import Sequence

from iree.compiler import ir

from mxc.artifact.manifest import SCOPE
from mxc.dialects.devices import GLOBAL_AFFINITY
from mxc.dialects.named_operations import symbol_of

#: On a `util.global`: the layout that the bytes of its parameter must have, a StringAttr.
LAYOUT = "mxc.layout"
#: On a `util.global` with a layout: the number of matrices of its parameter and the rows of each, a
#: DenseI64ArrayAttr.
MATRICES = "mxc.matrices"

#: On an argument or a result of a function: its name for callers, and the type of the elements that
#: its bytes hold. StringAttrs.
NAME, ELEMENT = "mxc.name", "mxc.element"
#: On an argument: the number of the result that takes its memory; IREE's name.
IN_PLACE = "iree.abi.output"


def take_layouts(module: ir.Module) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
    """Remove the attributes LAYOUT and MATRICES; returns their values by the name of the
    parameter."""
    layouts: dict[str, str] = {}
    matrices: dict[str, tuple[int, int]] = {}
    for view in module.body.operations:
        op = view.operation
        if op.name == "util.global" and LAYOUT in op.attributes:
            name = symbol_of(op)
            layouts[name] = ir.StringAttr(op.attributes[LAYOUT]).value
            count, rows = ir.DenseI64ArrayAttr(op.attributes[MATRICES])
            matrices[name] = count, rows
            del op.attributes[LAYOUT], op.attributes[MATRICES]
    return layouts, matrices


def initial_value(name: str, kind: ir.Type) -> ir.Attribute:
    """The initial value of a `util.global` that is the parameter `name`."""
    return ir.Attribute.parse(f'#flow.parameter.named<"{SCOPE}"::"{name}"> : {kind}')


class Parameters:
    """The named parameters of one module, each declared once, at the top of the module."""

    def __init__(self, module: ir.Module, affinity: ir.Attribute | None = None) -> None:
        """Declare parameters in `module`. `affinity`: their device, where there are several."""
        self._body = module.body
        self._affinity = affinity
        self._declared: dict[str, ir.Type] = {}

    def load(
        self,
        name: str,
        shape: Sequence[int],
        element: ir.Type,
    ) -> ir.Value:
        """Load the parameter `name` at the insertion point; the first load declares it.

        Raises ValueError where `name` was declared with another type: one name is one tensor.
        """
        kind = ir.RankedTensorType.get(list(shape), element)
        if name not in self._declared:
            self._declare(name, kind)
        elif self._declared[name] != kind:
            raise ValueError(f"parameter {name} is {self._declared[name]}, asked as {kind}")
        load = ir.Operation.create(
            "util.global.load",
            results=[kind],
            attributes={
                "global": ir.FlatSymbolRefAttr.get(name),
                "is_immutable": ir.UnitAttr.get(),
            },
        )
        return load.result

    def _declare(self, name: str, kind: ir.Type) -> None:
        value = initial_value(name, kind)
        with ir.InsertionPoint.at_block_begin(self._body):
            ir.Operation.create(
                "util.global",
                attributes={
                    "sym_name": ir.StringAttr.get(name),
                    "sym_visibility": ir.StringAttr.get("private"),
                    "type": ir.TypeAttr.get(kind),
                    "initial_value": value,
                    **({} if self._affinity is None else {GLOBAL_AFFINITY: self._affinity}),
                },
            )
        self._declared[name] = kind
