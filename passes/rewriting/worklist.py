"""Worklists of operations, and `erase`, the one function that erases an operation.

The Python bindings keep no record of the objects that refer to an operation. One that was erased
through another object is freed memory, and a read of it ends the process. So a pass that rewrites
iterates over a `Worklist`, and `erase` takes the operation, and those inside it, out of every
worklist before it frees them. `sanitizer.py` reports what still refers to an erased operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakSet

from iree.compiler import ir

from mxc.dialects.dispatches import walk


class Worklist:
    """Operations with results that a pass visits once each, but for those that are erased before.

    The keys are results: the hash of an operation changes with its operands.
    """

    def __init__(self, operations: Iterable[ir.Operation]) -> None:
        """`operations`: in the order in which they are visited."""
        self._pending: dict[ir.Value, ir.Operation] = {op.results[0]: op for op in operations}
        _worklists.add(self)

    def __iter__(self) -> Iterator[ir.Operation]:
        """Take the operations out of the list, first to last."""
        while self._pending:
            yield self._pending.pop(next(iter(self._pending)))

    def __reversed__(self) -> Iterator[ir.Operation]:
        """Take the operations out of the list, last to first."""
        while self._pending:
            yield self._pending.popitem()[1]

    def discard(self, op: ir.Operation) -> None:
        """Leave `op` out from now on."""
        for result in op.results:
            self._pending.pop(result, None)


_worklists: WeakSet[Worklist] = WeakSet()


def erase(op: ir.Operation) -> None:
    """Erase an operation whose results have no uses. No worklist has it any more."""
    for inner in walk(op):
        for worklist in _worklists:
            worklist.discard(inner)
    op.erase()


def replace_op(op: ir.Operation, values: Iterable[ir.Value]) -> None:
    """Give the uses of each result of an operation to one of `values`, and erase it."""
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    erase(op)
