"""Worklists of operations, and `erase`, the only function by which passes erase operations.

The Python bindings do not track the objects that refer to an operation. An operation that was
erased through another object is freed memory, and reading it ends the process. So a pass that
rewrites iterates over a `Worklist`, and `erase` removes the operation, and those inside it, from
every worklist before it frees them. `sanitizer.py` reports other uses of erased operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from weakref import WeakSet

from iree.compiler import ir

from mxc.dialects.dispatches import walk


class Worklist:
    """Operations with results that a pass visits once each, except those erased before their visit.

    The keys are results, because the hash of an operation changes with its operands.
    """

    def __init__(self, operations: Iterable[ir.Operation]) -> None:
        """`operations`: in the order in which they are visited."""
        self._pending: dict[ir.Value, ir.Operation] = {op.results[0]: op for op in operations}
        _worklists.add(self)

    def __len__(self) -> int:
        """Number of operations that are left."""
        return len(self._pending)

    def __iter__(self) -> Iterator[ir.Operation]:
        """Remove and yield the operations, first to last."""
        while self._pending:
            yield self._pending.pop(next(iter(self._pending)))

    def __reversed__(self) -> Iterator[ir.Operation]:
        """Remove and yield the operations, last to first."""
        while self._pending:
            yield self._pending.popitem()[1]

    def discard(self, op: ir.Operation) -> None:
        """Remove `op` from the list."""
        for result in op.results:
            self._pending.pop(result, None)


_worklists: WeakSet[Worklist] = WeakSet()


def erase(op: ir.Operation) -> None:
    """Erase an operation whose results have no uses, and remove it from every worklist."""
    pending = [each for each in _worklists if each]
    for inner in walk(op) if pending else ():
        for worklist in pending:
            worklist.discard(inner)
    op.erase()


def replace_op(op: ir.Operation, values: Iterable[ir.Value]) -> None:
    """Replace the results of an operation by `values`, and erase it."""
    for old, new in zip(op.results, values, strict=True):
        old.replace_all_uses_with(new)
    erase(op)
