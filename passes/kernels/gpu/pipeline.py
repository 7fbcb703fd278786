"""The turns of a ring along K: what is loaded and read while what was read is multiplied.

A *span* (staged_scales.py) is as much as is built at once: spans in which all that is loaded ahead
is there are one loop; the last ones, which have less and less to load, follow one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import mark_loads, scaled_mfma, wait_for_loads, zeros
from mxc.passes.kernels.gpu.fragments import TURNS
from mxc.passes.kernels.gpu.interleave import Work, evenly, interleaved
from mxc.passes.kernels.gpu.lanes import below, plus, times
from mxc.passes.kernels.gpu.staged_scales import SPAN, SPAN_TURNS, StagedScales
from mxc.passes.kernels.gpu.staging import INSTRUCTION, Pieces, StagedSide
from mxc.passes.kernels.vectors import f32, index, loop, of

Issue = Callable[[], None]

#: Turns of a span in which the scales of the next one are asked for, put into LDS, and read.
#: Between putting and reading, and between reading and putting, all waves pass a barrier.
_ASKED, _PUT, _GOT = 0, 4, range(5, 8)
#: Products that are issued later than even reading wants, right before waiting for other waves: the
#: matrix cores have them to do then.
_BEFORE = 3
#: Of a turn, before which it has issued its reads: they are there when the next turn wants them.
_READ = 0.95


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

    def totals(self) -> list[ir.Value]:
        """Build all turns: the sums of the tiles, row after row."""
        held = self._begin()
        if self.plain:
            # Where a span is no whole number of rings, each begins with another slot.
            first = [] if self.span_stages % self.ahead == 0 else [index(0)]
            carried = [*first, *held.flat()]
            with loop(index(0), index(self.plain), index(1), carried) as (span, now, op):
                here = _Span(self, span, now[0] if first else 0)
                held = here.build(held.like(now[len(first) :]))
                after = [here.slot(self.span_stages)] if first else []
                scf.YieldOp([*after, *held.flat()])
            held = held.like(list(op.results)[len(first) :])
        for number in range(self.plain, self.spans):
            first_slot = number * self.span_stages % self.ahead * self.slot_bytes
            held = _Span(self, index(number), first_slot, number).build(held)
        return held.totals

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

    def _begin(self) -> Held:
        """Fill the ring, and read what the first turn needs."""
        left = self.scales_left(0)
        asked = [side.load(index(0), left=left) for side in self.scales]
        marks = 0
        for stage in range(min(self.ahead, self.stages)):
            slot = index(stage * self.slot_bytes)
            now, later = self.loads(index(stage), slot, last=stage == self.stages - 1)
            # Those of the last slot that come later are issued in the first stage, as always.
            whole = stage < self.ahead - 1
            for work in [*now, *later] if whole else now:
                work.issue()
            if whole:
                mark_loads()
                marks += 1
        for scales, loaded in zip(self.scales, asked, strict=True):
            for put in scales.writes(loaded, left=left):
                put()
        wait_for_loads(marks - 1)
        kind = of(f32(), INSTRUCTION.totals)
        totals = [zeros(kind)] * (self.tiles[0] * self.tiles[1])
        pieces: tuple[Pieces, Pieces] = ({}, {})
        for side, tile, piece in self.pieces(0):
            pieces[side][tile, piece] = self.sides[side].read(tile, piece, index(0))
        lhs, rhs = (
            [scales.read(tile) for tile in range(tiles)]
            for scales, tiles in zip(self.scales, self.tiles, strict=True)
        )
        return Held(totals, pieces, (lhs, rhs))


class _Span:
    """One span: the turns of some stages.

    `number`: of the span, None in the loop, where everything is there. `first_slot`: the offset of
    the slot of its first stage.
    """

    def __init__(
        self, pipe: Pipeline, span: ir.Value, first_slot: ir.Value | int, number: int | None = None
    ) -> None:
        self._pipe, self._number, self._span = pipe, number, span
        self._first = times(span, pipe.span_stages)
        self._slot = first_slot

    def slot(self, stage: int) -> ir.Value:
        """Offset of the slot of a stage, counted from the first one of the span."""
        pipe = self._pipe
        size = pipe.ahead * pipe.slot_bytes
        step = stage % pipe.ahead * pipe.slot_bytes
        if isinstance(self._slot, int):
            return index((self._slot + step) % size)
        at = plus(self._slot, step)
        return arith.select(below(at, size), at, arith.subi(at, index(size))) if step else at

    def _is_there(self, stage: int) -> bool:
        return self._number is None or self._absolute(stage) < self._pipe.stages

    def _absolute(self, stage: int) -> int:
        assert self._number is not None
        return self._number * self._pipe.span_stages + stage

    def build(self, held: Held) -> Held:
        """All turns; gives what is held behind them."""
        self._totals = list(held.totals)
        self._pieces = held.pieces
        self._scales = self._now_scales = held.scales
        for stage in range(self._pipe.span_stages):
            if self._is_there(stage):
                self._stage(stage)
        return Held(self._totals, self._pieces, self._scales)

    def _stage(self, stage: int) -> None:
        """Multiply the fragments of a stage, and meanwhile bring what later ones need."""
        pipe = self._pipe
        tiles = list(product(range(pipe.tiles[0]), range(pipe.tiles[1])))
        now = [self._pieces, *(({}, {}) for _ in range(1, pipe.turns))]
        products = [
            partial(self._multiply, now[part], m, n, stage * pipe.turns + part)
            for part in range(pipe.turns)
            for m, n in tiles
        ]
        cut = pipe.cut
        # Before the barrier: what later turns of this stage need.
        works: list[Work] = []
        for part in range(1, pipe.turns):
            for side in range(2):
                # A piece may be used by two turns.
                now[part][side].update(now[part - 1][side])
            soon = min(_READ, part * len(tiles) / cut)
            works += self._reads(part, self.slot(stage), now[part], 0.05, soon)
            works += self._next_scales(stage * pipe.turns + part - 1)
        works += self._loads(stage - 1, 1)
        interleaved(products[:cut], works, 2 * stage)
        if self._is_there(stage - 1 + pipe.ahead):
            mark_loads()
        works = []
        self._pieces = ({}, {})
        if self._is_there(stage + 1):
            on_their_way = pipe.ahead - 2
            if self._number is not None:
                on_their_way = min(on_their_way, pipe.stages - 2 - self._absolute(stage))
            wait_for_loads(on_their_way)
            works += self._reads(0, self.slot(stage + 1), self._pieces, 0.0, _READ)
        works += self._next_scales((stage + 1) * pipe.turns - 1)
        works += self._loads(stage, 0)
        interleaved(products[cut:], works, 2 * stage + 1)

    def _multiply(self, pieces: tuple[Pieces, Pieces], m: int, n: int, turn: int) -> None:
        pipe = self._pipe
        part, at = turn % pipe.turns, m * pipe.tiles[1] + n
        left = pipe.sides[0].fragment(pieces[0], m, part)
        right = pipe.sides[1].fragment(pieces[1], n, part)
        scales = (self._word(1, n, turn), self._word(0, m, turn))
        self._totals[at] = scaled_mfma(
            INSTRUCTION.shape, right, left, self._totals[at], scales, turn % TURNS
        )

    def _word(self, side: int, tile: int, turn: int) -> ir.Value:
        """The scales of a tile that this turn chooses from."""
        return self._pipe.scales[side].word(self._now_scales[side][tile], turn)

    def _loads(self, emptied: int, part: int) -> list[Work]:
        """The loads of the stage that comes into the slot of another: the first part, or the
        second."""
        pipe = self._pipe
        stage = emptied + pipe.ahead
        if not self._is_there(stage):
            return []
        last = self._number is not None and self._absolute(stage) == pipe.stages - 1
        return pipe.loads(plus(self._first, stage), self.slot(emptied), last=last)[part]

    def _reads(
        self, turn: int, slot: ir.Value, into: tuple[Pieces, Pieces], start: float, stop: float
    ) -> list[Work]:
        """Reads of the pieces of a turn from the slot of its stage."""
        pipe = self._pipe

        def read(side: int, tile: int, piece: tuple[int, int]) -> None:
            into[side][tile, piece] = pipe.sides[side].read(tile, piece, slot)

        issues = [partial(read, *each) for each in pipe.pieces(turn)]
        return evenly("ds_read", issues, start, stop)

    def _next_scales(self, turn: int) -> list[Work]:
        """What this turn does for the scales of the next span."""
        pipe = self._pipe
        if self._number is not None and self._number + 1 >= pipe.spans:
            return []
        left = None if self._number is None else pipe.scales_left(self._number + 1)
        if turn == _ASKED:
            self._asked: list[list[ir.Value]] = [[], []]

            def ask(side: int) -> None:
                after = plus(self._span, 1)
                self._asked[side] = pipe.scales[side].load(after, left=left)

            return [Work(0.2, "vmem_read", partial(ask, side)) for side in range(2)]
        if turn == _PUT:
            puts = [
                put
                for scales, loaded in zip(pipe.scales, self._asked, strict=True)
                for put in scales.writes(loaded, left=left)
            ]
            return evenly("ds_write", puts, 0.1, 1.0)
        if turn not in _GOT:
            return []
        if turn == _GOT[0]:
            self._scales = ([], [])
        coming = self._scales

        def read(side: int) -> None:
            coming[side].append(pipe.scales[side].read(len(coming[side])))

        sides = [side for side in range(2) for _ in range(pipe.tiles[side])]
        mine = sides[turn - _GOT[0] :: len(_GOT)]
        return evenly("ds_read", [partial(read, side) for side in mine], 0.1, 1.0)
