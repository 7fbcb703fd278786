"""RMS norm of rows, and the weighted sum of the experts of rows: named operations.

    normed[t, n] = x[t, n] / sqrt(sum over k of x[t, k] ** 2 / N + epsilon) * (offset + weight[n])
    summed[t, n] = sum over j of shares[t, j] * rows[slots[t, j], n]

A kernel of a norm may also compute the sum before it, and the rounding after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects import named_operations
from mxc.dialects.generic import shape_of

#: The names of the operations, and the names of the options of a norm.
ROW_NORM, SUM_EXPERTS = "row_norm", "sum_experts"
EPSILON, OFFSET = "epsilon", "offset"

#: Builds the body of an operation of one result.
Reference = Callable[..., ir.Value]


@dataclass(frozen=True)
class RowNormCall:
    """A call of `row_norm`."""

    op: ir.Operation
    x: ir.Value
    weight: ir.Value
    epsilon: float
    offset: float


def row_norm(
    x: ir.Value, weight: ir.Value, reference: Reference, *, epsilon: float, offset: float
) -> ir.Value:
    """The RMS norm of x f32 [T, N] with `weight` [N], floats: f32 [T, N]."""
    numbers = {EPSILON: epsilon, OFFSET: offset}
    options = {name: ir.FloatAttr.get_f32(number) for name, number in numbers.items()}
    return _call(ROW_NORM, [x, weight], reference, x.type, options, rows=0)


def row_norm_calls(module: ir.Operation) -> Iterator[RowNormCall]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
    for found in named_operations.calls(module, ROW_NORM):
        epsilon, offset = (ir.FloatAttr(found.options[name]).value for name in (EPSILON, OFFSET))
        x, weight = found.op.operands
        yield RowNormCall(found.op, x, weight, epsilon, offset)


def sum_experts(
    rows: ir.Value, shares: ir.Value, slots: ir.Value, reference: Reference
) -> ir.Value:
    """The sum f32 [T, N] over J choices of shares f32 [T, J] times rows of f32 [S, N], whose
    numbers are `slots` i32 [T, J]."""
    kind = ir.RankedTensorType.get([shape_of(shares)[0], shape_of(rows)[1]], ir.F32Type.get())
    return _call(SUM_EXPERTS, [rows, shares, slots], reference, kind, {}, rows=1)


def is_sum_of_experts(value: ir.Value) -> bool:
    """Whether a value is the result of `sum_experts`."""
    return _is_result(value, SUM_EXPERTS)


def is_row_norm(value: ir.Value) -> bool:
    """Whether a value is the result of `row_norm`."""
    return _is_result(value, ROW_NORM)


def _is_result(value: ir.Value, name: str) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and named_operations.is_call(owner.operation, name)


def _call(
    name: str,
    operands: Sequence[ir.Value],
    reference: Reference,
    kind: ir.RankedTensorType,
    options: dict[str, ir.Attribute],
    rows: int,
) -> ir.Value:
    """Call an operation with one result. `rows`: the number of the operand that has its rows."""
    sizes = [(rows, 0)] if kind.is_dynamic_dim(0) else []
    (result,) = named_operations.call(
        name, operands, [kind], lambda *given: [reference(*given)], options=options, sizes=sizes
    )
    return result
