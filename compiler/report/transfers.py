"""Bytes that a program sends between devices, read from the program after IREE's phase "flow"."""

from __future__ import annotations

from math import prod

from iree.compiler import ir

from mxc.compiler.report import Transfers
from mxc.dialects.devices import TRANSFER
from mxc.dialects.dispatches import element_bits, walk

_FUNCTION, _DIM = "util.func", "hal.buffer_view.dim"

#: Index of the argument of `step` whose size is the number of rows with logits.
_WANTED = 3


def transfers(flow: ir.Operation) -> tuple[Transfers, ...]:
    """Return the transfers of each function that has some, in the module after the phase "flow"."""
    return tuple(
        found
        for op in flow.regions[0].blocks[0].operations
        if op.operation.name == _FUNCTION and (found := _of_function(op.operation)) is not None
    )


def _of_function(function: ir.Operation) -> Transfers | None:
    sizes: dict[str, list[int]] = {"row": [], "logits": [], "run": []}
    for op in walk(function):
        if op.name == TRANSFER:
            kind = ir.RankedTensorType(op.operands[0].type)
            fixed = prod(size for size in kind.shape if size >= 0)
            sizes[_counted(op, kind)].append(fixed * element_bits(kind.element_type) // 8)
    if not any(sizes.values()):
        return None
    return Transfers(
        function=str(ir.StringAttr(function.attributes["sym_name"]).value),
        count=sum(map(len, sizes.values())),
        bytes_per_row=sum(sizes["row"]),
        bytes_per_logits=sum(sizes["logits"]),
        bytes_per_run=sum(sizes["run"]),
    )


def _counted(op: ir.Operation, kind: ir.RankedTensorType) -> str:
    """Return what the first dimension of a transferred tensor counts: "row", "logits" or "run".

    Tables of integers have one row per run.
    """
    if kind.rank == 2 and isinstance(kind.element_type, ir.IntegerType):
        return "run"
    size = op.operands[1].owner
    if isinstance(size, ir.Operation | ir.OpView) and size.name == _DIM:
        argument = ir.BlockArgument(size.operands[0]).arg_number
        return "logits" if argument == _WANTED else "row"
    return "row"
