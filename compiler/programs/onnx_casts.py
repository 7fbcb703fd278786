"""Casts of ONNX in steps that IREE's importer lowers to the numbers that ONNX defines.

    Cast(x, UINT8)          ->    Cast(Cast(x, INT32), UINT8)
    Cast(x, FLOAT8E4M3FN)   ->    QuantizeLinear(x, 1)

The importer's own of floats to UINT8 stops at 127, and it has none to floats of 8 and 4 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mxc.compiler.programs.onnx_codes import BFLOAT16, FLOATS, HALF, INT32, UINT8
from mxc.compiler.programs.onnx_types import DOMAIN, FLOAT, QUANTIZE
from mxc.errors import CompileError

#: Integers of 4 and of 2 bits.
_NARROW = {21: "UINT4", 22: "INT4", 25: "UINT2", 26: "INT2"}


def rewrite_cast(node: Any, types: dict[str, int], onnx: Any, graph: Any) -> Sequence[Any]:
    """A Cast or CastLike as such steps. `types`: those of values, by name; `graph` may get a
    constant.

    Raises CompileError, with the name of the node, for a cast to integers of less than 8 bits.
    """
    make = onnx.helper.make_node
    more = {each.name: each.i for each in node.attribute}
    to = more["to"] if node.op_type == "Cast" else types.get(node.input[1])
    if to is None:
        return [node]
    source, made = node.input[0], node.output[0]
    wide = f"{made}/wide"
    if to in _NARROW and types.get(source) != to:
        raise CompileError(
            f"{node.name}: a {node.op_type} to {_NARROW[to]} has no lowering; quantize with "
            "QuantizeLinear, or cast to INT8",
            phase="import",
        )
    nodes = []
    if to == UINT8:
        nodes.append(make("Cast", [source], [wide], wide, to=INT32))
        source = wide
    if to not in FLOATS:
        return [*nodes, make("Cast", [source], [made], node.name, to=to)]
    if types.get(source) not in (FLOAT, HALF, BFLOAT16):
        nodes.append(make("Cast", [source], [wide], wide, to=FLOAT))
        source = wide
    one = f"{made}/one"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(1, np.float32), one))
    last = make(QUANTIZE, [source, one], [made], node.name, to=to, saturate=more.get("saturate", 1))
    last.domain = DOMAIN
    return [*nodes, last]
