"""Recurrences over the rows of several sequences, whose states lie in a pool: named operations.

A call has T rows, of S runs: consecutive tokens of one sequence (`attention.Runs`). A pool
[M, L, ..] has M slots, one a sequence, of the states of L layers. The rows of a run are gone over
in their order; the state of its sequence is read before the first and written past the last:

    state = states[places[s], layer], or zeros where no position comes before the run
    for row in run s:  result[row], state = step(row, state)
    states[places[s], layer] = state

The other slots and layers stay. So the bits of a row depend on what its sequence had before it,
and not on how that was cut into runs.

    delta_rule          S' = decay S + k (beta (v - k (decay S)));  result = q S'
    short_convolution   result = sum over t < W of w[t] x[row - W + 1 + t];  the state is the last
                        W - 1 rows of x, the latest one last
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects import named_operations, recurrence_reference
from mxc.dialects.sizes import shape_of

#: The operations' names.
DELTA_RULE, SHORT_CONVOLUTION = "delta_rule", "short_convolution"


@dataclass(frozen=True)
class States:
    """A pool f32 [M, L, ..], the `layer`, an index; `runs` i32 [S, 3]: first row, number of rows
    and positions before them; `places` i32 [S]: the slot of each run, no two the same."""

    pool: ir.Value
    layer: ir.Value
    runs: ir.Value
    places: ir.Value

    @property
    def operands(self) -> list[ir.Value]:
        """As they follow the other operands of a call."""
        return [self.pool, self.layer, self.runs, self.places]


@dataclass(frozen=True)
class DeltaRuleCall:
    """A call of the operation, see `delta_rule`."""

    op: ir.Operation
    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    decay: ir.Value
    beta: ir.Value
    states: States


@dataclass(frozen=True)
class ConvolutionCall:
    """A call of the operation, see `short_convolution`."""

    op: ir.Operation
    x: ir.Value
    weights: ir.Value
    states: States


def delta_rule(
    queries: ir.Value,
    keys: ir.Value,
    values: ir.Value,
    decay: ir.Value,
    beta: ir.Value,
    states: States,
) -> tuple[ir.Value, ir.Value]:
    """What the rows read, f32 [T, H, V], and the pool [M, L, H, K, V] after them.

    queries, keys f32 [T, G, K]; head h of values reads those of head h / (H / G). values f32
    [T, H, V]; beta f32 [T, H]; decay f32 [T, H], what is left of the state, or [T, H, K], what is
    left of each of its rows.
    """
    kinds = [ir.RankedTensorType.get(shape_of(values), ir.F32Type.get()), states.pool.type]
    operands = [queries, keys, values, decay, beta, *states.operands]
    return _call(DELTA_RULE, operands, kinds, recurrence_reference.delta_rule, rows=2)


def short_convolution(x: ir.Value, weights: ir.Value, states: States) -> tuple[ir.Value, ir.Value]:
    """f32 [T, C] of x f32 [T, C] by `weights` [C, W], and the pool [M, L, W - 1, C] after it."""
    operands = [x, weights, *states.operands]
    kinds = [x.type, states.pool.type]
    return _call(SHORT_CONVOLUTION, operands, kinds, recurrence_reference.convolution, rows=0)


def delta_rule_calls(module: ir.Operation) -> Iterator[DeltaRuleCall]:
    """The calls of the operation in a program; they may be replaced meanwhile."""
    for found in named_operations.calls(module, DELTA_RULE):
        queries, keys, values, decay, beta, *states = found.op.operands
        yield DeltaRuleCall(found.op, queries, keys, values, decay, beta, States(*states))


def convolution_calls(module: ir.Operation) -> Iterator[ConvolutionCall]:
    """The calls of the operation in a program; they may be replaced meanwhile."""
    for found in named_operations.calls(module, SHORT_CONVOLUTION):
        x, weights, *states = found.op.operands
        yield ConvolutionCall(found.op, x, weights, States(*states))


def _call(
    name: str,
    operands: Sequence[ir.Value],
    kinds: Sequence[ir.RankedTensorType],
    reference: Callable[..., Sequence[ir.Value]],
    rows: int,
) -> tuple[ir.Value, ir.Value]:
    """Call an operation of rows and a pool; `rows`: the operand that has T of them."""
    pool = len(operands) - 4
    dynamic = zip(kinds, (rows, pool), strict=True)
    sizes = [(number, 0) for kind, number in dynamic if kind.is_dynamic_dim(0)]
    result, states = named_operations.call(
        name, operands, kinds, reference, options={}, sizes=sizes
    )
    return result, states
