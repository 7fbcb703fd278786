"""mxc-verify-packed-weights: no tensor in memory holds a second copy of a weight.

Runs at IREE's flow phase, where every tensor that crosses a dispatch is a buffer. A dispatch that
reads only parameters and writes them wider, repeated or reordered does at run time what packing has
to do once. A dispatch that gathers or widens the weights of experts for a later contraction does so
for every token.

before:
    %w = flow.dispatch @dequantize(%elements, %scales) -> tensor<256x16x32xf32>
    %y = flow.dispatch @matmul(%x, %w)
after:
    refused with the place of the dispatch; with strict=false the dispatch gets the attribute
    mxc.fallback = "writes a dequantized weight of 524288 bytes ..."

Leaves alone: results that depend on a reduction over, or a sum with, data other than weights; rows
of an embedding that no contraction reads directly; copies of less than `min-bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from iree.compiler import ir

from mxc.dialects.contractions import contractions
from mxc.dialects.dequantize import is_element
from mxc.dialects.dispatches import (
    LOAD,
    RENAMES,
    Dispatch,
    dispatches,
    loads,
    owner,
    source,
    tensor_bytes,
    walk,
)
from mxc.dialects.linalg_ext import GATHER
from mxc.dialects.locations import place_of
from mxc.errors import PassError
from mxc.passes.base import FALLBACK, LEAST, Pass

_ARITHMETIC = tuple(
    f"arith.{name}" for name in ("addf", "subf", "divf", "negf", "maximumf", "minimumf", "remf")
)
_COPIES = ("flow.tensor.clone", "flow.tensor.slice", "flow.tensor.transfer")


@dataclass(frozen=True)
class WrittenWeight:
    """A weight that `dispatch` writes to memory. `message`: a sentence about it. `bytes`: its size,
    None if dynamic."""

    dispatch: Dispatch
    message: str
    bytes: int | None


@dataclass(frozen=True)
class VerifyPackedWeights(Pass):
    """Refuse (`strict`) or mark dispatches that write a weight, from `min_bytes` on."""

    name: ClassVar[str] = "mxc-verify-packed-weights"
    strict: bool = True
    min_bytes: int = field(default=65536, metadata={LEAST: 0})

    def run(self, module: ir.Operation) -> None:
        """Refuse or mark each dispatch that writes a weight."""
        found = findings(module, min_bytes=self.min_bytes)
        if found and self.strict:
            first, *others = found
            more = f" (and {len(others)} more)" if others else ""
            raise PassError(first.message + more, place_of(first.dispatch.op.location))
        for each in found:
            each.dispatch.op.attributes[FALLBACK] = ir.StringAttr.get(each.message)


def findings(module: ir.Operation, *, min_bytes: int = 65536) -> list[WrittenWeight]:
    """Every dispatch of a module at the flow phase that writes a weight, in order."""
    every = dispatches(module)
    weights = WeightValues(every)
    found: list[WrittenWeight] = []
    for dispatch in every:
        for result in dispatch.op.results:
            finding = _judge(dispatch, result, weights, min_bytes)
            if finding is not None:
                found.append(finding)
                break
    return found


class WeightValues:
    """Which values of a module at the flow phase hold only weights.

    A value that is computed only from parameters and constants is a weight. So are rows of a weight
    that data select ("chosen"), as long as they are only copied or widened: rows of an embedding
    are no weight any more after the first arithmetic on them.
    """

    def __init__(self, every: list[Dispatch]) -> None:
        """`every`: the dispatches of the module, each behind those whose results it reads."""
        self.dispatches = {dispatch.op: dispatch for dispatch in every}
        self._known: dict[ir.Operation, tuple[bool, bool]] = {}
        for dispatch in every:  # in order: programs have longer chains than Python has frames
            self._known[dispatch.op] = self._written_by(dispatch)

    def hold(self, value: ir.Value) -> bool:
        """Whether `value` holds a weight, or selected rows of one."""
        return self._judge(value)[0]

    def chosen(self, value: ir.Value) -> bool:
        """Whether data select which rows of a weight `value` holds."""
        return self._judge(value)[1]

    def _judge(self, value: ir.Value) -> tuple[bool, bool]:
        """(`hold`, `chosen`) of a value."""
        value = source(value)
        op = owner(value)
        if op is None:
            return False, False
        if op.name == "util.global.load":  # a mutable global is state, a cache for instance
            return "is_immutable" in op.attributes, False
        if op.name in ("flow.tensor.constant", "arith.constant"):
            return _is_data(value), False
        if op.name in _COPIES:
            held, chosen = self._judge(op.operands[0])
            return held, chosen or (held and op.name == "flow.tensor.slice")
        return self._known.get(op, (False, False))

    def _written_by(self, dispatch: Dispatch) -> tuple[bool, bool]:
        """(`hold`, `chosen`) of the results of a dispatch."""
        data = [(i, each) for i, each in enumerate(dispatch.operands) if _is_data(each)]
        held = {i: self._judge(each)[1] for i, each in data if self.hold(each)}
        if not held or dispatch.body is None:
            return False, False
        choosing = [i for i, _ in data if i not in held]
        if not choosing and not any(held.values()):
            return True, False
        rows = all(_only_chooses(dispatch, i) for i in choosing) and _only_moves(dispatch.body)
        return rows, rows


def _judge(
    dispatch: Dispatch, result: ir.Value, weights: WeightValues, min_bytes: int
) -> WrittenWeight | None:
    if not weights.hold(result):
        return None
    contracted = _is_contracted(result, weights.dispatches)
    if weights.chosen(result) and not contracted:
        return None
    size = tensor_bytes(result.type)
    what = _what(dispatch, result)
    if what is None and size is not None and size < min_bytes:
        return None
    who = f"dispatch @{dispatch.entry} in @{dispatch.function}"
    used = "which a contraction reads back" if contracted else "at run time"
    cure = "fuse it into the contraction" if contracted else "pack it ahead of time"
    return WrittenWeight(
        dispatch,
        f"{who} writes {what or 'a copy of a weight'}, {result.type} "
        f"({'dynamic' if size is None else size} bytes), {used}; wanted the packed weight read "
        f"by the contraction itself: {cure}",
        size,
    )


def _what(dispatch: Dispatch, result: ir.Value) -> str | None:
    """How a written weight differs from its packed form; None for a plain copy."""
    if dispatch.body is None:
        return None
    element = ir.RankedTensorType(result.type).element_type
    widened = any(
        op.name == "arith.scaling_extf"
        or (op.name == "arith.extf" and is_element(op.operands[0].type))
        for op in walk(dispatch.body)
    )
    if widened and isinstance(element, ir.FloatType) and element.width > 8:
        return "a dequantized weight"
    read = sum(
        tensor_bytes(part.type) or 0
        for index in range(len(dispatch.operands))
        for part in loads(dispatch, index)
    )
    gathers = any(op.name in (GATHER, "tensor.extract") for op in walk(dispatch.body))
    written = tensor_bytes(result.type)
    if written is None or written <= read or gathers:
        return None
    scale = isinstance(element, ir.Float8E8M0FNUType)
    return "a broadcast scale" if scale else "a weight repeated"


def _only_moves(body: ir.Operation) -> bool:
    """Whether a body only copies and widens: its only float arithmetic is the multiplication of
    widened elements or scales."""
    for op in walk(body):
        if op.name.startswith("math.") or op.name in _ARITHMETIC:
            return False
        if op.name == "arith.mulf" and not any(_is_widened(each) for each in op.operands):
            return False
    return True


def _is_widened(value: ir.Value) -> bool:
    op = owner(value)
    return op is not None and op.name == "arith.extf" and int(op.operands[0].type.width) <= 8


def _is_data(operand: ir.Value) -> bool:
    return isinstance(operand.type, ir.RankedTensorType)


def _only_chooses(dispatch: Dispatch, index: int) -> bool:
    """Whether an operand only selects rows: it is the index of a gather or an extract."""
    parts = loads(dispatch, index)
    return bool(parts) and all(
        isinstance(part.type, ir.RankedTensorType)
        and isinstance(part.type.element_type, (ir.IntegerType, ir.IndexType))
        and all(_use_chooses(use) for use in part.uses)
        for part in parts
    )


def _use_chooses(use: ir.OpOperand) -> bool:
    op = use.owner
    if op.name == GATHER:
        return bool(use.operand_number == 1)
    if op.name in RENAMES:
        return all(_use_chooses(each) for each in op.results[0].uses)
    if op.name == "tensor.extract":
        return bool(use.operand_number > 0)
    if not op.name.startswith("linalg."):
        return op.name in ("tensor.dim",)
    argument = op.regions[0].blocks[0].arguments[use.operand_number]
    return _reaches_only_extract(argument)


def _reaches_only_extract(value: ir.Value) -> bool:
    uses = list(value.uses)
    return bool(uses) and all(
        (use.owner.name == "tensor.extract" and use.operand_number > 0)
        or (use.owner.name.startswith("arith.") and _reaches_only_extract(use.owner.results[0]))
        for use in uses
    )


def _is_contracted(value: ir.Value, by_op: dict[ir.Operation, Dispatch]) -> bool:
    """Whether a later dispatch multiplies and sums the value directly."""
    for use in value.uses:
        op = use.owner
        if op.name in RENAMES or op.name in _COPIES:
            if _is_contracted(op.results[0], by_op):
                return True
        elif op.name == "flow.dispatch" and by_op[op].body is not None:
            consumer = by_op[op]
            indices = [i for i, operand in enumerate(consumer.operands) if operand == value]
            if any(_is_factor(consumer, i) for i in indices):
                return True
    return False


def _is_factor(dispatch: Dispatch, index: int) -> bool:
    """Whether operand `index` is a factor or a scale of a contraction in the body."""
    parts = loads(dispatch, index)
    assert dispatch.body is not None
    for found in contractions(dispatch.body):
        for value in (found.lhs.tensor, found.rhs.tensor, found.lhs.scale, found.rhs.scale):
            if value is not None and _origin(value) in parts:
                return True
    return False


def _origin(value: ir.Value) -> ir.Value:
    """The loaded tensor behind a factor, through bitcasts, reshapes and elementwise operations."""
    while True:
        value = source(value)
        op = owner(value)
        if op is None or op.name == LOAD or not op.name.startswith("linalg."):
            return value
        value = op.operands[0]
