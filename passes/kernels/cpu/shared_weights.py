"""Parameters that more than one operation reads: which of them can be panels.

A parameter has one layout. Panels are what one kind of call reads; an embedding, or a call of other
panels, reads rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from iree.compiler import ir

from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.cpu.matches import Call


def with_weights_of_their_own(
    module: ir.Operation, calls: list[Call]
) -> tuple[list[Call], set[str]]:
    """The calls that kernels compute, and the parameters that they read in rows.

    These are those that another operation reads, or a call in other panels or in none. A call that
    cannot read rows gets the reason.
    """
    lowered = {op for call in calls for op in (call.op, *call.chain)}
    layouts: dict[str, set[tuple[object, ...]]] = {}
    for call in calls:
        for name in call.parameters:
            layouts.setdefault(name, set()).add(call.layout)
    shared = {name for name, found in layouts.items() if len(found) > 1}
    shared |= {name for call in calls if not call.reads_panels for name in call.parameters}
    for load in _loads(module):
        name = ir.FlatSymbolRefAttr(load.attributes["global"]).value
        if name in layouts and not _read_only_by(load, lowered):
            shared.add(name)
    # Elements are read in rows where their scales are, and then by all.
    while any(shared & set(c.parameters) and not shared >= set(c.parameters) for c in calls):
        shared |= {n for c in calls if shared & set(c.parameters) for n in c.parameters}
    kept = []
    for call in calls:
        read = [name for name in call.parameters if name in shared]
        if read and not call.reads_rows:
            write_reason(call.op, Reason(f"its weights @{read[0]} are read by others, unpacked"))
        else:
            kept.append(call)
    # A call that stays makes its weights shared for those that would have gone.
    if len(kept) < len(calls):
        return with_weights_of_their_own(module, kept)
    return kept, shared


def in_rows(call: Call, shared: set[str]) -> Call:
    """A call that reads shared parameters as they are."""
    return dataclasses.replace(call, parameters=()) if shared & set(call.parameters) else call


def _read_only_by(load: ir.Operation, lowered: set[ir.Operation]) -> bool:
    pending = [load]
    while pending:
        for use in pending.pop().results[0].uses:
            user = use.owner.operation
            if user not in lowered:
                return False
            if user.name != "linalg.generic":
                pending.append(user)
            elif use.operand_number == 0:
                return False  # as the activations of a contraction
    return True


def _loads(module: ir.Operation) -> Iterable[ir.Operation]:
    found: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name == "util.global.load":
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return found
