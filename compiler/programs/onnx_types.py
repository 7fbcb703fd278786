"""The types of the four operations of quantization, for the shape inference of onnx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

DOMAIN = "mxc"
DEQUANTIZE, QUANTIZE = "DequantizeLinear", "QuantizeLinear"
QUANTIZE_BLOCKS, ROUND_BLOCKS = "QuantizeBlocks", "RoundBlocks"
#: The data type of f32.
FLOAT = 1
#: The version of ONNX whose types the four operations have.
_OPSET = 25


def types_of(onnx: Any) -> Iterator[Any]:
    """The four operations as functions of which the types are right, and the values not."""
    make = onnx.helper.make_node

    def given(kind: str, name: str, made: str, own: str) -> Any:
        node = make(kind, [] if kind == "Constant" else ["x"], [made])
        types = {"axes": 7, "steps": 7, "to": 2, "scale_type": 2}
        node.attribute.append(
            onnx.AttributeProto(name=own, ref_attr_name=name, type=types.get(name, 2))
        )
        return node

    bounds = [
        make("Constant", [], ["first"], value_ints=[0]),
        make("Constant", [], ["last"], value_ints=[np.iinfo(np.int64).max]),
        given("Constant", "axes", "a", "value_ints"),
        given("Constant", "steps", "s", "value_ints"),
        make("Slice", ["x", "first", "last", "a", "s"], ["each"]),
    ]
    scales = given("Cast", "scale_type", "scales", "to")
    scales.input[0] = "each"
    for kind, read, made, own, body in (
        (DEQUANTIZE, 3, ["y"], ["axis", "block_size"], [make("Cast", ["x"], ["y"], to=FLOAT)]),
        (
            QUANTIZE,
            3,
            ["y"],
            ["axis", "block_size", "to", "saturate"],
            [given("Cast", "to", "y", "to")],
        ),
        (
            QUANTIZE_BLOCKS,
            2,
            ["y", "scales"],
            ["axes", "steps", "to", "scale_type"],
            [given("Cast", "to", "y", "to"), *bounds, scales],
        ),
        (ROUND_BLOCKS, 1, ["y"], ["axis", "format"], [make("Identity", ["x"], ["y"])]),
    ):
        yield onnx.helper.make_function(
            DOMAIN,
            kind,
            ["x", "scale", "zero"][:read],
            made,
            body,
            [onnx.helper.make_opsetid("", _OPSET)],
            own,
        )
