"""Vector registers of CPU kernels that wait on the stack inside of a hot loop.

The assembly does not name spills. A spilled register has a slot of its own: an address that is the
stack pointer, or the frame's, and a constant. An array on the stack is read at an index, or
through a pointer of its own; in a loop that holds no other, what stands at one address is a value
that has no register.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mxc.compiler.report.loops import Line, innermost_loops

#: x86-64, in the order of AT&T: `vmovups %zmm1, 64(%rsp)`, `vaddps -32(%rbp), %ymm1, %ymm2`.
_X86_SLOT = re.compile(r"(?<![\w)])-?(?:0x)?\d*\(%r[sb]p\)")
_X86_VECTOR = re.compile(r"%[xyz]mm\d")
#: One number that is read from memory into every lane, or alone, is no vector.
_X86_SCALAR = re.compile(r"v?mov(?:ss|sd|d|q)|vp?broadcast\w+")
#: AArch64: `str q0, [sp, #32]`, `ldp q1, q2, [x29, #-64]`.
_ARM_MOVE = re.compile(r"(?:ld|st)(?:r|p|ur)")
_ARM_SLOT = re.compile(r"^[qv]\d.*\[(?:sp|x29)(?:, #-?\d+)?\]$")

#: The part of a loop's instructions from which on moves to and from the stack are a finding. They
#: have ports of their own: of mxfp4 as pairs on AVX-512 18 of 525 instructions are moves, and the
#: kernel reaches 95 % of the peak, where a smaller tile without them reaches 88 %; of dense weights
#: on AVX2 100 of 779, with 97 %; but of mxfp6 as quads on AVX2 116 of 414, with 38 to 73 %
#: (passes/kernels/cpu/schedule.py).
LARGEST_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class StackMoves:
    """The worst innermost loop: its instructions, and those that move a vector register to or
    from a slot of the stack."""

    moves: int
    instructions: int

    @property
    def excessive(self) -> bool:
        """Whether they are a finding."""
        return self.moves > LARGEST_SHARE * self.instructions


def stack_moves(body: str) -> StackMoves | None:
    """What the worst loop of the function with the text `body` moves; None where none does."""
    found = [
        StackMoves(moves=sum(map(_moves, loop)), instructions=len(loop))
        for loop in innermost_loops(body)
    ]
    moving = [each for each in found if each.moves]
    return max(moving, key=lambda each: each.moves / each.instructions, default=None)


def _moves(line: Line) -> bool:
    if _ARM_MOVE.fullmatch(line.mnemonic):
        return _ARM_SLOT.match(line.operands.strip()) is not None
    if "{1to" in line.operands or _X86_SCALAR.fullmatch(line.mnemonic):
        return False
    slot, vector = _X86_SLOT.search(line.operands), _X86_VECTOR.search(line.operands)
    return slot is not None and vector is not None
