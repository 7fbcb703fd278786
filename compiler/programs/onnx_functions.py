"""Operators of ONNX that IREE's importer lacks, as the nodes with which ONNX defines them.

    RMSNormalization(x, scale)    ->    Pow, ReduceMean, Add, Sqrt, Div, Mul

The definitions compute axes and shapes from those of their inputs. What follows from shapes that
are known is a constant afterwards, as the importer wants axes that are.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.programs.onnx_casts import rewrite_casts
from mxc.compiler.programs.onnx_types import DOMAIN, FLOAT

Arrays: TypeAlias = dict[str, NDArray[Any]]

_STANDARD = ("", "ai.onnx")
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
#: A list of at most so many numbers may be a shape or axes.
_LIST = 1024
_SHAPES = ("Shape", "Size")
#: What they make depends on more than their inputs.
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
           "RandomUniformLike")  # fmt: skip
#: What they make may be far larger than what they are given.
_GROWING = ("ConstantOfShape", "Expand", "Range", "Tile")


def expand(model: Any, onnx: Any) -> Any:
    """The model without FUNCTIONS, with casts in steps, its shapes inferred.

    Raises what onnx raises for a model that is not consistent.
    """
    if any((node.domain, node.op_type) in FUNCTIONS for node in _nodes(model.graph)):
        model = _inferred(model, onnx)  # a definition depends on the types of its inputs
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
    model = _inferred(model, onnx)
    rewrite_casts(model, onnx)
    model = _inferred(model, onnx)
    while _fold(model.graph, onnx):
        model = _inferred(model, onnx)
    return model


def _inferred(model: Any, onnx: Any) -> Any:
    return onnx.shape_inference.infer_shapes(
        model, check_type=True, strict_mode=True, data_prop=True
    )


def give_names(model: Any) -> None:
    """Name the nodes that have none by what they make, so that an error can say where it is."""
    for node in _nodes(model.graph):
        node.name = node.name or next(filter(None, node.output), node.op_type)


def _nodes(graph: Any) -> list[Any]:
    """The nodes of a graph and of the graphs in them."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                found += _nodes(inner)
    return found


def _fold(graph: Any, onnx: Any) -> bool:
    """Make initializers of integers that follow from shapes and constants; whether there were."""
    known = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    shaped = {}
    for each in (*graph.input, *graph.value_info):
        kind = each.type.tensor_type
        sizes = [dim.dim_value for dim in kind.shape.dim]
        if kind.HasField("shape") and all(sizes):
            shaped[each.name] = np.broadcast_to(np.float32(0), sizes)
    results = {each.name for each in graph.output}
    kept, folded = [], False
    for node in graph.node:
        given = shaped | known if node.op_type in _SHAPES else known
        large = node.op_type in _GROWING and not all(
            name in shaped and shaped[name].size <= _LIST for name in node.output
        )
        found = None if large or results & {*node.output} else _computed(node, given)
        if node.op_type == "Constant" or found is None:
            kept.append(node)
        else:
            folded = True
            graph.initializer.extend(
                onnx.numpy_helper.from_array(value, name) for name, value in found.items()
            )
        known |= found or {}
    del graph.node[:]
    graph.node.extend(kept)
    return folded


def _computed(node: Any, given: Mapping[str, NDArray[Any]]) -> Arrays | None:
    """What a node makes of what is given, where that is lists of integers; else None."""
    read = {name for name in node.input if name}
    plain = node.domain in _STANDARD and not any(each.HasField("g") for each in node.attribute)
    if not plain or node.op_type in _RANDOM or not read <= {*given}:
        return None
    evaluator = import_module("onnx.reference").ReferenceEvaluator
    try:
        made = evaluator(node).run(None, {name: given[name] for name in read})
    except Exception:  # of onnx, which does not evaluate every operator for every type
        return None
    arrays = dict(zip(node.output, map(np.asarray, made), strict=True))
    lists = all(each.dtype.kind in "bi" and each.size <= _LIST for each in arrays.values())
    return arrays if lists else None
