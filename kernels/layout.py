"""Layouts: at which place (item in a lane, lane, register) an element of a fragment lies.

    "k2 | n0 n1 n2 n3 | k1 k0 k3 k4"      item | lane | register

Each bit of the item, lane and register number is one bit of one coordinate; the least significant
bit comes first. Here, adjacent elements of a lane differ in bit 2 of k, the lane number is bits 0
to 3 of n, and adjacent registers differ in bit 1 of k. In memory, a fragment lies in the same
order: items, then lanes, then registers. These layouts are the permutations among the linear
layouts of Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

#: The name of an axis, and the number of one of the bits of its coordinate.
Bit = tuple[str, int]

#: Operands of a dot product in a lane of 32 bits: two bf16 (pairs), four bytes (quads), or one f32.
Kind: TypeAlias = Literal["pairs", "quads", "floats"]


@dataclass(frozen=True)
class Layout:
    """The coordinate bits of the item number, the lane number and the register number."""

    item: tuple[Bit, ...] = ()
    lane: tuple[Bit, ...] = ()
    register: tuple[Bit, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError where a bit occurs twice."""
        if len(set(self.bits)) != len(self.bits):
            raise ValueError(f"a bit stands twice in {self}")

    def __str__(self) -> str:
        """The layout in the syntax that `layout` reads."""
        parts = (self.item, self.lane, self.register)
        found = [" ".join(f"{axis}{bit}" for axis, bit in part) for part in parts]
        while found and not found[-1]:
            found.pop()
        return " | ".join(found)

    def __bool__(self) -> bool:
        """Whether the layout has any bits."""
        return bool(self.bits)

    @property
    def bits(self) -> tuple[Bit, ...]:
        """All bits in the order of memory: items, lanes, registers."""
        return self.item + self.lane + self.register

    @property
    def shape(self) -> tuple[int, int, int]:
        """Number of registers, lanes per register, and items per lane."""
        return 1 << len(self.register), 1 << len(self.lane), 1 << len(self.item)

    def extent(self, axis: str) -> int:
        """Number of coordinates along an axis that a fragment covers."""
        return 1 << sum(name == axis for name, _ in self.bits)

    def coordinates(self) -> dict[str, NDArray[np.int64]]:
        """By axis, the coordinates in the fragment of each place: [registers, lanes, items]."""
        register, lane, item = np.ogrid[tuple(slice(count) for count in self.shape)]
        found = {name: np.zeros(self.shape, np.int64) for name, _ in self.bits}
        for place, part in ((item, self.item), (lane, self.lane), (register, self.register)):
            for at, (axis, bit) in enumerate(part):
                found[axis] = found[axis] + (((place >> at) & 1) << bit)
        return found

    def in_memory(self) -> Layout:
        """The same order of bits as items only: a fragment as it lies in memory."""
        return Layout(item=self.bits)

    def taken(self, kind: Kind) -> Layout:
        """The layout of the operands of a dot product that are unpacked from dwords of codes, which
        lie in this layout."""
        if kind == "pairs":
            return self.paired()
        if kind == "quads":
            # The two highest bits of the item number select the byte, and keep their place. The
            # lower bits become shifts: one register per shift.
            return Layout(self.item[-2:], self.lane, (*self.item[:-2], *self.register))
        if not self.item:
            return self
        pairs = self.paired()
        return Layout((), self.lane, (*pairs.item, *pairs.register))

    def of_lanes(self, axis: str, lanes: int) -> Layout:
        """The part of the layout that covers the first `lanes` lanes along an axis."""
        kept = tuple((a, bit) for a, bit in self.lane if a != axis or 1 << bit < lanes)
        return Layout(self.item, kept, self.register)

    def paired(self) -> Layout:
        """The layout of dwords of codes after the lookup, with two elements per dword.

        The highest bit of an element's place in its dword selects the half of the dword. The other
        bits are shifts, one register per shift, in bit-reversed order.
        """
        *shifts, half = self.item
        return Layout((half,), self.lane, (*reversed(shifts), *self.register))


def layout(text: str) -> Layout:
    """Parse the text form of a layout, such as "k0 | n0 n1 | k1"."""
    parts = [tuple((word[0], int(word[1:])) for word in part.split()) for part in text.split("|")]
    return Layout(*parts)
