"""Operations that are built as a whole and issued in pieces, with products between the pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from iree.compiler import ir

from mxc.dialects.amdgpu import pinned
from mxc.passes.kernels.gpu.ring.interleave import Issue
from mxc.passes.kernels.vectors import i1
from mxc.passes.rewriting.worklist import erase

#: Operations that become no vector instruction: loads, constants, and those that only name or
#: reinterpret parts of registers.
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
#: Operations that LLVM may combine with others into one instruction.
_COMBINED = frozenset(f"arith.{name}" for name in ("andi", "ori", "shli", "shrui", "addi", "xori"))


def divided(build: Callable[[], Sequence[ir.Value]], count: int) -> list[tuple[Issue, int]]:
    """Build operations, and divide them into pieces that the caller issues one by one.

    Returns for each piece a function that inserts it at the insertion point, and its number of
    vector instructions. All pieces must be issued, in their order. The first has loads and other
    operations without vector instructions; the others, at most `count`, have about equally many.

    `build`: builds the operations at the insertion point, and returns their values that are used
    elsewhere; an operation whose results are used nowhere is erased.

    Values that later pieces use are pinned at the end of their piece. Else LLVM would compute most
    of the work right before the last piece.
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
    """Return operations reordered: those that are no vector instruction come right behind the last
    vector instruction that they depend on."""
    known: dict[ir.Value, int] = {}
    places = []
    for at, op in enumerate(ops):
        need = max((known.get(value, -1) for value in op.operands), default=-1)
        own = at if instructions(op) else need
        known.update(dict.fromkeys(op.results, own))
        places.append((own, at))
    return [ops[at] for _, at in sorted(places)]


class _Piece:
    """Some operations of a temporary module; a call moves them to the insertion point.

    It holds the module, which owns the operations until the last piece is issued.
    """

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
        """Whether an operation is still in the temporary module: it is of a later piece."""
        return bool(op.block == self._module.body)


def _is_whole(kind: ir.Type) -> bool:
    """Whether values of a type fill registers and can be pinned: i32, f32, or a vector of these."""
    whole = (ir.IntegerType.get_signless(32), ir.F32Type.get())
    if isinstance(kind, ir.VectorType):
        return kind.element_type in whole and kind.shape[0] > 1
    return kind in whole


def instructions(op: ir.Operation) -> int:
    """Return about how many vector instructions an operation becomes."""
    if op.name in _FREE or not op.results:
        return 0
    kind = op.results[0].type
    if not isinstance(kind, ir.VectorType):
        # Most addresses and conditions are in scalar registers.
        return 0 if isinstance(kind, ir.IndexType) or kind == i1() else 1
    lanes = int(kind.shape[0])
    if op.name in ("arith.shli", "arith.shrsi"):
        # These shifts extract signed bytes, which the conversion after them reads by itself.
        return 0
    if op.name == "arith.truncf":
        return lanes // 2
    if op.name == "vector.shuffle":
        # Two 16-bit halves are put into a register; whole registers are not moved.
        return lanes // 2 if _bits(kind) == 16 else 0
    return lanes


def _bits(kind: ir.VectorType) -> int:
    element = kind.element_type
    return element.width if isinstance(element, ir.IntegerType | ir.FloatType) else 0
