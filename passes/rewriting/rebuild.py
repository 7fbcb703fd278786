"""Rebuild a linalg operation with other operands, and helpers that passes on contractions share.

The inputs of a rebuilt body are given as `Scalar`s: elements of operands, bodies of elementwise
operations that are inlined, and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from iree.compiler import ir
from iree.compiler.dialects import linalg, tensor

from mxc.dialects.dequantize import is_code, iterators
from mxc.dialects.dispatches import KERNEL
from mxc.dialects.generic import constant
from mxc.dialects.indexing import indexing_maps, loop_ranges
from mxc.dialects.linalg_ext import GATHER
from mxc.passes.rewriting.split_loops import (
    LoopSplit,
    can_reshape,
    covered,
    is_covered,
    plan_split,
    reassociation,
    reshape,
)
from mxc.passes.rewriting.worklist import Worklist, erase

#: The operation that reads the index of a loop in a body.
INDEX = "linalg.index"
#: Prefixes of operations without side effects.
_PURE = ("linalg.", "tensor.", "flow.tensor.bitcast", "util.global.load", GATHER)


@dataclass(frozen=True)
class OperandRead:
    """A scalar of the new body: the element of the operand `value` that the indexing map reads."""

    value: ir.Value
    map: ir.AffineMap


@dataclass(frozen=True)
class Inlined:
    """A scalar of the new body: what the body of the elementwise operation `op` yields for
    `inputs`."""

    op: ir.Operation
    inputs: tuple[Scalar, ...]


@dataclass(frozen=True)
class Constant:
    """A scalar of the new body: a constant of a float or integer type."""

    number: float | int
    type: ir.Type


Scalar: TypeAlias = "OperandRead | Inlined | Constant"


def linalg_operations(root: ir.Operation) -> Worklist:
    """All linalg operations with one tensor result under `root`, producers first."""
    return operations(
        root,
        lambda op: (
            op.name.startswith("linalg.")
            and len(op.results) == 1
            and isinstance(op.results[0].type, ir.RankedTensorType)
            and len(op.regions) == 1
        ),
    )


def operations(root: ir.Operation, wanted: Callable[[ir.OpView], bool]) -> Worklist:
    """The operations under `root` that have results and are `wanted`, producers first.

    Kernels of mxc are not entered: they have no tensors, but most of the operations of a program.
    """
    found: list[ir.Operation] = []

    def visit(op: ir.OpView) -> ir.WalkResult:
        if op.name == KERNEL:
            return ir.WalkResult.SKIP
        if len(op.results) and wanted(op):
            found.append(op.operation)
        return ir.WalkResult.ADVANCE

    root.walk(visit, ir.WalkOrder.PRE_ORDER)
    return Worklist(found)


def operations_named(root: ir.Operation, name: str) -> Worklist:
    """All operations with this name under `root`, in program order."""
    return operations(root, lambda op: op.name == name)


def has_reduction(op: ir.Operation) -> bool:
    """Whether a linalg operation reduces over a loop."""
    return any("reduction" in str(kind) for kind in iterators(op))


def reads_index(op: ir.Operation) -> bool:
    """Whether the body of a linalg operation reads the index of a loop."""
    return any(view.operation.name == INDEX for view in op.regions[0].blocks[0].operations)


def sums_floats(op: ir.Operation) -> bool:
    """Whether `op` reduces floats over a loop. Reductions of integers, such as the maximum of the
    bits of a block, do not count."""
    return has_reduction(op) and isinstance(op.results[0].type.element_type, ir.FloatType)


def sums_of_elements(root: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the linalg operations under `root` that reduce floats, and read elements of at most 8
    bits: floats other than E8M0, i8 or i4."""
    for op in linalg_operations(root):
        kinds = [v.type for v in list(op.operands)[:-1] if isinstance(v.type, ir.RankedTensorType)]
        elements = (kind.element_type for kind in kinds)
        if sums_floats(op) and any(map(is_code, elements)):
            yield op


def rebuild(op: ir.Operation, inputs: Sequence[Scalar], *, split: bool = False) -> ir.Value | None:
    """Replace `op` by a linalg.generic with its body over `inputs`, one for each input of `op`.

    Returns the replacement of the result. With `split`, loops that an index divides are split
    (split_loops.py), and operands and result are reshaped to match. Returns None and changes
    nothing where no split makes every index a plain loop, or where the loops read only a part of
    packed elements.
    """
    reads = [read for item in inputs for read in reads_of(item)]
    values = [*(read.value for read in reads), op.operands[len(op.operands) - 1]]
    maps = [*(read.map for read in reads), indexing_maps(op)[-1]]
    kinds = iterators(op)
    plan = plan_split(maps, kinds, loop_ranges(op), op.location) if split else None
    if split and plan is None:
        return None
    if plan is not None and not (
        all(map(can_reshape, values, plan.digits)) and _is_whole(values, plan)
    ):
        return None
    with ir.InsertionPoint(op), op.location:
        if plan is not None:
            values = [covered(v, d, plan.sizes) for v, d in zip(values, plan.digits, strict=True)]
            values = [reshape(v, d, plan.sizes) for v, d in zip(values, plan.digits, strict=True)]
            maps, kinds = plan.maps(), plan.kinds
        new = linalg.GenericOp(
            [values[-1].type],
            values[:-1],
            values[-1:],
            ir.ArrayAttr.get([ir.AffineMapAttr.get(affine) for affine in maps]),
            ir.ArrayAttr.get(kinds),
        )
        block = new.regions[0].blocks.append(*(value.type.element_type for value in values))
        result = new.results[0]
        if plan is not None and result.type != op.results[0].type:
            result = tensor.CollapseShapeOp(
                op.results[0].type, result, reassociation(plan.digits[-1])
            ).result
    for name in discardable(op):
        new.attributes[name] = op.attributes[name]
    with ir.InsertionPoint(block), op.location:
        arguments = iter(block.arguments)
        scalars = [_emit(item, arguments) for item in inputs]
        scalars.append(next(arguments))
        linalg.YieldOp([_clone_body(op.regions[0].blocks[0], scalars, plan)])
    replace(op, result)
    return result


