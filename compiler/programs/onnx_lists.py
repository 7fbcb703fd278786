"""Lists of integers that operators of ONNX make of lists, and sizes of what they make.

    Gather([b, t, 64], 1)                 ->    t
    Where(Equal([b, -1], -1), 1, [b, -1]) ->    [b, 1]

A size that comes with the call is a `Size`, a product of names; None is a number that is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.programs.reshape_groups import Size

#: An array of numbers, of sizes and of None.
List: TypeAlias = NDArray[Any]
#: A list of at most so many numbers may be a shape.
MOST = 64
#: From here on the end of a slice is that of all that there is.
_ENDLESS = 1 << 31
#: The integers among the types of elements: INT32, INT64.
_INTEGERS = (6, 7)


def quotient(whole: list[Any], parts: list[Any]) -> int | Size | None:
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
    return plain(Size(left.factor // taken.factor, tuple(names)))


def prod_of(sizes: list[Any]) -> Size:
    """The product of numbers and sizes."""
    found = Size()
    for each in sizes:
        found *= each if isinstance(each, Size) else Size(each)
    return found


def resolved(sizes: list[Any], shape: list[Any]) -> list[Any]:
    """The shape of a Reshape of `sizes` without 0, and without -1 where it is known."""
    found = [sizes[axis] if each == 0 else each for axis, each in enumerate(shape)]
    for axis, each in enumerate(found):
        left = quotient(sizes, found[:axis] + found[axis + 1 :]) if each == -1 else None
        found[axis] = each if left is None else left
    return found


def plain(size: Size) -> int | Size:
    """The number that a size is, if it has no names."""
    return size if size.names else size.factor


def list_of(values: Any, shape: tuple[int, ...]) -> List:
    """An array of as many values as `shape` says, or of one value where it is ()."""
    found = np.empty(shape, object)
    found[...] = np.array([*values, None], object)[:-1] if shape else values
    return found


def _each(function: Callable[..., Any], *lists: List) -> List:
    """A function of the elements of lists, of which one may be None: then what it makes is."""

    def known(*each: Any) -> Any:
        return None if any(one is None for one in each) else function(*each)

    made = np.frompyfunc(known, len(lists), 1)(*lists)
    return made if isinstance(made, np.ndarray) else list_of(made, ())


def _multiplied(one: Any, other: Any) -> Any:
    return plain(prod_of([one, other]))


def _divided(one: Any, other: Any) -> Any:
    return quotient([one], [other])


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
    return found if isinstance(found, np.ndarray) else list_of(found, ())


def _filled(given: Mapping[str, Any], shape: List) -> List | None:
    value = given.get("value", np.zeros(1, np.float32))
    whole = shape.size == 1 and isinstance(shape[0], int) and 0 <= shape[0] <= MOST
    if not whole or value.dtype.kind not in "bi":
        return None
    return list_of([value.flat[0].item()] * shape[0], tuple(shape))


def _slice_sizes(sizes: list[Any] | None, lists: list[List | None]) -> list[Any] | None:
    """A slice up to a size is taken to have so many rows: what it is of has no fewer."""
    if sizes is None:
        return None
    starts, ends, axes, steps = (lists[n] if n < len(lists) else None for n in range(1, 5))
    if axes is None:
        if len(lists) > 3 or starts is None:
            return None
        axes = list_of(range(len(starts)), starts.shape)
    if any(not isinstance(each, int) for each in axes):
        return None
    if steps is None and len(lists) < 5:
        steps = list_of([1] * len(axes), axes.shape)
    found = list(sizes)
    for number, axis in enumerate(axes):
        start, end, step = (
            None if each is None else each[number] for each in (starts, ends, steps)
        )
        if all(isinstance(each, int) for each in (found[axis], start, end, step)):
            found[axis] = len(range(found[axis])[start:end:step])
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
    return None if sizes is None or shape is None or shape.ndim != 1 else resolved(sizes, [*shape])


#: Sizes of the first input and lists of all -> the sizes of what an operator makes.
INFER: dict[str, Callable[[list[Any] | None, list[List | None]], list[Any] | None]] = {
    "ConstantOfShape": lambda _, lists: None if lists[0] is None else list(lists[0]),
    "Expand": _expanded_sizes,
    "Range": _range_sizes,
    "Reshape": _reshaped_sizes,
    "Slice": _slice_sizes,
}


def _shape_between(given: Mapping[str, Any], sizes: List) -> List:
    return sizes[given.get("start", 0) : given.get("end", len(sizes))]


#: Attributes and lists -> the list that an operator makes; None where it is not known.
EVALUATE: dict[str, Callable[..., List | None]] = {
    "Shape": _shape_between,
    "Size": lambda _, sizes: list_of(plain(prod_of(list(sizes))), ()),
    "Constant": lambda given: _constant_of(next(iter(given.values()))),
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
    """`value`: an array, a number, or numbers, by the attribute that the node has."""
    array = np.asarray(value)
    if array.dtype.kind not in "bi" or array.size > MOST or array.ndim > 1:
        return None
    return list_of(array.tolist(), array.shape)
