"""Operators and forms of ONNX that IREE's importer lowers to other numbers: errors in a line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from numpy.typing import NDArray

from mxc.compiler.programs.onnx_functions import graphs_of
from mxc.compiler.programs.single import NO_LOWERING
from mxc.errors import CompileError

_MODE = "coordinate_transformation_mode"
#: The attribute of a node that does not have it.
_NONE = SimpleNamespace(ints=(), s=b"")
#: Place of the weights of peepholes among the inputs of an LSTM.
_PEEPHOLES = 7


@dataclass(frozen=True)
class _Node:
    """A node, with the constants among its inputs and the shape of the first of them."""

    node: Any
    constants: dict[str, NDArray[Any]]
    shapes: dict[str, list[int]]

    def attribute(self, name: str) -> Any:
        """An attribute, with empty values where the node does not have it."""
        return next((each for each in self.node.attribute if each.name == name), _NONE)

    def input(self, place: int) -> str:
        """The name of an input, "" where it is left out."""
        return "".join(self.node.input[place : place + 1])


def _dilated(of: _Node) -> str:
    return "AveragePool with dilations" if {*of.attribute("dilations").ints} - {1} else ""


def _resized(of: _Node) -> str:
    """ONNX places elements by the size before it is rounded down."""
    scales = of.constants.get(of.input(2))
    if of.attribute(_MODE).s != b"align_corners" or not of.input(2):
        return ""
    sizes = of.shapes.get(of.input(0), [])
    placed = [] if scales is None else [a * b for a, b in zip(scales, sizes, strict=False)]
    whole = len(placed) == len(sizes) and all(size and not size % 1 for size in placed)
    return "" if whole else "Resize with align_corners to a size that is no integer"


def _cut(of: _Node) -> str:
    """The importer pads by negative numbers too."""
    numbers = of.constants.get(of.input(1), of.attribute("pads").ints)
    return "Pad by negative numbers" if any(each < 0 for each in numbers) else ""


#: Operators -> what of a node has no lowering, or "".
_REFUSED: dict[str, Callable[[_Node], str]] = {
    "AveragePool": _dilated,
    # The importer does not exchange rows, and divides by 0.
    "Det": lambda of: "Det",
    # It takes elements beside the image, and another one of two that are equally near.
    "GridSample": lambda of: "GridSample",
    # It ignores them.
    "LSTM": lambda of: "LSTM with peepholes" if of.input(_PEEPHOLES) else "",
    "Pad": _cut,
    "Resize": _resized,
}


def require_right(whole: Any, onnx: Any) -> None:
    """Raise CompileError for operators that the importer lowers to other numbers."""
    constants: dict[str, NDArray[Any]] = {}
    shapes: dict[str, list[int]] = {}
    for graph in graphs_of(whole):
        for each in graph.initializer:
            constants[each.name] = onnx.numpy_helper.to_array(each)
        for each in (*graph.input, *graph.value_info):
            dims = each.type.tensor_type.shape.dim
            shapes[each.name] = [dim.dim_value for dim in dims]
        for node in graph.node:
            of = _Node(node, constants, shapes)
            if node.op_type == "Constant" and of.attribute("value") is not _NONE:
                constants[node.output[0]] = onnx.numpy_helper.to_array(of.attribute("value").t)
            refused = None if node.domain else _REFUSED.get(node.op_type)
            if refused is not None and (wrong := refused(of)):
                raise CompileError(f"{node.name}: {wrong} {NO_LOWERING}", phase="import")
