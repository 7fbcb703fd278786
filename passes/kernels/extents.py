"""Sizes in kernels: numbers, or index values that come with each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Self, TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.passes.kernels.vectors import index

#: A number, an index value that comes with the call, or None for a value that has yet to come.
Size: TypeAlias = int | ir.Value | None


def value_of(size: Size) -> ir.Value:
    """The size as an index value."""
    assert size is not None
    return index(size) if isinstance(size, int) else size


def named(size: Size) -> str:
    """The size as part of a symbol: its number, or D if it comes with each call."""
    return str(size) if isinstance(size, int) else "D"


def plus(first: Size, second: Size) -> Size:
    """first + second, where neither is negative."""
    return None if first is None or second is None else first + second


def least(size: Size, most: int) -> Size:
    """The minimum of a size and the number `most`, compared without sign."""
    if isinstance(size, int):
        return min(size, most)
    return size if size is None else arith.minui(size, index(most))


def product(first: Size, second: Size) -> Size:
    """first * second, where neither is negative."""
    return None if first is None or second is None else first * second


def quotient(size: Size, by: int) -> Size:
    """size / by, rounded down."""
    return None if size is None else size // by


def quotient_up(size: Size, by: int) -> Size:
    """size / by, rounded up."""
    return None if size is None else (size + (by - 1)) // by


@dataclass(frozen=True)
class Sized:
    """Base of kernels with sizes that come with each call: fields of type `Size` that are None."""

    @property
    def scalars(self) -> int:
        """Number of index values that each call supplies."""
        return len(self._unknown)

    def given(self, scalars: Sequence[ir.Value]) -> Self:
        """A copy with the values `scalars` in the fields that are None, in order."""
        return replace(self, **dict(zip(self._unknown, scalars, strict=True)))

    @property
    def _unknown(self) -> list[str]:
        own = [each.name for each in fields(self) if each.type == "Size"]
        return [name for name in own if getattr(self, name) is None]


@dataclass(frozen=True)
class Buffer:
    """A tensor that a kernel reads or writes."""

    sizes: Sequence[Size]
    element: ir.Type

    @property
    def memref(self) -> ir.Type:
        """The memref type."""
        dynamic = ir.ShapedType.get_dynamic_size()
        shape = [size if isinstance(size, int) else dynamic for size in self.sizes]
        return ir.MemRefType.get(shape, self.element)


def dynamic_of(buffers: Sequence[Buffer]) -> list[ir.Value]:
    """The dynamic sizes of buffers, in order."""
    return [
        value_of(size) for buffer in buffers for size in buffer.sizes if not isinstance(size, int)
    ]
