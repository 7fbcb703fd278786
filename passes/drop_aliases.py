"""mxc-drop-aliases: a result takes the memory of an argument where nothing reads that later.

IREE 3.13 writes a result to the memory that `iree.abi.output` names without looking at who reads
the argument there: of a program that exchanges two arguments, the second result was the first.

Runs at IREE's flow phase, where the operations of a dispatch are known. An alias stays where the
dispatch that makes the result updates the argument in place, or does not read it, and waits for all
others that do.

before:
    %a = hal.tensor.import consume %x     %b = hal.tensor.import consume %y
    %r = flow.dispatch @next(%b)          %s = flow.dispatch @other(%a)
    %t = hal.tensor.alias %r to %x        hal.tensor.export %t
after:
    hal.tensor.export %r

Leaves alone: arguments that a program updates without an alias, as IREE then copies what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from iree.compiler import ir

from mxc.dialects.dispatches import RENAMES, walk
from mxc.dialects.sizes import segments
from mxc.passes.base import Pass
from mxc.passes.kernels.values import producer
from mxc.passes.rewriting.rebuild import operations_named
from mxc.passes.rewriting.worklist import replace_op

_ALIAS, _IMPORT, _DISPATCH = "hal.tensor.alias", "hal.tensor.import", "flow.dispatch"


@dataclass(frozen=True)
class DropAliases(Pass):
    """Let results have memory of their own where another operation may read what they write to."""

    name = "mxc-drop-aliases"

    def run(self, module: ir.Operation) -> None:
        """Judge every alias by the program as it was, then drop those that are not safe."""
        for op in [op for op in operations_named(module, _ALIAS) if not _is_safe(op)]:
            replace_op(op, [op.operands[0]])


def _is_safe(alias: ir.Operation) -> bool:
    """Whether nothing reads the argument after its memory has the result."""
    (value,), _, (storage,), *_ = segments(alias)
    while (made := _made(value)) is not None and made.name in RENAMES:
        value = made.operands[0]
    readers = [
        reader
        for use in storage.uses
        if (user := use.owner.operation).name == _IMPORT
        for reader in _readers(user.results[0])
    ]
    if not readers:
        return True
    if made is None or made.name != _DISPATCH:
        # The argument as it was, or what a loop has made.
        return all(user == alias for user, _ in readers)
    before = _before(made)
    return all(
        _updates(made, number, value) if user == made else _in_block(user, made) in before
        for user, number in readers
    )


def _readers(value: ir.Value) -> Iterator[tuple[ir.Operation, int]]:
    """The operations that read a tensor, also under another type, with the number of the
    operand."""
    for use in value.uses:
        user = use.owner.operation
        if user.name in RENAMES:
            yield from _readers(user.results[0])
        else:
            yield user, use.operand_number


def _updates(dispatch: ir.Operation, number: int, result: ir.Value) -> bool:
    """Whether a dispatch makes `result` in place of its operand `number`."""
    tied = ir.ArrayAttr(dispatch.attributes["tied_operands"])[ir.OpResult(result).result_number]
    return int(ir.IntegerAttr(tied).value) == number - len(segments(dispatch)[0])


def _before(op: ir.Operation) -> set[ir.Operation]:
    """The operations of a block whose results an operation needs, or those that it needs."""
    found: set[ir.Operation] = set()
    pending = [op]
    while pending:
        for inner in walk(pending.pop()):
            for value in inner.operands:
                made = _made(value)
                outer = None if made is None else _in_block(made, op)
                if outer is not None and outer not in found:
                    found.add(outer)
                    pending.append(outer)
    return found


def _made(value: ir.Value) -> ir.Operation | None:
    # An operation of its own class may have another `name`, as hal.tensor.import has.
    made = producer(value)
    return None if made is None else made.operation


def _in_block(op: ir.Operation, other: ir.Operation) -> ir.Operation | None:
    """The operation in the block of `other` that is `op` or holds it."""
    found: ir.Operation | None = op
    while found is not None and found.block != other.block:
        found = found.parent
    return found
