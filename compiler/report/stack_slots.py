"""Finds moves between vector registers and the stack in loops of CPU kernels.

The assembly does not mark spills. A spilled register has a slot of its own, at a constant offset
from the stack or frame pointer. An array on the stack is read with an index or through another
pointer. A value at a constant offset in an innermost loop therefore is a spilled register.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from mxc.compiler.report.loops import LoopInstruction, innermost_loops

#: x86-64 in AT&T syntax: `vmovups %zmm1, 64(%rsp)`, `vaddps -32(%rbp), %ymm1, %ymm2`.
_X86_SLOT = re.compile(r"(?<![\w)])-?(?:0x)?\d*\(%r[sb]p\)")
_X86_VECTOR = re.compile(r"%[xyz]mm\d")
#: A scalar that is loaded, or broadcast into every lane, is no spilled vector.
_X86_SCALAR = re.compile(r"v?mov(?:ss|sd|d|q)|vp?broadcast\w+")
#: AArch64: `str q0, [sp, #32]`, `ldp q1, q2, [x29, #-64]`.
_ARM_MOVE = re.compile(r"(?:ld|st)(?:r|p|ur)")
_ARM_SLOT = re.compile(r"^[qv]\d.*\[(?:sp|x29)(?:, #-?\d+)?\]$")

#: Share of a loop's instructions above which stack moves are reported. Stack moves have ports of
#: their own, so few of them cost nothing. mxfp4 as pairs on AVX-512 has 18 of 525 instructions and
#: reaches 95 % of the peak, where a smaller tile without them reaches 88 %. Dense weights on AVX2
#: have 100 of 779, and reach 97 %. But mxfp6 as quads on AVX2 has 116 of 414, and reaches 38 to 73
#: % (passes/kernels/cpu/schedule.py).
LARGEST_SHARE = 0.2


@dataclass(frozen=True, kw_only=True)
class StackMoves:
    """Counts of the innermost loop with the largest share of stack moves: all instructions, and
    those that move a vector register to or from a stack slot.
    """

    moves: int
    instructions: int

    @property
    def excessive(self) -> bool:
        """Whether the share of moves is above LARGEST_SHARE."""
        return self.moves > LARGEST_SHARE * self.instructions


def stack_moves(body: str) -> StackMoves | None:
    """Return the counts of the function with the text `body`; None if no loop has stack moves."""
    found = [
        StackMoves(moves=sum(map(_moves, loop)), instructions=len(loop))
        for loop in innermost_loops(body)
    ]
    moving = [each for each in found if each.moves]
    return max(moving, key=lambda each: each.moves / each.instructions, default=None)


def _moves(line: LoopInstruction) -> bool:
    if _ARM_MOVE.fullmatch(line.mnemonic):
        return _ARM_SLOT.match(line.operands.strip()) is not None
    if "{1to" in line.operands or _X86_SCALAR.fullmatch(line.mnemonic):
        return False
    slot, vector = _X86_SLOT.search(line.operands), _X86_VECTOR.search(line.operands)
    return slot is not None and vector is not None
