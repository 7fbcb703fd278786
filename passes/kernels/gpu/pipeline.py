"""What a wave of a ring works with along K, and when it asks for what (turns.py builds it)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from iree.compiler import ir

from mxc.passes.kernels.gpu.interleave import Work
from mxc.passes.kernels.gpu.staged_scales import SPAN, SPAN_TURNS, StagedScales
from mxc.passes.kernels.gpu.staging import Pieces, StagedSide

Issue = Callable[[], None]

#: Products that are issued later than even reading wants, right before waiting for other waves: the
#: matrix cores have them to do then.
_BEFORE = 3


@dataclass
class Held:
    """What a lane holds between spans: sums, pieces of the next turn, scales of the span."""

    totals: list[ir.Value]
    pieces: tuple[Pieces, Pieces]
    scales: tuple[list[ir.Value], list[ir.Value]]

    def flat(self) -> list[ir.Value]:
        """All values, in a fixed order."""
        found = list(self.totals)
        for side in self.pieces:
            found += side.values()
        for scales in self.scales:
            found += scales
        return found

    def like(self, values: Sequence[ir.Value]) -> Held:
        """The same with other values, in the order of `flat`."""
        left = iter(values)
        totals = [next(left) for _ in self.totals]
        lhs, rhs = ({key: next(left) for key in side} for side in self.pieces)
        first, second = ([next(left) for _ in scales] for scales in self.scales)
        return Held(totals, (lhs, rhs), (first, second))


@dataclass(frozen=True)
class Pipeline:
    """Of one lane: its sides and their scales, `tiles` of each; `blocks` of a row.

    `ahead`: stages of the ring, of `slot_bytes` each; `pace`: the part of a stage in which the
    loads of another are issued.
    """

    sides: tuple[StagedSide, StagedSide]
    scales: tuple[StagedScales, StagedScales]
    tiles: tuple[int, int]
    blocks: int
    ahead: int
    slot_bytes: int
    pace: float

    @property
    def turns(self) -> int:
        """Of a stage."""
        return self.sides[0].layout.turns

    @property
    def span_stages(self) -> int:
        """Stages of a whole span."""
        return SPAN_TURNS // self.turns

    @property
    def stages(self) -> int:
        """In all."""
        return -(-self.blocks // self.sides[0].layout.blocks)

    @property
    def spans(self) -> int:
        """In all."""
        return -(-self.blocks // SPAN)

    @property
    def plain(self) -> int:
        """Spans in which all that is loaded ahead is there, and whole."""
        stages = self.blocks // self.sides[0].layout.blocks
        return max(0, min((stages - self.ahead) // self.span_stages, self.blocks // SPAN - 1))

    @property
    def cut(self) -> int:
        """Products of a stage before the barrier behind which the next stage is read.

        So that LDS works evenly: before it the pieces of later turns are read, behind it the first
        turn's of the next stage, and loads arrive.
        """
        reads = [sum(1 for _ in self.pieces(turn)) for turn in range(self.turns)]
        loads = sum(side.layout.loads for side in self.sides)
        count = self.turns * self.tiles[0] * self.tiles[1]
        behind = 1
        while behind < count and (
            (sum(reads) + loads) * behind / count
            < reads[0] + loads * min(1.0, behind / count / self.pace)
        ):
            behind += 1
        return min(count, count - behind + _BEFORE)

    def loads(
        self, stage: ir.Value, slot: ir.Value, *, last: bool
    ) -> tuple[list[Work], list[Work]]:
        """The direct loads of a stage: those issued behind a barrier, and those before the next.

        `last`: it is the last stage of all, which may not be full.
        """
        left = self.blocks % self.sides[0].layout.blocks if last else 0
        issues: list[Issue] = [
            partial(side.load, number, stage, slot, left=left or None)
            for side in self.sides
            for number in range(side.layout.loads)
        ]
        behind = 1 - self.cut / (self.turns * self.tiles[0] * self.tiles[1])
        now, later = [], []
        for number, issue in enumerate(issues):
            at = (number + 0.5) / len(issues) * self.pace
            if at < behind:
                now.append(Work(at / behind, "vmem_read", issue))
            else:
                later.append(Work((at - behind) / (1 - behind), "vmem_read", issue))
        return now, later

    def scales_left(self, span: int) -> int | None:
        """Blocks that a row has of a span, if not all."""
        return (self.blocks - span * SPAN) if self.blocks < (span + 1) * SPAN else None

    def pieces(self, turn: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
        """Side, tile and piece that a turn of a stage reads, in the order in which they are used:
        the first tile of lhs meets all of rhs."""
        lhs, rhs = self.tiles
        order = [(0, 0), *((1, n) for n in range(rhs)), *((0, m) for m in range(1, lhs))]
        for side, tile in order:
            for piece in self.sides[side].layout.new_pieces(turn):
                yield side, tile, piece
