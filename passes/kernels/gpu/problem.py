"""A product as the cost model (cost.py) sees it: shapes and bit widths, without MLIR."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mxc.passes.kernels.gpu.float_scales import StepFactors, factors_of_step, sums_of
from mxc.passes.kernels.gpu.fragments import BLOCK
from mxc.passes.kernels.gpu.schedule import GpuSchedule

#: Most bits of an element with a scale: wider elements are floats without scales.
WIDEST = 8
#: Most bits of floats that a ring multiplies as they are.
NARROW = 16


@dataclass(frozen=True, kw_only=True)
class Problem:
    """`groups` products of [rows, blocks] and [columns, blocks], where a block is 32 elements along
    K. Pairs are for lhs and rhs. `bits`: of an element in memory.

    `halves`: 2 if the columns of rhs are computed in two halves, as for a gate. `width`: columns of
    the result; 0 stands for columns / halves. `experts`: number of different rhs from which groups
    read one each; 0 if all groups read the same. `parts`: number of floats in registers whose sum
    is an element of lhs; 0 if elements of both sides are multiplied as they are, under their
    scales. `shared`: number of blocks that share an f32 scale, which multiplies partial sums; 0
    without such scales. `one_scale`: whether all columns of a tile share the scales of rhs.
    `in_blocks`: whether all columns of a block of 32 of the result are stored together.
    `integers`: whether elements are integers, which scaled conversions do not decode.
    `e4m3_scales`: whether scales are E4M3, which these conversions do not take. `splits`: the
    numbers of parts into which K may be cut, for several workgroups of a tile. `panels`: whether
    rhs is packed in panels.
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
    e4m3_scales: tuple[bool, bool] = (False, False)
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
    def rhs_count(self) -> int:
        """Number of different rhs that a call reads."""
        return min(self.groups, self.experts) if self.experts else 1

    def runs(self, schedule: GpuSchedule) -> int:
        """Runs of blocks in a stage of a ring, each under one f32 scale of each side; 1 if neither
        side has such scales."""
        blocks = schedule.k_steps * schedule.instruction.groups
        return blocks // math.gcd(blocks, *(each for each in self.shared if each))

    def sums(self, schedule: GpuSchedule) -> int:
        """Partial sums of a tile in a k-step of a stream, each multiplied by f32 scales; 0 if
        neither side has such scales."""
        shared = [each for each in self.shared if each]
        return sums_of(schedule.instruction.groups, *shared) if shared else 0

    def scales_of_step(self, schedule: GpuSchedule) -> list[tuple[int, StepFactors]]:
        """For each side with f32 scales: how many rows of scales a lane of a stream reads for all
        its tiles, and the scales of a row in a step.

        For a tile of lhs a lane reads one row of scales. For a tile of rhs it reads one for each of
        its columns, or a single one where these share it.
        """
        instruction, sums = schedule.instruction, self.sums(schedule)
        (m, n), columns = schedule.tiles, 1 if self.one_scale else instruction.totals
        return [
            (rows, factors_of_step(each, instruction, sums))
            for rows, each in zip((m, n * columns), self.shared, strict=True)
            if each
        ]

    def row_bytes(self, side: int) -> int:
        """Bytes of a block of 32 of a row of lhs (`side` 0) or rhs (1), with its scale."""
        return BLOCK * self.bits[side] // 8 + (not self.is_dense)

    def side_bytes(self, schedule: GpuSchedule, m: int, n: int) -> int:
        """Bytes of a k-step of `m` tiles of lhs and `n` tiles of rhs."""
        size = schedule.instruction.rows * schedule.instruction.groups
        return size * (m * self.row_bytes(0) + n * self.row_bytes(1))

    def stage_k_steps(self, schedule: GpuSchedule) -> float:
        """K-steps of a stage of a ring, of a block for each lane group. In the schedule of a dense
        product a k-step is one block."""
        return schedule.k_steps / (schedule.instruction.groups if self.is_dense else 1)
