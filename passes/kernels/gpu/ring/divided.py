"""Work that is built as a whole and issued in pieces, so that products stand between its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir

from mxc.dialects.amdgpu import pinned
from mxc.passes.kernels.vectors import i1
from mxc.passes.rewriting.worklist import erase

#: Operations that only say where bits are, and loads: no vector instruction.
_FREE = frozenset(
    f"vector.{name}"
    for name in [
        "bitcast",
        "broadcast",
        "extract",
        "extract_strided_slice",
        "from_elements",
        "load",
    ]
) | {"arith.constant", "arith.bitcast", "arith.index_cast", "arith.index_castui"}
#: Operations that LLVM makes one instruction of with others.
_COMBINED = frozenset(f"arith.{name}" for name in ("andi", "ori", "shli", "shrui", "addi", "xori"))

Issue = Callable[[], None]


def divided(build: Callable[[], Sequence[ir.Value]], count: int) -> list[tuple[Issue, int]]:
    """What `build` builds, as `count` pieces of about as many vector instructions: what puts a
    piece at the insertion point, and the instructions of it. All have to be issued, in their order.
    `build` gives what is used elsewhere. The first piece has loads and no vector instructions.

    What a later piece needs of a piece is pinned behind it: else LLVM would compute most of it
    right before the last one.
    """
    module = ir.Module.create(ir.Location.unknown())
    with ir.InsertionPoint(module.body):
        used = set(build())
    for op in reversed(list(module.body.operations)):
        if op.results and not any(one in used or list(one.uses) for one in op.results):
            erase(op.operation)
    ops = _early([each.operation for each in module.body.operations])
    size = sum(map(instructions, ops)) / count
    pieces: list[list[ir.Operation]] = [[]]
    found = 0
    for op in ops:
        if instructions(op) and found >= size * (len(pieces) - 1):
            pieces.append([])
        pieces[-1].append(op)
        found += instructions(op)
    return [(_Piece(module, piece), sum(map(instructions, piece))) for piece in pieces]


def _early(ops: Sequence[ir.Operation]) -> list[ir.Operation]:
    """Operations, each that is no instruction of its own right behind the last one it needs."""
    known: dict[ir.Value, int] = {}
    places = []
    for at, op in enumerate(ops):
        need = max((known.get(value, -1) for value in op.operands), default=-1)
        own = at if instructions(op) else need
        known.update(dict.fromkeys(op.results, own))
        places.append((own, at))
    return [ops[at] for _, at in sorted(places)]


class _Piece:
    """Operations of a module of their own, which is there until the last of them is issued."""

    def __init__(self, module: ir.Module, ops: Sequence[ir.Operation]) -> None:
        self._module, self._ops = module, ops

    def __call__(self) -> None:
        point = ir.InsertionPoint.current
        for op in self._ops:
            op.detach_from_parent()
            point.insert(op)
        later = [
            (result, uses)
            for op in self._ops
            for result in op.results
            if instructions(op) and op.name not in _COMBINED and _is_whole(result.type)
            for uses in ([use for use in result.uses if self._is_left(use.owner.operation)],)
            if uses
        ]
        if not later:
            return
        for (_, uses), pin in zip(later, pinned([value for value, _ in later]), strict=True):
            for use in uses:
                use.owner.operation.operands[use.operand_number] = pin

    def _is_left(self, op: ir.Operation) -> bool:
        """Whether an operation is of a later piece."""
        return bool(op.block == self._module.body)


def _is_whole(kind: ir.Type) -> bool:
    """Whether values of a type are vector registers."""
    whole = (ir.IntegerType.get_signless(32), ir.F32Type.get())
    if isinstance(kind, ir.VectorType):
        return kind.element_type in whole and kind.shape[0] > 1
    return kind in whole


def instructions(op: ir.Operation) -> int:
    """Vector instructions that an operation becomes, about."""
    if op.name in _FREE or not op.results:
        return 0
    kind = op.results[0].type
    if not isinstance(kind, ir.VectorType):
        # Addresses and conditions are scalars, most of them.
        return 0 if isinstance(kind, ir.IndexType) or kind == i1() else 1
    lanes = int(kind.shape[0])
    if op.name in ("arith.shli", "arith.shrsi"):
        # Bytes with their signs, which conversions read as such.
        return 0
    if op.name == "arith.truncf":
        return lanes // 2
    if op.name == "vector.shuffle":
        # Halves of registers are put together; whole ones are where they are.
        return lanes // 2 if _bits(kind) == 16 else 0
    return lanes


def _bits(kind: ir.VectorType) -> int:
    element = kind.element_type
    return element.width if isinstance(element, ir.IntegerType | ir.FloatType) else 0
