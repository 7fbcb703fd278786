"""Schedule steps: functions from kernel to kernel. Each keeps what is computed, or refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from mxc.kernels.language import (
    Array,
    Atom,
    Body,
    Do,
    Element,
    For,
    Guard,
    Kernel,
    Space,
    labels,
    statements,
)
from mxc.kernels.layout import Layout


class Refused(ValueError):
    """A step that would change what is computed, or that names what is not there."""


def over(
    kernel: Kernel, axis: str, by: int, around: str, *, grid: bool = False, rest: int = 0
) -> Kernel:
    """A loop along `axis` in steps of `by` around the statements with the labels `around`."""
    wanted = set(around.split())
    if missing := wanted - labels(kernel.body):
        raise Refused(f"no statement {', '.join(sorted(missing))}")
    if rest and by != 2 * rest:
        raise Refused(f"a rest of {rest} in steps of {by}; wanted half of a step")

    def wrap(body: Body, size: int | None) -> Body:
        at = [i for i, each in enumerate(body) if labels((each,)) & wanted]
        first = body[at[0]]
        if len(at) == 1 and isinstance(first, For):
            inside = wrap(first.body, first.by if first.axis == axis else size)
            return (*body[: at[0]], replace(first, body=inside), *body[at[0] + 1 :])
        run = body[at[0] : at[-1] + 1]
        if extra := labels(run) - wanted:
            raise Refused(f"{', '.join(sorted(extra))} stands between {around}")
        if size is not None and size % (rest or by) and size != kernel.sizes[axis]:
            raise Refused(f"{axis}: steps of {by} in a tile of {size}")
        _require_whole_sums(kernel, axis, run)
        loop = For(axis, by, run, "grid" if grid else "serial", rest)
        return (*body[: at[0]], loop, *body[at[-1] + 1 :])

    return replace(kernel, body=wrap(kernel.body, kernel.sizes[axis]))


def _require_whole_sums(kernel: Kernel, axis: str, run: Body) -> None:
    """Refuse a loop over an axis of a sum around what begins or reads that sum."""
    summed = {do.out for do in statements(run) if do.adds and axis in kernel.summed(do)}
    for do in statements(run):
        if not do.adds and (do.out in summed or summed & set(do.ins)):
            raise Refused(f"{do.label} within the sum over {axis}")


def place(
    kernel: Kernel,
    name: str,
    space: Space,
    layout: Layout,
    pitch: Mapping[str, int] | None = None,
    guards: Mapping[str, Guard] | None = None,
    slots: Mapping[str, int] | None = None,
) -> Kernel:
    """Say where an array is and how it lies there."""
    array = replace(kernel.arrays[name], space=space, layout=layout, pitch=pitch or {})
    return kernel.with_arrays(replace(array, guards=guards or {}, slots=slots or {}))


def use(kernel: Kernel, label: str, atom: Atom, ahead: int = 0) -> Kernel:
    """The atom computes the statement."""
    if label not in labels(kernel.body):
        raise Refused(f"no statement {label}")

    def change(do: Do) -> Body:
        return (replace(do, atom=atom, ahead=ahead) if do.label == label else do,)

    return replace(kernel, body=_each(kernel.body, change))


def decode(kernel: Kernel, codes: str, scales: str | None, into: str, element: Element) -> Kernel:
    """The product reads `into`, which is made of codes, under their scales if there are any."""
    ins = (codes, *([scales] if scales else []))

    def change(do: Do) -> Body:
        if do.op != "dot":
            return (do,)
        rest = tuple(into if name == codes else name for name in do.ins if name != scales)
        return Do("decode", into, ins), replace(do, ins=rest)

    # What the coordinate of an expert is derived of stands for it.
    derived = kernel.derived
    axes = tuple(
        derived[axis].group if axis in derived else axis for axis in kernel.arrays[codes].axes
    )
    grown = kernel.with_arrays(Array(into, element, axes))
    return replace(grown, body=_each(grown.body, change))


def stage(kernel: Kernel, name: str, into: str, label: str, space: Space, layout: Layout) -> Kernel:
    """Before the statement `label`, what it reads of `name` is copied to `into`."""

    def change(do: Do) -> Body:
        if do.label != label:
            return (do,)
        ins = tuple(into if each == name else each for each in do.ins)
        return Do("copy", into, (name,)), replace(do, ins=ins)

    array = kernel.arrays[name]
    # A coordinate that is derived of another is that other one in a local array.
    axes = tuple(
        kernel.derived[axis].plus if axis in kernel.derived else axis for axis in array.axes
    )
    copy = Array(into, array.element, axes, space, layout)
    return replace(kernel.with_arrays(copy), body=_each(kernel.body, change))


def keep(
    kernel: Kernel, name: str, into: str, loop: tuple[str, int], space: Space, layout: Layout
) -> Kernel:
    """Sums of the array `name` are in `into` while the loop (axis, by) runs."""
    found = 0

    def go(body: Body) -> Body:
        nonlocal found
        rows: list[Do | For] = []
        for each in body:
            adds = [do for do in statements((each,)) if do.adds and do.out == name]
            if isinstance(each, Do) or not adds:
                rows.append(each)
            elif (each.axis, each.by) == loop:
                found += 1
                rows += [Do("copy", into, (name,)), *_renamed(each, name, into)]
                rows.append(Do("copy", name, (into,)))
            else:
                rows.append(replace(each, body=go(each.body)))
        return tuple(rows)

    body = go(kernel.body)
    if not found:
        raise Refused(f"no loop over {loop[0]} by {loop[1]} adds to {name}")
    copy = Array(into, kernel.arrays[name].element, kernel.arrays[name].axes, space, layout)
    return replace(kernel.with_arrays(copy), body=body)


def _renamed(loop: For, name: str, into: str) -> Body:
    """The loop with sums in another array."""

    def change(do: Do) -> Body:
        return (replace(do, out=into) if do.adds and do.out == name else do,)

    return _each((loop,), change)


def _each(body: Body, change: Callable[[Do], Body]) -> Body:
    rows: list[Do | For] = []
    for each in body:
        if isinstance(each, Do):
            rows += change(each)
        else:
            rows.append(replace(each, body=_each(each.body, change)))
    return tuple(rows)
