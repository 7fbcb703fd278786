"""A numpy interpreter of kernels, at any stage of their schedule.

Statements without an atom are computed by coordinates, in float64. Statements with an atom are
computed as the machine does: an operand is [registers, lanes, items], read from memory through the
layout of the atom, or taken as it lies in a register. A wrong layout gives wrong numbers. Scratch
starts as NaN, so that a read before a write or past the end of an axis shows in the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mxc.kernels.language import Array, Body, Do, For, Kernel, Numbers
from mxc.kernels.layout import Layout

#: The epilogue: computes results from totals (a list with one array, or with one per half of a
#: gate) and their coordinates by axis.
Finish = Callable[[list[Numbers], Mapping[str, Any]], Numbers]


def interpret(
    kernel: Kernel,
    memory: Mapping[str, Numbers],
    sizes: Mapping[str, int] | None = None,
    finish: Finish | None = None,
) -> None:
    """Run a kernel on flat arrays, by name, which are written in place. `sizes`: the sizes that
    come with the call. `finish`: the epilogue; None stores totals unchanged."""
    run = _Run(kernel, memory, {**kernel.sizes, **(sizes or {})}, finish)
    run.block(kernel.body, dict.fromkeys(kernel.sizes, 0), dict(run.sizes))


def atom_offsets(kernel: Kernel, do: Do, tile: Mapping[str, int]) -> dict[str, list[int]]:
    """Return, for each axis, the offsets within a tile at which an atom or a copy of a fragment is
    applied. K comes first. Where a dot product takes the registers of a local operand one at a
    time, the offsets are in the order of these registers."""
    step: dict[str, int] = {}
    orders: dict[str, list[int]] = {}
    for name, layout in _operands(kernel, do):
        array = kernel.arrays[name]
        for axis in array.axes:
            axis = kernel.derived[axis].plus if axis in kernel.derived else axis
            if not axis:
                continue
            wide = layout.extent(axis) * array.grain.get(axis, 1)
            step[axis] = max(step.get(axis, 1), wide)
            behind = array.layout.register[len(layout.register) :]
            if array.space != "global" and do.op == "dot" and behind:
                # An atom takes one of the registers of a fragment at a time.
                orders[axis] = [bit for own, bit in behind if own == axis]
    found = {}
    for axis in sorted(step, key=lambda axis: axis != "k"):
        wide, size = step[axis], tile[axis]
        if orders.get(axis):
            found[axis] = [
                base + sum((number >> i & 1) << bit for i, bit in enumerate(orders[axis]))
                for base in range(0, size, wide << len(orders[axis]))
                for number in range(1 << len(orders[axis]))
            ]
            continue
        if size % wide and size > wide:
            raise ValueError(f"{do.label} takes {wide} along {axis}, and a tile has {size}")
        found[axis] = list(range(0, size, wide))
    return found


def pieces(kernel: Kernel, do: Do, tile: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the offsets, by axis, at which an atom or a copy of a fragment is applied."""
    found = atom_offsets(kernel, do, tile)
    for offsets in itertools.product(*found.values()):
        yield dict(zip(found, offsets, strict=True))


