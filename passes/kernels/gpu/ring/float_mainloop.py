"""The k-steps of a ring of floats: what is read, split and decoded while something is multiplied.

A k-step is a stage, two blocks along K, in four parts of 8 elements a lane. While a part is
multiplied, the floats of the next one are read from LDS and its weights are decoded. So the last
part of a k-step brings the first one of the next stage, and before it the wave waits until that is
there, and all waves have read this one.

Floats that are the sum of several bf16 are split right before they are multiplied, tile by tile,
each while the one before it is multiplied: the parts of all tiles at once would be too many
registers. A part then is done in steps of a tile, else in one.

Four k-steps are one iteration, because a lane loads their scales at once; the k-steps that are
left follow. Beyond the end of K zeros are loaded and not multiplied: no memory moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import mark_loads, mfma, pinned, wait_for_loads
from mxc.dialects.quantize_scalars import i32 as number
from mxc.passes.kernels.carried import values_of, with_values
from mxc.passes.kernels.gpu.fragments import FRAGMENT, K_STEPS
from mxc.passes.kernels.gpu.ring.float_pipeline import FloatPipeline, Held, Weights, as_index
from mxc.passes.kernels.gpu.ring.interleave import Work, evenly, interleaved_within
from mxc.passes.kernels.gpu.ring.pairs import FRAGMENTS, PAIRS, joined_pairs, pair_of, splitting
from mxc.passes.kernels.gpu.ring.staging import INSTRUCTION
from mxc.passes.kernels.vectors import bitcast, equal, i8, i32, index, loop

Issue = Callable[[], None]

_SHAPE = INSTRUCTION.rows, INSTRUCTION.rows, FRAGMENT * INSTRUCTION.groups
#: Shares of a step: before which reads are issued, and after which what they brought is worked on.
_READ, _THERE = 0.5, 0.55
#: Instructions that a wave issues while its matrix core computes a product, besides this one.
_BUDGET = 7
#: Instructions of a direct load, with those of its addresses.
_LOAD = 6


def sums(pipe: FloatPipeline) -> list[ir.Value]:
    """Build all k-steps: the sums of the tiles, row after row."""
    held = pipe.begin()
    passes, rest = divmod(pipe.stages, K_STEPS)
    if passes:
        with loop(index(0), index(passes), index(1), values_of(held)) as (four, now, op):
            after = _MainLoop(pipe, with_values(held, now), four).build(K_STEPS)
            scf.YieldOp(values_of(after))
        held = with_values(held, op.results)
    if rest:
        held = _MainLoop(pipe, held, index(passes)).build(rest)
    # No load may write to LDS that is another workgroup's by then.
    wait_for_loads(0)
    return held.totals


class _MainLoop:
    """Some of four k-steps, `four` of which came before."""

    def __init__(self, pipe: FloatPipeline, held: Held, four: ir.Value) -> None:
        self._pipe, self._held, self._four = pipe, held, four
        self._coming: list[ir.Value] = []
        rows = range(pipe.schedule.tiles[0])
        self._steps = [[tile] for tile in rows] if pipe.steps else [list(rows)]

    def build(self, count: int) -> Held:
        """So many; gives what is held after them."""
        for k_step in range(count):
            self._k_step(k_step)
        return self._held

    def _k_step(self, k_step: int) -> None:
        pipe, held = self._pipe, self._held
        stages, size = pipe.schedule.stages, pipe.slot_bytes
        emptied = moved(held.slot, 0, (stages - 1) * size, -size)
        after = moved(held.slot, (stages - 1) * size, 0, size)
        stage = self._four * K_STEPS + k_step
        # Into the slot of the stage before this one, and after the barrier into this one's.
        earlier = pipe.loads(stage + (stages - 1), as_index(emptied))
        later = pipe.loads(stage + stages, as_index(held.slot))
        coming: list[Weights] = []
        for part in range(FRAGMENTS):
            soon = (part + 1) % FRAGMENTS
            loads = pipe.portion(earlier if soon else later, soon)
            if not soon:
                mark_loads()
                wait_for_loads(stages - 2)
            weights = held.weights if soon else coming
            decodes = self._decodes(weights, soon)
            for step, tiles in enumerate(self._steps):
                works = evenly("vmem_read", self._share(loads, step), 0.1, 1.0, _LOAD)
                # What is read in this step is there some time later.
                first = 0.0 if soon or step else _THERE
                count = pipe.decoder.instructions
                works += evenly("valu", self._share(decodes, step), first, 1.0, count)
                if (k_step, part, step) == (0, 0, 0):
                    works.append(Work(0.0, "vmem_read", self._ask, len(held.words)))
                if (soon, step) == (0, 0):
                    works += self._packed(coming, after, k_step)
                ready: dict[int, list[ir.Value]] = {}
                slot = held.slot if soon else after
                if pipe.steps:
                    works += self._reads(tiles, soon, slot, held.raw)
                    works += self._splits(self._steps[(step + 1) % len(self._steps)][0], ready)
                else:
                    works += self._reads(tiles, soon, slot, ready)
                products = [
                    partial(self._multiply, tile, piece, column, part)
                    for tile, column in product(tiles, range(pipe.schedule.tiles[1]))
                    for piece in reversed(range(pipe.parts))  # the least first
                ]
                last = step + 1 == len(self._steps)
                interleaved_within(products, works, _BUDGET, waits=last and soon + 1 == FRAGMENTS)
                held.floats = ready
                self._pin(weights if last else [], soon)
        held.weights, held.slot = coming, after

    def _share(self, issues: Sequence[Issue], step: int) -> list[Issue]:
        """What a step has of the work of a part."""
        size, steps = len(issues), len(self._steps)
        return list(issues[size * step // steps : size * (step + 1) // steps])

    def _multiply(self, tile: int, piece: int, column: int, part: int) -> None:
        held = self._held
        at = tile * self._pipe.schedule.tiles[1] + column
        weights = held.weights[column].known[part]
        held.totals[at] = mfma(_SHAPE, weights, held.floats[tile][piece], held.totals[at])

    def _pin(self, weights: list[Weights], part: int) -> None:
        """What is multiplied next is there from here on, and of a k-step all that was read."""
        held, brief = self._held, ir.BF16Type.get()
        fragments = [each for own in held.floats.values() for each in own]
        fragments += [each.known[part] for each in weights]
        blocks = [] if part else [each.block for each in weights if each.block is not None]
        pins = iter(
            pinned([bitcast(each, i32(), _bytes(each) // 4) for each in (*fragments, *blocks)])
        )
        for tile, own in held.floats.items():
            held.floats[tile] = [bitcast(next(pins), brief, FRAGMENT) for _ in own]
        for each in weights:
            each.known[part] = bitcast(next(pins), brief, FRAGMENT)
        for each, block in zip(weights, blocks, strict=False):
            each.block = bitcast(next(pins), i8(), _bytes(block))

    def _ask(self) -> None:
        """For the scales of the next four k-steps."""
        self._coming = self._pipe.scales.load(self._four + 1)

    def _packed(self, coming: list[Weights], slot: ir.Value, k_step: int) -> list[Work]:
        """Reads of the weights of the next k-step."""
        pipe, after = self._pipe, (k_step + 1) % K_STEPS
        if after == 0:
            self._held.words = pipe.scales.words(self._coming, self._four + 1)

        def read(tile: int) -> None:
            factor = pipe.scales.factor(self._held.words[tile], after)
            coming.append(Weights(pipe.packed(tile, slot), factor))

        count = len(pipe.sides[1].layout.new_pieces(0))
        issues = [partial(read, tile) for tile in range(pipe.schedule.tiles[1])]
        return evenly("ds_read", issues, 0.0, _READ, count)

    def _reads(
        self, tiles: list[int], part: int, slot: ir.Value, into: dict[int, list[ir.Value]]
    ) -> list[Work]:
        """Reads of the floats of the next part, of the tiles that are multiplied."""
        pipe = self._pipe

        def read(tile: int) -> None:
            into[tile] = pipe.read(tile, part, slot)

        issues = [partial(read, tile) for tile in tiles]
        return evenly("ds_read", issues, 0.0, _READ, pipe.pieces)

    def _splits(self, tile: int, into: dict[int, list[ir.Value]]) -> list[Work]:
        """What makes bf16 of the floats of the tile that is multiplied next."""
        kind, held = self._pipe.kind, self._held
        begun: list[tuple[Iterator[None], list[ir.Value]]] = []

        def split(at: int) -> None:
            if at == 0:
                parts: list[ir.Value] = []
                raw = pair_of(held.raw[tile], len(begun))
                begun.append((splitting(kind, raw, parts), parts))
            next(begun[-1][0], None)

        steps = [(partial(split, at), count) for at, count in enumerate(self._pipe.steps)] * PAIRS

        def join() -> None:
            del held.raw[tile]
            into[tile] = [
                joined_pairs([parts[at] for _, parts in begun]) for at in range(self._pipe.parts)
            ]

        first = _THERE if len(self._steps) == 1 else 0.0
        works = [
            Work(first + (1 - first) * at / len(steps), "valu", issue, count)
            for at, (issue, count) in enumerate(steps)
        ]
        return [*works, Work(1.0, "valu", join, 0)]

    def _decodes(self, weights: list[Weights], part: int) -> list[Issue]:
        """What makes a part of the weights, tile by tile."""
        decoder, columns = self._pipe.decoder, range(self._pipe.schedule.tiles[1])

        def whole(tile: int) -> None:
            self._pipe.decode(weights[tile])

        def pair(tile: int, at: int) -> None:
            own = weights[tile]
            assert own.block is not None
            assert own.factor is not None
            own.pairs.append(decoder.pair(own.block, own.factor, part * PAIRS + at))
            if len(own.pairs) == PAIRS:
                own.known[part] = joined_pairs(own.pairs)
                own.pairs = []

        if decoder.whole:
            return [] if part else [partial(whole, tile) for tile in columns]
        return [partial(pair, *each) for each in product(columns, range(PAIRS))]


def moved(slot: ir.Value, where: int, there: int, by: int) -> ir.Value:
    """A slot's offset moved, but for the one place from which it goes `there`."""
    same = equal(slot, where)
    return arith.select(same, number(there), slot + by)


def _bytes(value: ir.Value) -> int:
    kind = ir.VectorType(value.type)
    (size,) = kind.shape
    return int(size * kind.element_type.width // 8)
