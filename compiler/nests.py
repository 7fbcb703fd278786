"""The loop nests of kernels that are written in the kernel language."""

from __future__ import annotations

from iree.compiler import ir

from mxc.dialects.named_operations import symbol_of
from mxc.kernels.printer import NEST


def nests(module: ir.Operation) -> dict[str, str]:
    """Return the text of each nest by the name of its kernel, in the order of the program."""
    found = {}
    for op in module.regions[0].blocks[0].operations:
        if NEST in op.operation.attributes:
            name = symbol_of(op.operation)
            found[name] = ir.StringAttr(op.operation.attributes[NEST]).value
    return found
