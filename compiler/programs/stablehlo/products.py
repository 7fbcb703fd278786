"""Products of StableHLO whose sizes come with the call."""

from __future__ import annotations

import re
from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.programs.reshape_groups import Size
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes, numbers_of
from mxc.dialects.generic import element_of, generic

_LISTS = re.compile(r"(lhs|rhs)_(batching|contracting)_dimensions = \[([\d, ]*)\]")


def product(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.dot_general`, over batches, rows, columns and sums in the order of its result."""
    lhs, rhs = op.operands
    element = element_of(op.results[0])
    if not can_multiply((lhs, rhs), element):
        return None
    text = str(op.attributes["dot_dimension_numbers"])
    numbers = {(side, what): numbers_of(each) for side, what, each in _LISTS.findall(text)}
    letters: dict[tuple[str, int], str] = {}
    for what, first in (("batching", "b"), ("contracting", "k")):
        pairs = zip(numbers.get(("lhs", what), []), numbers.get(("rhs", what), []), strict=True)
        for number, (left, right) in enumerate(pairs):
            letters["lhs", left] = letters["rhs", right] = f"{first}{number}"
    output = [letters["lhs", axis] for axis in numbers.get(("lhs", "batching"), [])]
    known: dict[str, Size] = {}
    reads = []
    for side, value, first in (("lhs", lhs, "m"), ("rhs", rhs, "n")):
        own = []
        for axis, size in enumerate(sizes.of(value)):
            letter = letters.setdefault((side, axis), f"{first}{axis}")
            own.append(letter)
            known.setdefault(letter, size)
            if letter[0] == first:
                output.append(letter)
        reads.append((value, " ".join(own)))
    summed = any(letter[0] == "k" for letter in letters.values())

    def multiplied(left: ir.Value, right: ir.Value) -> ir.Value:
        return _multiplied(left, right, element)

    found = generic(reads, " ".join(output), element, multiply_add if summed else multiplied)
    sizes.record(found, [known[letter] for letter in output])
    return found


def can_multiply(values: Sequence[ir.Value], element: ir.Type) -> bool:
    """Whether elements of these tensors become ones of a type without a loss, and have a sign."""
    return all(_is_known(each, element) for each in (*map(element_of, values), element))


def multiply_add(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    """A product of two scalars, in the type of the sum to which it is added."""
    found = _multiplied(left, right, total.type)
    floats = isinstance(total.type, ir.FloatType)
    return arith.addf(total, found) if floats else arith.addi(total, found)


def _multiplied(left: ir.Value, right: ir.Value, kind: ir.Type) -> ir.Value:
    left, right = (converted(each, kind) for each in (left, right))
    return arith.mulf(left, right) if isinstance(kind, ir.FloatType) else arith.muli(left, right)


def _is_known(kind: ir.Type, result: ir.Type) -> bool:
    """Whether numbers of a type become those of a result without a loss, and have a sign."""
    if isinstance(kind, ir.FloatType) != isinstance(result, ir.FloatType):
        return False
    if isinstance(kind, ir.IntegerType) and not (kind.is_signless and kind.width > 1):
        return False
    return bool(kind == result or kind.width < result.width)


def wide_sums(element: ir.Type) -> ir.Type:
    """The type in which elements of a type are added up."""
    return ir.F32Type.get() if element in (ir.BF16Type.get(), ir.F16Type.get()) else element


def converted(number: ir.Value, kind: ir.Type) -> ir.Value:
    """A float as one of another type, or an integer with a sign as one that is as wide or wider."""
    if number.type == kind:
        return number
    if isinstance(kind, ir.FloatType):
        return (arith.extf if number.type.width < kind.width else arith.truncf)(kind, number)
    return arith.extsi(kind, number)
