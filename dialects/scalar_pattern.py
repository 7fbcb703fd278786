"""Match the body of a linalg.generic with an expression.

    match_scalar(op, ("arith.addf", "%1", ("arith.mulf", "%0", "?scale")))

returns {"scale": value} where the body of `op` yields argument 1 plus argument 0 times a value that
is defined outside the body, or a constant defined anywhere.
"""

from __future__ import annotations

from typing import TypeAlias

from iree.compiler import ir

#: "%i" is an argument, "~%i" one that may be extended to f32, "linalg.index d" the index of loop d,
#: "?name" binds a name to one value; a tuple is an operation, with its predicate, and its operands.
Pattern: TypeAlias = "str | tuple[str | Pattern, ...]"
Found: TypeAlias = dict[str, ir.Value]

_FLOAT_PREDICATES = {1: "oeq", 2: "ogt", 3: "oge", 4: "olt", 5: "ole", 6: "one"}
_INTEGER_PREDICATES = {0: "eq", 1: "ne", 2: "slt", 3: "sle", 4: "sgt", 5: "sge"}


def match_scalar(op: ir.Operation, pattern: Pattern) -> Found | None:
    """The values that `pattern` binds in the result of the body of `op`; None for no match."""
    block = op.regions[0].blocks[0]
    *_, end = block.operations
    found: Found = {}
    return found if _fits(end.operands[0], pattern, block, found) else None


def _fits(value: ir.Value, pattern: Pattern, block: ir.Block, found: Found) -> bool:
    owner = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if isinstance(pattern, tuple):
        name, *operands = pattern
        return (
            owner is not None
            and _name(owner) == name
            and len(owner.operands) == len(operands)
            and all(
                _fits(operand, each, block, found)
                for operand, each in zip(owner.operands, operands, strict=True)
            )
        )
    if pattern.startswith("?"):
        inside = value.owner if owner is None else owner.block
        constant = owner is not None and owner.name == "arith.constant"
        if inside == block and not constant:
            return False
        return bool(found.setdefault(pattern[1:], value) == value)
    if pattern.startswith("~"):
        if owner is not None and owner.name == "arith.extf":
            value = owner.operands[0]
        pattern = pattern[1:]
    if pattern.startswith("%"):
        if not isinstance(value, ir.BlockArgument) or value.owner != block:
            return False
        return bool(value.arg_number == int(pattern[1:]))
    return owner is not None and _name(owner) == pattern


def _name(op: ir.Operation) -> str:
    """Name of an operation with its predicate, or with the number of its loop for linalg.index."""
    if op.name == "linalg.index":
        return f"linalg.index {ir.IntegerAttr(op.attributes['dim']).value}"
    if op.name in ("arith.cmpf", "arith.cmpi"):
        names = _FLOAT_PREDICATES if op.name == "arith.cmpf" else _INTEGER_PREDICATES
        return f"{op.name} {names.get(ir.IntegerAttr(op.attributes['predicate']).value, '')}"
    return str(op.name)
