"""Lower calls of recurrences to dispatches of kernels, which update the pool in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

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
from mxc.dialects.sizes import size_of, value_of
from mxc.passes.kernels.calls import Calls
from mxc.passes.kernels.executables import Threads, dispatch_all, executable
from mxc.passes.kernels.extents import Size, dynamic_of
from mxc.passes.kernels.lowerings import Lowering
from mxc.passes.kernels.recurrences.shape import ConvolutionShape, Extents, RuleShape
from mxc.passes.kernels.reshapes import as_buffer

Shape = RuleShape | ConvolutionShape


Call = DeltaRuleCall | ConvolutionCall


class Kernel(Protocol):
    """A kernel that computes a recurrence."""

    @property
    def threads(self) -> Threads | None:
        """Threads of a workgroup, on a GPU."""

    def workgroups(self, of: Extents) -> list[Size]:
        """Number of workgroups of a call."""

    def body(self, layer: ir.Value, *buffers: ir.Value) -> None:
        """Build the body at the insertion point. `buffers`: memrefs of the shape's buffers."""


@dataclass(frozen=True)
class Recurrence:
    """A kernel and the shape that it was chosen for."""

    shape: Shape
    kernel: Kernel


def recurrence_lowering(choose: Callable[[Shape], Kernel | Reason]) -> Lowering[Call, Recurrence]:
    """The lowering of recurrences to dispatches of the kernel that `choose` returns."""

    def calls(module: ir.Operation) -> Iterator[Call]:
        yield from delta_rule_calls(module)
        yield from convolution_calls(module)

    def kernel(call: Call) -> Recurrence | Reason:
        shape: Shape | Reason = (
            RuleShape.of(call) if isinstance(call, DeltaRuleCall) else ConvolutionShape.of(call)
        )
        if isinstance(shape, Reason):
            return shape
        chosen = choose(shape)
        return chosen if isinstance(chosen, Reason) else Recurrence(shape, chosen)

    return Lowering(calls, kernel, _dispatch)


def _build(shape: Shape, kernel: Kernel) -> None:
    count = len(shape.buffers(Extents()))

    def body(*given: ir.Value) -> None:
        kernel.body(given[count], *given[:count])

    executable(
        shape.name,
        [buffer.memref for buffer in shape.buffers(Extents())],
        lambda scalars: kernel.workgroups(_extents(scalars)),
        body,
        scalars=4,
        threads=kernel.threads,
        sizes=lambda scalars: dynamic_of(shape.buffers(_extents(scalars))),
    )


def _extents(scalars: Sequence[ir.Value]) -> Extents:
    """The extents of a call from its scalars, of which the layer is the first."""
    _, rows, runs, slots = scalars
    return Extents(rows, runs, slots)


def _dispatch(calls: Calls, call: Call, kernel: Recurrence) -> Sequence[ir.Value]:
    # The last operands are the pool, layer, runs and places.
    op, shape, states = call.op, kernel.shape, call.states
    calls.once(shape.name, lambda: _build(shape, kernel.kernel))
    rows = value_of(size_of(op.operands[0], 0))
    runs, slots = (value_of(size_of(each, 0)) for each in (states.runs, states.pool))
    scalars = [states.layer, rows, runs, slots]
    *buffers, _ = shape.buffers(_extents(scalars))
    *given, pool, _, listed, places = op.operands
    tensors = [
        # Weights become a flat buffer, one column after the other.
        value if len(shape_of(value)) == len(buffer.sizes) else as_buffer(value, buffer)
        for value, buffer in zip([*given, pool, listed, places], buffers, strict=True)
    ]
    sizes = [
        size_of(value, axis)
        for value in [*tensors, *op.results]
        for axis, size in enumerate(shape_of(value))
        if size < 0
    ]
    made = dispatch_all(
        shape.name,
        [*tensors, *scalars],
        [result.type for result in op.results],
        workload=scalars,
        sizes=[value_of(size) for size in sizes],
        tied=(-1, len(given)),
    )
    layers = shape_of(states.pool)[1]
    PoolRead(operand=len(given), part=1, of=layers, runs=len(given) + 1).write(made)
    return list(made.results)
