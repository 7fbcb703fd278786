"""mxc-check-contractions: check the invariant of *normalize*.

No tensor that a contraction reads may hold a dequantized weight or a broadcast scale: such a
program is refused, with the place of the contraction. Contractions of elements with scales, and
those whose weights are a parameter, get a description as an attribute
(passes/kernels/described.py). A contraction that kernels cannot take is not refused, since its
bytes are packed and its result is right; it gets the reason, for the report.

before:
    linalg.generic ins(%x, %w, %s) outs(%acc : tensor<MxNxbf16>) { scaling_extf, .., addf : bf16 }
    linalg.generic ins(%x, %w, %s) outs(%acc : tensor<MxNxf32>) { scaling_extf, .., addf : f32 }
after:
    linalg.generic {..} ins(%x, %w, %s) outs(%acc : tensor<MxNxbf16>)
      attrs = {mxc.contraction = {reason = "it sums in bf16; kernels sum in f32"}}
    linalg.generic {..} ins(%x, %w, %s) outs(%acc : tensor<MxNxf32>)
      attrs = {mxc.contraction = {batch = 1, m = 16, n = 96, k = 64, lhs = {..}, rhs = {..}, ..}}

Leaves alone: sums of plain numbers, and dequantized tensors that no reduction reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import is_element, is_scale_of
from mxc.dialects.indexing import trace
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.locations import place_of
from mxc.dialects.reasons import Reason
from mxc.errors import PassError
from mxc.passes.base import Pass
from mxc.passes.fuse_dequantize import is_decoding
from mxc.passes.kernels.described import described
from mxc.passes.rewriting.rebuild import has_reduction, linalg_operations, sums_floats


@dataclass(frozen=True)
class CheckContractions(Pass):
    """Refuse materialised weights and scales; describe each contraction in an attribute."""

    name = "mxc-check-contractions"

    def run(self, module: ir.Operation) -> None:
        """Raise PassError at the first read of a dequantized weight or a broadcast scale."""
        for op in linalg_operations(module):
            if is_decoding(op):
                _refuse_readers(op)
            contracts = _contracts_elements(op)
            if contracts:
                _refuse_broadcast(op)
            found = described(op, plain=not contracts)
            if isinstance(found, Reason) and (contracts or ".conv_" in op.name):
                # IREE rewrites convolutions with filters of one element to products.
                write_reason(op, found)


def _contracts_elements(op: ir.Operation) -> bool:
    """Whether a linalg operation reduces over elements that it reads with their scales."""
    if not has_reduction(op):
        return False
    types = [v.type.element_type for v in op.operands if isinstance(v.type, ir.RankedTensorType)]
    return any(is_scale_of(s, e) for e in types if is_element(e) for s in types)


def _refuse_readers(decoding: ir.Operation) -> None:
    """Raise PassError if a sum reads a dequantized tensor, directly or through moves."""
    element = decoding.results[0].type.element_type
    pending, seen = [decoding.results[0]], []
    while pending:
        value = pending.pop()
        for use in value.uses:
            user = use.owner.operation
            if user in seen:
                continue
            seen.append(user)
            if user.name.startswith("linalg."):
                if sums_floats(user):
                    said = place_of(decoding.location)
                    raise PassError(
                        f"{user.name} reads a weight dequantized to {value.type}"
                        f"{said and f' at {said}'}, which would be written to memory; wanted the "
                        f"packed {decoding.operands[0].type} read here, as products of two tensors "
                        "do. Let only reshapes, transposes and broadcasts stand between the two "
                        "operations, and write a convolution as a product",
                        place_of(user.location),
                    )
                continue
            pending += [
                result
                for result in user.results
                if isinstance(result.type, ir.RankedTensorType)
                and result.type.element_type == element
            ]


def _refuse_broadcast(op: ir.Operation) -> None:
    """Raise PassError if `op` reads E8M0 scales from a copy that repeats them."""
    for value in list(op.operands)[:-1]:
        if not isinstance(value.type, ir.RankedTensorType):
            continue
        if not isinstance(value.type.element_type, ir.Float8E8M0FNUType):
            continue
        zero = [ir.AffineConstantExpr.get(0)] * value.type.rank
        source, _ = trace(value, zero, [])
        if _bytes(source) < _bytes(value):
            raise PassError(
                f"reads {value.type}, a copy of the scales {source.type} for each element; run "
                "mxc-fold-scale-broadcast before this",
                place_of(op.location),
            )


def _bytes(value: ir.Value) -> int:
    size = 1
    for dimension in value.type.shape:
        size *= dimension if dimension >= 0 else 1
    return size
