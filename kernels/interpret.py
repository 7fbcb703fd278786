"""A kernel in numpy, at any stage of its schedule.

Statements without an atom are computed by coordinates, in float64. Those with one are computed as
the machine does it: an operand is [registers, lanes, items], read from memory through the layout of
the atom, or as it lies in a register. A wrong layout gives wrong numbers. Scratch begins as NaN, so
that what is read before it is written, or behind the end of an axis, shows where it matters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from mxc.kernels.language import Array, Body, Do, For, Kernel, Numbers
from mxc.kernels.layout import Layout

#: Makes results of totals (of each part of the columns) at coordinates by axis.
Finish = Callable[[list[Numbers], Mapping[str, Any]], Numbers]


def interpret(
    kernel: Kernel,
    memory: Mapping[str, Numbers],
    sizes: Mapping[str, int] | None = None,
    finish: Finish | None = None,
) -> None:
    """Run a kernel on flat arrays, which are written in place. `sizes`: those of the call."""
    run = _Run(kernel, memory, {**kernel.sizes, **(sizes or {})}, finish)
    run.block(kernel.body, dict.fromkeys(kernel.sizes, 0), dict(run.sizes))


def pack(array: Array, numbers: Numbers, sizes: Mapping[str, int]) -> Numbers:
    """Numbers, or codes, by the entries of each axis, as they lie in memory."""
    grid = np.ogrid[tuple(slice(count) for count in numbers.shape)]
    at = {a: g * array.grain.get(a, 1) for a, g in zip(array.axes, grid, strict=True)}
    flat = np.zeros(array.count(sizes), array.element.numpy)
    flat[np.broadcast_to(array.address(at, sizes), numbers.shape)] = numbers
    return flat


def pieces(kernel: Kernel, do: Do, tile: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The offsets in a tile at which an atom, or a copy of a fragment, is used."""
    step: dict[str, int] = {}
    for name, layout in _operands(kernel, do):
        array = kernel.arrays[name]
        for axis in array.axes:
            axis = kernel.derived[axis].plus if axis in kernel.derived else axis
            if axis:
                wide = layout.extent(axis) * array.grain.get(axis, 1)
                step[axis] = max(step.get(axis, 1), wide)
    for axis, wide in step.items():
        if tile[axis] % wide and tile[axis] > wide:
            raise ValueError(f"{do.label} takes {wide} along {axis}, and a tile has {tile[axis]}")
    ranges = [range(0, tile[axis], wide) for axis, wide in step.items()]
    for offsets in itertools.product(*ranges):
        yield dict(zip(step, offsets, strict=True))


def _operands(kernel: Kernel, do: Do) -> Iterator[tuple[str, Layout]]:
    """Result and inputs of a statement, each with the layout in which it is taken."""
    names = (do.out, *do.ins)
    if do.atom is not None:
        yield from zip(names, do.atom.layouts, strict=True)
        return
    # A copy moves what a tile register holds; in registers an array lies as it does.
    tiles = [n for n in names if kernel.arrays[n].space == "tile"]
    layout = kernel.arrays[(tiles or [do.out])[0]].layout
    yield from ((name, layout) for name in names)


