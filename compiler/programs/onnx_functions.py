"""Operators of ONNX that IREE's importer lacks, as the nodes with which ONNX defines them.

    RMSNormalization(x, scale)    ->    Pow, ReduceMean, Add, Sqrt, Div, Mul

The definitions compute axes and shapes from those of their inputs, which onnx_shapes.py makes
constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from mxc.compiler.programs.onnx_shapes import infer_shapes
from mxc.compiler.programs.onnx_types import DOMAIN, FLOAT

_STANDARD = "ai.onnx"
#: Operators of ONNX that have a definition, and no lowering in IREE 3.13, or one that is off by
#: 5e-5 (Gelu): domain and name.
FUNCTIONS = [
    ("", "Attention"),
    ("", "CausalConvWithState"),
    ("", "Gelu"),
    ("", "NegativeLogLikelihoodLoss"),
    ("", "RMSNormalization"),
    ("", "RotaryEmbedding"),
    ("", "SoftmaxCrossEntropyLoss"),
    ("", "Swish"),
    ("ai.onnx.preview", "FlexAttention"),
]


def expand_functions(model: Any, onnx: Any) -> Any:
    """The model with the definitions of FUNCTIONS in their places.

    Raises what onnx raises for a model that is not consistent.
    """
    if not any((node.domain, node.op_type) in FUNCTIONS for node in _nodes(model.graph)):
        return model
    model = infer_shapes(model, onnx)  # a definition depends on the types of its inputs
    types = [each for each in model.functions if each.domain == DOMAIN]
    for each in types:  # of a version that need not be the model's
        model.functions.remove(each)
    # The inliner asks for the type of an input that is left out, and does not use it.
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("", FLOAT, []))
    inline = import_module("onnx.inliner").inline_selected_functions
    model = inline(model, FUNCTIONS, inline_schema_functions=True)
    model.functions.extend(types)
    for each in [each for each in model.graph.value_info if not each.name]:
        model.graph.value_info.remove(each)
    give_names(model)
    return model


def give_names(model: Any) -> None:
    """Name the nodes that have none by what they make, so that an error can say where it is, and
    write the domain of ONNX's own operators as ""."""
    for node in _nodes(model.graph):
        node.name = node.name or next(filter(None, node.output), node.op_type)
        node.domain = "" if node.domain == _STANDARD else node.domain
    for each in model.opset_import:
        each.domain = "" if each.domain == _STANDARD else each.domain


def graphs_of(graph: Any) -> Iterator[Any]:
    """A graph and the graphs in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            own = [attribute.g] if attribute.HasField("g") else []
            for inner in (*own, *attribute.graphs):
                yield from graphs_of(inner)


def _nodes(graph: Any) -> list[Any]:
    """The nodes of a graph and of the graphs in them."""
    return [node for each in graphs_of(graph) for node in each.node]
