"""Samples of a function's arguments, and the sizes of tensors at a sample.

A size that is known only at the call has no number in a report. A sample is an example of a call,
which gives these sizes numbers:
    module attributes {mxc.samples = [{name = "token", function = "step", rows = 1, positions = 64,
        sizes = [array<i64: 1>, array<i64: 1>, array<i64: 1, 3>, ..]}]}

`sizes` are the shapes of the arguments. IREE keeps the attribute up to its last phase.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from iree.compiler import ir

ATTRIBUTE = "mxc.samples"
#: The attribute of dispatches with the estimates of `write_estimates`.
ESTIMATES = "mxc.estimates"

#: Sizes of a tensor along its axes; None if one is not known.
Shape: TypeAlias = "list[int] | None"

_FIELDS = ("rows", "positions")
_BINARY: dict[str, Callable[[int, int], int]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divui": operator.floordiv,
    "arith.divsi": operator.floordiv,
    "arith.floordivsi": operator.floordiv,
    "arith.ceildivui": lambda a, b: -(-a // b),
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.remui": operator.mod,
    "arith.remsi": operator.mod,
    "arith.minui": min,
    "arith.minsi": min,
    "arith.maxui": max,
    "arith.maxsi": max,
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "util.align": lambda a, b: -(-a // b) * b,
}
_ORDER: tuple[Callable[[int, int], bool], ...] = (
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge,
    operator.lt, operator.le, operator.gt, operator.ge,
)  # fmt: skip
#: Operations whose result has the value of their first operand.
_SAME = (
    "arith.index_cast",
    "arith.index_castui",
    "arith.extui",
    "arith.trunci",
    "iree_tensor_ext.dispatch.workload.ordinal",
)
_LOAD = "iree_tensor_ext.dispatch.tensor.load"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One call of `function` with `rows` of a sequence, which has `positions` including these rows.
    `sizes`: the shapes of the arguments."""

    name: str
    function: str
    rows: int
    positions: int
    sizes: tuple[tuple[int, ...], ...]


def write_samples(module: ir.Operation, samples: Sequence[Sample]) -> None:
    """Write samples to a module."""
    i64 = ir.IntegerType.get_signless(64)
    module.attributes[ATTRIBUTE] = ir.ArrayAttr.get(
        [
            ir.DictAttr.get(
                {
                    "name": ir.StringAttr.get(each.name),
                    "function": ir.StringAttr.get(each.function),
                    **{name: ir.IntegerAttr.get(i64, getattr(each, name)) for name in _FIELDS},
                    "sizes": ir.ArrayAttr.get(
                        [ir.DenseI64ArrayAttr.get(list(shape)) for shape in each.sizes]
                    ),
                }
            )
            for each in samples
        ]
    )


def read_samples(module: ir.Operation) -> tuple[Sample, ...]:
    """The samples of a module."""
    if ATTRIBUTE not in module.attributes:
        return ()
    found = []
    for raw in ir.ArrayAttr(module.attributes[ATTRIBUTE]):
        each = ir.DictAttr(raw)
        rows, positions = (ir.IntegerAttr(each[name]).value for name in _FIELDS)
        found.append(
            Sample(
                name=str(ir.StringAttr(each["name"]).value),
                function=str(ir.StringAttr(each["function"]).value),
                rows=rows,
                positions=positions,
                sizes=tuple(
                    tuple(ir.DenseI64ArrayAttr(shape)) for shape in ir.ArrayAttr(each["sizes"])
                ),
            )
        )
    return tuple(found)


def write_estimates(op: ir.Operation, estimates: Sequence[tuple[int, int]]) -> None:
    """Write to a dispatch its clocks on a GPU and its number of workgroups, for each sample of its
    program in order; 0 where not known."""
    numbers = [number for pair in estimates for number in pair]
    op.attributes[ESTIMATES] = ir.DenseI64ArrayAttr.get(numbers)


def read_estimates(op: ir.Operation) -> list[tuple[int, int]]:
    """The estimates of a dispatch; empty where there are none."""
    if ESTIMATES not in op.attributes:
        return []
    numbers = list(ir.DenseI64ArrayAttr(op.attributes[ESTIMATES]))
    return list(zip(numbers[::2], numbers[1::2], strict=True))


