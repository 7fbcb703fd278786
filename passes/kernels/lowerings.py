"""Lower named operations: choose a kernel for each call, and replace the call by a dispatch.

A named operation is a call of a private function that computes it (dialects/named_operations.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from iree.compiler import ir

from mxc.dialects import named_operations
from mxc.dialects.dispatches import erase_uncalled
from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.passes.base import add_note
from mxc.passes.kernels.calls import Calls
from mxc.passes.rewriting.rebuild import sweep
from mxc.passes.rewriting.worklist import replace_op


class Call(Protocol):
    """A call of a named operation."""

    @property
    def op(self) -> ir.Operation:
        """The operation of the call."""
        ...


C = TypeVar("C", bound=Call)
K = TypeVar("K")


@dataclass(frozen=True)
class Lowering(Generic[C, K]):
    """How the calls of an operation become dispatches.

    `calls`: yields the calls in a module. `choose`: the kernel of a call, or the reason for none.
    `dispatch` builds the kernel at its first call, and calls it at the insertion point. It returns
    the new results of `last`, which is the call, or a later operation that the kernel also
    computes. It returns None where it has already replaced all readers of the call.
    """

    calls: Callable[[ir.Operation], Iterator[C]]
    choose: Callable[[C], K | Reason]
    dispatch: Callable[[Calls, C, K], Sequence[ir.Value] | None]
    last: Callable[[C, K], ir.Operation] = lambda call, kernel: call.op


def lower_named(module: ir.Operation, lowerings: Sequence[Lowering[Any, Any]]) -> None:
    """Replace the calls of each operation by dispatches.

    If there is no kernel for a call, the reason is written on the call and on the contractions in
    the body of the function that it calls. It is also added to the notes of the module, because
    IREE may fuse these contractions so that no report shows them.
    """
    built = Calls(module)
    for lowering in lowerings:
        # Calls are matched lazily: the pool of a call may be the result of the previous one.
        for call in lowering.calls(module):
            kernel = lowering.choose(call)
            if isinstance(kernel, Reason):
                products = named_operations.products(call.op)
                for op in (call.op, *products):
                    write_reason(op, kernel)
                if products:
                    name = ir.FlatSymbolRefAttr(call.op.attributes["callee"]).value
                    add_note(module, f"IREE's code generator computes @{name}: {kernel.text}")
                continue
            last = lowering.last(call, kernel)
            with ir.InsertionPoint(last), last.location:
                results = lowering.dispatch(built, call, kernel)
            if results is not None:
                replace_op(last, results)
    sweep(module)
    named_operations.erase_unused(module)
    # Erases kernels that only the functions just erased called, for example of a quantization.
    erase_uncalled(module)
