"""The main loop of a ring of scaled sides: products, with loads and LDS reads issued among them.

Code is built one *chunk* of K at a time (scales.py). Chunks in which everything that is loaded
ahead lies within K are iterations of a loop, of which each has `RingPipeline.together` chunks. The
remaining ones, which load less and less, follow the loop as straight-line code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import mark_loads, no_reordering, scaled_mfma, wait_for_loads, zeros
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.gpu.fragments import K_STEPS
from mxc.passes.kernels.gpu.ring.interleave import InterleavedWork, Issue, Kind, evenly, interleaved
from mxc.passes.kernels.gpu.ring.pipeline import RingPipeline
from mxc.passes.kernels.gpu.ring.scales import CHUNK, HALF, HALVES, DirectScales, StagedScales
from mxc.passes.kernels.gpu.ring.staging import (
    INSTRUCTION,
    DirectSide,
    Key,
    Pieces,
    StagedSide,
    fragment,
)
from mxc.passes.kernels.vectors import below, f32, index, loop, of

#: Scales in registers, [half of a chunk][tile], the half that is multiplied first; or, of scales
#: that go to LDS, [chunk][load].
ScaleRegisters = list[list[ir.Value]]

#: K-steps of a chunk in which staged scales are loaded to registers, for the chunk `pipe.together`
#: later; written to LDS, for the next chunk; read from LDS, the first half of the next chunk; and
#: read, the second half of this chunk. Between writing and reading, and between reading and
#: writing, there is a barrier: each stage has one, between the work of its two k-steps.
_LOAD_K_STEPS, _WRITE_K_STEPS, _FIRST_READ_K_STEPS, _SECOND_READ_K_STEPS = (
    (0,),
    (5, 6),
    (7,),
    (1, 2, 3),
)
#: LDS reads of a part of a stage, before or after the barrier, are issued before this share of it.
_READ = 0.95


@dataclass(frozen=True)
class OperandLoaders:
    """Builders of the loads and reads of one lane: elements and scales of each side."""

    direct: DirectSide
    direct_scales: DirectScales
    staged: StagedSide
    staged_scales: StagedScales


@dataclass
class RingRegisters:
    """What a lane holds in registers between chunks.

    `totals`: sums of the tiles, row-major; `read`: pieces of the staged side that were read from
    LDS for the next stage; `asked`: pieces of the direct side whose loads were issued, in the order
    of their use; `direct_scales`, `staged_scales`: scales from the next half of a chunk on;
    `loaded_scales`: scales of the staged side on their way from memory to LDS, of later chunks.
    """

    totals: list[ir.Value]
    read: Pieces
    asked: list[ir.Value]
    direct_scales: ScaleRegisters
    staged_scales: ScaleRegisters
    loaded_scales: ScaleRegisters


def sums(pipe: RingPipeline, loaders: OperandLoaders) -> list[ir.Value]:
    """Build the main loop. Returns the sums of the wave's tiles, row-major."""
    held = _Chunk(pipe, loaders, index(0), 0, 0).begin()
    size, together, ring = pipe.chunk_stages, pipe.together, pipe.schedule.stages
    rounds = pipe.plain // together
    if rounds:
        # If an iteration does not use the slots a whole number of times, its first slot varies.
        first = [] if together * size % ring == 0 else [index(0)]
        carried = first, held
        with loop(index(0), index(rounds), index(1), values_of(carried)) as (number, now, op):
            begin, held = with_values(carried, now)
            start = begin[0] if begin else 0
            for chunk in range(together):
                here = _Chunk(pipe, loaders, number * together + chunk, start)
                held = here.build(held)
                start = here.slot(size)
            scf.YieldOp(values_of(([start] if first else [], held)))
        _, held = with_values(carried, op.results)
    for number in range(rounds * together, pipe.chunks):
        slot = number * size % ring * pipe.slot_bytes
        held = _Chunk(pipe, loaders, index(number), slot, number).build(held)
    return held.totals


