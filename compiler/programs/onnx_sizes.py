"""Shapes that a graph of ONNX computes from sizes that come with the call, as lists of numbers.

    Reshape(x, Concat(Gather(Shape(x), 0), [-1], [64]))                  x [b, t, 4, 16]
        ->    Reshape(x, [0, -1, 64])
    Expand(x, Where(Equal(s, -1), 1, s)), s = Concat(Gather(Shape(y), 0), [-1])    x [1, 8], y [b]
        ->    Expand(x, Concat(Shape(y), [1]))

IREE's importer follows few of the operators that exporters compute shapes with. Where it does not,
it makes programs that do not compile, or that refuse the sizes of a call.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.programs.onnx_functions import graphs_of
from mxc.compiler.programs.onnx_lists import (
    EVALUATE,
    INFER,
    MOST,
    List,
    list_of,
    plain,
    prod_of,
    resolved,
)
from mxc.compiler.programs.onnx_shapes import infer_shapes
from mxc.compiler.programs.reshape_groups import Size

#: How the names of shapes end that are written here, and what is between the factors of a size.
_KNOWN, _SIZES, _TIMES = "/known shape", "/shape of sizes", " × "
#: The place of the shape among the inputs.
_SHAPED = {"Reshape": 1, "Expand": 1, "ConstantOfShape": 0}


def resolve_shapes(model: Any, onnx: Any) -> Any:
    """The model with such shapes as constants, or as lists of `Shape`; its values have types."""
    for each in model.graph.input:
        for axis, dim in enumerate(each.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_param = dim.dim_param or f"{each.name}/{axis}"
    while True:
        _forget_names(model.graph)
        model = infer_shapes(model, onnx)
        if not _Graph(model.graph, onnx).resolve():
            return model


def _forget_names(graph: Any) -> None:
    """Take away the names of sizes that no argument has: those that exporters and onnx make up, for
    sizes that may be those of an argument. onnx keeps a name that there is."""
    named = _named(graph)
    for each in (*graph.value_info, *graph.output):
        for dim in each.type.tensor_type.shape.dim:
            size = _size_of(dim)
            if size is not None and not named >= {*size.names}:
                dim.ClearField("dim_param")


def _size_of(dim: Any) -> Size | None:
    """The size that a name stands for, "b", or one that is written here, "4 × b × t"."""
    first, *names = dim.dim_param.split(_TIMES)
    if not first:
        return None
    return Size(int(first), tuple(sorted(names, key=hash))) if names else Size(names=(first,))


def _named(graph: Any) -> set[str]:
    """The names of the sizes of arguments."""
    dims = (dim for each in graph.input for dim in each.type.tensor_type.shape.dim)
    return {dim.dim_param for dim in dims if dim.dim_param}


class _Graph:
    """The outer graph of a model: the sizes of its values, and the lists that it computes."""

    def __init__(self, graph: Any, onnx: Any) -> None:
        self.graph, self.onnx, self.named = graph, onnx, _named(graph)
        #: The sizes of values, and the values of lists.
        self.sizes: dict[str, list[Any]] = {}
        self.lists: dict[str, List] = {}
        #: Where a size is that has a name: the value and its axis.
        self.places: dict[Any, tuple[str, int]] = {}
        self.kinds = {each.name: each.type for each in (*graph.value_info, *graph.output)}
        self.nodes: list[Any] = []
        self.changed = False

    def resolve(self) -> bool:
        """Rewrite shapes; whether there were any that were not written so before."""
        helper = self.onnx.numpy_helper
        for each in self.graph.initializer:
            self.sizes[each.name] = list(each.dims)
            if prod(each.dims) <= MOST:
                self._knows(each.name, helper.to_array(each))
        for each in self.graph.input:
            self._has_sizes(each.name, each.type)
        for node in self.graph.node:
            if node.op_type in _SHAPED and not node.domain:
                self._rewrite(node)
            self.nodes.append(node)
            self._refine(node)
            for name in node.output:
                if name in self.kinds:
                    self._has_sizes(name, self.kinds[name])
            self._evaluate(node)
        del self.graph.node[:]
        self.graph.node.extend(self._used())
        return self.changed

    def _has_sizes(self, name: str, kind: Any) -> None:
        if not kind.tensor_type.HasField("shape"):
            return
        sizes: list[Any] = []
        for axis, dim in enumerate(kind.tensor_type.shape.dim):
            size = _size_of(dim) or Size(names=((name, axis),))
            if size.names and size.factor == len(size.names) == 1:
                self.places.setdefault(size.names[0], (name, axis))
            sizes.append(dim.dim_value if dim.HasField("dim_value") else size)
        self.sizes[name] = sizes

    def _refine(self, node: Any) -> None:
        """Note sizes of a result that onnx does not see in the types of values."""
        infer = None if node.domain or _allows_zero(node) else INFER.get(node.op_type)
        kind = self.kinds.get(node.output[0])
        if infer is None or kind is None or not kind.tensor_type.HasField("shape"):
            return
        found = infer(self.sizes.get(node.input[0]), [self.lists.get(each) for each in node.input])
        dims = kind.tensor_type.shape.dim
        if found is None or len(found) != len(dims):
            return
        for dim, size in zip(dims, found, strict=True):
            known = _size_of(dim)
            if dim.HasField("dim_value") or (known is not None and self.named >= {*known.names}):
                continue
            if isinstance(size, int) and size >= 0:
                dim.dim_value = size
                self.changed = True
            elif isinstance(size, Size) and self.named >= {*size.names}:
                factor = [] if size.factor == len(size.names) == 1 else [str(size.factor)]
                dim.dim_param = _TIMES.join([*factor, *map(str, size.names)])
                self.changed = True

    def _knows(self, name: str, array: NDArray[Any]) -> None:
        if array.dtype.kind in "bi" and array.ndim < 2:
            self.lists[name] = list_of(array.tolist(), array.shape)

    def _evaluate(self, node: Any) -> None:
        """Note the list that a node makes, if it is one of integers."""
        evaluate = None if node.domain else EVALUATE.get(node.op_type)
        if evaluate is None:
            return
        given = {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}
        if "value" in given:
            given["value"] = self.onnx.numpy_helper.to_array(given["value"])
        if node.op_type in ("Shape", "Size"):
            sizes = self.sizes.get(node.input[0])
            inputs = [None if sizes is None else list_of(sizes, (len(sizes),))]
        else:
            inputs = [self.lists.get(name) for name in node.input if name]
        if any(each is None for each in inputs):
            return
        found = evaluate(given, *inputs)
        if found is not None and found.ndim < 2 and found.size <= MOST:
            self.lists[node.output[0]] = found

    def _rewrite(self, node: Any) -> None:
        """Write the shape that a node reads as a constant, or as a list of sizes."""
        place = _SHAPED[node.op_type]
        shape = self.lists.get(node.input[place])
        if shape is None or shape.ndim != 1:
            return
        wanted = list(shape)
        before = self.sizes.get(node.input[0])
        if node.op_type == "Reshape":
            if before is None or _allows_zero(node):
                return
            wanted = _reshaped(before, wanted)
        elif node.op_type == "Expand":
            if before is None or not wanted:
                return
            old = ([1] * (len(wanted) - len(before)) + before)[-len(wanted) :]
            wanted = [1 if each == new else new for each, new in zip(old, wanted, strict=True)]
        given = node.input[place]
        if all(isinstance(each, int) for each in wanted):
            made = node.output[0] + _KNOWN
            if any(each.name == given for each in self.graph.initializer):
                return
            self._constant(made, wanted)
        else:
            made = node.output[0] + _SIZES
            if given == made:
                return
            parts = [
                self._element(f"{made}/{axis}", given, axis) if each is None else
                "" if each == -1 else self._part(f"{made}/{axis}", each)
                for axis, each in enumerate(wanted)
            ]  # fmt: skip
            if "" in parts:
                free = parts.index("")
                parts[free] = self._rest(f"{made}/{free}", before or [], parts)
            self.nodes.append(self.onnx.helper.make_node("Concat", parts, [made], made, axis=0))
        node.input[place] = made
        self.changed = True

    def _rest(self, name: str, before: list[Any], parts: list[str]) -> str:
        """The size for which a Reshape has -1: all elements by those of the other sizes."""
        found = self._part(f"{name}/all", plain(prod_of(before)))
        for number, each in enumerate(filter(None, parts)):
            into = f"{name}/{number}/quotient"
            self.nodes.append(self.onnx.helper.make_node("Div", [found, each], [into], into))
            found = into
        return found

    def _constant(self, name: str, numbers: list[int]) -> str:
        array = np.array(numbers, np.int64)
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(array, name))
        self.lists[name] = list_of(numbers, array.shape)
        return name

    def _part(self, name: str, size: int | Size) -> str:
        """The name of a list of one number: a size, as a product of what is in shapes."""
        if isinstance(size, int):
            return self._constant(name, [size])
        make, found = self.onnx.helper.make_node, ""
        for number, each in enumerate(size.names):
            value, axis = self.places[each]
            at = f"{name}/{number}"
            self.nodes.append(make("Shape", [value], [f"{at}/of"], f"{at}/of"))
            part = self._element(at, f"{at}/of", axis)
            found = self._product(found, part, f"{at}/product") if found else part
        if size.factor != 1:
            found = self._product(found, self._constant(f"{name}/factor", [size.factor]), name)
        return found

    def _element(self, name: str, of: str, place: int) -> str:
        """The name of a list of one number, which is in another list."""
        at = self._constant(f"{name}/at", [place])
        made = f"{name}/element"
        self.nodes.append(self.onnx.helper.make_node("Gather", [of, at], [made], made))
        return made

    def _product(self, one: str, other: str, into: str) -> str:
        self.nodes.append(self.onnx.helper.make_node("Mul", [one, other], [into], into))
        return into

    def _used(self) -> list[Any]:
        """The nodes whose results are read, in their order."""
        read = {each.name for each in self.graph.output}
        kept: list[Any] = []
        for node in reversed(self.nodes):
            if not read & {*node.output}:
                continue
            kept.append(node)
            read |= {*node.input}
            for each in node.attribute:
                for inner in graphs_of(each.g) if each.HasField("g") else ():
                    read |= {name for one in inner.node for name in one.input}
                    read |= {one.name for one in inner.output}
        return kept[::-1]


def _allows_zero(node: Any) -> bool:
    """Whether 0 in the shape of a Reshape is no size, instead of one that stays."""
    return any(each.name == "allowzero" and each.i for each in node.attribute)


def _reshaped(before: list[Any], shape: list[Any]) -> list[Any]:
    """The shape of a Reshape with 0 for each size that stays, and -1 for another one, if there are
    no more than one of these."""
    wanted = resolved(before, shape)
    kept: list[Any] = [
        0 if axis < len(before) and isinstance(each, Size) and each == before[axis] else each
        for axis, each in enumerate(wanted)
    ]
    free = [axis for axis, each in enumerate(kept) if not isinstance(each, int) or each == -1]
    if len(free) > 1:
        return wanted
    for axis in free:
        kept[axis] = -1
    return kept
