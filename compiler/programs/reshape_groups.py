"""Which dimensions a reshape merges and splits, where sizes come with the call.

[a, m, 64] to [a m, 4, 16]    merges a and m, and splits 64
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """A known factor times others, each named by the value that it comes from."""

    factor: int = 1
    names: tuple[Hashable, ...] = ()

    def __mul__(self, other: Size) -> Size:
        """The product, with names in an order of their own."""
        names = sorted((*self.names, *other.names), key=hash)
        return Size(self.factor * other.factor, tuple(names))


#: The size of a dimension of one element.
ONE = Size()


def same_elements(
    before: Sequence[Size], after: Sequence[Size]
) -> list[tuple[list[int], list[int]]]:
    """Dimensions of both sides that have as many elements, in as many groups as are known."""
    found: list[tuple[list[int], list[int]]] = []
    left: list[int] = []
    right: list[int] = []
    product = [ONE, ONE]
    places = [0, 0]
    lengths = len(before), len(after)
    while places[0] < lengths[0] or places[1] < lengths[1]:
        # The side that has fewer elements goes on; of equal ones, both begin a group.
        takes_left = places[0] < lengths[0] and (
            not left or places[1] == lengths[1] or (bool(right) and _is_less(*product))
        )
        if takes_left:
            product[0] *= before[places[0]]
            left.append(places[0])
            places[0] += 1
        else:
            product[1] *= after[places[1]]
            right.append(places[1])
            places[1] += 1
        ends = places[0] == lengths[0] and places[1] == lengths[1]
        if left and right and product[0] == product[1] and not ends:
            if _only_ones(before[places[0] :]) or _only_ones(after[places[1] :]):
                continue
            found.append((left, right))
            left, right, product = [], [], [ONE, ONE]
    found.append((left, right))
    return found


def _only_ones(sizes: Sequence[Size]) -> bool:
    """Whether only dimensions of one element are left, which belong to the last group."""
    return all(each == ONE for each in sizes)


def _is_less(one: Size, other: Size) -> bool:
    """Whether a product lacks something that the other one has."""
    missing = list(other.names)
    for name in one.names:
        if name in missing:
            missing.remove(name)
    return bool(missing) or (len(one.names) == len(other.names) and one.factor < other.factor)
