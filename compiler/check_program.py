"""Checks of a program before it reaches IREE: no recursive calls, no impossibly large tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from iree.compiler import ir

from mxc.artifact.manifest import LARGEST_TENSOR
from mxc.dialects.dispatches import walk
from mxc.dialects.locations import with_place
from mxc.dialects.named_operations import symbol_of
from mxc.errors import CompileError

_FUNCTIONS = ("func.func", "util.func")
_CALLS = ("func.call", "util.call")

#: Number of characters after which a type or a cycle of calls is cut in a message.
_LONGEST = 200


def check_program(module: ir.Module) -> None:
    """Raise CompileError with the location for a program that IREE must not be given.

    A recursive function is refused because IREE inlines calls and would never end. A tensor with
    more elements than memory has addresses is refused because its size in bytes would overflow
    silently.
    """
    operations = list(walk(module.operation))
    _require_no_recursion(operations)
    for op in operations:
        for value in (*op.results, *_arguments(op)):
            _require_size(value.type, op)


def _arguments(op: ir.Operation) -> Iterator[ir.Value]:
    for region in op.regions:
        for block in region.blocks:
            yield from block.arguments


def _require_size(kind: ir.Type, op: ir.Operation) -> None:
    if not isinstance(kind, ir.RankedTensorType):
        return
    static = [kind.get_dim_size(n) for n in range(kind.rank) if not kind.is_dynamic_dim(n)]
    if math.prod(extent for extent in static if extent) > LARGEST_TENSOR:
        raise CompileError(
            with_place(
                op.location,
                f"{op.name} has a tensor of type {str(kind)[:_LONGEST]}, which "
                f"is more than {LARGEST_TENSOR} elements: no memory holds it",
            ),
            phase="start",
        )


def _require_no_recursion(operations: Sequence[ir.Operation]) -> None:
    """Raise CompileError for a function that calls itself, directly or through others."""
    calls: dict[str, dict[str, ir.Operation]] = {}
    for op in operations:
        if op.name in _FUNCTIONS:
            name = symbol_of(op)
            calls[name] = {
                ir.FlatSymbolRefAttr(inner.attributes["callee"]).value: inner
                for inner in walk(op)
                if inner.name in _CALLS
            }
    done: set[str] = set()
    for start in calls:
        # The functions on the current path of calls, each with its calls that are not followed yet.
        path = {start: iter(calls[start])}
        while path:
            caller = next(reversed(path))
            callee = next(path[caller], None)
            if callee is None:
                done.add(caller)
                del path[caller]
            elif callee in path:
                cycle = " -> ".join([*list(path)[list(path).index(callee) :], callee])
                raise CompileError(
                    with_place(
                        calls[caller][callee].location,
                        f"a recursive call ({cycle[:_LONGEST]}); functions are inlined: "
                        "write a loop (scf.while, scf.for)",
                    ),
                    phase="start",
                )
            elif callee in calls and callee not in done:
                path[callee] = iter(calls[callee])
