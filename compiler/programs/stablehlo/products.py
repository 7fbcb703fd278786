"""Products of StableHLO whose sizes come with the call."""

from __future__ import annotations

import re

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.compiler.programs.reshape_groups import Size
from mxc.compiler.programs.stablehlo.sizes import DimensionSizes, numbers_of
from mxc.dialects.generic import generic

_LISTS = re.compile(r"(lhs|rhs)_(batching|contracting)_dimensions = \[([\d, ]*)\]")


def product(op: ir.Operation, sizes: DimensionSizes) -> ir.Value | None:
    """`stablehlo.dot_general`, over batches, rows, columns and sums in the order of its result."""
    lhs, rhs = op.operands
    result = ir.RankedTensorType(op.results[0].type)
    element, types = result.element_type, [v.type.element_type for v in (lhs, rhs)]
    if not all(_is_known(each, element) for each in (*types, element)):
        return None
    floats = isinstance(element, ir.FloatType)
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

    def multiplied(left: ir.Value, right: ir.Value) -> ir.Value:
        left, right = (_extended(each, element) for each in (left, right))
        return arith.mulf(left, right) if floats else arith.muli(left, right)

    def body(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
        found = multiplied(left, right)
        return arith.addf(total, found) if floats else arith.addi(total, found)

    summed = any(letter[0] == "k" for letter in letters.values())
    found = generic(reads, " ".join(output), element, body if summed else multiplied)
    sizes.record(found, [known[letter] for letter in output])
    return found


def _is_known(kind: ir.Type, result: ir.Type) -> bool:
    """Whether numbers of a type become those of a result without a loss, and have a sign."""
    if isinstance(kind, ir.FloatType) != isinstance(result, ir.FloatType):
        return False
    if isinstance(kind, ir.IntegerType) and not (kind.is_signless and kind.width > 1):
        return False
    return bool(kind == result or kind.width < result.width)


def _extended(value: ir.Value, kind: ir.Type) -> ir.Value:
    """A scalar as one of a type that is as wide or wider."""
    if value.type == kind:
        return value
    return arith.extf(kind, value) if isinstance(kind, ir.FloatType) else arith.extsi(kind, value)
