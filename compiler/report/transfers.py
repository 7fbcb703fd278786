"""Bytes that a program sends between devices, read from the program after IREE's phase "flow"."""

from __future__ import annotations

from math import prod

from iree.compiler import ir

from mxc.compiler.report import Transfers
from mxc.dialects.devices import TRANSFER
from mxc.dialects.dispatches import element_bits, walk
from mxc.dialects.named_operations import symbol_of

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
    sent = [
        (ir.RankedTensorType(op.operands[0].type), _argument(op))
        for op in walk(function)
        if op.name == TRANSFER
    ]
    tables = {argument for kind, argument in sent if _is_table(kind)}
    for kind, argument in sent:
        fixed = prod(size for size in kind.shape if size >= 0)
        counts = _counted(kind, argument, tables)
        sizes[counts].append(fixed * element_bits(kind.element_type) // 8)
    if not any(sizes.values()):
        return None
    return Transfers(
        function=symbol_of(function),
        count=sum(map(len, sizes.values())),
        bytes_per_row=sum(sizes["row"]),
        bytes_per_logits=sum(sizes["logits"]),
        bytes_per_run=sum(sizes["run"]),
    )


def _counted(kind: ir.RankedTensorType, argument: int | None, tables: set[int | None]) -> str:
    """Return what the first dimension of a tensor counts: "row", "run" or "logits".

    Page lists, whose argument numbers are `tables`, count runs. Of the other arguments after
    _WANTED, slots count rows, and a page list follows each; places of states count runs."""
    if _is_table(kind):
        return "run"
    if argument == _WANTED:
        return "logits"
    after = argument is not None and argument > _WANTED
    return "run" if after and (argument or 0) + 1 not in tables else "row"


def _is_table(kind: ir.RankedTensorType) -> bool:
    return kind.rank == 2 and isinstance(kind.element_type, ir.IntegerType)


def _argument(op: ir.Operation) -> int | None:
    """The number of the argument that a tensor of integers is; None for other tensors."""
    size = op.operands[1].owner
    element = ir.RankedTensorType(op.operands[0].type).element_type
    if not isinstance(element, ir.IntegerType) or isinstance(size, ir.Block):
        return None
    return ir.BlockArgument(size.operands[0]).arg_number if size.name == _DIM else None
