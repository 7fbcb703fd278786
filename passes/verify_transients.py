"""mxc-verify-transients: nothing is prepared when the program loads, and no weight is copied.

Runs at IREE's stream phase, where parameters are loaded by initialisers, every buffer has its size
and every copy is an operation. It sees the results of constant hoisting, layout changes and copy
insertion, which happen after dispatches are formed.

before:
    util.initializer { %w = stream.cmd.parameter.load ..; stream.cmd.dispatch @dequantize(%w) }
    stream.cmd.copy %weight[..], %transient[..] : !stream.resource<constant> -> ..
    stream.resource.alloca : !stream.resource<transient>{%c8589934592}
after:
    refused with the place; with strict=false the operation gets the attribute mxc.fallback

Leaves alone: initialisers that only load parameters; copies of less than `min-bytes`; transients of
at most `max-transient-bytes` (0: of any size).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from iree.compiler import ir

from mxc.dialects.dispatches import owner, walk
from mxc.dialects.locations import place_of
from mxc.dialects.samples import STATED, Sizes
from mxc.errors import PassError
from mxc.passes.base import FALLBACK, LEAST, Pass

ALLOCATE = "stream.resource.alloca"
_COPIES = ("stream.cmd.copy", "stream.async.copy", "stream.async.clone", "stream.async.update")
_WORK = ("stream.cmd.dispatch", "stream.async.dispatch", *_COPIES)


@dataclass(frozen=True)
class VerifyTransients(Pass):
    """Refuse (`strict`) or mark operations that prepare or copy a weight at run time.

    `min_bytes`: copies of fewer bytes are accepted. `max_transient_bytes`: the largest transient
    buffer that is accepted; 0 for any.
    """

    name: ClassVar[str] = "mxc-verify-transients"
    strict: bool = True
    min_bytes: int = field(default=65536, metadata={LEAST: 0})
    max_transient_bytes: int = 0

    def run(self, module: ir.Operation) -> None:
        """Refuse or mark each operation that prepares or copies a weight."""
        found = findings(
            module, min_bytes=self.min_bytes, max_transient_bytes=self.max_transient_bytes
        )
        if found and self.strict:
            (first, message), *others = found
            more = f" (and {len(others)} more)" if others else ""
            raise PassError(message + more, place_of(first.location))
        for op, message in found:
            op.attributes[FALLBACK] = ir.StringAttr.get(message)


def findings(
    module: ir.Operation, *, min_bytes: int = 65536, max_transient_bytes: int = 0
) -> list[tuple[ir.Operation, str]]:
    """Each operation of a module at the stream phase that prepares or copies a weight, or allocates
    a transient that is too large, with a sentence."""
    found: list[tuple[ir.Operation, str]] = []
    for top in module.regions[0].blocks[0].operations:
        operation = top.operation
        if operation.name == "util.initializer":
            found += _initializer(operation)
        elif operation.name == "util.func":
            for op in walk(operation):
                message = _copy(op, min_bytes) or _allocation(op, max_transient_bytes)
                if message is not None:
                    found.append((op, message))
    return found


def transients(function: ir.Operation, sizes: Sizes = STATED) -> tuple[int, int]:
    """(total bytes of the transient buffers of known size, number of the others) of a function."""
    total, unknown = 0, 0
    for op in walk(function):
        if op.name == ALLOCATE and _lifetime(op.results[0]) == "transient":
            size = _size(op, sizes)
            total += size or 0
            unknown += size is None
    return total, unknown


def _initializer(initializer: ir.Operation) -> list[tuple[ir.Operation, str]]:
    stores = [
        str(ir.FlatSymbolRefAttr(op.attributes["global"]).value)
        for op in walk(initializer)
        if op.name == "util.global.store"
    ]
    names = ", ".join(f"@{name}" for name in stores)
    return [
        (
            op,
            f"an initialiser runs {op.name} when the program loads, for {names or 'no global'}; "
            "wanted parameters mapped as they are: pack the weight in this form, or turn constant "
            "hoisting off",
        )
        for op in walk(initializer)
        if op.name in _WORK
    ]


def _copy(op: ir.Operation, min_bytes: int) -> str | None:
    if op.name not in _COPIES:
        return None
    constants = [value for value in op.operands if _lifetime(value) == "constant"]
    if not constants:
        return None
    size = max((_constant(value) or 0 for value in op.operands), default=0)
    if size < min_bytes:
        return None
    return (
        f"{op.name} copies up to {size} bytes of a parameter on every call; wanted the parameter "
        "read where it lies: let the dispatch that needs it read it itself"
    )


def _allocation(op: ir.Operation, limit: int) -> str | None:
    if not limit or op.name != ALLOCATE or _lifetime(op.results[0]) != "transient":
        return None
    size = _size(op)
    if size is not None and size <= limit:
        return None
    found = "of a size known only at run time" if size is None else f"of {size} bytes"
    return f"a transient buffer {found}; wanted at most {limit} bytes (max-transient-bytes)"


def _lifetime(value: ir.Value) -> str:
    """The lifetime of a stream resource, such as "constant" or "transient"; "" for another type."""
    text = str(value.type)
    prefix = "!stream.resource<"
    return text[len(prefix) : -1] if text.startswith(prefix) else ""


def _size(allocation: ir.Operation, sizes: Sizes = STATED) -> int | None:
    found = [v for v in allocation.operands if isinstance(v.type, ir.IndexType)]
    return sizes.number(found[0]) if found else None


def _constant(value: ir.Value) -> int | None:
    op = owner(value)
    if op is None or op.name != "arith.constant" or not isinstance(value.type, ir.IndexType):
        return None
    return int(ir.IntegerAttr(op.attributes["value"]).value)
