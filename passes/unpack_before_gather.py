"""mxc-unpack-before-gather: gather elements and scales, not the bytes that hold them.

A bitcast reinterprets bytes as elements and moves nothing, but a bitcast between a gather and its
reader keeps the two in different dispatches, so that the chosen bytes would be copied. This pass
moves the bitcast to the whole tensor, where the program receives it.

before:
    %g = iree_linalg_ext.gather dimension_map = [0] ins(%bytes, %ids) -> tensor<TxNxKOx16xi8>
    flow.tensor.bitcast %g : tensor<TxNxKOx16xi8> -> tensor<TxNxKOx32xf4E2M1FN>
after:
    %w = flow.tensor.bitcast %bytes : tensor<ExNxKOx16xi8> -> tensor<ExNxKOx32xf4E2M1FN>
    iree_linalg_ext.gather dimension_map = [0] ins(%w, %ids) -> tensor<TxNxKOx32xf4E2M1FN>

Leaves alone: gathers along other dimensions than the first, by index tensors of rank other than 1,
and bitcasts that also change the shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.boundary import unpack
from mxc.dialects.dequantize import is_packed
from mxc.passes.base import Pass
from mxc.passes.gather_packed import BITCAST, chooses_rows, gather_rows
from mxc.passes.rewriting.rebuild import operations_named, replace, sweep


@dataclass(frozen=True)
class UnpackBeforeGather(Pass):
    """Move the bitcast of gathered bytes before the gather."""

    name = "mxc-unpack-before-gather"

    def run(self, module: ir.Operation) -> None:
        """Rewrite every bitcast of gathered bytes to elements or scales."""
        for op in operations_named(module, BITCAST):
            source = op.operands[0]
            element = op.results[0].type.element_type
            if isinstance(source, ir.BlockArgument) or not is_packed(element):
                continue
            gather = source.owner.operation
            if chooses_rows(gather) and _only_renames(op):
                with ir.InsertionPoint(op), op.location:
                    replace(
                        op, gather_rows(unpack(gather.operands[0], element), gather.operands[1])
                    )
        sweep(module)


def _only_renames(op: ir.Operation) -> bool:
    """Whether a bitcast from i8 keeps all dimensions but the last, which is not gathered."""
    source = ir.RankedTensorType(op.operands[0].type)
    result = ir.RankedTensorType(op.results[0].type)
    return (
        source.element_type == ir.IntegerType.get_signless(8)
        and source.rank > 1
        and list(source.shape)[:-1] == list(result.shape)[:-1]
    )
