"""Shapes of the values of a graph of ONNX, and the constants that follow from them.

    Size(Shape(x)) of x [2, 3, 4]    ->    the initializer 3

IREE's importer wants the type of every value, and axes and shapes that are constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, NDArray[Any]]

#: A list of at most so many numbers may be a shape or axes.
_LIST = 1024
_SHAPES = ("Shape", "Size")
#: What they make depends on more than their inputs.
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
           "RandomUniformLike")  # fmt: skip
#: What they make may be far larger than what they are given.
_GROWING = ("ConstantOfShape", "Expand", "Range", "Tile")


def infer_shapes(model: Any, onnx: Any) -> Any:
    """The model with the types of its values. Raises what onnx raises where they are not
    consistent."""
    return onnx.shape_inference.infer_shapes(
        model, check_type=True, strict_mode=True, data_prop=True
    )


def fold_shapes(model: Any, onnx: Any) -> Any:
    """The model with the types of its values, and integers that follow from shapes as constants."""
    model = infer_shapes(model, onnx)
    while _fold(model.graph, onnx):
        model = infer_shapes(model, onnx)
    return model


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
    plain = not node.domain and not any(each.HasField("g") for each in node.attribute)
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
