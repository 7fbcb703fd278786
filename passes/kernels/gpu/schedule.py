"""How a product is cut up: tiles of a wave, waves of a workgroup, and how operands get there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mxc.passes.kernels.gpu.fragments import Instruction

Transport = Literal["stream", "ring"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """`tiles`: of a wave along rows and columns, of `instruction`; `waves`: of a workgroup along
    rows, columns and K.

    `transport`: operands go straight from memory to registers (stream.py), or through a ring of
    `stages` stages in shared memory, each of `turns` instructions along K (ring.py).
    """

    instruction: Instruction
    tiles: tuple[int, int]
    waves: tuple[int, int, int]
    transport: Transport = "stream"
    stages: int = 0
    turns: int = 0

    @property
    def rows(self) -> int:
        """Rows of the result that a workgroup has."""
        return self.instruction.rows * self.tiles[0] * self.waves[0]

    @property
    def columns(self) -> int:
        """Columns of the result that a workgroup has."""
        return self.instruction.rows * self.tiles[1] * self.waves[1]

    @property
    def threads(self) -> int:
        """Lanes of a workgroup."""
        m, n, k = self.waves
        return 64 * m * n * k


def choose(rows: int, columns: int, blocks: int, *, halves: int = 1) -> Schedule:
    """The schedule of rows x columns over `blocks` blocks.

    `halves`: a wave has as many tiles of each half of the columns, which an epilogue joins.
    """
    small = Instruction(16)
    steps = -(-blocks // small.step)
    if rows <= 16:
        return Schedule(instruction=small, tiles=(1, halves), waves=(1, 1, min(8, steps)))
    if rows <= 64:
        tiles = -(-rows // 16)
        return Schedule(instruction=small, tiles=(tiles, halves), waves=(1, 1, min(4, steps)))
    return Schedule(instruction=small, tiles=(4, 4), waves=(2, 2, 1))
