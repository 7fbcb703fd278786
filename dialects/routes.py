"""The router of experts, with a softmax over the chosen experts: a named operation.

logits[t, e] = sum over k of x[t, k] * weight[e, k] + bias[e]
experts[t]   = indices of the J largest logits of row t, in descending order; values v[t, j]
shares[t, j] = exp(v[t, j]) / sum over i of exp(v[t, i])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects import named_operations
from mxc.dialects.generic import i32, shape_of

#: The name of the operation; most bytes of weights that a kernel reads for each row.
ROUTE, MOST_BYTES = "route", 1 << 18


@dataclass(frozen=True)
class RouteCall:
    """A call of `route`, with its operands."""

    op: ir.Operation
    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None


def route(
    x: ir.Value,
    weight: ir.Value,
    bias: ir.Value | None,
    choices: int,
    reference: Callable[..., Sequence[ir.Value]],
) -> tuple[ir.Value, ir.Value]:
    """Shares f32 [T, J] and experts i32 [T, J] of x [T, N], for weight [E, N] and bias [E]."""
    shape = [shape_of(x)[0], choices]
    kinds = [ir.RankedTensorType.get(shape, kind) for kind in (ir.F32Type.get(), i32())]
    operands = [x, weight, *([] if bias is None else [bias])]
    shares, experts = named_operations.call(
        ROUTE,
        operands,
        kinds,
        reference,
        options={},
        sizes=[(0, 0), (0, 0)] if shape[0] < 0 else [],
    )
    return shares, experts


def route_calls(module: ir.Operation) -> Iterator[RouteCall]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
    for found in named_operations.calls(module, ROUTE):
        yield route_call(found.op)


def route_call(op: ir.Operation) -> RouteCall:
    """Return the operands of `op`, which must be a call of `route`."""
    x, weight, *bias = op.operands
    return RouteCall(op, x, weight, bias[0] if bias else None)
