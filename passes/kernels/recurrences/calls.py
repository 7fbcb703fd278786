"""Calls of recurrences become dispatches of kernels, which update the pool where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from iree.compiler import ir

from mxc.dialects import named_operations
from mxc.dialects.generic import shape_of
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.pool_reads import PoolRead
from mxc.dialects.reasons import Reason
from mxc.dialects.recurrence import (
    ConvolutionCall,
    DeltaRuleCall,
    States,
    convolution_calls,
    delta_rule_calls,
)
from mxc.dialects.sizes import size_of, value_of
from mxc.passes.kernels.executables import Threads, dispatch_all, executable
from mxc.passes.kernels.extents import Size, dynamic_of
from mxc.passes.kernels.recurrences.shape import ConvolutionShape, Extents, RuleShape
from mxc.passes.kernels.reshapes import as_buffer
from mxc.passes.rewriting.worklist import replace_op

Shape = RuleShape | ConvolutionShape


class Kernel(Protocol):
    """What computes a recurrence."""

    @property
    def threads(self) -> Threads | None:
        """Threads of a workgroup, on a GPU."""

    def workgroups(self, of: Extents) -> list[Size]:
        """Workgroups of a call."""

    def body(self, layer: ir.Value, *buffers: ir.Value) -> None:
        """Build the body at the insertion point. `buffers`: those of the shape."""


def lower_recurrences(module: ir.Operation, choose: Callable[[Shape], Kernel | Reason]) -> None:
    """Replace each recurrence by a dispatch of the kernel that is chosen for it.

    Where there is none the reason is written on the call, and on the contractions of its reference.
    """
    built: set[str] = set()
    # A call is read when its turn comes: the pool of one may be the result of the one before.
    calls: Iterator[DeltaRuleCall | ConvolutionCall]
    calls = chain(delta_rule_calls(module), convolution_calls(module))
    for call in calls:
        op, shape = call.op, _shape(call)
        kernel = shape if isinstance(shape, Reason) else choose(shape)
        if isinstance(kernel, Reason):
            # A report is of contractions; a convolution has none.
            for each in [op, *(call.products if isinstance(call, DeltaRuleCall) else ())]:
                write_reason(each, kernel)
            continue
        assert not isinstance(shape, Reason)
        if shape.name not in built:
            built.add(shape.name)
            first = ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0])
            with first, ir.Location.unknown():
                _build(shape, kernel)
        with ir.InsertionPoint(op), op.location:
            made = _dispatch(shape, op, call.states)
        replace_op(op, made.results)
    named_operations.erase_unused(module)


def _shape(call: DeltaRuleCall | ConvolutionCall) -> Shape | Reason:
    return RuleShape.of(call) if isinstance(call, DeltaRuleCall) else ConvolutionShape.of(call)


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
    """Extents from the scalars of a call: the layer comes first."""
    _, rows, runs, slots = scalars
    return Extents(rows, runs, slots)


def _dispatch(shape: Shape, op: ir.Operation, states: States) -> ir.Operation:
    """The call in the place of `op`, whose last operands are the pool, layer, runs and places."""
    rows = value_of(size_of(op.operands[0], 0))
    runs, slots = (value_of(size_of(each, 0)) for each in (states.runs, states.pool))
    scalars = [states.layer, rows, runs, slots]
    *buffers, _ = shape.buffers(_extents(scalars))
    *given, pool, _, listed, places = op.operands
    tensors = [
        # Weights are read one column after the other.
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
    return made
