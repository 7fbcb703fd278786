"""The functions of an imported program as callers see them: names, and bytes at the boundary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iree.compiler import ir

from mxc.dialects.boundary import pack, unpack
from mxc.dialects.parameters import ELEMENT, IN_PLACE, NAME

_NIBBLES = ("f4E2M1FN",)

#: Why float64 is refused, and what to do.
NO_F64 = "IREE 3.13 computes float64 as float32; make it float32 in the program"


def set_signature(
    function: ir.Operation,
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    in_place: Mapping[int, int],
) -> None:
    """Give a function its name, its arguments and results theirs, and bytes for 4-bit elements.

    Such an argument [.., K] is i8 [.., K / 2], with what its bytes mean beside it. `in_place`:
    arguments whose memory is that of a result. Raises ValueError for a last dimension of 4-bit
    elements that is dynamic or odd, and for float64.
    """
    function.attributes["sym_name"] = ir.StringAttr.get(name)
    block = function.regions[0].blocks[0]
    said = []
    for number, argument in enumerate(list(block.arguments)):
        _require_kept(argument.type, "argument", number, inputs)
        about = {}
        if number in in_place:
            about[IN_PLACE] = ir.IntegerAttr.get(ir.IndexType.get(), in_place[number])
        if number < len(inputs) and inputs[number]:
            about[NAME] = ir.StringAttr.get(inputs[number])
        if _is_packed(argument.type):
            about[ELEMENT] = ir.StringAttr.get(str(argument.type.element_type))
            _enter(argument, block)
        said.append(about)
    last = block.operations[len(block.operations) - 1].operation
    results: list[dict[str, ir.Attribute]] = []
    for number, value in enumerate(list(last.operands)):
        _require_kept(value.type, "result", number, outputs)
        about = {}
        if number < len(outputs) and outputs[number]:
            about[NAME] = ir.StringAttr.get(outputs[number])
        if _is_packed(value.type):
            about[ELEMENT] = ir.StringAttr.get(str(value.type.element_type))
            with ir.InsertionPoint(last), last.location:
                last.operands[number] = pack(value)
        results.append(about)
    function.attributes["function_type"] = ir.TypeAttr.get(
        ir.FunctionType.get(
            [argument.type for argument in block.arguments],
            [value.type for value in last.operands],
        )
    )
    function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in said])
    function.attributes["res_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in results])


def _require_kept(kind: ir.Type, what: str, number: int, names: Sequence[str]) -> None:
    """Raise ValueError for a tensor of float64."""
    if isinstance(kind, ir.RankedTensorType) and str(kind.element_type) == "f64":
        name = f" ({names[number]})" if number < len(names) and names[number] else ""
        raise ValueError(f"{what} {number}{name} is {kind}, and {NO_F64}")


def _is_packed(kind: ir.Type) -> bool:
    return isinstance(kind, ir.RankedTensorType) and str(kind.element_type) in _NIBBLES


def _enter(argument: ir.Value, block: ir.Block) -> None:
    """Make the argument bytes, and name its elements at the start of the function."""
    kind = ir.RankedTensorType(argument.type)
    *rows, last = kind.shape
    if last < 0 or last % 2:
        raise ValueError(f"{kind} has no whole number of bytes in its last dimension")
    stored = ir.RankedTensorType.get([*rows, last // 2], ir.IntegerType.get_signless(8))
    argument.set_type(stored)
    uses = [(use.owner, use.operand_number) for use in argument.uses]
    with ir.InsertionPoint.at_block_begin(block), ir.Location.unknown():
        elements = unpack(argument, kind.element_type)
    for user, number in uses:
        user.operands[number] = elements
