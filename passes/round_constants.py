"""mxc-round-constants: round f64 constants to f32 to nearest.

Frontends write a number of a program as a constant of f64 that is truncated to f32 where it is used
(torch: `x * 0.377`). Before IREE compiles, it makes every f64 constant an f32, and rounds it toward
zero: the number is one bit too small half of the time. This pass does it before, to nearest.

before:
    %c = arith.constant 0.377 : f64
    linalg.generic ins(%x) { arith.mulf %x, (arith.truncf %c : f64 to f32) }
after:
    linalg.generic ins(%x) { arith.mulf %x, (arith.constant 0.377 : f32) }

Leaves alone: constants that something else than a truncation to f32 reads, and tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.generic import constant
from mxc.passes.base import Pass
from mxc.passes.kernels.values import producer
from mxc.passes.rewriting.rebuild import operations_named
from mxc.passes.rewriting.worklist import replace_op


@dataclass(frozen=True)
class RoundConstants(Pass):
    """Round f64 constants to f32 to nearest, where they are truncated to f32."""

    name = "mxc-round-constants"

    def run(self, module: ir.Operation) -> None:
        """Replace every truncation of a constant."""
        for op in operations_named(module, "arith.truncf"):
            number = _number(op.operands[0])
            if number is not None and isinstance(op.results[0].type, ir.F32Type):
                with ir.InsertionPoint(op), op.location:
                    replace_op(op, [constant(number, op.results[0].type)])


def _number(value: ir.Value) -> float | None:
    """The number of an f64 constant; None for other values."""
    op = producer(value)
    if op is None or op.name != "arith.constant" or not isinstance(value.type, ir.F64Type):
        return None
    return float(ir.FloatAttr(op.attributes["value"]).value)