class _Chunk:
    """Builds one chunk: some stages along K.

    `chunk`: its number; `number`: the same as a constant, None in the loop, where nothing that is
    loaded lies past the end of K; `first_slot`: LDS offset of the slot of its first stage.
    """

    def __init__(
        self,
        pipe: RingPipeline,
        loaders: OperandLoaders,
        chunk: ir.Value,
        first_slot: ir.Value | int,
        number: int | None = None,
    ) -> None:
        self._pipe, self._loaders, self._number, self._chunk = pipe, loaders, number, chunk
        self._first = chunk * pipe.chunk_stages
        self._slot = first_slot

    def slot(self, stage: int) -> ir.Value | int:
        """Return the LDS offset of the slot of a stage, counted from the first of the chunk."""
        ring, slot_bytes = self._pipe.schedule.stages, self._pipe.slot_bytes
        size, step = ring * slot_bytes, stage % ring * slot_bytes
        if isinstance(self._slot, int):
            return (self._slot + step) % size
        at = self._slot + step
        return arith.select(below(at, size), at, at - size) if step else at

    def _slot_of(self, stage: int) -> ir.Value:
        found = self.slot(stage)
        return index(found) if isinstance(found, int) else found

    def _left(self, number: int, size: int) -> int | None:
        """Return how many blocks of a unit (a stage, a half or a chunk) lie within K, None if all.

        `number`: of the unit, counted from the start of this chunk; `size`: its blocks.
        """
        if self._number is None:
            return None
        left = self._pipe.blocks - self._number * CHUNK - number * size
        return max(0, left) if left < size else None

    def _begins_within_k(self, stage: int) -> bool:
        """Whether a stage, counted from the first of the chunk, begins within K."""
        return self._left(stage, self._pipe.staged.blocks) != 0

    def begin(self) -> RingRegisters:
        """Build the prologue: fill the ring, and read from LDS what the first products need."""
        pipe, loaders = self._pipe, self._loaders
        totals = len(pipe.order) // pipe.schedule.k_steps
        self._held = held = RingRegisters(
            [], {}, [], [[] for _ in range(pipe.halves_ahead)], [[]], []
        )
        for chunk in range(pipe.together):
            _issue(self._chunk_loads(chunk))
        for half, into in enumerate(held.direct_scales):
            _issue(self._half_loads(half, into))
        ring, count, most = pipe.schedule.stages, len(pipe.pieces), pipe.pieces_ahead
        filled = [stage for stage in range(ring) if self._begins_within_k(stage)]
        for stage in filled:
            # Loads return in order. Issued in the order of the loop, they make the waits of the
            # loop cover no loads that are needed later.
            _issue(self._piece_loads(stage * count, min((stage + 1) * count, most)))
            # The first stage issues the rest of the loads to the last slot, as in the loop.
            whole = stage < ring - 1
            for part in range(1 + whole):
                for work in self._loads(stage - ring, part):
                    work.issue()
            if whole:
                mark_loads()
            no_reordering()
        _issue(self._piece_loads(len(filled) * count, most))
        scales = held.loaded_scales.pop(0)
        _issue(loaders.staged_scales.writes(scales, left=self._left(0, CHUNK)))
        wait_for_loads(min(len(filled), ring - 1) - 1)
        _issue(self._reads(pipe.reads[: pipe.early], 0, held.read))
        _issue(self._half_reads(0))
        held.totals = [zeros(of(f32(), INSTRUCTION.totals))] * totals
        return held

    def build(self, held: RingRegisters) -> RingRegisters:
        """Build the stages of the chunk. Returns what is held after them."""
        self._held = held
        for stage in range(self._pipe.chunk_stages):
            if self._begins_within_k(stage):
                self._stage(stage)
        return held

    def _stage(self, stage: int) -> None:
        """Build the products of a stage and, among them, loads and reads for later stages."""
        pipe, held = self._pipe, self._held
        ring, count, size = pipe.schedule.stages, len(pipe.pieces), pipe.schedule.k_steps
        own = dict(zip(pipe.pieces, held.asked, strict=False))
        del held.asked[:count]
        now, held.read = held.read, {}
        k_steps = range(stage * size, (stage + 1) * size)
        scales = held.direct_scales[0], held.staged_scales[0]
        products = [
            partial(self._multiply, (own, now), scales, k_steps[part], *tiles)
            for part, *tiles in pipe.order
        ]
        first = stage * count + pipe.pieces_ahead
        pieces = self._piece_loads(first, first + count)
        early, late = _parted(pieces, 1.0, pipe.cut / len(pipe.order))
        left = self._reads(pipe.reads[pipe.early :], stage, now)
        works = [*early, *self._loads(stage - 1, 1), *evenly("ds_read", left, 0.05, _READ)]
        for k_step in k_steps[:-1]:
            works += self._next_scales(k_step)
        interleaved(products[: pipe.cut], works, 2 * stage)
        if self._begins_within_k(stage - 1 + ring):
            mark_loads()
        works = [*late, *self._loads(stage, 0)]
        if self._begins_within_k(stage + 1):
            wait_for_loads(
                sum(self._begins_within_k(later) for later in range(stage + 2, stage + ring))
            )
            soon = self._reads(pipe.reads[: pipe.early], stage + 1, held.read)
            works += evenly("ds_read", soon, 0.0, _READ)
        works += self._next_scales(k_steps[-1])
        interleaved(products[pipe.cut :], works, 2 * stage + 1)
        if (k_steps[-1] + 1) % K_STEPS == 0:
            del held.direct_scales[0], held.staged_scales[0]

    def _multiply(
        self,
        pieces: tuple[Pieces, Pieces],
        scales: tuple[list[ir.Value], list[ir.Value]],
        k_step: int,
        own: int,
        tile: int,
    ) -> None:
        """Multiply tile `own` of the direct side by tile `tile` of the staged side.

        `pieces`, `scales`: those of the direct side, then of the staged one; `k_step`: counted in
        the chunk.
        """
        pipe, loaders, totals = self._pipe, self._loaders, self._held.totals
        part, at = k_step % pipe.schedule.k_steps, k_step % K_STEPS
        sides = [
            (
                fragment(loaders.direct.layout, pieces[0], own, part),
                *loaders.direct_scales.word(scales[0][own], at),
            ),
            (
                fragment(loaders.staged.layout, pieces[1], tile, part),
                *loaders.staged_scales.word(scales[1][tile], at),
            ),
        ]
        m, n = (tile, own) if pipe.swapped else (own, tile)
        # Operand A of the instruction is rhs.
        (b, q, other), (a, p, one) = sides if pipe.swapped else reversed(sides)
        total = m * pipe.schedule.tiles[1] + n
        totals[total] = scaled_mfma(INSTRUCTION.shape, b, a, totals[total], (q, p), (other, one))

    def _loads(self, emptied: int, part: int) -> list[InterleavedWork]:
        """Return the loads to LDS that replace stage `emptied` in its slot by a later stage.

        `part`: 0 for those issued behind the barrier of stage `emptied`, 1 for those issued in the
        stage after it, before its barrier.
        """
        pipe, stage = self._pipe, emptied + self._pipe.schedule.stages
        if not self._begins_within_k(stage):
            return []
        at, slot = self._first + stage, self._slot_of(emptied)
        left = self._left(stage, pipe.staged.blocks)
        issues: list[Issue] = [
            partial(self._loaders.staged.load, number, at, slot, left=left)
            for number in range(pipe.staged.loads)
        ]
        return _parted(issues, pipe.pace, 1 - pipe.cut / len(pipe.order))[part]

    def _reads(self, keys: Sequence[Key], stage: int, into: Pieces) -> list[Issue]:
        """Return the reads from LDS of pieces of a stage, which put them `into` a dictionary."""
        slot = self._slot_of(stage)

        def read(key: Key) -> None:
            into[key] = self._loaders.staged.read(*key, slot)

        return [partial(read, key) for key in keys]

    def _piece_loads(self, first: int, last: int) -> list[Issue]:
        """Return the loads to registers of pieces `first` to `last` of the direct side.

        Pieces are counted from the first of this chunk, stage by stage; those past K are left out.
        """
        pieces, size = self._pipe.pieces, self._pipe.direct.blocks

        def load(key: Key, stage: int) -> None:
            at, left = self._first + stage, self._left(stage, size)
            self._held.asked.append(self._loaders.direct.load(*key, at, left=left))

        wanted = [divmod(piece, len(pieces)) for piece in range(first, last)]
        return [
            partial(load, pieces[at], stage) for stage, at in wanted if self._begins_within_k(stage)
        ]

    def _half_loads(self, half: int, into: list[ir.Value]) -> list[Issue]:
        """Return the loads of the direct side's scales for a half, counted from the first half of
        this chunk."""
        left = self._left(half, HALF)
        if left == 0:
            return []
        if self._number == half == 0:
            left = left or HALF
        at = self._chunk * HALVES + half
        return self._loaders.direct_scales.loads(at, into, left=left)

    def _chunk_loads(self, chunk: int) -> list[Issue]:
        """Return the loads to registers of the staged side's scales for a chunk, counted from this
        one."""
        left, loaded = self._left(chunk, CHUNK), self._held.loaded_scales
        if left == 0:
            return []
        loaded.append([])
        return self._loaders.staged_scales.loads(self._chunk + chunk, loaded[-1], left=left)

    def _half_reads(self, half: int) -> list[Issue]:
        """Return the reads of staged scales: half 0 or 1 of the chunk whose scales LDS has."""
        into = self._held.staged_scales[-1]

        def read(tile: int) -> None:
            into.append(self._loaders.staged_scales.read(tile, half))

        return [partial(read, tile) for tile in range(self._pipe.tiles[1])]

    def _next_scales(self, k_step: int) -> list[InterleavedWork]:
        """Return what a k-step of the chunk issues for the scales of later k-steps."""
        held = self._held
        works: list[InterleavedWork] = []
        if k_step % K_STEPS == 0:
            held.direct_scales.append([])
            half = k_step // K_STEPS + self._pipe.halves_ahead
            loads = self._half_loads(half, held.direct_scales[-1])
            works = evenly("vmem_read", loads, 0.1, 1.0)
        if k_step in (_FIRST_READ_K_STEPS[0], _SECOND_READ_K_STEPS[0]):
            held.staged_scales.append([])
        left = self._left(1, CHUNK)
        if k_step in _LOAD_K_STEPS:
            loads = self._chunk_loads(self._pipe.together)
            works += _share("vmem_read", loads, k_step, _LOAD_K_STEPS)
        elif k_step in _SECOND_READ_K_STEPS:
            works += _share("ds_read", self._half_reads(1), k_step, _SECOND_READ_K_STEPS)
        elif k_step in _WRITE_K_STEPS and left != 0:
            writes = self._loaders.staged_scales.writes(held.loaded_scales[0], left=left)
            works += _share("ds_write", writes, k_step, _WRITE_K_STEPS)
            if k_step == _WRITE_K_STEPS[-1]:
                del held.loaded_scales[0]
        elif k_step in _FIRST_READ_K_STEPS and left != 0:
            works += _share("ds_read", self._half_reads(0), k_step, _FIRST_READ_K_STEPS)
        return works


def _issue(issues: Sequence[Issue]) -> None:
    for issue in issues:
        issue()


def _parted(
    issues: Sequence[Issue], pace: float, cut: float
) -> tuple[list[InterleavedWork], list[InterleavedWork]]:
    """Spread loads over a part of a stage's time. Returns those before `cut` and those after it.

    `pace`: share of the time of a stage, from the first load on; `cut`: another share of it, where
    the barrier is. The places of the loads are shares of the part before or after `cut`.
    """
    before, behind = [], []
    for number, issue in enumerate(issues):
        at = (number + 0.5) / len(issues) * pace
        if at < cut:
            before.append(InterleavedWork(at / cut, "vmem_read", issue))
        else:
            behind.append(InterleavedWork((at - cut) / (1 - cut), "vmem_read", issue))
    return before, behind


def _share(
    kind: Kind, issues: Sequence[Issue], k_step: int, k_steps: tuple[int, ...]
) -> list[InterleavedWork]:
    """Return what `k_step` issues of work that is divided among `k_steps`."""
    each = -(-len(issues) // len(k_steps))
    start = each * k_steps.index(k_step)
    return evenly(kind, issues[start : start + each], 0.1, 1.0)
