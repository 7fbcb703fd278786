"""Sums of index values with integer factors, for coordinates and addresses during lowering."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.generic import constant


@dataclass(frozen=True)
class Index:
    """An index value during lowering: `number` + the sum of factor * value over `terms`. Folds
    constants. Emits operations only when a value is asked for, or when `//` or `%` does not divide
    evenly."""

    number: int = 0
    terms: Mapping[ir.Value, int] = field(default_factory=dict)

    @property
    def key(self) -> Hashable:
        """A key that is equal for equal sums."""
        return self.number, frozenset(self.terms.items())

    def __add__(self, other: Number) -> Index:
        """The sum."""
        if isinstance(other, int):
            return Index(self.number + other, self.terms)
        terms = dict(self.terms)
        for value, factor in other.terms.items():
            terms[value] = terms.get(value, 0) + factor
        kept = {value: factor for value, factor in terms.items() if factor}
        return Index(self.number + other.number, kept)

    __radd__ = __add__

    def __sub__(self, other: Number) -> Index:
        """The difference."""
        return self + other * -1

    def __rsub__(self, other: int) -> Index:
        """`other` minus this sum."""
        return self * -1 + other

    def __mul__(self, by: int) -> Index:
        """The product."""
        if not by:
            return Index()
        return Index(self.number * by, {value: factor * by for value, factor in self.terms.items()})

    __rmul__ = __mul__

    def __floordiv__(self, by: int) -> Index:
        """The quotient; the sum must not be negative."""
        if by == 1:
            return self
        if any(factor % by for factor in self.terms.values()):
            return of(value_of(self) // by)
        terms = {value: factor // by for value, factor in self.terms.items()}
        return Index(self.number // by, terms)

    def __mod__(self, by: int) -> Number:
        """The remainder; the sum must not be negative."""
        if any(factor % by for factor in self.terms.values()):
            return of(arith.remui(value_of(self), constant(by, ir.IndexType.get())))
        return self.number % by

    def __rshift__(self, bits: int) -> int:
        """Raises ValueError: the bits of a coordinate that depends on a run-time value are not
        known."""
        raise ValueError("a tile that begins inside of a fragment")


Number: TypeAlias = int | Index


def of(value: int | ir.Value) -> Index:
    """An `Index` from an int or an index value."""
    return Index(value) if isinstance(value, int) else Index(0, {value: 1})


def known(number: Number) -> int | None:
    """The number if it is constant, else None."""
    if isinstance(number, int):
        return number
    return None if number.terms else number.number


def key_of(number: Number) -> Hashable:
    """A key that is equal for equal numbers."""
    return number if isinstance(number, int) else number.key if number.terms else number.number


def value_of(number: Number) -> ir.Value:
    """Emit the number as an index value at the insertion point."""
    index = ir.IndexType.get()
    if isinstance(number, int):
        return constant(number, index)
    found: ir.Value | None = None
    for value, factor in number.terms.items():
        part = value if factor == 1 else value * factor
        found = part if found is None else found + part
    if found is None:
        return constant(number.number, index)
    return found + number.number if number.number else found


def least(first: Number, second: Number) -> Number:
    """The minimum of two numbers that are not negative."""
    pair = [known(first), known(second)]
    if pair[0] is not None and pair[1] is not None:
        return min(pair[0], pair[1])
    return of(arith.minui(value_of(first), value_of(second)))
