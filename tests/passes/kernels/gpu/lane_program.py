"""Blocks of MLIR as Python objects, read once for lane_interpreter.py, which runs them often."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from iree.compiler import ir

from tests.passes.kernels.gpu.lane_values import Kind, kind_of_type


@dataclass(eq=False)
class Value:
    """An SSA value. `argument`: its number if it is an argument of a block."""

    type: ir.Type
    argument: int | None = None

    @cached_property
    def kind(self) -> Kind:
        """Element type, bits of an element, and number of elements."""
        return kind_of_type(self.type)


@dataclass(eq=False)
class Operation:
    """An operation. `constant`: the value of a constant, which the interpreter caches here."""

    name: str
    operands: list[Value]
    results: list[Value]
    attributes: dict[str, ir.Attribute]
    regions: list[list[Block]]
    constant: Any = None


@dataclass(eq=False)
class Block:
    """A block: its arguments and operations."""

    arguments: list[Value] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)


def read(block: ir.Block) -> Block:
    """Read a block and all blocks nested in its operations."""
    return _read(block, {})


def _read(block: ir.Block, known: dict[ir.Value, Value]) -> Block:
    found = Block([Value(each.type, each.arg_number) for each in block.arguments])
    known.update(zip(block.arguments, found.arguments, strict=True))
    for each in block.operations:
        op = each.operation
        results = [Value(result.type) for result in op.results]
        operands = [known[operand] for operand in op.operands]
        regions = [[_read(inner, known) for inner in region.blocks] for region in op.regions]
        known.update(zip(op.results, results, strict=True))
        attributes = dict(op.attributes.items())
        found.operations.append(Operation(op.name, operands, results, attributes, regions))
    return found
