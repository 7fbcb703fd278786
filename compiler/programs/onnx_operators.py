"""Operators of ONNX in terms of those that IREE's importer lowers to the numbers that ONNX defines.

    Cast(x, UINT8)                ->    Cast(Cast(x, INT32), UINT8)                 onnx_casts.py
    Div(x, y), bytes              ->    Cast(Div(Cast(x, INT32), Cast(y, INT32)), UINT8)
    Einsum(x, y), of one sum      ->    Transpose(MatMul(Transpose(x), Transpose(y)))
    InstanceNormalization(x, ..)  ->    (x - mean) / root of the variance, as ONNX defines it
    LpNormalization(x, axis)      ->    Div(x, norm), where no norm is 0
    Reshape(x, shape)             ->    Reshape(Reshape(x, [-1]), shape), of some dynamic sizes

The importer takes bytes for signed numbers in these, divides by a norm of 0, and counts dynamic
elements of an instance wrong; its own products of an einsum have reshapes as below. Of a reshape it
takes a dynamic dimension for that of the result that is in its place, as [t, b, 4, 16] to [-1, 64]
has t rows, and then refuses any b but 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from mxc.compiler.programs.onnx_casts import rewrite_cast
from mxc.compiler.programs.onnx_codes import INT32, UINT8
from mxc.compiler.programs.onnx_functions import graphs_of
from mxc.compiler.programs.onnx_types import FLOAT

#: A node, the types of values by name, the package onnx, and the graph -> nodes in its place.
Rewrite: TypeAlias = Callable[[Any, dict[str, int], Any, Any], Sequence[Any]]

#: From this version of ONNX's operators on, the axes of all reductions are inputs.
_AXES_ARE_INPUTS = 18
#: Operators -> the type in which they compute bytes.
_BYTES = {"Abs": INT32, "Clip": INT32, "Div": INT32, "MaxPool": FLOAT, "Mod": INT32, "TopK": INT32}


def rewrite_operators(model: Any, onnx: Any) -> None:
    """Write each such operator in those terms. The types of values are known.

    Raises CompileError, with the name of its node, for a cast to integers of less than 8 bits.
    """
    types: dict[str, int] = {}
    opset = next((each.version for each in model.opset_import if not each.domain), 1)
    for graph in graphs_of(model.graph):
        for each in (*graph.input, *graph.value_info, *graph.output):
            types[each.name] = each.type.tensor_type.elem_type
        types |= {each.name: each.data_type for each in graph.initializer}
        nodes: list[Any] = []
        for node in graph.node:
            rewrite = None if node.domain else _REWRITES.get(node.op_type)
            made = [node] if rewrite is None else rewrite(node, types, onnx, graph)
            if opset < _AXES_ARE_INPUTS and rewrite is not None:
                _take_axes(made, graph, onnx)
            nodes += made
        del graph.node[:]
        graph.node.extend(nodes)


def _take_axes(nodes: Sequence[Any], graph: Any, onnx: Any) -> None:
    """Write the axes of reductions, which are initializers, as attributes."""
    for node in nodes:
        if node.op_type.startswith("Reduce") and len(node.input) > 1:
            name = node.input.pop()
            (axes,) = (each for each in graph.initializer if each.name == name)
            numbers = onnx.numpy_helper.to_array(axes).tolist()
            node.attribute.append(onnx.helper.make_attribute("axes", numbers))


def _widen_bytes(node: Any, types: dict[str, int], onnx: Any, graph: Any) -> Sequence[Any]:
    if types.get(node.input[0]) != UINT8:
        return [node]
    make, wide = onnx.helper.make_node, _BYTES[node.op_type]
    before: list[Any] = []
    after: list[Any] = []
    for place, name in enumerate(node.input):
        if types.get(name) == UINT8:
            node.input[place] = f"{node.output[0]}/{place}"
            before.append(make("Cast", [name], [node.input[place]], node.input[place], to=wide))
    for place, name in enumerate(node.output):
        if types.get(name) == UINT8:
            node.output[place] = f"{name}/bytes"
            back = make("Cast", [node.output[place]], [name], name, to=UINT8)
            after += rewrite_cast(back, types, onnx, graph)
    return [*before, node, *after]


def _normalize(node: Any, types: dict[str, int], onnx: Any, graph: Any) -> Sequence[Any]:
    make, (x,), (made,) = onnx.helper.make_node, node.input, node.output
    given = {each.name: each.i for each in node.attribute}
    norm, one, zero, axes = (f"{made}/{name}" for name in ("norm", "one", "zero", "axes"))
    kind = onnx.helper.tensor_dtype_to_np_dtype(types[x])
    for name, value in ((one, kind.type(1)), (zero, kind.type(0)), (axes, [given.get("axis", -1)])):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    return [
        make(f"ReduceL{given.get('p', 2)}", [x, axes], [norm], norm),
        make("Equal", [norm, zero], [f"{norm}/is"], f"{norm}/is"),
        make("Where", [f"{norm}/is", one, norm], [f"{norm}/safe"], f"{norm}/safe"),
        make("Div", [x, f"{norm}/safe"], [made], node.name),
    ]


def _normalize_instances(node: Any, types: dict[str, int], onnx: Any, graph: Any) -> Sequence[Any]:
    shape = _shape_of(node.input[0], graph)
    if shape is None:
        return [node]
    make, (x, scale, bias), (made,) = onnx.helper.make_node, node.input, node.output
    epsilon = next((each.f for each in node.attribute if each.name == "epsilon"), 1e-5)
    kind = onnx.helper.tensor_dtype_to_np_dtype(types[x])
    values = {
        "axes": np.arange(2, len(shape)),
        "ones": np.arange(1, len(shape) - 1),
        "epsilon": np.array(epsilon, kind),
    }
    for name, value in values.items():
        graph.initializer.append(onnx.numpy_helper.from_array(value, f"{made}/{name}"))
    nodes = []

    def call(operator: str, *given: str, into: str) -> str:
        nodes.append(make(operator, list(given), [f"{made}/{into}"], f"{made}/{into}"))
        return f"{made}/{into}"

    mean = call("ReduceMean", x, f"{made}/axes", into="mean")
    rest = call("Sub", x, mean, into="rest")
    variance = call("ReduceMean", call("Mul", rest, rest, into="squares"), f"{made}/axes",
                    into="variance")  # fmt: skip
    root = call("Sqrt", call("Add", variance, f"{made}/epsilon", into="safe"), into="root")
    factor, shift = (
        call("Unsqueeze", each, f"{made}/ones", into=name)
        for each, name in ((scale, "scale"), (bias, "bias"))
    )
    scaled = call("Mul", call("Div", rest, root, into="unit"), factor, into="scaled")
    return [*nodes, make("Add", [scaled, shift], [made], node.name)]


def _einsum(node: Any, types: dict[str, int], onnx: Any, graph: Any) -> Sequence[Any]:
    (equation,) = (each.s.decode().replace(" ", "") for each in node.attribute)
    sides, _, out = equation.partition("->")
    if not out or sides.count(",") != 1 or not out.isalpha():
        return [node]
    lhs, rhs = sides.split(",")
    names = list(node.input)
    shared = [letter for letter in out if letter in lhs and letter in rhs]
    if len(rhs) - len(shared) != 2:
        # What has one dimension of its own beside the sum is the second factor.
        lhs, rhs, names = rhs, lhs, names[::-1]
    summed = [letter for letter in lhs if letter in rhs and letter not in out]
    rows = [letter for letter in lhs if letter not in (*shared, *summed)]
    columns = [letter for letter in rhs if letter not in (*shared, *summed)]
    letters = [*shared, *rows, *columns]
    simple = all(len(set(each)) == len(each) for each in (lhs, rhs, out))
    known = sorted(letters) == sorted(out) and len(summed) == len(columns) == 1
    if not (simple and known and (len(rows) == 1 or (rows and not shared))):
        return [node]
    nodes = []

    def ordered(name: str, before: str, after: Sequence[str], into: str) -> str:
        if list(before) == list(after):
            return name
        perm = [before.index(letter) for letter in after]
        nodes.append(onnx.helper.make_node("Transpose", [name], [into], into, perm=perm))
        return into

    (made,) = node.output
    left = ordered(names[0], lhs, [*shared, *rows, *summed], f"{made}/lhs")
    right = ordered(names[1], rhs, [*shared, *summed, *columns], f"{made}/rhs")
    same = letters == list(out)
    product = made if same else f"{made}/product"
    nodes.append(onnx.helper.make_node("MatMul", [left, right], [product], node.name or product))
    if not same:
        ordered(product, "".join(letters), list(out), made)
    return nodes


def _reshape(node: Any, types: dict[str, int], onnx: Any, graph: Any) -> Sequence[Any]:
    before, after = (_shape_of(name, graph) for name in (node.input[0], node.output[0]))
    if before is None or after is None or None not in before:
        return [node]
    shape = next((each for each in graph.initializer if each.name == node.input[1]), None)
    if shape is None:
        merges = len(after) < len(before)
    else:
        # What is 0 stays as it is, and so does what is the same from the second dimension on.
        merges = 0 not in onnx.numpy_helper.to_array(shape)
    same = None not in after[1:] and after[1:] == before[len(before) - len(after) + 1 :]
    if not merges or (same and len(after) <= len(before)):
        return [node]
    flat, all_of = f"{node.output[0]}/flat", f"{node.output[0]}/all"
    graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1], np.int64), all_of))
    whole = onnx.helper.make_node("Reshape", [node.input[0], all_of], [flat], flat)
    node.input[0] = flat
    return [whole, node]


def _shape_of(name: str, graph: Any) -> list[int | None] | None:
    """The dimensions of a value, None for those that come with the call; None if not known."""
    for each in (*graph.input, *graph.value_info, *graph.output):
        if each.name == name and each.type.tensor_type.HasField("shape"):
            dims = each.type.tensor_type.shape.dim
            return [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    return None


_REWRITES: dict[str, Rewrite] = {
    "Einsum": _einsum,
    "InstanceNormalization": _normalize_instances,
    "Reshape": _reshape,
    "Cast": rewrite_cast,
    "CastLike": rewrite_cast,
    "LpNormalization": _normalize,
    **dict.fromkeys(_BYTES, _widen_bytes),
}
