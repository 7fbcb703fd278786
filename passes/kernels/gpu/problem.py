"""A product as the model of time has it (cost.py): shapes and widths alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mxc.passes.kernels.gpu.float_scales import StepFactors, factors_of_step, sums_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.schedule import GpuSchedule

#: Bits of an element with a scale, at most.
WIDEST = 8
#: Bits of floats that a ring multiplies as they are, at most.
NARROW = 16


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`groups` products of [rows, blocks] and [columns, blocks], elements of so many bits.

    `halves`: 2 where the columns are computed in halves. `width`: columns of the result; 0: those
    of a half. `experts`: different rhs that
    the groups read; 0 where they read one. `parts`: the floats that an element of lhs is
    multiplied as; 0 where both sides are multiplied as they are, with their scales. `shared`: of
    lhs and of rhs the blocks that share an f32 scale, which multiplies sums; 0 without such scales.
    `one_scale`: whether the columns of a tile share those of rhs.
    `in_blocks`: all columns of a block of the result are stored together. `integers`: whether the
    elements of lhs and of rhs are integers, which no conversion of scaled elements decodes;
    `by_floats`: whether their scales are E4M3, which no such conversion takes.
    `splits`: numbers of parts that K may be cut into, of workgroups that share a tile. `panels`:
    whether rhs is packed in panels.
    """

    rows: int
    columns: int
    blocks: int
    bits: tuple[int, int] = (4, 4)
    groups: int = 1
    halves: int = 1
    width: int = 0
    experts: int = 0
    parts: int = 0
    shared: tuple[int, int] = (0, 0)
    one_scale: bool = False
    in_blocks: bool = False
    integers: tuple[bool, bool] = (False, False)
    by_floats: tuple[bool, bool] = (False, False)
    splits: tuple[int, ...] = ()
    panels: bool = False

    @property
    def is_float(self) -> bool:
        """Whether lhs has no scales."""
        return self.bits[0] > WIDEST

    @property
    def is_dense(self) -> bool:
        """Whether neither side has scales."""
        return self.bits[1] > WIDEST

    @property
    def decodes(self) -> bool:
        """Whether sides with scales are decoded to floats, which are multiplied."""
        return self.parts > 0 and not self.is_dense

    @property
    def workgroups_of(self) -> int:
        """Different rhs that are read."""
        return min(self.groups, self.experts) if self.experts else 1

    def runs(self, schedule: GpuSchedule) -> int:
        """Runs of a stage of a ring that are under one f32 scale of each side."""
        blocks = schedule.k_steps * schedule.instruction.groups
        return blocks // math.gcd(blocks, *(each for each in self.shared if each))

    def sums(self, schedule: GpuSchedule) -> int:
        """Sums of a k-step of a stream that f32 scales multiply; 0 without such scales."""
        shared = [each for each in self.shared if each]
        return sums_of(schedule.instruction.groups, *shared) if shared else 0

    def scales_of_step(self, schedule: GpuSchedule) -> list[tuple[int, StepFactors]]:
        """For each side with f32 scales the rows of them that a lane of a stream reads, one of lhs
        and one for each of its sums of rhs, for all its tiles; and the scales of a row in a step.
        """
        instruction, sums = schedule.instruction, self.sums(schedule)
        (m, n), columns = schedule.tiles, 1 if self.one_scale else instruction.totals
        return [
            (rows, factors_of_step(each, instruction, sums))
            for rows, each in zip((m, n * columns), self.shared, strict=True)
            if each
        ]

    def row_bytes(self, side: int) -> int:
        """Bytes of a block of a row of lhs (0) or rhs (1), with its scale."""
        return BLOCK * self.bits[side] // 8 + (not self.is_dense)

    def side_bytes(self, schedule: GpuSchedule, m: int, n: int) -> int:
        """Bytes of a k-step, for so many tiles of lhs and of rhs."""
        size = schedule.instruction.rows * schedule.instruction.groups
        return size * (m * self.row_bytes(0) + n * self.row_bytes(1))

    def stage_k_steps(self, schedule: GpuSchedule) -> float:
        """K-steps of a stage of a ring; those of a dense product are over one block."""
        return schedule.k_steps / (schedule.instruction.groups if self.is_dense else 1)
