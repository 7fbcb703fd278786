"""Carry nested structures of values through an scf.for.

A loop carries a flat list of values. A kernel holds them in a structure: a value, None, or a list,
tuple, dict or dataclass of structures. These functions convert between both, and emit such a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from iree.compiler import ir
from iree.compiler.dialects import scf

from mxc.passes.kernels.vectors import index, loop

Structure = TypeVar("Structure")


def values_of(structure: Any) -> list[ir.Value]:
    """The values in a structure as a flat list, in the order of its parts."""
    if isinstance(structure, ir.Value):
        return [structure]
    return [value for part in _parts(structure) for value in values_of(part)]


def with_values(structure: Structure, values: Iterable[ir.Value]) -> Structure:
    """The same structure with other values, in the order of `values_of`."""
    left = iter(values)
    found: Structure = _filled(structure, left)
    assert next(left, None) is None, "more values than the structure has"
    return found


def in_groups(
    held: Structure, count: int, size: int, group: Callable[[Structure, ir.Value, int], Structure]
) -> Structure:
    """Emit `count` rounds as a loop that carries `held` and is unrolled by `size`, followed by the
    `count % size` rounds that are left. Return the structure that is held after all of them.

    `group(held, number, rounds)` emits `rounds` consecutive rounds, the first of which is round
    `number * size`, and returns the structure that is held after them.
    """
    groups, rest = divmod(count, size)
    if groups:
        with loop(index(0), index(groups), index(1), values_of(held)) as (before, now, op):
            scf.YieldOp(values_of(group(with_values(held, now), before, size)))
        held = with_values(held, op.results)
    return group(held, index(groups), rest) if rest else held


def _parts(structure: Any) -> Iterable[Any]:
    """The parts of a structure."""
    if structure is None:
        return ()
    if isinstance(structure, dict):
        return structure.values()
    if is_dataclass(structure):
        return [getattr(structure, field.name) for field in fields(structure)]
    assert isinstance(structure, list | tuple), f"a loop cannot carry {structure!r}"
    return structure


def _filled(structure: Any, left: Iterator[ir.Value]) -> Any:
    if isinstance(structure, ir.Value):
        return next(left)
    if structure is None:
        return None
    parts = [_filled(part, left) for part in _parts(structure)]
    if isinstance(structure, dict):
        return dict(zip(structure, parts, strict=True))
    kind: Any = type(structure)
    return kind(*parts) if is_dataclass(structure) else kind(parts)
