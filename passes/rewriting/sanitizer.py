"""A sanitizer for passes: using an erased operation becomes an error.

While it is on, an erased operation is detached but keeps its memory, and the classes of the
bindings check each access. It is for tests: with `MXC_SANITIZE_PASSES=1`, `passes.base.run` uses
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from iree.compiler import ir

from mxc.dialects.dispatches import walk

#: Environment variable that turns the sanitizer on.
VARIABLE = "MXC_SANITIZE_PASSES"

#: The base class of ir.Operation and of every view of one.
_BASE = ir.Operation.__mro__[1]
#: Attributes that may be used on an object whose operation was erased.
_ALLOWED = frozenset(("attached", "context", "erase", "operation", "opview", "parse", "create"))


class ErasedOperationError(Exception):
    """A pass used an operation after it was erased; the message names it and the attribute."""


@contextmanager
def sanitized() -> Iterator[None]:
    """Within this context, using an operation that was erased in it raises ErasedOperationError."""
    erased = _Erased()
    found = [
        (owner, name, member)
        for owner in (_BASE, ir.Value)
        for name, member in vars(owner).items()
        if not name.startswith("_") and name not in _ALLOWED
    ]
    erase = _BASE.erase
    for owner, name, member in found:
        setattr(owner, name, _checked(name, member, erased))
    _BASE.erase = lambda op: erased.take(op)
    try:
        yield
    finally:
        for owner, name, member in found:
            setattr(owner, name, member)
        _BASE.erase = erase
        erased.free()


class _Erased:
    """Operations that a pass erased, detached, and the operations inside them."""

    def __init__(self) -> None:
        self._names: dict[ir.Operation, str] = {}
        self._kept: list[ir.Operation] = []
        # The new operand of erased operations, so that they no longer use other values.
        self._nothing = ir.Operation.create(
            "builtin.unrealized_conversion_cast", results=[ir.IndexType.get()], ip=False
        )

    def take(self, op: ir.Operation) -> None:
        self.check(op, "erase")
        op = op.operation
        inside = list(walk(op))
        for inner in inside:
            for number in range(len(inner.operands)):
                inner.operands[number] = self._nothing.result
        op.detach_from_parent()
        self._kept.append(op)
        # Added last: the hash of an operation changes with its operands.
        self._names |= {inner: str(inner.name) for inner in inside}

    def check(self, of: Any, what: str) -> None:
        if not self._names:  # as of passes that erase nothing
            return
        owner = of if isinstance(of, _BASE) else _owner(of)
        name = None if owner is None else self._names.get(owner.operation)
        if name is not None:
            raise ErasedOperationError(f"{what} of {name}, which this pass has erased")

    def free(self) -> None:
        self._names.clear()
        for op in self._kept:
            op.erase()
        self._nothing.erase()


_VALUE_OWNER = vars(ir.Value)["owner"]


def _owner(value: ir.Value) -> Any:
    """The operation that defines a result; None for an argument."""
    owner = _VALUE_OWNER.__get__(value)
    return owner if isinstance(owner, _BASE) else None


def _checked(name: str, member: Any, erased: _Erased) -> Any:
    """Wrap `member` of a class with a check of the object."""
    if not callable(member):

        def read(self: Any) -> Any:
            erased.check(self, name)
            return member.__get__(self)

        def write(self: Any, value: Any) -> None:
            erased.check(self, name)
            member.__set__(self, value)

        return property(read, write)
    call: Callable[..., Any] = member

    def checked(self: Any, *arguments: Any, **options: Any) -> Any:
        erased.check(self, name)
        return call(self, *arguments, **options)

    return checked
