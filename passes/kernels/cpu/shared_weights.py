"""Decide which parameters with several readers can be panels.

A parameter has one layout. Panels are read by one kind of call, and by lookups in the loaded
parameter (panel_lookups.py). A lookup in a value computed from it, or a call that needs other
panels, reads rows.
"""

from __future__ import annotations

import dataclasses

from iree.compiler import ir

from mxc.dialects.kernel_calls import write_reason
from mxc.dialects.reasons import Reason
from mxc.passes.kernels.cpu.matches import ContractionMatch
from mxc.passes.kernels.cpu.panel_lookups import is_lookup
from mxc.passes.kernels.parameters import loads, read_only_by


def with_weights_of_their_own(
    module: ir.Operation, calls: list[ContractionMatch]
) -> tuple[list[ContractionMatch], set[str]]:
    """The calls that kernels compute, and the parameters that they read in rows.

    A parameter is read in rows if another operation reads it, or a call that needs other panels or
    none. A call that cannot read rows gets the reason.
    """
    lowered = {op for call in calls for op in (call.op, *call.chain)}
    layouts: dict[str, set[tuple[object, ...]]] = {}
    for call in calls:
        for name in call.parameters:
            layouts.setdefault(name, set()).add(call.layout)
    shared = {name for name, found in layouts.items() if len(found) > 1}
    shared |= {name for call in calls if not call.reads_panels for name in call.parameters}
    in_panels = {name for call in calls if call.is_looked_up for name in call.parameters}
    for name, load in loads(module):
        spared = is_lookup if name in in_panels else None
        if name in layouts and not read_only_by(load, lowered, spared):
            shared.add(name)
    # Elements are read in rows if their scales are, and then by all calls.
    while any(shared & set(c.parameters) and not shared >= set(c.parameters) for c in calls):
        shared |= {n for c in calls if shared & set(c.parameters) for n in c.parameters}
    kept = []
    for call in calls:
        read = [name for name in call.parameters if name in shared]
        if read and not call.reads_rows:
            write_reason(call.op, Reason(f"its weights @{read[0]} are read by others, unpacked"))
        else:
            kept.append(call)
    # A call without a kernel makes its weights shared for the remaining calls.
    if len(kept) < len(calls):
        return with_weights_of_their_own(module, kept)
    return kept, shared


def in_rows(call: ContractionMatch, shared: set[str]) -> ContractionMatch:
    """The call, reading its weights in rows if they are shared."""
    return dataclasses.replace(call, parameters=()) if shared & set(call.parameters) else call