class Sizes:
    """Evaluates sizes at a sample; without a sample, only sizes that types state are known."""

    def __init__(self, sample: Sample | None = None) -> None:
        """`sample`: a sample of the function that contains the values."""
        self._sample = sample

    def number(self, value: ir.Value, call: ir.Operation | None = None) -> int | None:
        """The value of an integer, also in the body of the dispatch `call`; None if not known."""
        if isinstance(value, ir.BlockArgument):
            return None if call is None else self._argument(value.arg_number, call)
        op = value.owner
        operands = list(op.operands)
        if op.name == "arith.constant":
            attribute = op.attributes["value"]
            return int(ir.IntegerAttr(attribute).value)
        if op.name in ("hal.buffer_view.dim", "tensor.dim"):
            return self._extent(op, operands)
        if op.name == "util.assume.int":
            return self.number(operands[ir.OpResult(value).result_number], call)
        if op.name in _SAME:
            return self.number(operands[0], call)
        known = [self.number(operand, call) for operand in operands if _is_integer(operand)]
        numbers = [number for number in known if number is not None]
        if not numbers or len(numbers) < len(operands):
            return None
        if op.name in _BINARY and (numbers[1] or "div" not in op.name):
            return _BINARY[op.name](*numbers)
        if op.name == "arith.cmpi":
            order = _ORDER[ir.IntegerAttr(op.attributes["predicate"]).value]
            return int(order(*numbers))
        if op.name == "arith.select":
            return numbers[1] if numbers[0] else numbers[2]
        return None

    def operand(self, call: ir.Operation, number: int) -> Shape:
        """The shape of an argument of a dispatch, by its number."""
        workload, arguments, dims, _ = _segments(call)
        given = list(call.operands)
        sizes = given[workload + arguments : workload + arguments + dims]
        return self._typed(given[workload : workload + arguments], number, sizes)

    def result(self, call: ir.Operation, number: int) -> Shape:
        """The shape of a result of a dispatch, by its number."""
        *_, dims = _segments(call)
        given = list(call.operands)
        sizes = given[len(given) - dims :] if dims else []
        return self._typed(list(call.results), number, sizes)

    def inside(self, value: ir.Value, call: ir.Operation) -> Shape:
        """The shape of a tensor in the body of a dispatch."""
        kind = ir.RankedTensorType(value.type)
        if not any(kind.is_dynamic_dim(axis) for axis in range(kind.rank)):
            return list(kind.shape)
        if isinstance(value, ir.BlockArgument):
            return None
        op = value.owner
        if op.name == _LOAD:
            return self._loaded(op, kind, call)
        if op.name == "tensor.empty":
            return self._filled(kind, list(op.operands), call)
        if op.name.startswith("linalg.") or op.name == "iree_linalg_ext.scatter":
            return self.inside(list(op.operands)[-1], call)
        return None

    def _argument(self, number: int, call: ir.Operation) -> int | None:
        workload, arguments, *_ = _segments(call)
        given = list(call.operands)[workload : workload + arguments]
        known = number < len(given) and _is_integer(given[number])
        return self.number(given[number]) if known else None

    def _extent(self, op: ir.Operation, operands: list[ir.Value]) -> int | None:
        source = operands[0]
        if self._sample is None or not isinstance(source, ir.BlockArgument):
            return None
        axis = (
            self.number(operands[1]) if len(operands) > 1
            else ir.IntegerAttr(op.attributes["index"]).value
        )  # fmt: skip
        sizes, number = self._sample.sizes, source.arg_number
        return sizes[number][axis] if axis is not None and number < len(sizes) else None

    def _typed(self, values: list[ir.Value], number: int, sizes: list[ir.Value]) -> Shape:
        kinds = [value.type for value in values]
        before = sum(map(_unknown, kinds[:number]))
        kind = ir.RankedTensorType(kinds[number])
        return self._filled(kind, sizes[before : before + _unknown(kind)], None)

    def _filled(
        self, kind: ir.RankedTensorType, sizes: Sequence[ir.Value], call: ir.Operation | None
    ) -> Shape:
        """The shape of a type, with its dynamic sizes taken from these values."""
        given = iter(sizes)
        found = []
        for axis in range(kind.rank):
            size: int | None = kind.shape[axis]
            if kind.is_dynamic_dim(axis):
                size = self.number(next(given), call)
            if size is None:
                return None
            found.append(size)
        return found

    def _loaded(self, op: ir.Operation, kind: ir.RankedTensorType, call: ir.Operation) -> Shape:
        counts = list(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"]))
        first = sum(counts[:3])
        given = iter(list(op.operands)[first : first + counts[3]])
        dynamic = ir.ShapedType.get_dynamic_size()
        sizes = [
            self.number(next(given), call) if size == dynamic else size
            for size in ir.DenseI64ArrayAttr(op.attributes["static_sizes"])
        ]
        if None in sizes:
            return None
        shape = [size for size in sizes if size is not None]
        dropped = len(shape) - kind.rank
        kept: list[int] = []
        for size in shape:
            if dropped and size == 1 and (len(kept) == kind.rank or kind.shape[len(kept)] != 1):
                dropped -= 1
                continue
            kept.append(size)
        return kept


#: Sizes without a sample: only those that types state.
STATED = Sizes()


def _segments(call: ir.Operation) -> list[int]:
    return list(ir.DenseI32ArrayAttr(call.attributes["operandSegmentSizes"]))


def _is_integer(value: ir.Value) -> bool:
    return isinstance(value.type, ir.IntegerType | ir.IndexType)


def _unknown(kind: ir.Type) -> int:
    """Number of dynamic sizes of a type."""
    if not isinstance(kind, ir.RankedTensorType):
        return 0
    return sum(kind.is_dynamic_dim(axis) for axis in range(kind.rank))
