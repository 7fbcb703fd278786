"""Values that loops carry: conversion of structures to lists of values and back."""

from dataclasses import dataclass

import pytest
from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.context import new_context
from mxc.passes.kernels.carried import values_of, with_values


@dataclass
class Held:
    """A dataclass with every kind of structure that loops may carry."""

    totals: list[ir.Value]
    read: dict[tuple[int, int], ir.Value]
    halves: tuple[list[list[ir.Value]], ir.Value | None]
    slot: ir.Value


def test_a_structure_is_filled_in_the_order_of_its_parts() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            numbers = [arith.constant(ir.IndexType.get(), number) for number in range(14)]
        a, b, c, d, e, f, g, *others = numbers
        held = Held([a, b], {(1, 0): c, (0, 1): d}, ([[e], [], [f]], None), g)
        assert values_of(held) == numbers[:7]
        found = with_values(held, others)
        assert values_of(found) == others
        assert found.read == {(1, 0): others[2], (0, 1): others[3]}
        assert found.halves == ([[others[4]], [], [others[5]]], None)
        with pytest.raises(AssertionError, match="more values"):
            with_values(held, numbers[:8])
        with pytest.raises(AssertionError, match="cannot carry 3"):
            values_of([a, 3])
