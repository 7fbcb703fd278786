"""Where the bits of coordinates stand: a layout is three lists of bit names, the least first.

    "k2 | n0 n1 n2 n3 | k1 k0 k3 k4"      item | lane | register

Elements side by side in a lane differ in k2, the lanes are n0 to n3, the next register differs in
k1. In memory a fragment lies in this order too: items, then lanes, then registers. This is the
permutation subset of linear layouts (Triton): each bit of a place is one bit of one coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: An axis and the number of one of its bits.
Bit = tuple[str, int]

#: How operands of a dot product stand in a lane: two bf16, four bytes, or one f32.
Kind: TypeAlias = Literal["pairs", "quads", "floats"]


@dataclass(frozen=True)
class Layout:
    """The coordinate bits of items, lanes and registers."""

    item: tuple[Bit, ...] = ()
    lane: tuple[Bit, ...] = ()
    register: tuple[Bit, ...] = ()

    def __post_init__(self) -> None:
        """Refuse a layout in which a bit stands twice."""
        if len(set(self.bits)) != len(self.bits):
            raise ValueError(f"a bit stands twice in {self}")

    def __str__(self) -> str:
        """As `layout` reads it."""
        parts = (self.item, self.lane, self.register)
        found = [" ".join(f"{axis}{bit}" for axis, bit in part) for part in parts]
        while found and not found[-1]:
            found.pop()
        return " | ".join(found)

    def __bool__(self) -> bool:
        """Whether it says anything."""
        return bool(self.bits)

    @property
    def bits(self) -> tuple[Bit, ...]:
        """All bits in the order of memory."""
        return self.item + self.lane + self.register

    @property
    def shape(self) -> tuple[int, int, int]:
        """Registers, lanes, items."""
        return 1 << len(self.register), 1 << len(self.lane), 1 << len(self.item)

    def extent(self, axis: str) -> int:
        """Coordinates of a fragment along an axis."""
        return 1 << sum(name == axis for name, _ in self.bits)

    def coordinates(self) -> dict[str, NDArray[np.int64]]:
        """The coordinates in the fragment of each place [registers, lanes, items], by axis."""
        register, lane, item = np.ogrid[tuple(slice(count) for count in self.shape)]
        found = {name: np.zeros(self.shape, np.int64) for name, _ in self.bits}
        for place, part in ((item, self.item), (lane, self.lane), (register, self.register)):
            for at, (axis, bit) in enumerate(part):
                found[axis] = found[axis] + (((place >> at) & 1) << bit)
        return found

    def in_memory(self) -> Layout:
        """The same order without lanes and registers: a fragment as it lies in memory."""
        return Layout(item=self.bits)

    def taken(self, kind: Kind) -> Layout:
        """The layout of dwords of codes as operands of a dot product."""
        if kind == "pairs":
            return self.paired()
        if kind == "quads":
            # Bytes stay where they are; what is below them are shifts.
            return Layout(self.item[-2:], self.lane, (*self.item[:-2], *self.register))
        if not self.item:
            return self
        pairs = self.paired()
        return Layout((), self.lane, (*pairs.item, *pairs.register))

    def of_lanes(self, axis: str, lanes: int) -> Layout:
        """The part of the first `lanes` lanes, which go along an axis."""
        kept = tuple((a, bit) for a, bit in self.lane if a != axis or 1 << bit < lanes)
        return Layout(self.item, kept, self.register)

    def paired(self) -> Layout:
        """The layout of dwords of codes once they are looked up, two elements a dword.

        The highest bit of an element's place in its dword chooses the half of the dword. The others
        are shifts, one register each, in bit-reversed order.
        """
        *shifts, half = self.item
        return Layout((half,), self.lane, (*reversed(shifts), *self.register))


def layout(text: str) -> Layout:
    """The layout that is printed as `text`."""
    parts = [tuple((word[0], int(word[1:])) for word in part.split()) for part in text.split("|")]
    return Layout(*parts)
