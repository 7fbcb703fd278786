"""Where things are while a nest is lowered: tiles, coordinates, addresses, registers, scratch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import arith, memref

from mxc.kernels.language import Array, Kernel, statements
from mxc.kernels.lowering.index import Index, Number, known, least, of, value_of
from mxc.kernels.lowering.memory import pointer, scratch

#: Coordinates by axis.
At: TypeAlias = dict[str, Number]


@dataclass(frozen=True)
class Tile:
    """The current tile: where it begins, its sizes, and the axes along which it surely ends within
    the array."""

    at: At
    sizes: dict[str, int]
    full: frozenset[str]

    def cut(self, axis: str, start: Number, by: int, full: bool) -> Tile:
        """A part of it along an axis."""
        others = self.full - {axis}
        return replace(
            self,
            at={**self.at, axis: start},
            sizes={**self.sizes, axis: by},
            full=others | {axis} if full else others,
        )

    def moved(self, offsets: Mapping[str, int]) -> At:
        """Coordinates in it."""
        return {axis: place + offsets.get(axis, 0) for axis, place in self.at.items()}


class Places:
    """The arrays of a kernel. `memory`: memrefs by name; `registers`: tile registers by name and
    place."""

    def __init__(
        self,
        kernel: Kernel,
        memory: Mapping[str, ir.Value],
        sizes: Mapping[str, int | ir.Value],
    ) -> None:
        """Arrays of the program have their memory."""
        self.kernel, self._sizes = kernel, sizes
        self.memory = dict(memory)
        self.registers: dict[str, dict[int, ir.Value]] = {}
        self._entry = ir.InsertionPoint.current.block
        self._pointers: dict[str, ir.Value] = {}
        self._regions: dict[str, Tile] = {}
        whole = {axis: size if isinstance(size, int) else 1 for axis, size in sizes.items()}
        for array in kernel.arrays.values():
            if array.space == "global":
                region = {**dict.fromkeys(array.axes, 1), **whole}
                self._regions[array.name] = Tile({}, region, frozenset())
                if any(name == array.name for name in _tiles(kernel)):
                    self._pointers[array.name] = pointer(memory[array.name])

    def hold(self, array: Array, tile: Tile) -> None:
        """An array lives in this tile: registers, or scratch where the function begins."""
        self._regions[array.name] = tile
        if array.space == "tile":
            self.registers[array.name] = {}
        elif array.name not in self.memory:
            with ir.InsertionPoint.at_block_begin(self._entry):
                self.memory[array.name] = scratch(array, tile.sizes)
                self._pointers[array.name] = pointer(self.memory[array.name])

    def region(self, name: str) -> dict[str, int]:
        """The sizes of what there is of an array."""
        return self._regions[name].sizes

    def pointer(self, name: str) -> ir.Value:
        """To the beginning of an array."""
        return self._pointers[name]

    # sizes

    def static(self, axis: str) -> int | None:
        """The size of an axis, where it is known."""
        size = self._sizes[axis]
        return size if isinstance(size, int) and axis not in self.kernel.spans else None

    def left(self, axis: str, tile: Tile) -> Number:
        """Coordinates of a tile along an axis that are within the array."""
        if axis in tile.full:
            return tile.sizes[axis]
        left = self._end(axis, tile.at) - tile.at[axis]
        return least(left, tile.sizes[axis]) if tile.sizes[axis] else left

    def _end(self, axis: str, at: At) -> Number:
        if axis not in self.kernel.spans:
            return of(self._sizes[axis])
        table, group = self.kernel.spans[axis]
        return self._read(table, at[group] + 1) - self._read(table, at[group])

    # coordinates

    def coordinate(self, axis: str, at: At) -> Number:
        """A coordinate of an array of the program, derived or not."""
        derived = self.kernel.derived.get(axis)
        if derived is None:
            return at[axis]
        group = at[derived.group]
        found: Number
        if derived.table:
            found = self._read(derived.table, group)
        elif derived.times is not None:
            found = group * derived.times
        elif known(group) == 0:
            found = 0
        else:
            found = of(arith.muli(value_of(group), value_of(of(self._sizes["m"]))))
        if derived.plus:
            found = found + at[derived.plus]
        if derived.through:
            found = self._read(derived.through, found + derived.behind)
        return least(found, derived.below - 1) if derived.below else found

    def _read(self, table: str, place: Number) -> Index:
        """A number in a table of the program."""
        found = memref.LoadOp(self.memory[table], [value_of(place)]).result
        return of(arith.index_cast(ir.IndexType.get(), found))

    def address(self, name: str, at: At) -> Number:
        """The place of an element, in bytes."""
        array, region = self.kernel.arrays[name], self._regions[name]
        if array.space == "global":
            here = {axis: self.coordinate(axis, at) for axis in array.axes}
        else:
            here = {axis: at[axis] - region.at[axis] for axis in array.axes}
        found: Number = array.address(here, region.sizes)
        return (found * array.element.bits) // 8

    def key(self, name: str, at: At) -> int:
        """Which register of an array has an element."""
        found = known(self.address(name, at))
        if found is None:
            raise ValueError(f"{name} is in registers, and which of them is not known: unroll")
        return found


def _tiles(kernel: Kernel) -> set[str]:
    """Arrays of the program that tiles are loaded from."""
    return {
        name
        for do in statements(kernel.body)
        if do.op == "copy" and kernel.arrays[do.out].space == "tile"
        for name in do.ins
        if kernel.arrays[name].space == "global"
    }
