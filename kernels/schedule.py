"""Schedule steps: functions from a kernel to a kernel that computes the same result.

A step that would change the result raises `ScheduleRefused`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

from mxc.kernels.language import (
    Array,
    Atom,
    Body,
    Chains,
    Do,
    Early,
    Element,
    For,
    Guard,
    Kernel,
    Space,
    labels,
    statements,
    used,
)
from mxc.kernels.layout import Layout


class ScheduleRefused(ValueError):
    """A step would change the result, or names a statement or loop that does not exist."""


def over(
    kernel: Kernel,
    axis: str,
    by: int,
    around: str,
    *,
    grid: bool = False,
    rest: tuple[int, ...] = (),
) -> Kernel:
    """Put a loop along `axis` in steps of `by` around the statements with the labels `around`,
    which are separated by spaces. The new loop goes into the innermost loop that contains all of
    them. `grid`: whether each iteration is a workgroup. `rest`: narrower widths, as in `For`."""
    wanted = set(around.split())
    if missing := wanted - labels(kernel.body):
        raise ScheduleRefused(f"no statement {', '.join(sorted(missing))}")
    if any(narrow >= wide for wide, narrow in zip((by, *rest), rest, strict=False)):
        raise ScheduleRefused(f"rests of {rest} in steps of {by}; wanted the widest first")

    def wrap(body: Body, size: int | None) -> Body:
        at = [i for i, each in enumerate(body) if labels((each,)) & wanted]
        first = body[at[0]]
        if len(at) == 1 and isinstance(first, For):
            inside = wrap(first.body, first.by if first.axis == axis else size)
            return (*body[: at[0]], replace(first, body=inside), *body[at[0] + 1 :])
        run = body[at[0] : at[-1] + 1]
        if extra := labels(run) - wanted:
            raise ScheduleRefused(f"{', '.join(sorted(extra))} stands between {around}")
        whole = size is None or size == kernel.sizes[axis]
        if size is not None and not whole and not any(size % part == 0 for part in (by, *rest)):
            raise ScheduleRefused(f"{axis}: steps of {by} in a tile of {size}")
        _require_whole_sums(kernel, axis, run)
        loop = For(axis, by, run, "grid" if grid else "serial", rest)
        return (*body[: at[0]], loop, *body[at[-1] + 1 :])

    return replace(kernel, body=wrap(kernel.body, kernel.sizes[axis]))


def _require_whole_sums(kernel: Kernel, axis: str, run: Body) -> None:
    """Raise `ScheduleRefused` if a loop over an axis that is summed would contain a statement that
    starts or reads the sum."""
    summed = {do.out for do in statements(run) if do.adds and axis in kernel.summed(do)}
    for do in statements(run):
        if not do.adds and (do.out in summed or summed & set(do.ins)):
            raise ScheduleRefused(f"{do.label} within the sum over {axis}")


def of_type(kernel: Kernel, name: str, element: Element) -> Kernel:
    """Set the element type of an array."""
    return kernel.with_arrays(replace(kernel.arrays[name], element=element))


def chained(kernel: Kernel, name: str, chains: Chains) -> Kernel:
    """Set the chains of the sums in an array."""
    return kernel.with_arrays(replace(kernel.arrays[name], chains=chains))


def place(
    kernel: Kernel,
    name: str,
    space: Space,
    layout: Layout,
    pitch: Mapping[str, int] | None = None,
    guards: Mapping[str, Guard] | None = None,
    slots: Mapping[str, int] | None = None,
) -> Kernel:
    """Set the space of an array, its layout, and its pitch, guards and slots."""
    array = replace(kernel.arrays[name], space=space, layout=layout, pitch=pitch or {})
    return kernel.with_arrays(replace(array, guards=guards or {}, slots=slots or {}))


def use(kernel: Kernel, label: str, atom: Atom, ahead: int = 0) -> Kernel:
    """Let the atom compute the statements with this label. `ahead`: their prefetch distance."""
    if label not in labels(kernel.body):
        raise ScheduleRefused(f"no statement {label}")

    def change(do: Do) -> Body:
        return (replace(do, atom=atom, ahead=ahead) if do.label == label else do,)

    return replace(kernel, body=_each(kernel.body, change))


def decode(kernel: Kernel, codes: str, scales: str | None, into: str, element: Element) -> Kernel:
    """Insert a statement that decodes `codes` to `into`, multiplied by `scales` if given, before
    each product; the product reads `into`."""
    ins = (codes, *([scales] if scales else []))

    def change(do: Do) -> Body:
        if do.op != "dot":
            return (do,)
        rest = tuple(into if name == codes else name for name in do.ins if name != scales)
        return Do("decode", into, ins), replace(do, ins=rest)

    array = Array(into, element, _local(kernel, codes), grain=kernel.arrays[codes].grain)
    grown = kernel.with_arrays(array)
    return replace(grown, body=_each(grown.body, change))


def decode_early(kernel: Kernel, label: str, chunk: tuple[str, int], last: str) -> Kernel:
    """Decode each chunk one iteration ahead. `label`: the statement that decodes. `chunk`: axis and
    step of the loop over chunks.

    The first chunk is decoded before the loop. Each later chunk is decoded in the iteration before
    its own: in the last iteration of the loop over `last`, after the statements that read the
    overwritten part of scratch for the last time. So scratch for one chunk is enough.
    """
    axis, by = chunk
    found = 0

    def early(each: Do | For) -> Body:
        """The statement that decodes the next chunk, in its loops over other axes than that of
        chunks."""
        if isinstance(each, Do):
            return (replace(each, early=Early(axis, by, last)),)
        inside = tuple(do for part in each.body for do in early(part))
        return inside if each.axis == axis else (replace(each, body=inside),)

    def beside(body: Body, out: str, later: Body) -> Body:
        """The body with `later` at the end of the innermost loop that reads `out` and runs along
        the axis of chunks."""
        rows: list[Do | For] = []
        for each in body:
            if isinstance(each, Do) or out not in used((each,)):
                rows.append(each)
                continue
            inside = beside(each.body, out, later)
            if each.axis == axis and inside == each.body:
                inside = (*each.body, *later)
            rows.append(replace(each, body=inside))
        return tuple(rows)

    def go(body: Body) -> Body:
        nonlocal found
        rows: list[Do | For] = []
        for each in body:
            if isinstance(each, Do):
                rows.append(each)
            elif (each.axis, each.by) == chunk and label in labels(each.body):
                found += 1
                decoded, *rest = each.body
                (do,) = statements((decoded,))
                rows.append(replace(each, body=(decoded,), kind="first"))
                rows.append(replace(each, body=beside(tuple(rest), do.out, early(decoded))))
            else:
                rows.append(replace(each, body=go(each.body)))
        return tuple(rows)

    body = go(kernel.body)
    if not found:
        raise ScheduleRefused(f"no loop over {axis} by {by} around {label}")
    return replace(kernel, body=body)


def finish_early(kernel: Kernel, label: str, chunk: tuple[str, int], along: str) -> Kernel:
    """Run the statement `label`, which reads sums, as soon as parts of them are complete.

    Before, the statement is in a loop over `along` of its own, after the loop `chunk` (axis, step)
    that adds the sums. Afterwards it is inside the loop `chunk`, at the end of each iteration of
    the loop over `along`. It runs only in the last iteration of the loop `chunk`, part by part,
    while later parts are still added.
    """
    axis, _ = chunk
    found = 0

    def last(each: Do | For) -> Do | For:
        """The loop or statement, run only in the last iteration along `axis`."""
        if isinstance(each, Do):
            return replace(each, early=Early(axis, 0, axis))
        return replace(each, body=tuple(last(part) for part in each.body))

    def within(loop: For, finished: For) -> For:
        """The loop `chunk`, with `finished` in its loop over `along`."""
        nonlocal found
        rows: list[Do | For] = []
        (do,) = statements((finished,))
        for each in loop.body:
            adds = any(one.adds and one.out in do.ins for one in statements((each,)))
            if isinstance(each, For) and each.axis == along and adds:
                if any(by % finished.by for by in (each.by, *each.rest)):
                    raise ScheduleRefused(f"{label}: steps of {finished.by} in {each.by}")
                found += 1
                each = replace(each, body=(*each.body, last(finished)))
            rows.append(each)
        return replace(loop, body=tuple(rows))

    def go(body: Body) -> Body:
        for place, (loop, then) in enumerate(itertools.pairwise(body)):
            if not isinstance(loop, For) or not isinstance(then, For):
                continue
            if (loop.axis, loop.by) == chunk and then.axis == along and labels((then,)) == {label}:
                return (*body[:place], within(loop, then), *body[place + 2 :])
        return tuple(
            each if isinstance(each, Do) else replace(each, body=go(each.body)) for each in body
        )

    body = go(kernel.body)
    if found != 1:
        raise ScheduleRefused(f"no loop over {along} that adds what {label} reads, in {axis}")
    return replace(kernel, body=body)


def block_sums(
    kernel: Kernel, into: str, element: Element, scales: tuple[str, ...], start: str = ""
) -> Kernel:
    """Sum the products of each iteration of the innermost loop over k in the array `into`, and add
    this sum, times `scales`, to the result. A sum starts at the entry of the array `start` for the
    block, or at zero if `start` is empty. Raises `ScheduleRefused` if an iteration has more than
    one scale."""

    def change(do: Do) -> Body:
        if do.op != "dot":
            return (do,)
        sides = tuple(name for name in do.ins if name not in scales)
        begin = Do("copy", into, (start,)) if start else Do("zero", into)
        return begin, replace(do, out=into, ins=sides), Do("scale", do.out, (into, *scales))

    def go(body: Body, by: int | None) -> Body:
        rows: list[Do | For] = []
        for each in body:
            if isinstance(each, For):
                inner = each.by if each.axis == "k" else by
                rows.append(replace(each, body=go(each.body, inner)))
                continue
            grains = [kernel.arrays[name].grain.get("k", 1) for name in scales]
            if each.op == "dot" and (by is None or any(grain % by for grain in grains)):
                raise ScheduleRefused(f"{each.label} goes over more than one scale")
            rows += change(each)
        return tuple(rows)

    (out,) = {do.out for do in statements(kernel.body) if do.op == "dot"}
    grown = kernel.with_arrays(Array(into, element, _local(kernel, out)))
    return replace(grown, body=go(grown.body, None))


def wait(kernel: Kernel, name: str, into: str) -> Kernel:
    """Keep results in the array `into` until all columns of a block are computed, then round the
    block."""

    def change(do: Do) -> Body:
        if do.op != "map" or do.out != name:
            return (do,)
        return replace(do, out=into), Do("round", name, (into,))

    array = kernel.arrays[name]
    grown = kernel.with_arrays(Array(into, array.element, _local(kernel, name)))
    return replace(grown, body=_each(grown.body, change))


def stage(kernel: Kernel, name: str, into: str, label: str, space: Space, layout: Layout) -> Kernel:
    """Before the statement `label`, copy the part of `name` that it reads to `into`."""

    def change(do: Do) -> Body:
        if do.label != label:
            return (do,)
        ins = tuple(into if each == name else each for each in do.ins)
        return Do("copy", into, (name,)), replace(do, ins=ins)

    array = kernel.arrays[name]
    copy = Array(into, array.element, _local(kernel, name), space, layout)
    return replace(kernel.with_arrays(copy), body=_each(kernel.body, change))


def keep(
    kernel: Kernel, name: str, into: str, loop: tuple[str, int], space: Space, layout: Layout
) -> Kernel:
    """Hold the sums of the array `name` in the array `into` while the loop (axis, step) runs: copy
    them before the loop, add to the copy, and copy it back after the loop. If nested loops have
    this axis and step, the innermost one is meant."""
    found = 0

    def go(body: Body) -> Body:
        nonlocal found
        rows: list[Do | For] = []
        for each in body:
            adds = [do for do in statements((each,)) if do.adds and do.out == name]
            if isinstance(each, Do) or not adds:
                rows.append(each)
                continue
            before, inner = found, go(each.body)
            if (each.axis, each.by) == loop and found == before:
                found += 1
                rows += [Do("copy", into, (name,)), *_renamed(each, name, into)]
                rows.append(Do("copy", name, (into,)))
            else:
                rows.append(replace(each, body=inner))
        return tuple(rows)

    body = go(kernel.body)
    if not found:
        raise ScheduleRefused(f"no loop over {loop[0]} by {loop[1]} adds to {name}")
    copy = Array(into, kernel.arrays[name].element, _local(kernel, name), space, layout)
    return replace(kernel.with_arrays(copy), body=body)


def _local(kernel: Kernel, name: str) -> tuple[str, ...]:
    """The axes of a local array that holds part of the array `name`. A derived axis becomes the
    axis that it adds (`plus`), or its group where it adds none."""
    derived = (kernel.derived.get(axis) for axis in kernel.arrays[name].axes)
    return tuple(
        axis if found is None else found.plus or found.group
        for axis, found in zip(kernel.arrays[name].axes, derived, strict=True)
    )


def _renamed(loop: For, name: str, into: str) -> Body:
    """The loop, adding to the array `into` instead of `name`."""

    def change(do: Do) -> Body:
        return (replace(do, out=into) if do.adds and do.out == name else do,)

    return _each((loop,), change)


def _each(body: Body, change: Callable[[Do], Body]) -> Body:
    """Replace each statement of a body by the statements that `change` returns for it."""
    rows: list[Do | For] = []
    for each in body:
        if isinstance(each, Do):
            rows += change(each)
        else:
            rows.append(replace(each, body=_each(each.body, change)))
    return tuple(rows)