class _Run:
    def __init__(
        self,
        kernel: Kernel,
        memory: Mapping[str, Numbers],
        sizes: Mapping[str, int | None],
        finish: Finish | None,
    ) -> None:
        self.kernel, self.memory, self.finish = kernel, dict(memory), finish
        self.sizes: dict[str, int] = {axis: size or 0 for axis, size in sizes.items()}
        for axis, (table, _) in kernel.spans.items():
            self.sizes[axis] = int(np.diff(self.memory[table]).max(initial=0))
        whole = dict.fromkeys(self.sizes, 0)
        self.region = {name: (whole, self._whole(a)) for name, a in kernel.arrays.items()}

    def _whole(self, array: Array) -> dict[str, int]:
        """The sizes of an array of the program; what a derived axis ends at does not matter."""
        return {**dict.fromkeys(array.axes, 1), **self.sizes}

    def end(self, axis: str, at: Mapping[str, int]) -> int:
        """Where an axis ends."""
        if axis not in self.kernel.spans:
            return self.sizes[axis]
        table, group = self.kernel.spans[axis]
        return int(self.memory[table][at[group] + 1] - self.memory[table][at[group]])

    def block(self, body: Body, at: dict[str, int], tile: dict[str, int]) -> None:
        """Everything in a body, for the tile that begins at `at`."""
        for array in self.kernel.held(body):
            self.region[array.name] = dict(at), dict(tile)
            self.memory[array.name] = np.full(array.count(tile), np.nan, array.element.numpy)
        for each in body:
            if isinstance(each, For):
                self._loop(each, at, tile)
            elif each.atom is not None or each.op == "copy":
                self._machine(each, at, tile)
            else:
                self._plain(each, at, tile)

    def _loop(self, loop: For, at: dict[str, int], tile: dict[str, int]) -> None:
        start = at[loop.axis]
        stop = min(start + tile[loop.axis], self.end(loop.axis, at))
        while start < stop:
            by = loop.rest if loop.rest and stop - start <= loop.rest else loop.by
            self.block(loop.body, {**at, loop.axis: start}, {**tile, loop.axis: by})
            start += by

    def _address(self, name: str, at: Mapping[str, Any]) -> Numbers:
        array, (base, tile) = self.kernel.arrays[name], self.region[name]
        local = array.space != "global"
        found = {
            axis: at[axis] - base[axis] if local else self._coordinate(axis, at)
            for axis in array.axes
        }
        return np.asarray(array.address(found, tile))

    def _coordinate(self, axis: str, at: Mapping[str, Any]) -> Any:
        """A coordinate, derived or not."""
        derived = self.kernel.derived.get(axis)
        if derived is None:
            return at[axis]
        group = np.asarray(at[derived.group])
        times = self.sizes["m"] if derived.times is None else derived.times
        found: Any = self.memory[derived.table][group] if derived.table else group * times
        if derived.plus:
            found = found + at[derived.plus]
        if derived.through:
            found = self.memory[derived.through][found + derived.behind]
        return np.clip(found, 0, derived.below - 1) if derived.below else found

    # by coordinates

    def _read(self, name: str, at: Mapping[str, Any]) -> Numbers:
        found = self.memory[name][self._address(name, at)]
        values = self.kernel.arrays[name].element.values
        return found.astype(np.float64) if values is None else values[found].astype(np.float64)

    def _plain(self, do: Do, at: dict[str, int], tile: dict[str, int]) -> None:
        kernel, out = self.kernel, self.kernel.arrays[do.out]
        for axis in {group for _, group in kernel.spans.values() if tile[group] > 1}:
            # An axis whose size differs by group: one group after the other.
            for group in range(at[axis], at[axis] + tile[axis]):
                self._plain(do, {**at, axis: group}, {**tile, axis: 1})
            return
        named = {d.plus for a, d in kernel.derived.items() if a in out.axes}
        named |= {d.group for a, d in kernel.derived.items() if a in out.axes}
        own = [axis for axis in kernel.sizes if axis in out.axes or axis in named]
        parts = [a for a in kernel.summed(do) if a not in own] if do.op in ("dot", "map") else []
        axes = own + parts
        ends = {a: min(at[a] + tile[a], self.end(a, at)) for a in axes}
        grid = np.ogrid[tuple(slice(at[a], ends[a]) for a in axes)] if axes else ()
        here = {**at, **dict(zip(axes, grid, strict=True))}
        if do.op == "zero":
            found: Any = 0.0
        elif do.op == "map":
            found = self._finished(do, here, len(own))
        else:
            found = 1.0
            for name in do.ins:
                found = found * self._read(name, here)
            over = tuple(range(len(own), len(axes))) if do.op == "dot" else ()
            found = np.asarray(found).sum(axis=over, keepdims=True) if over else found
        here = {**here, **{a: at[a] for a in parts}}
        place = self._address(do.out, here)
        if do.adds:
            found = found + self._read(do.out, here)
        found = np.broadcast_to(found, np.broadcast_shapes(np.shape(found), place.shape))
        kept = found.reshape(place.shape) if found.size == place.size else found
        self.memory[do.out][place] = kept.astype(out.element.numpy)

    def _finished(self, do: Do, here: Mapping[str, Any], own: int) -> Numbers:
        """Of totals of several parts of the columns, the parts as a list."""
        found = self._read(do.ins[0], here)
        totals = [found]
        if found.ndim > own:
            totals = [found[..., part : part + 1] for part in range(found.shape[-1])]
        if self.finish is not None:
            return self.finish(totals, here)
        (only,) = totals
        return only

    # as the machine does it

    def _machine(self, do: Do, at: dict[str, int], tile: dict[str, int]) -> None:
        for offsets in pieces(self.kernel, do, tile):
            here = {axis: at[axis] + offsets.get(axis, 0) for axis in at}
            places = [self._fragment(name, how, here) for name, how in _operands(self.kernel, do)]
            names = (do.out, *do.ins)
            given = [self.memory[n][p] for n, p in zip(names, places, strict=True)]
            found = given[1] if do.atom is None else do.atom.run(*given)
            self.memory[do.out][places[0]] = found

    def _fragment(self, name: str, layout: Layout, at: Mapping[str, int]) -> Numbers:
        """Addresses [registers, lanes, items]: of registers as they lie, of memory by `layout`."""
        array = self.kernel.arrays[name]
        if array.space == "tile":
            layout = array.layout
        inside = layout.coordinates()
        here = {
            axis: at[axis] + inside[axis] * array.grain.get(axis, 1) if axis in inside else at[axis]
            for axis in at
        }
        return self._address(name, here) + np.zeros(layout.shape, np.int64)
