"""Find the operation of the torch dialect for which the importer has no lowering.

The message of a failed pass may be about another operation, such as a constant that the operation
uses, and a crash has no message. So each operation is lowered in a module of its own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from iree.compiler import ir
from iree.compiler.dialects import func

from mxc.dialects.dispatches import walk
from mxc.dialects.locations import place_of, with_place
from mxc.errors import PassError
from mxc.passes.base import run

#: Gets the operation that is lowered alone next, None where all are lowered together.
Tell = Callable[[ir.Operation | None], None]

#: What is said of an operation that the importer does not lower.
NO_LOWERING = "has no lowering; write it with other operations"
#: A tensor of the torch dialect; values of other types are computed with their reader.
_TENSOR = "!torch.vtensor"


def called(op: ir.Operation) -> str:
    """What a framework calls an operation: aten.add.Tensor, onnx.Add."""
    named = "name" in op.attributes and op.name == "torch.operator"
    name = ir.StringAttr(op.attributes["name"]).value if named else op.name
    return str(name).removeprefix("torch.")


def named(op: ir.Operation) -> str:
    """The name of an operation after its place in the user's source."""
    found = with_place(op.location, called(op))
    return found if place_of(op.location) else f"{found} (its place is not known)"


def refused(module: ir.Operation, passes: Sequence[str], where: str) -> ir.Operation | None:
    """The first operation that passes of the importer refuse to lower alone, or that has regions
    and is not torch's own; None if there is none.

    Those at `where`, a place as `place_of` says it, come first.
    """
    found = sorted(_singles(module), key=lambda each: place_of(each[0].location) != where)
    loops = (op for op in walk(module) if op.name == "torch.operator" and len(op.regions))
    return next((op for op, single in found if not _is_lowered(single, passes)), next(loops, None))


def lower_each(module: ir.Operation, passes: Sequence[str], tell: Tell) -> None:
    """Lower each operation alone, and `tell` which: the importer may end the process."""
    for op, single in _singles(module):
        tell(op)
        _is_lowered(single, passes)
    tell(None)


def _is_lowered(single: ir.Module, passes: Sequence[str]) -> bool:
    with tempfile.TemporaryDirectory(prefix="mxc-single-") as folder:
        try:
            run(passes, single, dump_dir=Path(folder))
        except PassError:
            return False
    return True


def _singles(module: ir.Operation) -> Iterator[tuple[ir.Operation, ir.Module]]:
    """Yield the operations of a module, each with a module of it alone; equal ones once."""
    seen = set[str]()
    for op in list(walk(module)):
        if not op.name.startswith("torch.") or op.parent.name.startswith("torch."):
            continue
        if not _is_part(op) and not len(op.regions):
            single = _single(op)
            if str(single) not in seen:
                seen.add(str(single))
                yield op, single


def _is_part(op: ir.Operation) -> bool:
    """Whether an operation has no meaning without its reader: a constant, or a list."""
    lists = ("torch.prim.ListConstruct", "torch.prim.TupleConstruct")
    numbers = op.name.startswith("torch.constant.") or op.name == "torch.vtensor.literal"
    return numbers or op.name in lists or called(op) == "onnx.Constant"


def _single(op: ir.Operation) -> ir.Module:
    """A module whose function computes one operation from tensors."""
    given = _given(op)
    results = [result.type for result in op.results]
    with op.location:
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            made = func.FuncOp("main", ([value.type for value in given], results))
        known = dict(zip(given, made.add_entry_block().arguments, strict=True))
        with ir.InsertionPoint(made.entry_block):
            copy = _copied(op, known)
            func.ReturnOp(list(copy.results))
    return module


def _is_given(value: ir.Value) -> bool:
    if isinstance(value, ir.BlockArgument):
        return True
    return str(value.type).startswith(_TENSOR) and not _is_part(value.owner.operation)


def _given(op: ir.Operation) -> list[ir.Value]:
    """What an operation is computed from, each value once."""
    found: dict[ir.Value, None] = {}
    for value in op.operands:
        own = [value] if _is_given(value) else _given(value.owner.operation)
        found |= dict.fromkeys(own)
    return list(found)


def _copied(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> ir.Operation:
    """A copy of an operation, and of those that compute its operands from `known`, at the insertion
    point."""
    for value in op.operands:
        if value not in known:
            made = _copied(value.owner.operation, known)
            known |= dict(zip(value.owner.operation.results, made.results, strict=True))
    copy = op.clone()
    for number, value in enumerate(op.operands):
        copy.operands[number] = known[value]
    return copy
