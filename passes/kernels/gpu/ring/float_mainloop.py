"""The loop along K of a ring whose sides are both multiplied as floats.

A stage has several parts along K, of 8 elements a lane. While one part is multiplied, the floats of
the next part are read from LDS, and its packed elements are decoded. So the last part of a stage
reads the first part of the next stage. Before it, the wave waits for the loads of the next stage,
and until all waves have read this stage. With few tiles a part is too brief for LDS to answer in
time: there floats are read two parts ahead, and waves wait one part earlier.

Floats that are the sum of several bf16 are split tile by tile, each tile while the one before it is
multiplied: all tiles split at once would take too many registers. Such a part has a step for each
tile of rows; any other part is one step.

Loads beyond the end of K give zeros, and move no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.dialects.amdgpu import (
    mark_loads,
    mfma,
    pinned,
    wait_for_all_loads,
    wait_for_loads,
    zeros,
)
from mxc.dialects.quantize_scalars import i32 as number
from mxc.passes.kernels.carried import in_groups
from mxc.passes.kernels.gpu.floats import FloatBlocks
from mxc.passes.kernels.gpu.fragments import BLOCK, FRAGMENT, K_STEPS
from mxc.passes.kernels.gpu.lanes import long
from mxc.passes.kernels.gpu.ring.float_registers import FloatRegisters, Rates
from mxc.passes.kernels.gpu.ring.interleave import (
    InterleavedWork,
    Issue,
    IssueBudget,
    evenly,
    interleaved_within,
)
from mxc.passes.kernels.gpu.ring.pairs import (
    PAIRS,
    DecodedTile,
    PackedSide,
    pair_of,
    split,
    splitting,
)
from mxc.passes.kernels.gpu.ring.staging import DirectSide, StagedSide
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import (
    bitcast,
    bitcast_like,
    concat,
    equal,
    f32,
    i32,
    index,
    of,
)

#: Share of a step after which what the step reads from LDS is taken to have arrived.
_THERE = 0.55
#: With at most this many tiles of a wave, a part is too brief for LDS to answer within it.
BRIEF = 8


class FloatMainloop:
    """The loop of a wave along K. `sides`: lhs and rhs; a subclass loads a DirectSide itself.
    `packed`: what decodes each side, None for floats; `steps`: instructions of each step in which a
    pair of floats of lhs is split into bf16 (`steps_of` in pairs.py), none if it is not split."""

    def __init__(
        self,
        schedule: GpuSchedule,
        sides: tuple[StagedSide, StagedSide | DirectSide],
        rates: Rates,
        packed: tuple[PackedSide | None, PackedSide | None] = (None, None),
        steps: tuple[int, ...] = (),
    ) -> None:
        """Keep what the loop needs. No operation is built."""
        layout = sides[0].layout
        self._lhs, self._rates = layout.kind, rates
        self._sides = [side for side in sides if isinstance(side, StagedSide)]
        self._instruction, self._stages = schedule.instruction, schedule.stages
        self._slot_bytes = sum(side.layout.bytes for side in self._sides)
        self._blocks = layout.blocks
        self._rows, self._columns = (range(tiles) for tiles in schedule.tiles)
        self._split = steps
        #: Tiles of the result whose sums `_take_sums` takes before their next product.
        self._tiles_to_flush: set[int] = set()
        keys = (self._rows, range(len(self._rows), len(self._rows) + len(self._columns)))
        self._packed = [
            (side, own) for side, own in zip(packed, keys, strict=True) if side is not None
        ]
        #: Number of a tile of floats in LDS, among those of both sides -> its side, and tile there.
        self._floats = {
            key: (side, tile)
            for side, decoded, own in zip(sides, packed, keys, strict=True)
            if decoded is None and isinstance(side, StagedSide)
            for tile, key in enumerate(own)
        }
        runs = [side.layout.runs for side, tile in self._floats.values() if tile == 0]
        self._parts = len(runs[0]) if runs else BLOCK // FRAGMENT
        self._reads = max((len(own[0]) for own in runs), default=0)
        self._steps = [[tile] for tile in self._rows] if steps else [list(self._rows)]
        #: Number of parts by which LDS reads of floats are ahead of products.
        brief = len(self._rows) * len(self._columns) <= BRIEF
        self._ahead = 2 if self._packed and not steps and brief else 1

    def sums(self) -> list[ir.Value]:
        """Build all stages; return the sums of the tiles, row by row.

        An iteration has four stages, because a lane loads the scales of four at once. The stages
        that are left follow the loop.
        """
        stages = -(-self._lhs.blocks // self._blocks)
        held = in_groups(self._begin(), stages, K_STEPS, self._four)
        wait_for_all_loads()
        return held.totals

    def _four(self, held: FloatRegisters, four: ir.Value, count: int) -> FloatRegisters:
        """Build `count` stages after `four` groups of four. Returns what is held after them."""
        self._before = four
        for k_step in range(count):
            self._stage(held, four * K_STEPS + k_step, k_step)
        return held

    def _begin(self) -> FloatRegisters:
        """Fill the ring; read, split and decode what is multiplied first."""
        for issue in self._scale_loads(index(0)):
            issue()
        self._fill()
        words = {
            key: pack.scales.words(self._coming[key], index(0))
            for pack, keys in self._packed
            for key in keys
        }
        wait_for_loads(self._stages - 2)
        slot, kind = number(0), of(f32(), self._instruction.totals)
        held = FloatRegisters([], {}, {}, {}, words, slot)
        if self._split:
            assert isinstance(self._lhs, FloatBlocks)
            held.raw = {tile: self._read(self._sides[0], tile, 0, slot) for tile in self._rows}
            # Only the first tile; others are split while the tile before them is multiplied.
            held.floats = {0: split(self._lhs, held.raw.pop(0))}
        else:
            for part, into in enumerate((held.floats, held.after_next)[: self._ahead]):
                for issue in self._float_reads(self._rows, part, slot, into):
                    issue()
        for pack, keys in self._packed:
            for tile, key in enumerate(keys):
                held.packed[key] = pack.read(tile, slot, words[key], 0)
                pack.decode(held.packed[key])
        held.totals = [zeros(kind)] * (len(self._rows) * len(self._columns))
        return held

    def _fill(self) -> None:
        """Issue the loads of the first stages."""
        last = self._stages - 1
        for stage in range(last):
            for issue in self._loads(index(stage), index(stage * self._slot_bytes)):
                issue()
            mark_loads()
        # Of the last slot the loads that the loop has right after a barrier; stage 0 issues others.
        loads = self._loads(index(last), index(last * self._slot_bytes))
        for part in range(self._ahead):
            for issue in self._portion(loads, part):
                issue()

    def _stage(self, held: FloatRegisters, stage: ir.Value, k_step: int) -> None:
        """Multiply a stage, number `k_step` of its four, and prepare the start of the next one."""
        rates, parts, last, size = self._rates, self._parts, self._stages - 1, self._slot_bytes
        emptied = _adjacent_slot(held.slot, 0, last * size, -size)
        after = _adjacent_slot(held.slot, last * size, 0, size)
        # Before the barrier loads go to the slot of the stage before, after it to that of this one.
        earlier = self._loads(stage + last, long(emptied))
        later = self._loads(stage + self._stages, long(held.slot))
        coming: dict[int, DecodedTile] = {}
        for part in range(parts):
            soon = (part + 1) % parts
            # `read`: the part whose floats are read; `arrived`: 1 if it is one of the next stage.
            arrived, read = divmod(part + self._ahead, parts)
            loads = self._portion(later if arrived else earlier, read)
            if read == 0:
                mark_loads()
                wait_for_loads(last - 1)
            known, slot = held.packed if soon else coming, after if arrived else held.slot
            for step, tiles in enumerate(self._steps):
                works = evenly("vmem_read", self._share(loads, step), 0.1, 1.0, rates.load)
                for pack, keys in self._packed:
                    # Blocks that this very step reads from LDS arrive only after a part of it.
                    first = 0.0 if soon or step or self._ahead > 1 else _THERE
                    decodes = self._share(pack.decodes(known, keys, soon), step)
                    works += evenly("valu", decodes, first, 1.0, pack.decoder.instructions)
                if self._packed and (k_step, part, step) == (0, 0, 0):
                    count = 2 * max(pack.scales.loads for pack, _ in self._packed)
                    works += evenly(
                        "vmem_read", self._scale_loads(self._before + 1), 0.0, 1.0, count
                    )
                if (read, step) == (0, 0):
                    works += self._packed_reads(held, coming, after, (k_step + 1) % K_STEPS)
                ready: dict[int, list[ir.Value]] = {}
                if step == 0:
                    works += self._further_work(held, stage, soon)
                reads = self._float_reads(tiles, read, slot, held.raw if self._split else ready)
                whole = step + 1 == len(self._steps)
                waits = whole and part + self._ahead + 1 == parts
                # The barrier behind this part waits for these reads: they are issued first.
                stop = 0.0 if waits and self._ahead > 1 else rates.read
                works += evenly("ds_read", reads, 0.0, stop, self._reads)
                if self._split:
                    following = self._steps[(step + 1) % len(self._steps)][0]
                    works += self._splits(held, following, ready)
                products = [
                    partial(self._multiply, held, tile, piece, column, part)
                    for tile, column in product(tiles, self._columns)
                    # The least significant bf16 first.
                    for piece in reversed(range(len(self._fragments(held, tile, part))))
                ]
                # Decoding may be issued before the first product.
                first = not self._packed
                interleaved_within(
                    products, works, IssueBudget(rates.budget), waits=waits, product_first=first
                )
                moved = held.after_next, ready
                held.floats, held.after_next = moved if self._ahead > 1 else (ready, {})
                self._pin(held, known if whole else {}, soon)
        # Sorted, as the loop carries them; reads may have another order.
        held.packed, held.slot = dict(sorted(coming.items())), after

    def _loads(self, stage: ir.Value, slot: ir.Value) -> list[Issue]:
        """Return the direct loads of a stage to a slot; past the end of K they give zeros."""
        first, end = stage * self._blocks, index(self._lhs.blocks)
        left = end - arith.minui(first, end)
        return [
            partial(side.load, at, stage, slot, left=left)
            for side in self._sides
            for at in range(side.layout.loads)
        ]

    def _further_work(
        self, held: FloatRegisters, stage: ir.Value, soon: int
    ) -> list[InterleavedWork]:
        """Return further work for the part before `soon` (the last one for 0), in a subclass."""
        return []

    def _portion(self, loads: Sequence[Issue], part: int) -> Sequence[Issue]:
        """Return the loads of a stage that a part issues; parts count from the barrier on."""
        pace, size = self._rates.pace * self._parts, len(loads)
        first, last = (min(size, round(size * (part + more) / pace)) for more in range(2))
        return loads[first:last]

    def _share(self, issues: Sequence[Issue], step: int) -> Sequence[Issue]:
        """Return the share that a step has of the work of a part."""
        size, steps = len(issues), len(self._steps)
        return issues[size * step // steps : size * (step + 1) // steps]

    def _multiply(
        self, held: FloatRegisters, tile: int, piece: int, column: int, part: int
    ) -> None:
        at = tile * len(self._columns) + column
        if at in self._tiles_to_flush:
            self._tiles_to_flush.remove(at)
            self._take_sums(held, at)
            held.totals[at] = zeros(held.totals[at].type)
        left = self._fragments(held, tile, part)[piece]
        (right,) = self._fragments(held, len(self._rows) + column, part)
        held.totals[at] = mfma(self._instruction.form.shape, right, left, held.totals[at])

    def _take_sums(self, held: FloatRegisters, at: int) -> None:
        """Use the sums of a tile of the result before they start again from zero, in a subclass."""

    def _fragments(self, held: FloatRegisters, key: int, part: int) -> list[ir.Value]:
        """Return the fragments of a tile in a part: one, or several bf16 ones that add up to it."""
        return [held.packed[key].known[part]] if key in held.packed else held.floats[key]

    def _pin(self, held: FloatRegisters, decoded: dict[int, DecodedTile], part: int) -> None:
        """Pin the computed fragments of a part, and at part 0 the blocks that are yet to decode."""
        tiles = list(decoded.values())
        # Floats that are multiplied as they were read may arrive in any order.
        computed = self._split or (isinstance(self._lhs, FloatBlocks) and self._lhs.rounded)
        floats = held.floats if computed else {}
        fragments = [each for own in floats.values() for each in own]
        fragments += [each.known[part] for each in tiles]
        waiting = [] if part else [each for each in tiles if each.block is not None]
        values = [*fragments, *(each.block for each in waiting)]
        if not values:
            return
        pins = pinned([bitcast(each, i32(), _bytes(each) // 4) for each in values])
        found = iter(bitcast_like(pin, each) for pin, each in zip(pins, values, strict=True))
        for tile, own in floats.items():
            held.floats[tile] = [next(found) for _ in own]
        for each in tiles:
            each.known[part] = next(found)
        for each in waiting:
            each.block = next(found)

    def _float_reads(
        self, tiles: Sequence[int], part: int, slot: ir.Value, into: dict[int, list[ir.Value]]
    ) -> list[Issue]:
        """Return the reads of a part's floats from LDS: `tiles` of lhs, and all tiles of rhs."""

        def read(key: int, side: StagedSide, tile: int) -> None:
            into[key] = self._read(side, tile, part, slot)

        wanted = self._floats.items()
        return [
            partial(read, key, *each)
            for key, each in wanted
            if key in tiles or key not in self._rows
        ]

    def _read(self, side: StagedSide, tile: int, part: int, slot: ir.Value) -> list[ir.Value]:
        """Read a lane's floats of a part: one vector, or one per piece if they are yet to split."""
        kind, run = side.layout.kind, side.layout.runs[part]
        assert isinstance(kind, FloatBlocks)
        pieces = [side.read(tile, each.piece, long(slot)) for each in run]
        found = [bitcast(each, kind.element, FRAGMENT // len(run)) for each in pieces]
        if self._split:
            return found
        whole = concat(found)
        return [arith.truncf(of(ir.BF16Type.get(), FRAGMENT), whole) if kind.rounded else whole]

    def _splits(
        self, held: FloatRegisters, tile: int, into: dict[int, list[ir.Value]]
    ) -> list[InterleavedWork]:
        """Return the work that splits a tile of lhs, which is multiplied next, into bf16."""
        begun: list[tuple[Iterator[None], list[ir.Value]]] = []
        kind = self._lhs
        assert isinstance(kind, FloatBlocks)

        def split(at: int) -> None:
            if at == 0:
                parts: list[ir.Value] = []
                raw = pair_of(held.raw[tile], len(begun))
                begun.append((splitting(kind, raw, parts), parts))
            next(begun[-1][0], None)

        steps = [(partial(split, at), count) for at, count in enumerate(self._split)] * PAIRS

        def join() -> None:
            del held.raw[tile]
            into[tile] = [
                concat(pairs) for pairs in zip(*(parts for _, parts in begun), strict=True)
            ]

        first = _THERE if len(self._steps) == 1 else 0.0
        works = [
            InterleavedWork(first + (1 - first) * at / len(steps), "valu", issue, count)
            for at, (issue, count) in enumerate(steps)
        ]
        return [*works, InterleavedWork(1.0, "valu", join, 0)]

    def _scale_loads(self, four: ir.Value) -> list[Issue]:
        """Return loads of the scales of four stages, after `four` such groups, tile by tile."""
        self._coming: dict[int, list[ir.Value]] = {}

        def ask(pack: PackedSide, tile: int, key: int) -> None:
            self._coming[key] = pack.scales.load(tile, four)

        return [
            partial(ask, pack, tile, key)
            for pack, keys in self._packed
            for tile, key in enumerate(keys)
        ]

    def _packed_reads(
        self, held: FloatRegisters, coming: dict[int, DecodedTile], slot: ir.Value, k_step: int
    ) -> list[InterleavedWork]:
        """Return LDS reads of the packed blocks of the next stage, number `k_step` of its four."""

        def read(pack: PackedSide, key: int, tile: int) -> None:
            if k_step == 0:
                held.words[key] = pack.scales.words(self._coming[key], self._before + 1)
            coming[key] = pack.read(tile, slot, held.words[key], k_step)

        works = []
        for pack, keys in self._packed:
            issues = [partial(read, pack, key, tile) for tile, key in enumerate(keys)]
            works += evenly("ds_read", issues, 0.0, self._rates.read, pack.reads)
        return works


def _adjacent_slot(slot: ir.Value, where: int, there: int, by: int) -> ir.Value:
    """Return a slot's offset moved `by` bytes; at `where`, an end of the ring, return `there`."""
    same = equal(slot, where)
    return arith.select(same, number(there), slot + by)


def _bytes(value: ir.Value) -> int:
    kind = ir.VectorType(value.type)
    (size,) = kind.shape
    return int(size * kind.element_type.width // 8)
