"""The loop along K of a ring whose sides are decoded once for a workgroup.

A stage is one block along K. LDS has slots for two stages. While a stage is multiplied, lanes
decode rhs of the next stage and lhs of the stage after it, into the slots that have been read:

    for each stage s:
      multiply its first half; meanwhile      # interleave.py
        read the second half from LDS
        decode rhs of stage s + 1 to the other slot
      wait for these reads and writes, and for all waves
      multiply its second half; meanwhile
        read the first half of stage s + 1
        decode lhs of stage s + 2 to this slot

If lhs is floats that are stored to LDS as they are, the second half has time to decode a part of
rhs of stage s + 2 as well.

Blocks are loaded to registers four stages before they are decoded. Loads past the end of K give
zeros, and move no bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

from iree.compiler import ir

from mxc.dialects.amdgpu import mfma, pinned, wait_for_waves, zeros
from mxc.passes.kernels.carried import in_groups
from mxc.passes.kernels.gpu.fragments import FRAGMENT, K_STEPS
from mxc.passes.kernels.gpu.ring.decoded_side import BLOCK_BYTES, PIECES, DecodedSide
from mxc.passes.kernels.gpu.ring.divided import divided
from mxc.passes.kernels.gpu.ring.interleave import (
    InterleavedWork,
    Issue,
    IssueBudget,
    evenly,
    interleaved_within,
)
from mxc.passes.kernels.gpu.schedule import GpuSchedule
from mxc.passes.kernels.vectors import bitcast, f32, i32, index, of, parts_of
from mxc.targets.amd.cdna import CDNA

#: Slots of LDS: the stages of the ring.
SLOTS = 2
#: Share of half a stage in which LDS reads are issued.
_READS = 0.5
#: Shares of the first and of the second half by which all is decoded. Behind the first half waves
#: wait for each other: LDS has time before to take what was written.
_DECODED = (0.75, 0.95)

#: Stage of four in whose second half words are made of the scales of the next four stages, which
#: stage 0 loads. The stage after it is the first to use them.
_SCALES_READY = 1

#: A side (0: lhs, 1: rhs), a tile of it, and a part: floats that are split have several.
Key = tuple[int, int, int]


@dataclass
class DecodedRegisters:
    """What a lane holds between stages.

    `totals`: sums of the tiles of the result, row by row; `fragments`: those of the half stage that
    is multiplied next; `loaded`: by side and number of the block in a group of four, the lane's
    part of the block as it was loaded, vectors of i32; `words`: by side, the scales of four blocks.
    """

    totals: list[ir.Value]
    fragments: dict[Key, ir.Value]
    loaded: list[list[list[ir.Value]]]
    words: list[list[ir.Value]]


class DecodedMainloop:
    """The loop of a wave along K. `sides`: lhs and rhs; `blocks`: of a row of either; `kept`: i32
    that are needed after the loop."""

    def __init__(
        self,
        schedule: GpuSchedule,
        sides: tuple[DecodedSide, DecodedSide],
        blocks: int,
        kept: Sequence[ir.Value],
    ) -> None:
        """Keep what the loop needs. No operation is built."""
        self._sides, self._blocks, self._kept = sides, blocks, kept
        self._instruction, self._tiles = schedule.instruction, schedule.tiles
        self._halves = PIECES // self._instruction.groups
        #: Pieces of a block of rhs that are decoded half a stage before the others.
        self._early = range(sides[1].pieces // 2 if sides[0].is_stored_as_it_is else 0)
        rows = schedule.rows * sides[0].parts + schedule.columns
        self._slot_bytes = rows * BLOCK_BYTES
        self._keys: list[Key] = [
            (number, tile, part)
            for number, side in enumerate(sides)
            for tile in range(self._tiles[number])
            for part in range(side.parts)
        ]

    def sums(self) -> list[ir.Value]:
        """Build all stages; return the sums of the tiles, row by row."""
        return in_groups(self._begin(), self._blocks, K_STEPS, self._four).totals

    def _begin(self) -> DecodedRegisters:
        """Decode the first stage, and lhs and the early pieces of rhs of the second."""
        words = [side.scales(index(0)) for side in self._sides]
        loaded = [[side.load(index(x)) for x in range(K_STEPS)] for side in self._sides]
        kind = of(f32(), self._instruction.totals)
        held = DecodedRegisters([], {}, loaded, words)
        for number, block in ((0, 0), (1, 0), (0, 1)):
            own = loaded[number][block], words[number]
            self._store(number, *own, block, block, range(self._sides[number].pieces))
            loaded[number][block] = self._sides[number].load(index(K_STEPS + block))
        self._store(1, loaded[1][1], words[1], 1, 1, self._early)
        wait_for_waves()
        for key in self._keys:
            held.fragments[key] = self._read(key, 0, 0)
        held.totals = [zeros(kind)] * (self._tiles[0] * self._tiles[1])
        return held

    def _four(self, held: DecodedRegisters, four: ir.Value, count: int) -> DecodedRegisters:
        """Build `count` stages after `four` groups of four. Returns what is held after them."""
        self._next: list[list[ir.Value]] = []
        self._scale_work: list[tuple[Issue, int]] = []
        self._stages = count
        pinned(self._kept)
        for stage, half in product(range(count), range(self._halves)):
            self._half(held, four, stage, half)
        if count == K_STEPS:
            held.words = self._next
        return held

    def _half(self, held: DecodedRegisters, four: ir.Value, stage: int, half: int) -> None:
        """Multiply half a stage; read the next half, and decode blocks of later stages."""
        last = half + 1 == self._halves
        ready: dict[Key, ir.Value] = {}
        works: list[InterleavedWork] = []

        def read(key: Key) -> None:
            slot = (stage + last) % SLOTS * self._slot_bytes
            ready[key] = self._read(key, (half + 1) % self._halves, slot)

        reads = [partial(read, key) for key in self._keys]
        works += evenly("ds_read", reads, 0.0, _READS)
        products = [
            partial(self._multiply, held, tile, part, column, piece)
            for piece in range(FRAGMENT // self._instruction.fragment)
            for part in reversed(range(self._sides[0].parts))
            for tile, column in self._order()
        ]
        count = round(_DECODED[half] * len(products))
        if (stage, half) == (0, 0) and self._stages > _SCALES_READY + 1:
            works.append(self._scale_loads(four + 1, count))
        if (stage, half) == (_SCALES_READY, 1):
            works += self._spread(self._scale_work, _DECODED[half])
            self._scale_work = []
        works += self._more(held, four, stage, half)
        # First half: rhs of the next stage. Second half: lhs of the stage after that.
        if last:
            works += self._decodes(held, four, 0, stage + 2, count)
            works += self._decode_pieces(held, 1, stage + 2, count, self._early)
        else:
            works += self._decodes(held, four, 1, stage + 1, count)
        most = max((work.count for work in works), default=0)
        interleaved_within(
            products, works, IssueBudget(max(self._budget, most + 1)), waits=not last
        )
        if (stage, half) == (_SCALES_READY, 1) and any(self._next):
            # Unless pinned, LLVM takes bytes out of them where they are loaded, and waits there.
            pins = iter(pinned([word for words in self._next for word in words]))
            self._next = [[next(pins) for _ in words] for words in self._next]
        if not last:
            wait_for_waves()
        held.fragments = ready
        self._pin(held)

    def _order(self) -> Iterator[tuple[int, int]]:
        """Yield the tiles of lhs and of rhs of the products, in the order of multiplication."""
        rows, columns = map(range, self._tiles)
        return product(rows, columns)

    def _before_product(self, held: DecodedRegisters, at: int) -> None:
        """Prepare the sums of tile `at` of the result for their next product, in a subclass."""

    def _more(
        self, held: DecodedRegisters, four: ir.Value, stage: int, half: int
    ) -> list[InterleavedWork]:
        """Return further work for half a stage, number `stage` of its four, in a subclass."""
        return []

    @property
    def _budget(self) -> int:
        """Instructions that a wave can issue while a product is computed."""
        return self._instruction.form.clocks // CDNA.issue - 1

    def _decodes(
        self, held: DecodedRegisters, four: ir.Value, number: int, ahead: int, count: int
    ) -> list[InterleavedWork]:
        """Return the work that decodes what is left of a side's block of stage `ahead`, counted
        from the first of these four, then loads the block of the stage that comes four later.

        `number`: of the side; `count`: pieces that the work is divided into, about.
        """
        side, (more, block) = self._sides[number], divmod(ahead, K_STEPS)

        def load() -> None:
            held.loaded[number][block] = side.load((four + (1 + more)) * K_STEPS + block)

        pieces = range(len(self._early) * number, side.pieces)
        found = self._decode_pieces(held, number, ahead, count, pieces)
        return [*found, InterleavedWork(_DECODED[1 - number], "vmem_read", load, 4)]

    def _decode_pieces(
        self,
        held: DecodedRegisters,
        number: int,
        ahead: int,
        count: int,
        pieces: range,
    ) -> list[InterleavedWork]:
        """Return the work that decodes `pieces` of a block. Other arguments: as of `_decodes`."""
        if not pieces:
            return []
        more, block = divmod(ahead, K_STEPS)
        words = self._next[number] if more else held.words[number]

        def decode() -> list[ir.Value]:
            self._store(number, held.loaded[number][block], words, block, ahead, pieces)
            return []

        return self._spread(divided(decode, count), _DECODED[1 - number])

    def _scale_loads(self, four: ir.Value, count: int) -> InterleavedWork:
        """Return the loads of the scales of four stages, after `four` such groups. The arithmetic
        on them is left in `_scale_work`, for stage _SCALES_READY: they have arrived by then."""

        def ask() -> list[ir.Value]:
            self._next = [side.scales(four) for side in self._sides]
            return [word for words in self._next for word in words]

        (load, _), *self._scale_work = divided(ask, count)
        return InterleavedWork(0.0, "vmem_read", load, 2)

    @staticmethod
    def _spread(pieces: Sequence[tuple[Issue, int]], stop: float) -> list[InterleavedWork]:
        """Return pieces of work at equal distances, until the share `stop` of a half."""
        return [
            InterleavedWork(stop * at / len(pieces), "valu", issue, size)
            for at, (issue, size) in enumerate(pieces)
        ]

    def _store(
        self,
        number: int,
        loaded: Sequence[ir.Value],
        words: Sequence[ir.Value],
        block: int,
        stage: int,
        pieces: range,
    ) -> None:
        """Decode a side's block, number `block` of four, and write some of its pieces to the slot
        of a stage."""
        side, slot = self._sides[number], stage % SLOTS * self._slot_bytes
        for piece, parts in enumerate(side.decode(loaded, words, block)):
            for part, each in enumerate(parts):
                if piece in pieces:
                    side.write(piece, part, each, slot)

    def _multiply(
        self, held: DecodedRegisters, tile: int, part: int, column: int, piece: int
    ) -> None:
        size = self._instruction.fragment
        left, right = (
            list(parts_of(held.fragments[key], size))[piece]
            for key in ((0, tile, part), (1, column, 0))
        )
        at = tile * self._tiles[1] + column
        self._before_product(held, at)
        shape = self._instruction.form.shape
        held.totals[at] = mfma(shape, right, left, held.totals[at])

    def _pin(self, held: DecodedRegisters) -> None:
        """Pin the fragments that are multiplied next: their reads are waited for here."""
        kind = next(iter(held.fragments.values())).type
        count = kind.shape[0]
        pins = pinned([bitcast(each, i32(), count // 2) for each in held.fragments.values()])
        for key, each in zip(list(held.fragments), pins, strict=True):
            held.fragments[key] = bitcast(each, kind.element_type, count)

    def _read(self, key: Key, half: int, slot: int) -> ir.Value:
        number, tile, part = key
        return self._sides[number].read(tile, part, half, slot)
