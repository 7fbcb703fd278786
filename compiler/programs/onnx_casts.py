"""Casts of ONNX in steps that IREE's importer lowers to the numbers that ONNX defines.

    Cast(x, UINT8)          ->    Cast(Cast(x, INT32), UINT8)
    Cast(x, FLOAT8E4M3FN)   ->    QuantizeLinear(x, 1)

The importer's own of floats to UINT8 stops at 127, and it has none to floats of 8 and 4 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mxc.compiler.programs.onnx_codes import BFLOAT16, FLOATS, HALF, INT32, UINT8
from mxc.compiler.programs.onnx_types import DOMAIN, FLOAT, QUANTIZE
from mxc.errors import CompileError

#: Integers of 4 and of 2 bits.
_NARROW = {21: "UINT4", 22: "INT4", 25: "UINT2", 26: "INT2"}
_ONE = "mxc.one"


def rewrite_casts(model: Any, onnx: Any) -> None:
    """Write each Cast and CastLike of the graph as such steps. The types of values are known.

    Raises CompileError, with the name of its node, for a cast to integers of less than 8 bits.
    """
    graph = model.graph
    types = {
        each.name: each.type.tensor_type.elem_type
        for each in (*graph.input, *graph.value_info, *graph.output)
    } | {each.name: each.data_type for each in graph.initializer}
    make = onnx.helper.make_node
    nodes = []
    for node in graph.node:
        more = {each.name: each.i for each in node.attribute}
        to = None
        if not node.domain and node.op_type in ("Cast", "CastLike"):
            to = more["to"] if node.op_type == "Cast" else types.get(node.input[1])
        if to is None:
            nodes.append(node)
            continue
        source, made = node.input[0], node.output[0]
        wide = f"{made}/wide"
        if to in _NARROW and types.get(source) != to:
            raise CompileError(
                f"{node.name}: a {node.op_type} to {_NARROW[to]} has no lowering; quantize with "
                "QuantizeLinear, or cast to INT8",
                phase="import",
            )
        if to == UINT8:
            nodes.append(make("Cast", [source], [wide], wide, to=INT32))
            source = wide
        if to in FLOATS:
            if types.get(source) not in (FLOAT, HALF, BFLOAT16):
                nodes.append(make("Cast", [source], [wide], wide, to=FLOAT))
                source = wide
            saturate = more.get("saturate", 1)
            last = make(QUANTIZE, [source, _ONE], [made], node.name, to=to, saturate=saturate)
            last.domain = DOMAIN
        else:
            last = make("Cast", [source], [made], node.name, to=to)
        nodes.append(last)
    if any(_ONE in node.input for node in nodes):
        one = onnx.numpy_helper.from_array(np.array(1, np.float32), _ONE)
        graph.initializer.append(one)
    del graph.node[:]
    graph.node.extend(nodes)
