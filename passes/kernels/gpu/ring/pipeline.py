"""What a wave of a ring works with along K, and when it asks for what (mainloop.py builds it)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from iree.compiler import ir

from mxc.passes.kernels.gpu.ring.direct import DirectScales, DirectSide
from mxc.passes.kernels.gpu.ring.interleave import Work
from mxc.passes.kernels.gpu.ring.staged_scales import HALF, HALVES, SPAN, SPAN_K_STEPS, StagedScales
from mxc.passes.kernels.gpu.ring.staging import Key, Layout, Pieces, StagedSide

Issue = Callable[[], None]
#: Scales of halves of spans, by tile, from the half on that is multiplied; or of spans.
Halves = list[list[ir.Value]]

#: Products that are issued later than even reading wants, right before waiting for other waves: the
#: matrix cores have them to do then.
_BEFORE = 3
#: Clocks from reading a piece to its use, or more.
_READ_CLOCKS = 384


@dataclass
class Held:
    """What a lane holds between spans: sums; what has been read of the next stage; pieces that have
    been asked for, in the order of their use; scales of the direct and of the staged side, and
    those that are to be staged, of the next spans."""

    totals: list[ir.Value]
    read: Pieces
    asked: list[ir.Value]
    scales: tuple[Halves, Halves, Halves]


@dataclass(frozen=True)
class Pipeline:
    """The pipeline of one lane: the side that goes straight to registers, the one that is staged in
    LDS.

    `swapped`: the direct side is rhs. `tiles`: of lhs and rhs; `blocks`: of a row. `ahead`: stages
    of the ring, of `slot_bytes` each; `pace`: the part of a stage in which the loads of another are
    issued; `clocks`: of a matrix instruction; `together`: spans of a round of the loop, and those
    by which staged scales are asked for early.
    """

    direct: tuple[DirectSide, DirectScales]
    staged: tuple[StagedSide, StagedScales]
    swapped: bool
    tiles: tuple[int, int]
    blocks: int
    ahead: int
    slot_bytes: int
    pace: float
    clocks: int
    together: int

    @property
    def layout(self) -> Layout:
        """Layout of the staged side; the other one has as many k-steps and blocks a stage."""
        return self.staged[0].layout

    @property
    def k_steps(self) -> int:
        """K-steps of a stage."""
        return self.layout.k_steps

    @property
    def span_stages(self) -> int:
        """Stages of a whole span."""
        return SPAN_K_STEPS // self.k_steps

    @property
    def stages(self) -> int:
        """In all."""
        return -(-self.blocks // self.layout.blocks)

    @property
    def spans(self) -> int:
        """In all."""
        return -(-self.blocks // SPAN)

    @property
    def plain(self) -> int:
        """Spans in which all that is loaded ahead is there, and whole."""
        ahead = max(self.ahead, -(-self.direct[0].ahead // len(self.pieces)))
        stages = self.blocks // self.layout.blocks - ahead
        halves = self.blocks // HALF - self.direct[1].ahead
        spans = self.blocks // SPAN - self.together
        return max(0, min(stages // self.span_stages, spans, halves // HALVES))

    @cached_property
    def order(self) -> list[tuple[int, int, int]]:
        """K-step, tile of the direct side and of the staged side, in the order of a stage.

        A staged tile meets all direct ones, in a k-step or, if these share pieces, in all k-steps:
        then it is done with.
        """
        direct, staged = range(self.tiles[self.swapped]), range(self.tiles[not self.swapped])
        parts = range(self.k_steps)
        if self.layout.shares:
            return [(part, own, tile) for tile in staged for part in parts for own in direct]
        return [(part, own, tile) for part in parts for tile in staged for own in direct]

    @cached_property
    def pieces(self) -> list[Key]:
        """What a stage has of the direct side, in the order in which it is used."""
        slices = self.direct[0].layout.slices
        used = [(own, one.piece) for part, own, _ in self.order for one in slices[part]]
        return list(dict.fromkeys(used))

    @cached_property
    def reads(self) -> list[Key]:
        """What a stage reads from LDS, in the order in which it is used."""
        return self._reads(len(self.order))

    def _reads(self, products: int) -> list[Key]:
        slices = self.layout.slices
        first = self.order[:products]
        return list(
            dict.fromkeys((tile, one.piece) for part, _, tile in first for one in slices[part])
        )

    @cached_property
    def early(self) -> int:
        """How many of them are read while the stage before is multiplied."""
        return len(self._reads(math.ceil(_READ_CLOCKS / self.clocks)))

    @cached_property
    def cut(self) -> int:
        """Products of a stage before the barrier after which the next stage is read.

        So that LDS works evenly: before it what is read late of this stage, after it what is read
        early of the next, and loads arrive.
        """
        reads, early, loads = len(self.reads), self.early, self.layout.loads
        count = len(self.order)
        behind = 1
        while behind < count and (
            (reads + loads) * behind / count < early + loads * min(1.0, behind / count / self.pace)
        ):
            behind += 1
        return min(count, count - behind + _BEFORE)

    def loads(
        self, stage: ir.Value, slot: ir.Value, *, last: bool
    ) -> tuple[list[Work], list[Work]]:
        """The loads of a stage to LDS: those issued after a barrier, and those before the next.

        `last`: it is the last stage of all, which may not be full.
        """
        issues: list[Issue] = [
            partial(self.staged[0].load, number, stage, slot, left=self.blocks_left(last=last))
            for number in range(self.layout.loads)
        ]
        return parted(issues, self.pace, 1 - self.cut / len(self.order))

    def blocks_left(self, *, last: bool) -> int | None:
        """Blocks that a row has of a stage, if not all: of the last one."""
        return self.blocks % self.layout.blocks or None if last else None

    def scales_left(self, first: int, blocks: int) -> int | None:
        """Blocks that a row has from one on, if not as many as `blocks`."""
        left = self.blocks - first
        return left if left < blocks else None


def parted(issues: Sequence[Issue], pace: float, cut: float) -> tuple[list[Work], list[Work]]:
    """Loads spread over the part `pace` of a stage: those before a cut of it, and those after."""
    before, behind = [], []
    for number, issue in enumerate(issues):
        at = (number + 0.5) / len(issues) * pace
        if at < cut:
            before.append(Work(at / cut, "vmem_read", issue))
        else:
            behind.append(Work((at - cut) / (1 - cut), "vmem_read", issue))
    return before, behind
