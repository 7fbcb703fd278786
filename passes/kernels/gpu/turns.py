"""The turns of a ring along K: what is loaded and read while what was read is multiplied.

A *span* (staged_scales.py) is as much as is built at once: spans in which all that is loaded ahead
is there are one loop; the last ones, which have less and less to load, follow one by one.
"""

from __future__ import annotations

from functools import partial
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import mark_loads, scaled_mfma, wait_for_loads, zeros
from mxc.passes.kernels.gpu.fragments import TURNS
from mxc.passes.kernels.gpu.interleave import Work, evenly, interleaved
from mxc.passes.kernels.gpu.lanes import below, plus, times
from mxc.passes.kernels.gpu.pipeline import Held, Pipeline
from mxc.passes.kernels.gpu.staging import INSTRUCTION, Pieces
from mxc.passes.kernels.vectors import f32, index, loop, of

#: Turns of a span in which the scales of the next one are asked for, put into LDS, and read.
#: Between putting and reading, and between reading and putting, all waves pass a barrier.
_ASKED, _PUT, _GOT = 0, 4, range(5, 8)
#: Of a turn, before which it has issued its reads: they are there when the next turn wants them.
_READ = 0.95


def sums(pipe: Pipeline) -> list[ir.Value]:
    """Build all turns: the sums of the tiles, row after row."""
    held = _begin(pipe)
    if pipe.plain:
        # Where a span is no whole number of rings, each begins with another slot.
        first = [] if pipe.span_stages % pipe.ahead == 0 else [index(0)]
        carried = [*first, *held.flat()]
        with loop(index(0), index(pipe.plain), index(1), carried) as (span, now, op):
            here = _Span(pipe, span, now[0] if first else 0)
            held = here.build(held.like(now[len(first) :]))
            after = [here.slot(pipe.span_stages)] if first else []
            scf.YieldOp([*after, *held.flat()])
        held = held.like(list(op.results)[len(first) :])
    for number in range(pipe.plain, pipe.spans):
        first_slot = number * pipe.span_stages % pipe.ahead * pipe.slot_bytes
        held = _Span(pipe, index(number), first_slot, number).build(held)
    return held.totals


def _begin(pipe: Pipeline) -> Held:
    """Fill the ring, and read what the first turn needs."""
    left = pipe.scales_left(0)
    asked = [side.load(index(0), left=left) for side in pipe.scales]
    marks = 0
    for stage in range(min(pipe.ahead, pipe.stages)):
        slot = index(stage * pipe.slot_bytes)
        now, later = pipe.loads(index(stage), slot, last=stage == pipe.stages - 1)
        # Those of the last slot that come later are issued in the first stage, as always.
        whole = stage < pipe.ahead - 1
        for work in [*now, *later] if whole else now:
            work.issue()
        if whole:
            mark_loads()
            marks += 1
    for scales, loaded in zip(pipe.scales, asked, strict=True):
        for put in scales.writes(loaded, left=left):
            put()
    wait_for_loads(marks - 1)
    kind = of(f32(), INSTRUCTION.totals)
    totals = [zeros(kind)] * (pipe.tiles[0] * pipe.tiles[1])
    pieces: tuple[Pieces, Pieces] = ({}, {})
    for side, tile, piece in pipe.pieces(0):
        pieces[side][tile, piece] = pipe.sides[side].read(tile, piece, index(0))
    lhs, rhs = (
        [scales.read(tile) for tile in range(tiles)]
        for scales, tiles in zip(pipe.scales, pipe.tiles, strict=True)
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