def _operands(kernel: Kernel, do: Do) -> Iterator[tuple[str, Layout]]:
    """Yield result and inputs of a statement, each with the layout that the statement uses."""
    names = (do.out, *do.ins)
    if do.atom is not None:
        yield from zip(names, do.atom.layouts, strict=True)
        return
    # A copy moves the content of a register; the array in registers determines the layout.
    tiles = [n for n in names if kernel.arrays[n].space in ("tile", "register")]
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
        #: For each axis, whether the innermost loop over it is in its last iteration.
        self.last: dict[str, bool] = {}
        #: For each local array, the number of chains of its sums, and the number of elements of one
        #: chain.
        self.chains: dict[str, tuple[int, int]] = {}

    def _whole(self, array: Array) -> dict[str, int]:
        """Sizes of an array of the program. The size along a derived axis is not used, and is 1."""
        return {**dict.fromkeys(array.axes, 1), **self.sizes}

    def end(self, axis: str, at: Mapping[str, Any]) -> Any:
        """The end of an axis. For an axis in `spans`, the end for each group in `at`."""
        if axis not in self.kernel.spans:
            return self.sizes[axis]
        table, group = self.kernel.spans[axis]
        return self.memory[table][np.add(at[group], 1)] - self.memory[table][at[group]]

    def block(self, body: Body, at: dict[str, int], tile: dict[str, int]) -> None:
        """Run every statement of a body on the tile that begins at `at`."""
        for array in self.kernel.held(body):
            self.region[array.name] = dict(at), dict(tile)
            chains = self.chains[array.name] = array.copies(tile), array.count(tile)
            kind = array.element.numpy
            # Integers have no NaN; their greatest number takes its place.
            nothing = np.iinfo(kind).max if np.issubdtype(kind, np.integer) else np.nan
            self.memory[array.name] = np.full(int(np.prod(chains)), nothing, kind)
        for each in body:
            if isinstance(each, For):
                self._loop(each, at, tile)
            elif each.early is None:
                self._do(each, at, tile)
            elif self.last[each.early.last]:
                axis, by = each.early.axis, each.early.by
                if at[axis] + by < self.end(axis, at):
                    self._do(each, {**at, axis: at[axis] + by}, tile)

    def _do(self, do: Do, at: dict[str, int], tile: dict[str, int]) -> None:
        if do.atom is not None or do.op == "copy":
            self._machine(do, at, tile)
        else:
            self._plain(do, at, tile)

    def _loop(self, loop: For, at: dict[str, int], tile: dict[str, int]) -> None:
        start = at[loop.axis]
        stop = min(start + tile[loop.axis], self.end(loop.axis, at))
        outside = self.last.get(loop.axis, True)
        if loop.kind == "first":
            stop = min(stop, start + loop.by)
        while start < stop:
            by = loop.width(stop - start)
            self.last[loop.axis] = start + by >= stop
            self.block(loop.body, {**at, loop.axis: start}, {**tile, loop.axis: by})
            start += by
        self.last[loop.axis] = outside

    def _address(self, name: str, at: Mapping[str, Any]) -> Numbers:
        array, (base, tile) = self.kernel.arrays[name], self.region[name]
        local = array.space != "global"
        if not local:
            for axis in (axis for axis, guard in array.guards.items() if guard == "clamped"):
                at = {**at, axis: np.minimum(at[axis], self.end(axis, at) - 1)}
        found = {
            axis: at[axis] - base[axis] if local else self._coordinate(axis, at)
            for axis in array.axes
        }
        return np.asarray(array.address(found, tile))

    def _coordinate(self, axis: str, at: Mapping[str, Any]) -> Any:
        """A coordinate of an array, computed if it is derived."""
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
        found = found // derived.share
        return np.clip(found, 0, derived.below - 1) if derived.below else found

    # by coordinates

    def _read(self, name: str, at: Mapping[str, Any]) -> Numbers:
        found = self._sum(name, self._address(name, at))
        values = self.kernel.arrays[name].element.values
        return found.astype(np.float64) if values is None else values[found].astype(np.float64)

    def _sum(self, name: str, place: Numbers) -> Numbers:
        """The elements at `place`; for sums in chains, added over all chains."""
        memory = self.memory[name]
        found = memory[place]
        chains, count = self.chains.get(name, (1, 0))
        for chain in range(1, chains):
            found = found + memory[place + chain * count]
        return found

    def _put(self, name: str, place: Numbers, found: Any) -> None:
        """Write `found` to the first chain at `place`, and zero to the others."""
        chains, count = self.chains.get(name, (1, 0))
        for chain in range(1, chains):
            self.memory[name][place + chain * count] = 0
        self.memory[name][place] = found

    def _plain(self, do: Do, at: dict[str, int], tile: dict[str, int]) -> None:
        kernel, out = self.kernel, self.kernel.arrays[do.out]
        for axis in {group for _, group in kernel.spans.values() if tile[group] > 1}:
            # An axis whose size differs by group: run one group at a time.
            for group in range(at[axis], at[axis] + tile[axis]):
                self._plain(do, {**at, axis: group}, {**tile, axis: 1})
            return
        named = {d.plus for a, d in kernel.derived.items() if a in out.axes}
        named |= {d.group for a, d in kernel.derived.items() if a in out.axes}
        own = [axis for axis in kernel.sizes if axis in out.axes or axis in named]
        parts = [a for a in kernel.summed(do) if a not in own] if do.op in ("dot", "map") else []
        axes = own + parts
        # In registers, coordinates past the end of a clamped axis hold the last element again.
        again = {
            axis
            for array in kernel.arrays.values()
            for axis, guard in array.guards.items()
            if guard == "clamped" and out.space == "register"
        }
        if out.guards and out.space == "global":
            # Along axes where the result has no guard, tiles are stored whole.
            again |= {axis for axis in axes if axis not in out.guards}
        ends = {
            a: at[a] + tile[a] if a in again else min(at[a] + tile[a], self.end(a, at))
            for a in axes
        }
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
        self._put(do.out, place, (kept + out.element.excess).astype(out.element.numpy))

    def _finished(self, do: Do, here: Mapping[str, Any], own: int) -> Numbers:
        """Apply `finish` to totals, and return the results. `own`: number of axes of the result; an
        axis after these is the halves of a gate, which `finish` gets as a list."""
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
        steps = atom_offsets(self.kernel, do, tile).get("k", [0])
        for offsets in pieces(self.kernel, do, tile):
            here = {axis: at[axis] + offsets.get(axis, 0) for axis in at}
            places = [self._fragment(name, how, here) for name, how in _operands(self.kernel, do)]
            if do.op == "copy":
                self._copy(do, here, places)
                continue
            assert do.atom is not None
            chains, count = self.chains.get(do.out, (1, 0))
            if do.op == "dot":
                places[0] = places[0] + steps.index(offsets.get("k", 0)) % chains * count
            given = [self._sum(n, p) for n, p in zip(do.ins, places[1:], strict=True)]
            self.memory[do.out][places[0]] = do.atom.run(self.memory[do.out][places[0]], *given)

    def _copy(self, do: Do, at: Mapping[str, int], places: list[Numbers]) -> None:
        """Copy a fragment; past the end of masked memory, load zeros and store nothing."""
        there = np.ones(places[0].shape, bool)
        for name in (do.out, *do.ins):
            array = self.kernel.arrays[name]
            for axis in (axis for axis, guard in array.guards.items() if guard == "masked"):
                inside = self.kernel.arrays[do.out].layout.coordinates()
                if self.kernel.arrays[do.out].space == "global":
                    inside = self.kernel.arrays[do.ins[0]].layout.coordinates()
                there = there & (at[axis] + inside.get(axis, 0) < self.end(axis, at))
        found = np.zeros(there.shape, self.kernel.arrays[do.out].element.numpy)
        found[there] = self._sum(do.ins[0], places[1][there])
        if self.kernel.arrays[do.out].space == "global":
            self._put(do.out, places[0][there], found[there])
        else:
            self._put(do.out, places[0], found)

    def _fragment(self, name: str, layout: Layout, at: Mapping[str, int]) -> Numbers:
        """Addresses [registers, lanes, items] of a fragment at `at`. An array in registers is
        addressed by its own layout, with as many registers as `layout` has; an array in memory by
        `layout`."""
        array = self.kernel.arrays[name]
        if array.space in ("tile", "register"):
            own = array.layout
            layout = replace(own, register=own.register[: len(layout.register)])
        inside = layout.coordinates()
        here = {
            axis: at[axis] + inside[axis] * array.grain.get(axis, 1) if axis in inside else at[axis]
            for axis in at
        }
        return self._address(name, here) + np.zeros(layout.shape, np.int64)
