"""Decide which parameters with several readers can be packed in panels.

A parameter has one layout. It can be in panels if all of its readers are calls of kernels that read
the same panels, or lookups in the loaded parameter (panel_lookups.py). With other readers, such as
a lookup in a value that is computed from it or a call that needs other panels, it stays in rows.
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
    """Return the calls that kernels compute, and the names of the parameters that they read in
    rows.

    A parameter is read in rows if an operation other than these reads it, or a call that needs
    other panels or none. A call that cannot read rows is left out, and gets the reason.
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
    # If the scales of a weight are read in rows, so are its elements, and conversely, by all calls.
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
