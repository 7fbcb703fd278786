"""The k-steps of a ring along K: what is loaded and read while what was read is multiplied.

A *span* (staged_scales.py) is as much as is built at once: spans in which all that is loaded ahead
is there are rounds of a loop; the last ones, which have less and less to load, follow one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import mark_loads, no_reordering, scaled_mfma, wait_for_loads, zeros
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.ring.interleave import Kind, Work, evenly, interleaved
from mxc.passes.kernels.gpu.ring.pipeline import Halves, Held, Issue, Pipeline, parted
from mxc.passes.kernels.gpu.ring.staged_scales import HALF, HALVES, SPAN
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION, Key, Pieces
from mxc.passes.kernels.vectors import below, f32, index, loop, of

#: K-steps of a span in which staged scales of the next one are asked for and put into LDS, and in
#: which halves are read from there: the first one of the next span, the second one of this. Between
#: putting and reading, and between reading and putting, all waves pass a barrier.
_ASKED, _PUT, _FIRST_READ, _SECOND_READ = (0,), (5, 6), (7,), (1, 2, 3)
#: Share of a part of a stage, before which it has issued its reads.
_READ = 0.95


def sums(pipe: Pipeline) -> list[ir.Value]:
    """Build all k-steps: the sums of the tiles, row after row."""
    held = _begin(pipe)
    size, together = pipe.span_stages, pipe.together
    rounds = pipe.plain // together
    if rounds:
        # Where these spans are no whole number of rings, each round begins with another slot.
        first = [] if together * size % pipe.ahead == 0 else [index(0)]
        carried = [*first, *values_of(held)]
        with loop(index(0), index(rounds), index(1), carried) as (number, now, op):
            held = with_values(held, now[len(first) :])
            start = now[0] if first else 0
            for span in range(together):
                here = _Span(pipe, number * together + span, start)
                held = here.build(held)
                start = here.slot(size)
            scf.YieldOp([*([start] if first else []), *values_of(held)])
        held = with_values(held, list(op.results)[len(first) :])
    for number in range(rounds * together, pipe.spans):
        first_slot = number * size % pipe.ahead * pipe.slot_bytes
        held = _Span(pipe, index(number), first_slot, number).build(held)
    return held.totals


def _begin(pipe: Pipeline) -> Held:
    """Fill the ring, and read what the first k-step needs."""
    here = _Span(pipe, index(0), 0, 0)
    direct, staged = pipe.direct[1], pipe.staged[1]
    scales: tuple[Halves, Halves, Halves] = ([[] for _ in range(direct.ahead)], [[]], [])
    for span in range(pipe.together):
        _issue(here.span_loads(span, scales[2]))
    for half, into in enumerate(scales[0]):
        _issue(here.half_loads(half, into))
    asked: list[ir.Value] = []
    count, most = len(pipe.pieces), pipe.direct[0].ahead
    marks, filled = 0, min(pipe.ahead, pipe.stages)
    for stage in range(filled):
        # Loads return in order: with that of the loop, the loop waits for no more than it must.
        _issue(here.piece_loads(stage * count, min((stage + 1) * count, most), asked))
        now, later = pipe.loads(
            index(stage), index(stage * pipe.slot_bytes), last=stage == pipe.stages - 1
        )
        # Those of the last slot that come later are issued in the first stage, as always.
        whole = stage < pipe.ahead - 1
        for work in [*now, *later] if whole else now:
            work.issue()
        if whole:
            mark_loads()
            marks += 1
        no_reordering()
    _issue(here.piece_loads(filled * count, most, asked))
    _issue(staged.writes(scales[2].pop(0), left=pipe.scales_left(0, SPAN)))
    wait_for_loads(marks - 1)
    read: Pieces = {}
    _issue(here.reads(pipe.reads[: pipe.early], 0, read))
    _issue(here.half_reads(0, scales[1][0]))
    kind = of(f32(), INSTRUCTION.totals)
    return Held([zeros(kind)] * (pipe.tiles[0] * pipe.tiles[1]), read, asked, scales)


class _Span:
    """One span: the k-steps of some stages.

    `number`: of the span, None in the loop, where everything is there. `first_slot`: the offset of
    the slot of its first stage.
    """

    def __init__(
        self, pipe: Pipeline, span: ir.Value, first_slot: ir.Value | int, number: int | None = None
    ) -> None:
        self._pipe, self._number, self._span = pipe, number, span
        self._first = span * pipe.span_stages
        self._slot = first_slot

    def slot(self, stage: int) -> ir.Value | int:
        """Offset of the slot of a stage, counted from the first one of the span."""
        pipe = self._pipe
        size = pipe.ahead * pipe.slot_bytes
        step = stage % pipe.ahead * pipe.slot_bytes
        if isinstance(self._slot, int):
            return (self._slot + step) % size
        at = self._slot + step
        return arith.select(below(at, size), at, at - size) if step else at

    def _slot_of(self, stage: int) -> ir.Value:
        found = self.slot(stage)
        return index(found) if isinstance(found, int) else found

    def _is_there(self, stage: int) -> bool:
        return self._number is None or self._absolute(stage) < self._pipe.stages

    def _is_last(self, stage: int) -> bool:
        return self._number is not None and self._absolute(stage) == self._pipe.stages - 1

    def _absolute(self, stage: int) -> int:
        assert self._number is not None
        return self._number * self._pipe.span_stages + stage

    def build(self, held: Held) -> Held:
        """All k-steps; gives what is held after them."""
        self._totals, self._read = list(held.totals), held.read
        self._asked = list(held.asked)
        direct, staged, loaded = held.scales
        self._scales = list(direct), list(staged), list(loaded)
        for stage in range(self._pipe.span_stages):
            if self._is_there(stage):
                self._stage(stage)
        return Held(self._totals, self._read, self._asked, self._scales)

    def _stage(self, stage: int) -> None:
        """Multiply the fragments of a stage, and meanwhile bring what later ones need."""
        pipe = self._pipe
        count = len(pipe.pieces)
        own = dict(zip(pipe.pieces, self._asked, strict=False))
        del self._asked[:count]
        now, self._read = self._read, {}
        k_steps = range(stage * pipe.k_steps, (stage + 1) * pipe.k_steps)
        scales = self._scales[0][0], self._scales[1][0]
        products = [
            partial(self._multiply, (own, now), scales, k_steps[part], *tiles)
            for part, *tiles in pipe.order
        ]
        first = stage * count + pipe.direct[0].ahead
        pieces = self.piece_loads(first, first + count, self._asked)
        early, late = parted(pieces, 1.0, pipe.cut / len(pipe.order))
        left = self.reads(pipe.reads[pipe.early :], stage, now)
        works = [*early, *self._loads(stage - 1, 1), *evenly("ds_read", left, 0.05, _READ)]
        for k_step in k_steps[:-1]:
            works += self._next_scales(k_step)
        interleaved(products[: pipe.cut], works, 2 * stage)
        if self._is_there(stage - 1 + pipe.ahead):
            mark_loads()
        works = [*late, *self._loads(stage, 0)]
        if self._is_there(stage + 1):
            on_their_way = pipe.ahead - 2
            if self._number is not None:
                on_their_way = min(on_their_way, pipe.stages - 2 - self._absolute(stage))
            wait_for_loads(on_their_way)
            soon = self.reads(pipe.reads[: pipe.early], stage + 1, self._read)
            works += evenly("ds_read", soon, 0.0, _READ)
        works += self._next_scales(k_steps[-1])
        interleaved(products[pipe.cut :], works, 2 * stage + 1)
        if (k_steps[-1] + 1) % K_STEPS == 0:
            for halves in self._scales[:2]:
                del halves[0]

    def _multiply(
        self,
        pieces: tuple[Pieces, Pieces],
        scales: tuple[list[ir.Value], list[ir.Value]],
        k_step: int,
        own: int,
        tile: int,
    ) -> None:
        """Multiply a tile of the direct side by one of the staged side."""
        pipe = self._pipe
        (direct, factors), (staged, others) = pipe.direct, pipe.staged
        part, at = k_step % pipe.k_steps, k_step % K_STEPS
        sides = [
            (direct.fragment(pieces[0], own, part), *factors.word(scales[0][own], at)),
            (staged.fragment(pieces[1], tile, part), *others.word(scales[1][tile], at)),
        ]
        m, n = (tile, own) if pipe.swapped else (own, tile)
        # The instruction's rows are those of rhs.
        (b, q, other), (a, p, one) = sides if pipe.swapped else reversed(sides)
        total = m * pipe.tiles[1] + n
        self._totals[total] = scaled_mfma(
            INSTRUCTION.shape, b, a, self._totals[total], (q, p), (other, one)
        )

    def _loads(self, emptied: int, part: int) -> list[Work]:
        """The loads of the stage that comes into the slot of another: the first part, or the
        second."""
        stage = emptied + self._pipe.ahead
        if not self._is_there(stage):
            return []
        at, last = self._first + stage, self._is_last(stage)
        return self._pipe.loads(at, self._slot_of(emptied), last=last)[part]

    def reads(self, keys: Sequence[Key], stage: int, into: Pieces) -> list[Issue]:
        """Reads from the slot of a stage."""
        slot = self._slot_of(stage)

        def read(key: Key) -> None:
            into[key] = self._pipe.staged[0].read(*key, slot)

        return [partial(read, key) for key in keys]

    def piece_loads(self, first: int, last: int, into: list[ir.Value]) -> list[Issue]:
        """Loads of pieces to registers, counted from the first one of this span."""
        pipe = self._pipe

        def load(key: Key, stage: int) -> None:
            left = pipe.blocks_left(last=self._is_last(stage))
            into.append(pipe.direct[0].load(*key, self._first + stage, left=left))

        wanted = [divmod(piece, len(pipe.pieces)) for piece in range(first, last)]
        return [
            partial(load, pipe.pieces[at], stage) for stage, at in wanted if self._is_there(stage)
        ]

    def half_loads(self, half: int, into: list[ir.Value]) -> list[Issue]:
        """Loads of direct scales, of a half counted from the first one of this span."""
        left = None
        if self._number is not None:
            absolute = self._number * HALVES + half
            left = self._pipe.scales_left(absolute * HALF, HALF)
            if left is not None and left <= 0:
                return []
            if absolute == 0:
                left = left or HALF
        at = self._span * HALVES + half
        return self._pipe.direct[1].loads(at, into, left=left)

    def span_loads(self, span: int, into: Halves) -> list[Issue]:
        """Loads of scales that are to be staged, of a span counted from this one."""
        if not self._has(span):
            return []
        into.append([])
        at = self._span + span
        return self._pipe.staged[1].loads(at, into[-1], left=self._left(span))

    def _has(self, span: int) -> bool:
        """Whether there is a span, counted from this one."""
        return self._number is None or self._number + span < self._pipe.spans

    def _left(self, span: int) -> int | None:
        """Blocks that a row has of a span, counted from this one, if not all."""
        if self._number is None:
            return None
        return self._pipe.scales_left((self._number + span) * SPAN, SPAN)

    def half_reads(self, half: int, into: list[ir.Value]) -> list[Issue]:
        """Reads of staged scales, of the first or second half of a span."""

        def read(tile: int) -> None:
            into.append(self._pipe.staged[1].read(tile, half))

        return [partial(read, tile) for tile in range(self._pipe.tiles[not self._pipe.swapped])]

    def _next_scales(self, k_step: int) -> list[Work]:
        """What this k-step does for the scales of the k-steps to come."""
        if k_step % K_STEPS:
            return self._staged_scales(k_step)
        self._scales[0].append([])
        half = k_step // K_STEPS + self._pipe.direct[1].ahead
        loads = evenly("vmem_read", self.half_loads(half, self._scales[0][-1]), 0.1, 1.0)
        return [*loads, *self._staged_scales(k_step)]

    def _staged_scales(self, k_step: int) -> list[Work]:
        staged = self._pipe.staged[1]
        if k_step in (_FIRST_READ[0], _SECOND_READ[0]):
            self._scales[1].append([])
        if k_step in _SECOND_READ:
            return _share("ds_read", self.half_reads(1, self._scales[1][-1]), k_step, _SECOND_READ)
        loaded = self._scales[2]
        if k_step in _ASKED:
            return _share("vmem_read", self.span_loads(self._pipe.together, loaded), k_step, _ASKED)
        if not self._has(1):
            return []
        if k_step in _PUT:
            puts = staged.writes(loaded[0], left=self._left(1))
            if k_step == _PUT[-1]:
                del loaded[0]
            return _share("ds_write", puts, k_step, _PUT)
        if k_step in _FIRST_READ:
            return _share("ds_read", self.half_reads(0, self._scales[1][-1]), k_step, _FIRST_READ)
        return []


def _issue(issues: Sequence[Issue]) -> None:
    for issue in issues:
        issue()


def _share(
    kind: Kind, issues: Sequence[Issue], k_step: int, k_steps: tuple[int, ...]
) -> list[Work]:
    """The part that one of some k-steps has of their work."""
    each = -(-len(issues) // len(k_steps))
    start = each * k_steps.index(k_step)
    return evenly(kind, issues[start : start + each], 0.1, 1.0)
