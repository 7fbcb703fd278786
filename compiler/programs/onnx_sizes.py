"""Shapes that a graph of ONNX computes from sizes that come with the call, as lists of numbers.

    Reshape(x, Concat(Gather(Shape(x), 0), [-1], [64]))                  x [b, t, 4, 16]
        ->    Reshape(x, [0, -1, 64])
    Expand(x, Where(Equal(s, -1), 1, s)), s = Concat(Gather(Shape(y), 0), [-1])    x [1, 8], y [b]
        ->    Expand(x, Concat(Shape(y), [1]))

IREE's importer follows few of the operators that exporters compute shapes with. Where it does not,
it makes programs that do not compile, or that refuse the sizes of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.programs.onnx_functions import graphs_of
from mxc.compiler.programs.onnx_shapes import infer_shapes
from mxc.compiler.programs.reshape_groups import Size

#: An array of numbers, of sizes (`Size` with names) and of None, for what is not known.
List: TypeAlias = NDArray[Any]

#: A list of at most so many numbers may be a shape.
_MOST = 64
#: How the names of shapes end that are written here.
_KNOWN, _SIZES = "/known shape", "/shape of sizes"
#: From here on the end of a slice is that of all that there is.
_ENDLESS = 1 << 31
#: The integers among the types of elements: INT32, INT64.
_INTEGERS = (6, 7)
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
            if dim.dim_param and dim.dim_param not in named:
                dim.ClearField("dim_param")


def _named(graph: Any) -> set[str]:
    """The names of the sizes of arguments."""
    dims = (dim for each in graph.input for dim in each.type.tensor_type.shape.dim)
    return {dim.dim_param for dim in dims if dim.dim_param}


class _Graph:
    """The outer graph of a model: the sizes of its values, and the lists that it computes."""

    def __init__(self, graph: Any, onnx: Any) -> None:
        self.graph, self.onnx = graph, onnx
        self.named = {name: Size(names=(name,)) for name in _named(graph)}
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
            if prod(each.dims) <= _MOST:
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
            size = Size(names=(dim.dim_param or (name, axis),))
            self.places.setdefault(size.names[0], (name, axis))
            sizes.append(dim.dim_value if dim.HasField("dim_value") else size)
        self.sizes[name] = sizes

    def _refine(self, node: Any) -> None:
        """Note sizes of a result that onnx does not see in the types of values."""
        infer = None if node.domain else _INFER.get(node.op_type)
        kind = self.kinds.get(node.output[0])
        if infer is None or kind is None or not kind.tensor_type.HasField("shape"):
            return
        found = infer(self.sizes.get(node.input[0]), [self.lists.get(each) for each in node.input])
        dims = kind.tensor_type.shape.dim
        if found is None or len(found) != len(dims):
            return
        for dim, size in zip(dims, found, strict=True):
            if dim.HasField("dim_value") or dim.dim_param in self.named:
                continue
            if isinstance(size, int) and size >= 0:
                dim.dim_value = size
                self.changed = True
            elif size in self.named.values():
                dim.dim_param = size.names[0]
                self.changed = True

    def _knows(self, name: str, array: NDArray[Any]) -> None:
        if array.dtype.kind in "bi" and array.ndim < 2:
            self.lists[name] = _objects(array.tolist(), array.shape)

    def _evaluate(self, node: Any) -> None:
        """Note the list that a node makes, if it is one of integers."""
        evaluate = None if node.domain else _EVALUATE.get(node.op_type)
        if evaluate is None:
            return
        given = {each.name: self.onnx.helper.get_attribute_value(each) for each in node.attribute}
        if "value" in given:
            given["value"] = self.onnx.numpy_helper.to_array(given["value"])
        if node.op_type in ("Shape", "Size"):
            sizes = self.sizes.get(node.input[0])
            inputs = [None if sizes is None else _objects(sizes, (len(sizes),))]
        else:
            inputs = [self.lists.get(name) for name in node.input if name]
        if any(each is None for each in inputs):
            return
        found = evaluate(given, *inputs)
        if found is not None and found.ndim < 2 and found.size <= _MOST:
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
            allowzero = any(each.name == "allowzero" and each.i for each in node.attribute)
            if before is None or allowzero:
                return
            wanted = _reshaped(before, wanted)
        elif node.op_type == "Expand":
            if before is None or not wanted:
                return
            old = ([1] * (len(wanted) - len(before)) + before)[-len(wanted) :]
            wanted = [1 if each == new else new for each, new in zip(old, wanted, strict=True)]
        if any(each is None for each in wanted):
            return
        if all(isinstance(each, int) for each in wanted):
            made = node.output[0] + _KNOWN
            if any(each.name == node.input[place] for each in self.graph.initializer):
                return
            self._constant(made, wanted)
        else:
            made = node.output[0] + _SIZES
            if node.input[place] == made:
                return
            parts = [self._part(f"{made}/{axis}", each) for axis, each in enumerate(wanted)]
            self.nodes.append(self.onnx.helper.make_node("Concat", parts, [made], made, axis=0))
        node.input[place] = made
        self.changed = True

    def _constant(self, name: str, numbers: list[int]) -> str:
        array = np.array(numbers, np.int64)
        self.graph.initializer.append(self.onnx.numpy_helper.from_array(array, name))
        self.lists[name] = _objects(numbers, array.shape)
        return name

    def _part(self, name: str, size: int | Size) -> str:
        """The name of a list of one number: a size, as a product of what is in shapes."""
        if isinstance(size, int):
            return self._constant(name, [size])
        make, found = self.onnx.helper.make_node, ""
        for number, each in enumerate(size.names):
            value, axis = self.places[each]
            at, part = f"{name}/{number}", f"{name}/{number}/size"
            self.nodes.append(make("Shape", [value], [f"{at}/of"], f"{at}/of"))
            self._constant(f"{at}/axis", [axis])
            self.nodes.append(make("Gather", [f"{at}/of", f"{at}/axis"], [part], part))
            found = self._product(found, part, f"{at}/product") if found else part
        if size.factor != 1:
            found = self._product(found, self._constant(f"{name}/factor", [size.factor]), name)
        return found

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


def _reshaped(before: list[Any], shape: list[Any]) -> list[Any]:
    """The shape of a Reshape with 0 for each size that stays, and -1 for another one, if there are
    no more than one of these."""
    old = list(before)
    wanted = [old[axis] if each == 0 else each for axis, each in enumerate(shape)]
    for axis, each in enumerate(wanted):
        if each == -1:
            wanted[axis] = _quotient(old, wanted[:axis] + wanted[axis + 1 :])
    kept: list[Any] = [
        0 if axis < len(old) and isinstance(each, Size) and each == old[axis] else each
        for axis, each in enumerate(wanted)
    ]
    free = [axis for axis, each in enumerate(kept) if not isinstance(each, int) or each == -1]
    if len(free) == 1:
        kept[free[0]] = -1
    return kept


def _quotient(whole: list[Any], parts: list[Any]) -> int | Size | None:
    """The size that is left of a product of sizes for one that others leave; None if not known."""
    if any(each is None for each in parts):
        return None
    left, taken = (prod_of(each) for each in (whole, parts))
    names = list(left.names)
    for name in taken.names:
        if name not in names:
            return None
        names.remove(name)
    if not taken.factor or left.factor % taken.factor:
        return None
    return _plain(Size(left.factor // taken.factor, tuple(names)))


def prod_of(sizes: list[Any]) -> Size:
    """The product of numbers and sizes."""
    found = Size()
    for each in sizes:
        found *= each if isinstance(each, Size) else Size(each)
    return found


def _plain(size: Size) -> int | Size:
    return size if size.names else size.factor


def _objects(values: Any, shape: tuple[int, ...]) -> List:
    found = np.empty(shape, object)
    found[...] = np.array([*values, None], object)[:-1] if shape else values
    return found


def _each(function: Callable[..., Any], *lists: List) -> List:
    """A function of the elements of lists, of which one may be None: then what it makes is."""

    def known(*each: Any) -> Any:
        return None if any(one is None for one in each) else function(*each)

    made = np.frompyfunc(known, len(lists), 1)(*lists)
    return made if isinstance(made, np.ndarray) else _objects(made, ())


def _multiplied(one: Any, other: Any) -> Any:
    return _plain(prod_of([one, other]))


def _divided(one: Any, other: Any) -> Any:
    return _quotient([one], [other])


def _added(one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        return one + other
    return one if other == 0 else other if one == 0 else None


def _subtracted(one: Any, other: Any) -> Any:
    if isinstance(one, int) and isinstance(other, int):
        return one - other
    return one if other == 0 else 0 if one == other else None


def _equal(one: Any, other: Any) -> bool | None:
    """A size is no negative number."""
    if isinstance(one, Size) == isinstance(other, Size):
        return True if one == other else None if isinstance(one, Size) else False
    number = other if isinstance(one, Size) else one
    return False if number < 0 else None


def _where(condition: Any, one: Any, other: Any) -> Any:
    return one if condition else other


def _sliced(_: Any, data: List, *bounds: List) -> List | None:
    if any(not isinstance(each, int) for bound in bounds for each in bound.flat):
        return None
    if any(bound.shape != (1,) for bound in bounds) or data.ndim != 1:
        return None
    start, end, _axis, step = [int(bound[0]) for bound in bounds] + [0, 1][len(bounds) - 2 :]
    return data[start:end:step]


def _gathered(_: Any, data: List, at: List) -> List | None:
    if any(not isinstance(each, int) for each in at.flat) or data.ndim != 1:
        return None
    found = data[at.astype(int)]
    return found if isinstance(found, np.ndarray) else _objects(found, ())


def _filled(given: Mapping[str, Any], shape: List) -> List | None:
    value = given.get("value", np.zeros(1, np.float32))
    whole = shape.size == 1 and isinstance(shape[0], int) and 0 <= shape[0] <= _MOST
    if not whole or value.dtype.kind not in "bi":
        return None
    return _objects([value.flat[0].item()] * shape[0], tuple(shape))


def _slice_sizes(sizes: list[Any] | None, lists: list[List | None]) -> list[Any] | None:
    """A slice up to a size is taken to have so many rows: what it is of has no fewer."""
    if sizes is None or any(each is None for each in lists[3:4]):
        return None
    count = len(lists[3]) if len(lists) > 3 and lists[3] is not None else len(sizes)
    axes, found = range(count) if len(lists) < 4 else lists[3], list(sizes)
    starts, ends = ([None] * count if each is None else list(each) for each in lists[1:3])
    steps = [1] * count if len(lists) < 5 else lists[4]
    steps = [None] * count if steps is None else list(steps)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        whole = sizes[axis]
        if all(isinstance(each, int) for each in (whole, start, end, step)):
            found[axis] = len(range(whole)[start:end:step])
        elif start == 0 and step == 1 and isinstance(end, Size):
            found[axis] = end
        elif not (start == 0 and step == 1 and isinstance(end, int) and end >= _ENDLESS):
            found[axis] = None
    return found


def _range_sizes(_: list[Any] | None, lists: list[List | None]) -> list[Any] | None:
    start, end, step = (None if each is None else each.flat[0] for each in lists)
    if not (isinstance(start, int) and step == 1 and end is not None):
        return None
    return [max(end - start, 0) if isinstance(end, int) else end if start == 0 else None]


def _expanded_sizes(sizes: list[Any] | None, lists: list[List | None]) -> list[Any] | None:
    shape = lists[1]
    if sizes is None or shape is None or shape.ndim != 1:
        return None
    rank = max(len(sizes), len(shape))
    both = ([1] * (rank - len(each)) + list(each) for each in (sizes, shape))
    return [
        new if old == 1 else old if new in (1, old) else None
        for old, new in zip(*both, strict=True)
    ]


def _reshaped_sizes(sizes: list[Any] | None, lists: list[List | None]) -> list[Any] | None:
    shape = lists[1]
    if sizes is None or shape is None or shape.ndim != 1:
        return None
    found = [sizes[axis] if each == 0 else each for axis, each in enumerate(shape)]
    return [
        _quotient(sizes, found[:axis] + found[axis + 1 :]) if each == -1 else each
        for axis, each in enumerate(found)
    ]


#: Sizes of the first input and lists of all -> the sizes of what an operator makes.
_INFER: dict[str, Callable[[list[Any] | None, list[List | None]], list[Any] | None]] = {
    "ConstantOfShape": lambda _, lists: None if lists[0] is None else list(lists[0]),
    "Expand": _expanded_sizes,
    "Range": _range_sizes,
    "Reshape": _reshaped_sizes,
    "Slice": _slice_sizes,
}


def _shape_between(given: Mapping[str, Any], sizes: List) -> List:
    return sizes[given.get("start", 0) : given.get("end", len(sizes))]


#: Attributes and lists -> the list that an operator makes; None where it is not known.
_EVALUATE: dict[str, Callable[..., List | None]] = {
    "Shape": _shape_between,
    "Size": lambda _, sizes: _objects(_plain(prod_of(list(sizes))), ()),
    "Constant": lambda given: _constant_of(given.get("value")),
    "Identity": lambda _, data: data,
    "Cast": lambda given, data: data if given["to"] in _INTEGERS else None,
    "Gather": _gathered,
    "Slice": _sliced,
    "Concat": lambda _, *parts: np.concatenate(parts),
    "Unsqueeze": lambda _, data, *axes: data.reshape(-1) if data.ndim == 0 else None,
    "Squeeze": lambda _, data, *axes: data.reshape(()) if data.size == 1 else None,
    "Reshape": lambda _, data, shape: data if list(shape) in ([-1], [data.size]) else None,
    "ConstantOfShape": _filled,
    "Mul": lambda _, *both: _each(_multiplied, *both),
    "Div": lambda _, *both: _each(_divided, *both),
    "Add": lambda _, *both: _each(_added, *both),
    "Sub": lambda _, *both: _each(_subtracted, *both),
    "Equal": lambda _, *both: _each(_equal, *both),
    "Where": lambda _, *three: _each(_where, *three),
}


def _constant_of(value: Any) -> List | None:
    if value is None or value.dtype.kind not in "bi" or value.size > _MOST or value.ndim > 1:
        return None
    return _objects(value.tolist(), value.shape)
