"""Roundings that IREE 3.13 computes differently from the framework: refused, never compiled.

To f8E8M0FNU `arith.truncf` cuts off the mantissa and ignores the sign, where JAX and ml_dtypes
round to nearest and make NaN of zero and of negative numbers: tests/sentinels/truncf.mlir.
"""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.dispatches import walk
from mxc.errors import PassError

_SCALE = "f8E8M0FNU"


def require_exact_roundings(module: ir.Module) -> None:
    """Raise PassError, with the place, at the first rounding to a scale."""
    for op in walk(module.operation):
        if op.name == "arith.truncf" and str(op.results[0].type) == _SCALE:
            raise PassError(
                f"converts {op.operands[0].type} to {_SCALE}, which IREE 3.13 rounds otherwise "
                "than the framework; compute scales as bytes (uint8), and name them by a bitcast",
                op.location,
            )
