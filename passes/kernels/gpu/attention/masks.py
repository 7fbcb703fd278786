"""Mask scores: by the positions of keys, and by the mask of dense attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from iree.compiler import ir
from iree.compiler.dialects import arith, memref, vector

from mxc.dialects.dense_attention import LOWEST, with_mask
from mxc.passes.kernels.exponential import LOG2_E
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, TILE, GpuAttention
from mxc.passes.kernels.gpu.attention.softmax import MASKED, in_all, masked, number
from mxc.passes.kernels.gpu.attention.wave import LaneRow, Wave
from mxc.passes.kernels.gpu.lanes import Lane, at_most, long, short
from mxc.passes.kernels.runs import first_seen
from mxc.passes.kernels.vectors import below, choose, either, f32, index, of, signed_below

#: Tiles of keys of a block.
_TILES = BLOCK_KEYS // TILE


@dataclass(frozen=True)
class Masks:
    """Masks the scores of the rows of a wave.

    `buffer`: the mask of dense attention, if it has one: a memref f32 [masks, heads, tokens, keys],
    in which a size is 1 if the mask is the same along it. `head`: the key/value head of the wave.
    """

    shape: GpuAttention
    buffer: ir.Value | None
    wave: Wave
    head: ir.Value
    lane: Lane

    def applied(
        self, rows: Callable[[], Sequence[LaneRow]], scores: Sequence[ir.Value], start: ir.Value
    ) -> list[ir.Value]:
        """Return the scores of the block from key `start` on, masked.

        `scores`: for each of `rows`, a vector per tile of keys. The mask of dense attention is
        added. Keys that a row does not attend to get MASKED; most blocks have none, and skip this.
        """
        own = self.wave
        if self.buffer is not None:
            scores = self._of_rows(rows, scores, lambda row, each: self._added(row, each, start))
        late = below(own.position, start + (BLOCK_KEYS - 1))
        early = below(start, first_seen(self.shape.reach, own.last))
        some = late if self.shape.reach is None else late | early
        return choose(
            some,
            lambda: self._of_rows(rows, scores, lambda row, each: self._masked(row, each, start)),
            scores,
        )

    @staticmethod
    def _of_rows(
        rows: Callable[[], Sequence[LaneRow]],
        scores: Sequence[ir.Value],
        of: Callable[[LaneRow, Sequence[ir.Value]], list[ir.Value]],
    ) -> list[ir.Value]:
        """Apply `of` to each row and its scores, and join the results."""
        own = enumerate(rows())
        return [score for n, row in own for score in of(row, scores[_TILES * n : _TILES * (n + 1)])]

    def _masked(self, row: LaneRow, scores: Sequence[ir.Value], start: ir.Value) -> list[ir.Value]:
        """Return the scores of a row, MASKED for keys at positions that it does not attend to."""
        position = self.wave.position
        if self.shape.causal:
            position = self.wave.seen(position + row.token)
        seen = first_seen(self.shape.reach, position), position + 1
        first = short(self.lane.group * self.shape.sums)
        return masked(scores, first, *(bound - start for bound in seen))

    def _added(self, row: LaneRow, scores: Sequence[ir.Value], start: ir.Value) -> list[ir.Value]:
        """Return the scores of a row as exponents of two, with the mask added. The scores of keys
        past the last one are arbitrary."""
        shape, buffer = self.shape, self.buffer
        assert buffer is not None
        at, first = self._row(row), long(start) + self.lane.group * shape.sums
        kind, tiles = of(f32(), shape.sums), range(0, BLOCK_KEYS, TILE)
        last = value_of(shape.positions) + -1

        def whole() -> list[ir.Value]:
            return [vector.load(kind, buffer, [*at, first + tile]) for tile in tiles]

        def end() -> list[ir.Value]:
            found = []
            for tile in tiles:
                keys = [at_most(first + (tile + place), last) for place in range(shape.sums)]
                own = [memref.LoadOp(buffer, [*at, key]).result for key in keys]
                found.append(vector.from_elements(kind, own))
            return found

        inside = signed_below(long(start) + (BLOCK_KEYS - 1), value_of(shape.positions))
        masks = either(inside, [kind] * len(tiles), whole, end) if shape.ragged else whole()
        scale = in_all(number(shape.scale * LOG2_E), scores[0])
        return [self._with(score * scale, mask) for score, mask in zip(scores, masks, strict=True)]

    def _with(self, score: ir.Value, mask: ir.Value) -> ir.Value:
        """Add the mask to a score, both as exponents of two. `mask`: as in memory.

        Finite masks that are below LOWEST when they are multiplied by log2 e become LOWEST.
        """
        unit, lowest, nothing = (in_all(number(n), mask) for n in (LOG2_E, LOWEST, MASKED))
        power = mask * unit
        finite = arith.cmpf(arith.CmpFPredicate.OGT, mask, nothing)
        overflows = arith.cmpf(arith.CmpFPredicate.OLT, power, lowest) & finite
        replaces = self.shape.replaces
        if replaces is not None:
            replaces = max(float(np.float32(replaces) * np.float32(LOG2_E)), LOWEST)
        return with_mask(score, arith.select(overflows, lowest, power), replaces=replaces)

    def _row(self, row: LaneRow) -> list[ir.Value]:
        """The indices of a row in the mask."""
        assert self.shape.mask is not None
        shared, of_heads, of_tokens = self.shape.mask
        return [
            long(self.wave.run // shared) if shared else index(0),
            self.head * self.shape.group + row.member if of_heads else index(0),
            long(self.wave.place + row.token) if of_tokens else index(0),
        ]
