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
#: Products that a turn issues before it waits for other waves: matrix cores have them to do then.
_BEFORE = 2
#: Of a turn, before which it has issued its reads: they are there when the next turn wants them.
_READ = 0.75


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

    `ahead`: stages of the ring, of `slot_bytes` each.
    """

    sides: tuple[StagedSide, StagedSide]
    scales: tuple[StagedScales, StagedScales]
    tiles: tuple[int, int]
    blocks: int
    ahead: int
    slot_bytes: int

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

    def shares(self, stage: ir.Value, slot: ir.Value, *, last: bool) -> list[list[Issue]]:
        """The direct loads of a stage by the turns that issue them: from the last of a stage on.

        `last`: it is the last stage of all, which may not be full.
        """
        left = self.blocks % self.sides[0].layout.blocks if last else 0
        loads: list[Issue] = [
            partial(side.load, number, stage, slot, left=left or None)
            for side in self.sides
            for number in range(side.layout.loads)
        ]
        # In a ring of two what the next turn would issue would come late.
        size = len(loads) if self.ahead == 2 else -(-len(loads) // self.turns)
        return [loads[n * size : (n + 1) * size] for n in range(self.turns)]

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
            shares = self.shares(index(stage), slot, last=stage == self.stages - 1)
            # What is not the first share of the last slot, the first turns issue, as always.
            whole = stage < self.ahead - 1 or self.turns == 1
            for share in shares if whole else shares[:1]:
                for issue in share:
                    issue()
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
        pipe = self._pipe
        self._totals = list(held.totals)
        self._pieces = held.pieces
        self._scales = self._now_scales = held.scales
        for turn in range(SPAN_TURNS):
            stage, part = divmod(turn, pipe.turns)
            if self._is_there(stage):
                self._turn(turn, stage, part)
        return Held(self._totals, self._pieces, self._scales)

    def _turn(self, turn: int, stage: int, part: int) -> None:
        """Multiply the fragments of a turn, and meanwhile bring what later ones need."""
        pipe = self._pipe
        now = self._pieces
        tiles = product(range(pipe.tiles[0]), range(pipe.tiles[1]))
        products = [partial(self._multiply, now, m, n, turn) for m, n in tiles]
        if part == pipe.turns - 1 and self._is_there(stage + 1):
            for multiply in products[:_BEFORE]:
                multiply()
            del products[:_BEFORE]
            on_their_way = pipe.ahead - 2
            if self._number is not None:
                on_their_way = min(on_their_way, pipe.stages - 2 - self._absolute(stage))
            wait_for_loads(on_their_way)
        loads, is_whole = self._loads(stage, part)
        works = [*self._reads(stage, part), *self._next_scales(turn)]
        works += evenly("vmem_read", loads, 0.1, 1.0)
        interleaved(products, works, turn)
        if is_whole:
            mark_loads()

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

    def _loads(self, stage: int, part: int) -> tuple[list[Issue], bool]:
        """Direct loads of this turn; whether a stage is asked for with them as a whole."""
        pipe = self._pipe
        last = part == pipe.turns - 1
        # The slot of this stage has been read in its last turn, that of the one before earlier.
        emptied, share = (stage, 0) if last else (stage - 1, part + 1)
        target = emptied + pipe.ahead
        if not self._is_there(target):
            return [], False
        is_last = self._number is not None and self._absolute(target) == pipe.stages - 1
        shares = pipe.shares(plus(self._first, target), self.slot(emptied), last=is_last)
        return shares[share], share == pipe.turns - 1

    def _reads(self, stage: int, part: int) -> list[Work]:
        """Reads of the next turn's pieces: of this stage, or of the next one."""
        pipe = self._pipe
        goes_on = part + 1 < pipe.turns
        if not goes_on and not self._is_there(stage + 1):
            self._pieces = ({}, {})
            return []
        slot = self.slot(stage if goes_on else stage + 1)
        # In the same stage a piece may be used again.
        lhs, rhs = self._pieces if goes_on else ({}, {})
        coming: tuple[Pieces, Pieces] = (dict(lhs), dict(rhs))
        self._pieces = coming

        def read(side: int, tile: int, piece: tuple[int, int]) -> None:
            coming[side][tile, piece] = pipe.sides[side].read(tile, piece, slot)

        wanted = pipe.pieces(part + 1 if goes_on else 0)
        return evenly("ds_read", [partial(read, *each) for each in wanted], 0.05, _READ)

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
