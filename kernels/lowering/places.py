"""State of a lowering: the current tile, and coordinates, addresses, registers and scratch of
arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.kernels.language import Array, Derived, Kernel, statements
from mxc.kernels.lowering.index import Index, Number, key_of, known, least, of, value_of
from mxc.kernels.lowering.memory import pointer, scratch

#: Coordinates by axis.
At: TypeAlias = dict[str, Number]

Made = TypeVar("Made")


@dataclass(frozen=True)
class CurrentTile:
    """The current tile. `at`, `sizes`: its start and its size along each axis. `full`: the axes
    along which it is known to be in bounds. `ends`: by axis, where the innermost loop over it ends.
    """

    at: At
    sizes: dict[str, int]
    full: frozenset[str]
    ends: Mapping[str, Number] = field(default_factory=dict)

    def cut(
        self, axis: str, start: Number, by: int, full: bool, end: Number | None = None
    ) -> CurrentTile:
        """The part of the tile that begins at `start` along an axis and is `by` wide; the loop that
        cuts it ends at `end`."""
        others = self.full - {axis}
        return replace(
            self,
            at={**self.at, axis: start},
            sizes={**self.sizes, axis: by},
            full=others | {axis} if full else others,
            ends=self.ends if end is None else {**self.ends, axis: end},
        )

    def moved(self, offsets: Mapping[str, int]) -> At:
        """The coordinates at these offsets from the start of the tile."""
        return {axis: place + offsets.get(axis, 0) for axis, place in self.at.items()}


class Places:
    """The arrays of a kernel during lowering. `memory`: memrefs by name; `registers`: register
    values by name and byte offset within the array."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Mapping[str, ir.Value],
        sizes: Mapping[str, int | ir.Value],
    ) -> None:
        """Register the arrays of the program with their memrefs."""
        self.kernel, self._sizes = kernel, sizes
        self.memory = dict(memory)
        self.registers: dict[str, dict[int, ir.Value]] = {}
        self._entry = _entry()
        self._pointers: dict[str, ir.Value] = {}
        self._regions: dict[str, CurrentTile] = {}
        self._known: dict[Hashable, Any] = {}
        whole = {axis: size if isinstance(size, int) else 1 for axis, size in sizes.items()}
        for array in kernel.arrays.values():
            if array.space == "global":
                region = {**dict.fromkeys(array.axes, 1), **whole}
                self._regions[array.name] = CurrentTile({}, region, frozenset())
                if any(name == array.name for name in _tiles(kernel)):
                    self._pointers[array.name] = pointer(memory[array.name])

    def hold(self, array: Array, tile: CurrentTile) -> None:
        """Begin the lifetime of a local array, whose region is this tile: in registers, or in
        scratch that is allocated at the start of the function."""
        self._regions[array.name] = tile
        if array.space in ("tile", "register"):
            self.registers[array.name] = {}
        elif array.name not in self.memory:
            with ir.InsertionPoint.at_block_begin(self._entry):
                self.memory[array.name] = scratch(array, tile.sizes)
                self._pointers[array.name] = pointer(self.memory[array.name])

    def region(self, name: str) -> dict[str, int]:
        """The sizes of the region that an array covers."""
        return self._regions[name].sizes

    def begin(self, name: str) -> At:
        """The coordinates at which the region of a local array begins."""
        return self._regions[name].at

    def pointer(self, name: str) -> ir.Value:
        """A pointer to the start of an array."""
        return self._pointers[name]

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Forget, on exit, the values that were remembered inside: they may not dominate later
        operations."""
        before = dict(self._known)
        yield
        self._known = before

    def remembered(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The value for `key`, made at most once in a scope."""
        if key not in self._known:
            self._known[key] = make()
        found: Made = self._known[key]
        return found

    # sizes

    def static(self, axis: str) -> int | None:
        """The size of an axis if it is a constant, else None."""
        size = self._sizes[axis]
        return size if isinstance(size, int) and axis not in self.kernel.spans else None

    def left(self, axis: str, tile: CurrentTile) -> Number:
        """Number of coordinates of a tile along an axis that are before the end of the axis."""
        if axis in tile.full:
            return tile.sizes[axis]
        left = self.end(axis, tile.at) - tile.at[axis]
        return least(left, tile.sizes[axis]) if tile.sizes[axis] else left

    def end(self, axis: str, at: At) -> Number:
        """The end of an axis, i.e. its size. For an axis in `spans`, that of the group in `at`."""
        if axis not in self.kernel.spans:
            return of(self._sizes[axis])
        table, group = self.kernel.spans[axis]

        def size() -> Number:
            return self._read(table, at[group] + 1) - self._read(table, at[group])

        return self.remembered((axis, "size", key_of(at[group])), size)

    # coordinates

    def coordinate(self, axis: str, at: At) -> Number:
        """A coordinate of an array of the program, computed if it is derived."""
        derived = self.kernel.derived.get(axis)
        if derived is None:
            return at[axis]
        key = (axis, *(key_of(at[a]) for a in (derived.group, derived.plus) if a))
        return self.remembered(key, lambda: self._derived(derived, at))

    def _derived(self, derived: Derived, at: At) -> Number:
        group = at[derived.group]
        found: Number
        if derived.table:
            found = self.start(derived, at)
        elif derived.times is not None:
            found = group * derived.times
        elif known(group) == 0:
            found = 0
        else:
            found = of(value_of(group) * value_of(of(self._sizes["m"])))
        if derived.plus:
            found = found + at[derived.plus]
        if derived.through:
            found = self._read(derived.through, found + derived.behind)
        found = found // derived.share
        return least(found, derived.below - 1) if derived.below else found

    def start(self, derived: Derived, at: At) -> Number:
        """The entry for the current group in the table of a derived coordinate."""
        group = at[derived.group]
        key = (derived.table, key_of(group))
        return self.remembered(key, lambda: self._read(derived.table, group))

    def rows(self, axis: str, tile: CurrentTile, *, clamped: bool) -> list[Number]:
        """The coordinates along a derived axis of each row of a tile. With `clamped`, rows past the
        last one get the coordinate of the last one."""
        derived = self.kernel.derived[axis]
        found = []
        for number in range(tile.sizes[derived.plus]):
            at = tile.moved({derived.plus: number})
            if clamped and derived.plus not in tile.full:
                at[derived.plus] = least(at[derived.plus], self.end(derived.plus, at) - 1)
            key = (axis, "row", key_of(tile.at[derived.plus]), number)
            found.append(self.remembered(key, partial(self._row, axis, at)))
        return found

    def _row(self, axis: str, at: At) -> Number:
        """The coordinate of a row, as a value that is emitted once."""
        found = self.coordinate(axis, at)
        return found if known(found) is not None else of(value_of(found))

    def _read(self, table: str, place: Number) -> Index:
        """Load a number from a table of the program."""
        found = memref.LoadOp(self.memory[table], [value_of(place)]).result
        return of(arith.index_cast(ir.IndexType.get(), found))

    def address(self, name: str, at: At) -> Number:
        """The offset, in bytes, of an element within its array."""
        array, region = self.kernel.arrays[name], self._regions[name]
        if array.space == "global":
            here = {axis: self.coordinate(axis, at) for axis in array.axes}
        else:
            here = {axis: at[axis] - region.at[axis] for axis in array.axes}
        found: Number = array.address(here, region.sizes)
        return (found * array.element.bits) // 8

    def key(self, name: str, at: At) -> int:
        """The key, in `registers`, of the register that holds an element. Raises ValueError if it
        depends on a run-time value."""
        found = known(self.address(name, at))
        if found is None:
            raise ValueError(f"{name} is in registers, and which of them is not known: unroll")
        return found


def _entry() -> ir.Block:
    """The first block of the function being built, also from within a branch or loop."""
    block = ir.InsertionPoint.current.block
    while (owner := block.owner.operation).name.startswith("scf."):
        block = owner.block
    return block


def _tiles(kernel: Kernel) -> set[str]:
    """The names of the arrays of the program from which tile registers are loaded."""
    return {
        name
        for do in statements(kernel.body)
        if do.op == "copy" and kernel.arrays[do.out].space == "tile"
        for name in do.ins
        if kernel.arrays[name].space == "global"
    }
