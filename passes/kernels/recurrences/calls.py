"""Lower calls of recurrences to dispatches of kernels, which update the pool in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from iree.compiler import ir

from mxc.dialects.generic import shape_of
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.reasons import Reason
from mxc.dialects.recurrence import (
    ConvolutionCall,
    DeltaRuleCall,
    convolution_calls,
    delta_rule_calls,
)
from mxc.dialects.sizes import dynamic_sizes, size_of, value_of
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.recurrences.shape import Convolution, DeltaRule, Recurrence
from mxc.passes.kernels.reshapes import reshape

Call = DeltaRuleCall | ConvolutionCall


def recurrence_lowering(
    rule: type[DeltaRule], convolution: type[Convolution], lanes: int
) -> Lowering[Call, Recurrence]:
    """The lowering of calls of both recurrences, to dispatches of the kernels `rule` and
    `convolution`. `lanes`: see Recurrence."""

    def calls(module: ir.Operation) -> Iterator[Call]:
        yield from delta_rule_calls(module)
        yield from convolution_calls(module)

    def choose(call: Call) -> Recurrence | Reason:
        kernel: Recurrence = (
            rule.of(call, lanes) if isinstance(call, DeltaRuleCall) else convolution.of(call, lanes)
        )
        return kernel.checked()

    return Lowering(calls, choose, _dispatch)


def _dispatch(calls: Calls, call: Call, kernel: Recurrence) -> Sequence[ir.Value]:
    # The last operands of the call are the pool, layer, runs and places; the layer is a scalar.
    op, states = call.op, call.states
    *given, pool, layer, runs, places = op.operands
    scalars = [layer, *(value_of(size_of(each, 0)) for each in (given[0], runs, pool))]
    tensors, updated = [*given, pool, runs, places], len(given)
    made = calls.dispatch(kernel.name, kernel, tensors, scalars, kernel.threads, updated=[updated])
    layers = shape_of(states.pool)[1]
    PoolRead(operand=updated, part=1, of=layers, runs=updated + 1).write(made)
    return [
        reshape(result, shape_of(wanted), dynamic_sizes(wanted))
        for result, wanted in zip(made.results, op.results, strict=True)
    ]
