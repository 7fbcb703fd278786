"""Recurrences over the rows of several sequences, whose states lie in a pool: named operations.

A call has T rows in S runs; a run is consecutive tokens of one sequence (`attention.Runs`). A pool
[M, L, ..] has M slots, one per sequence, with the states of L layers. The rows of a run are
processed in order. The state of its sequence is read before the first row and written after the
last:
    state = states[places[s], layer], or zeros where no position comes before the run
    for row in run s:  result[row], state = step(row, state)
    states[places[s], layer] = state

Other slots and layers keep their contents. The bits of a row thus depend on the earlier tokens of
its sequence, and not on how the sequence was split into runs.

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

#: The names of the operations.
DELTA_RULE, SHORT_CONVOLUTION = "delta_rule", "short_convolution"


@dataclass(frozen=True)
class States:
    """A pool f32 [M, L, ..] and the `layer`, an index. `runs` i32 [S, 3]: first row, number of
    rows, and number of earlier positions. `places` i32 [S]: the slot of each run; slots are
    distinct."""

    pool: ir.Value
    layer: ir.Value
    runs: ir.Value
    places: ir.Value

    @property
    def operands(self) -> list[ir.Value]:
        """The operands that follow the other operands of a call."""
        return [self.pool, self.layer, self.runs, self.places]


@dataclass(frozen=True)
class DeltaRuleCall:
    """A call of the operation `delta_rule`."""

    op: ir.Operation
    queries: ir.Value
    keys: ir.Value
    values: ir.Value
    decay: ir.Value
    beta: ir.Value
    states: States


@dataclass(frozen=True)
class ConvolutionCall:
    """A call of the operation `short_convolution`."""

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
    """The result of each row, f32 [T, H, V], and the pool [M, L, H, K, V] after the rows.

    queries, keys f32 [T, G, K]; head h of the values uses head h / (H / G) of these. values f32 [T,
    H, V]; beta f32 [T, H]; decay: factors of the state, f32 [T, H], or [T, H, K] for each row of
    it.
    """
    kinds = [ir.RankedTensorType.get(shape_of(values), ir.F32Type.get()), states.pool.type]
    operands = [queries, keys, values, decay, beta, *states.operands]
    return _call(DELTA_RULE, operands, kinds, recurrence_reference.delta_rule, rows=2)


def short_convolution(x: ir.Value, weights: ir.Value, states: States) -> tuple[ir.Value, ir.Value]:
    """The convolution of x f32 [T, C] with `weights` [C, W], f32 [T, C], and the pool
    [M, L, W - 1, C] after the rows."""
    operands = [x, weights, *states.operands]
    kinds = [x.type, states.pool.type]
    return _call(SHORT_CONVOLUTION, operands, kinds, recurrence_reference.convolution, rows=0)


def delta_rule_calls(module: ir.Operation) -> Iterator[DeltaRuleCall]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
    for found in named_operations.calls(module, DELTA_RULE):
        queries, keys, values, decay, beta, *states = found.op.operands
        yield DeltaRuleCall(found.op, queries, keys, values, decay, beta, States(*states))


def convolution_calls(module: ir.Operation) -> Iterator[ConvolutionCall]:
    """Yield the calls of the operation in a program; the caller may replace each call."""
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
    """Call an operation whose results are rows and a pool. `rows`: the number of an operand with T
    rows."""
    pool = len(operands) - 4
    dynamic = zip(kinds, (rows, pool), strict=True)
    sizes = [(number, 0) for kind, number in dynamic if kind.is_dynamic_dim(0)]
    result, states = named_operations.call(
        name, operands, kinds, reference, options={}, sizes=sizes
    )
    return result, states
