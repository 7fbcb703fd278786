"""Find tensors that are computed only from codes: elements and scales of at most 8 bits, constants.

The decoded values of a program are computed from codes; activations that it quantizes are not.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.decoded_formats import is_code
from mxc.dialects.scalar_trees import inputs_of
from mxc.dialects.tensor_constants import constant_of


class Codes:
    """The tensors under `root` that are computed from codes or from constants."""

    def __init__(self, root: ir.Operation) -> None:
        """Find the tensors in one walk."""
        #: The operations that compute these tensors, producers first.
        self.operations: list[ir.Operation] = []
        self._values: set[ir.Value] = set()
        root.walk(self._visit, ir.WalkOrder.PRE_ORDER)

    def __contains__(self, value: ir.Value) -> bool:
        """Whether a tensor is computed from codes."""
        return value in self._values

    def enter(self, value: ir.Value) -> bool:
        """Whether a tensor is computed from codes: the argument `enter` of `tree_of`."""
        return value in self._values

    def _visit(self, op: ir.Operation) -> ir.WalkResult:
        op = op.operation
        if len(op.results) == 1 and isinstance(op.results[0].type, ir.RankedTensorType):
            inputs = inputs_of(op)
            if inputs is not None and all(self._is_made_of_codes(value) for value in inputs):
                self.operations.append(op)
                self._values.add(op.results[0])
        return ir.WalkResult.ADVANCE

    def _is_made_of_codes(self, value: ir.Value) -> bool:
        if value in self._values or not isinstance(value.type, ir.RankedTensorType):
            return True
        return is_code(value.type.element_type) or constant_of(value) is not None