def _is_whole(values: Sequence[ir.Value], plan: LoopSplit) -> bool:
    """Whether the loops of `plan` read all of the result, and of each operand with packed elements.

    IREE cannot load a part of packed elements, and a part of weights would be a copy.
    """
    *inputs, result = zip(values, plan.digits, strict=True)
    elements = [(v, d) for v, d in inputs if is_code(v.type.element_type)]
    return all(is_covered(value, digits, plan.sizes) for value, digits in (*elements, result))


def discardable(op: ir.Operation) -> Iterator[str]:
    """Yield the names of the discardable attributes of `op`: those with a dialect prefix."""
    return (name for name in list(op.attributes.keys()) if "." in name)


def replace(op: ir.Operation, value: ir.Value) -> None:
    """Replace the result of `op` by `value` and erase `op`. Its producers stay until `sweep`."""
    op.results[0].replace_all_uses_with(value)
    erase(op)


def sweep(root: ir.Operation) -> None:
    """Erase the operations under `root` without side effects whose results are unused."""
    for op in reversed(operations(root, lambda op: op.name.startswith(_PURE))):
        if not any(list(result.uses) for result in op.results):
            erase(op)


def reads_of(item: Scalar) -> Iterator[OperandRead]:
    """Yield the reads that a scalar of a new body consists of, in order."""
    if isinstance(item, OperandRead):
        yield item
    elif isinstance(item, Inlined):
        for inner in item.inputs:
            yield from reads_of(inner)


def _emit(item: Scalar, arguments: Iterator[ir.Value]) -> ir.Value:
    """Emit a scalar of a new body. `arguments`: of the new body, in the order of `reads_of`."""
    if isinstance(item, OperandRead):
        return next(arguments)
    if isinstance(item, Constant):
        return constant(item.number, item.type)
    return _clone_body(
        item.op.regions[0].blocks[0], [_emit(inner, arguments) for inner in item.inputs]
    )


def clone_scalar(value: ir.Value, at: dict[ir.Value, ir.Value]) -> ir.Value:
    """Clone a scalar of a body at the insertion point, with values replaced according to `at`.

    The operations that it is computed from are cloned too, and their results added to `at`. Values
    from outside of the body are not cloned.
    """
    if value in at or isinstance(value, ir.BlockArgument):
        return at.get(value, value)
    op = value.owner
    if op.parent is None or not op.parent.name.startswith("linalg."):
        return value
    for operand in op.operands:
        clone_scalar(operand, at)
    clone_over(op, at)
    return at[value]


def body_text(block: ir.Block, names: Mapping[ir.Value, str]) -> list[str]:
    """The operations of a body as lines of text that are equal for the same code. `names`: names of
    the values from outside, except constants."""
    known, lines = dict(names), []
    for number, view in enumerate(block.operations):
        op = view.operation
        attributes = [str(op.attributes[name]) for name in sorted(op.attributes)]
        read = [known.get(v) or str(v.owner.attributes["value"]) for v in op.operands]
        kinds = [str(result.type) for result in op.results]
        lines.append(f"{number} {op.name} {kinds} {attributes} {read}")
        known |= {result: str(number) for result in op.results}
    return lines


def clone_over(op: ir.Operation, at: dict[ir.Value, ir.Value]) -> None:
    """Clone an operation at the insertion point, with operands replaced according to `at`.

    Its results are added to `at`.
    """
    copy = op.clone()
    for number, operand in enumerate(op.operands):
        copy.operands[number] = at.get(operand, operand)
    at |= dict(zip(op.results, copy.results, strict=True))


def _clone_body(
    source: ir.Block, scalars: Sequence[ir.Value], plan: LoopSplit | None = None
) -> ir.Value:
    """Clone a body at the insertion point over `scalars` and return the value that it yields.
    `plan`: how its loops were split, None if they were not."""
    at = dict(zip(source.arguments, scalars, strict=False))
    *body, end = source.operations
    for inner in body:
        if inner.operation.name == INDEX and plan is not None:
            loop = ir.IntegerAttr(inner.operation.attributes["dim"]).value
            at[inner.operation.results[0]] = plan.index_before(loop)
        else:
            clone_over(inner.operation, at)
    return at.get(end.operands[0], end.operands[0])
