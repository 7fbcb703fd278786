"""mxc-round-to-bf16: keep the roundings to bf16 that the code generator for CPUs leaves out.

On CPUs IREE computes bf16 in f32 (its pass iree-convert-bf16-arith-to-f32), and rounds only what it
stores: a number that one operation rounds to bf16 and another reads again is not rounded, and
neither is the result of an operation on bf16 that is read again. This pass writes such roundings as
integer operations on the bits, to nearest, ties to even, and elementwise arithmetic on bf16 as
arithmetic on f32 with a rounding.

before:
    %q = arith.truncf %x : f32 to bf16
    %p = arith.mulf %q, %q : bf16
    %y = arith.extf %p : bf16 to f32
after:
    %b = arith.bitcast %x : f32 to i32
    ..                                             an addition, shifts, a comparison for NaN
    %q = arith.bitcast %h : i16 to bf16
    %w = arith.extf %q : bf16 to f32
    %m = arith.mulf %w, %w : f32
    ..
    %p = arith.bitcast %i : i16 to bf16
    %y = arith.extf %p : bf16 to f32

Leaves alone: kernels of mxc, which round by themselves; what is rounded to be stored; operations
that round nothing (negf, maximumf, select); arithmetic on bf16 in the body of a sum, such as a
product of bf16, which stays in f32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dequantize import is_elementwise
from mxc.dialects.dispatches import walk_outside_kernels
from mxc.dialects.sizes import RESHAPES
from mxc.passes.base import Pass
from mxc.passes.kernels.narrow_floats import narrowed, widened
from mxc.passes.rewriting.worklist import Worklist, erase

_GENERIC = "linalg.generic"
_DIALECTS = ("arith.", "math.")
#: Operations on bf16 whose exact result is a bf16 number, and conversions.
_EXACT = frozenset((
    "arith.bitcast", "arith.constant", "arith.extf", "arith.maximumf", "arith.maxnumf",
    "arith.minimumf", "arith.minnumf", "arith.negf", "arith.scaling_extf", "arith.select",
    "arith.truncf", "math.absf", "math.copysign",
))  # fmt: skip


@dataclass(frozen=True)
class RoundToBf16(Pass):
    """Round to bf16 by integer operations where the rounded number is read again."""

    name = "mxc-round-to-bf16"

    def run(self, module: ir.Operation) -> None:
        """Rewrite roundings, and elementwise arithmetic, in the bodies of linalg operations."""
        for op in Worklist(filter(_computes, walk_outside_kernels(module))):
            _compute_in_f32(op)
        for op in Worklist(filter(_rounds, walk_outside_kernels(module))):
            with ir.InsertionPoint(op), op.location:
                found = narrowed(op.operands[0], op.results[0].type)
            op.results[0].replace_all_uses_with(found)
            erase(op)


def _is_in_generic(op: ir.Operation) -> bool:
    parent = op.parent
    return parent is not None and parent.name == _GENERIC and len(op.results) == 1


def _computes(op: ir.Operation) -> bool:
    """Whether `op` is elementwise arithmetic whose result is rounded to bf16."""
    if not op.name.startswith(_DIALECTS) or op.name in _EXACT or not _is_in_generic(op):
        return False
    return isinstance(op.results[0].type, ir.BF16Type) and is_elementwise(op.parent.operation)


def _compute_in_f32(op: ir.Operation) -> None:
    """Replace an operation on bf16 by the operation on f32 and a rounding."""
    with ir.InsertionPoint(op), op.location:
        computed = ir.Operation.create(
            op.name,
            results=[ir.F32Type.get()],
            operands=[widened(value) for value in op.operands],
            attributes={name: op.attributes[name] for name in list(op.attributes.keys())},
        )
        found = narrowed(computed.results[0], op.results[0].type)
    op.results[0].replace_all_uses_with(found)
    erase(op)


def _rounds(op: ir.Operation) -> bool:
    """Whether `op` rounds an f32 to bf16, and something computes with the result, in the same body
    or in a linalg operation that reads it."""
    if op.name != "arith.truncf" or not _is_in_generic(op):
        return False
    if not isinstance(op.results[0].type, ir.BF16Type):
        return False
    if not isinstance(op.operands[0].type, ir.F32Type):
        return False
    users = [use.owner.operation for use in op.results[0].uses]
    stored = all(user.name == "linalg.yield" for user in users)
    return not stored or any(
        user.name.startswith("linalg.")
        for result in op.parent.operation.results
        for user in _readers(result)
    )


def _readers(value: ir.Value) -> Iterator[ir.Operation]:
    """Yield the operations that read a tensor, or a reshape of it."""
    for use in value.uses:
        user = use.owner.operation
        if user.name in RESHAPES:
            yield from _readers(user.results[0])
        else:
            yield user
