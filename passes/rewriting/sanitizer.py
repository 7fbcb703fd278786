"""A sanitizer for passes, for tests: using an erased operation raises an error.

While it is on, an erased operation is detached but keeps its memory, and the classes of the
bindings check each access. With `MXC_SANITIZE_PASSES=1`, `passes.base.run` turns it on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from iree.compiler import ir

#: Environment variable that turns the sanitizer on.
VARIABLE = "MXC_SANITIZE_PASSES"

#: The base class of ir.Operation and of every view of one.
_BASE = ir.Operation.__mro__[1]
#: Attributes that may be used on an object whose operation was erased.
_ALLOWED = frozenset(("attached", "context", "erase", "operation", "opview", "parse", "create"))


class ErasedOperationError(Exception):
    """A pass used an operation after it was erased; the message names it and the attribute."""


#: The members of operations and values whose uses are checked: (class, name, member).
_MEMBERS = [
    (owner, name, member)
    for owner in (_BASE, ir.Value)
    for name, member in vars(owner).items()
    if not name.startswith("_") and name not in _ALLOWED
]


@contextmanager
def sanitized() -> Iterator[None]:
    """Within this context, using an operation that was erased in it raises ErasedOperationError."""
    erased = _Erased()
    erase = _BASE.erase
    _BASE.erase = lambda op: erased.take(op)
    try:
        yield
    finally:
        for owner, name, member in _MEMBERS:
            setattr(owner, name, member)
        _BASE.erase = erase
        erased.free()


class _Erased:
    """The operations that a pass has erased, which are detached instead, and those inside of them.

    Checks are installed when the first operation is erased, because many passes erase nothing.
    """

    def __init__(self) -> None:
        # Result of an erased operation -> name of the operation; the same for operations without
        # results; and hashes of all of them. The hash of an operation depends on its contents, and
        # several may share it: an operation with another hash is certainly not erased.
        self._results: dict[ir.Value, str] = {}
        self._others: dict[ir.Operation, str] = {}
        self._hashes: set[int] = set()
        self._kept: list[ir.Operation] = []
        # The operation whose result replaces all operands of erased operations, so that they no
        # longer use other values.
        self._nothing = ir.Operation.create(
            "builtin.unrealized_conversion_cast", results=[ir.IndexType.get()], ip=False
        )

    def take(self, op: ir.Operation) -> None:
        self._check_operation(op, "erase")
        if not self._kept:
            for owner, name, member in _MEMBERS:
                check = self._check_operation if owner is _BASE else self._check_value
                setattr(owner, name, _checked(name, member, check))
        op, nothing = op.operation, self._nothing.result

        def visit(inner: ir.Operation) -> ir.WalkResult:
            operands = _OPERANDS(inner)
            for number in range(len(operands)):
                operands[number] = nothing
            name, results = _NAME(inner), list(_RESULTS(inner))
            self._hashes.add(hash(inner))  # after the operands changed, on which it depends
            self._results.update(dict.fromkeys(results, name))
            if not results:
                self._others[inner] = name
            return ir.WalkResult.ADVANCE

        _WALK(op, visit)
        _DETACH(op)
        self._kept.append(op)

    def _check_operation(self, of: Any, what: str) -> None:
        op = of.operation
        if hash(op) in self._hashes:
            results = list(_RESULTS(op))
            _refuse(self._results.get(results[0]) if results else self._others.get(op), what)

    def _check_value(self, of: Any, what: str) -> None:
        _refuse(self._results.get(of), what)

    def free(self) -> None:
        for each in (self._results, self._others, self._hashes):
            each.clear()
        for op in self._kept:
            op.erase()
        self._nothing.erase()


_OPERANDS, _NAME, _RESULTS = (vars(_BASE)[each].__get__ for each in ("operands", "name", "results"))
_WALK, _DETACH = _BASE.walk, _BASE.detach_from_parent


def _refuse(name: str | None, what: str) -> None:
    if name is not None:
        raise ErasedOperationError(f"{what} of {name}, which this pass has erased")


def _checked(name: str, member: Any, check: Callable[[Any, str], None]) -> Any:
    """Wrap the method or property `member` so that `check(object, name)` is called before it."""
    if not callable(member):

        def read(self: Any) -> Any:
            check(self, name)
            return member.__get__(self)

        def write(self: Any, value: Any) -> None:
            check(self, name)
            member.__set__(self, value)

        return property(read, write)
    call: Callable[..., Any] = member

    def checked(self: Any, *arguments: Any, **options: Any) -> Any:
        check(self, name)
        return call(self, *arguments, **options)

    return checked
