"""Attention over pages: a wave goes over the keys that its rows see, all in its registers.

    result[t, v, g] = sum over j of p[j] values[j, v]
    p               = softmax over j of scale * queries[t, v, g] . keys[j, v]

A row is one query head of one token. A wave has one or two tiles of 16 rows of a run and of a
key/value head (wave.py). A block is 32 keys, a piece 256:

    for piece of keys:
      for block of the piece:
        scores[key, row]  = keys . queries                 # matrix instructions of bf16
        maximum, total    = of what came before in the piece, and of the scores
        weights[key, row] = 2 ** (scores - maximum)
        values[d, row]    = values * 2 ** (old maximum - maximum) + values of the keys . weights
      sums = sums and the piece                            # sums.py
    result = values / total

Products are those of f32: queries and weights are the sums of three bf16 (floats.py), each of which
meets the keys and values. Where 16 significant bits are enough, they are sums of two, the second
rounded. Nothing goes through shared memory. A block of which a row sees nothing leaves its numbers
as they are.

What a row does not see has weight zero, and may be infinite or NaN: zero times it is NaN in a
matrix instruction. So where a result is not finite at the end, the wave begins again with care
(careful.py).

Values of long keys are shared out in slices: each wave computes all scores, and sums one slice.

Where a token is decoded each piece may have a wave of its own; merge.py adds them up: a kernel, or
the wave that is done last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, scf

from mxc.dialects.amdgpu import bounded, no_reordering, pinned
from mxc.dialects.generic import constant
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.attention.careful import (
    finite_only,
    scores_of_any,
    with_the_others,
)
from mxc.passes.kernels.gpu.attention.kept import Kept
from mxc.passes.kernels.gpu.attention.masks import Masks
from mxc.passes.kernels.gpu.attention.merge import merge_when_last
from mxc.passes.kernels.gpu.attention.operands import (
    PageReader,
    Parts,
    WaveOperands,
    part,
)
from mxc.passes.kernels.gpu.attention.queries import Query, QueryParts, StagedQueries
from mxc.passes.kernels.gpu.attention.result import AttentionResult
from mxc.passes.kernels.gpu.attention.shape import (
    BLOCK_KEYS,
    PIECE_KEYS,
    TILE,
    GpuAttention,
    piece_of,
)
from mxc.passes.kernels.gpu.attention.softmax import (
    Combine,
    capped,
    in_all,
    number,
    online_softmax,
    over_row,
    zero,
)
from mxc.passes.kernels.gpu.attention.sums import Sums, scaled
from mxc.passes.kernels.gpu.attention.wave import LaneRow, Wave, votes, wave
from mxc.passes.kernels.gpu.lanes import Lane, lane_of, long, short, unknown_zero
from mxc.passes.kernels.gpu.products import multiply_floats
from mxc.passes.kernels.page_bytes import bytes_of_entries
from mxc.passes.kernels.vectors import (
    below,
    bitcast,
    choose,
    elements,
    i32,
    index,
    loop,
    parts_of,
    unequal,
    when,
)


def attention(shape: GpuAttention, buffers: Sequence[ir.Value], *, tiles: int) -> None:
    """Build the body at the insertion point, for waves of so many tiles of rows."""
    lane = lane_of(shape.instruction)
    own = wave(shape, buffers[3], tiles, lane.lane)
    with when(own.some):
        _Body(shape, buffers, own, tiles, lane).build()
        if shape.counts and tiles == 1:
            merge_when_last(shape, buffers, own, lane.lane)


class _Body:
    def __init__(
        self,
        shape: GpuAttention,
        buffers: Sequence[ir.Value],
        own: Wave,
        tiles: int,
        lane: Lane,
    ) -> None:
        queries, pool, sinks, _, lists, *others, parts, result = buffers
        pools = (pool, others[0] if shape.dense else pool)
        self.shape, self.wave = shape, own
        slices = shape.slices
        head = workgroup(0) // slices
        self.tiles = tiles
        count = (tiles * TILE + shape.group - 2) // shape.group + 1
        tokens = part(
            queries,
            [long(own.token), head, index(0), index(0)],
            [count, 1, shape.group, shape.depth],
            kept=(0, 2, 3),
        )
        entries = [value_of(each) for each in (shape.keys, shape.values)]
        packed = bytes_of_entries(pool) if shape.scaled else None
        keys, values = (
            PageReader(shape, each, lists, long(own.run), entry, head, packed)
            for each, entry in zip(pools, entries, strict=True)
        )
        self.kept = Kept.of(tiles * shape.slots, shape.sums, shape.lanes, lane.lane)
        self.staged = StagedQueries.of(shape, lane, tiles) if shape.staged else None
        self.operands = WaveOperands(
            shape=shape,
            queries=tokens,
            bounded_queries=bounded(tokens),
            keys=keys,
            values=values,
            first=workgroup(0) % slices * (shape.mixed // slices),
            lane=lane,
        )
        self.masks = Masks(shape, others[1] if shape.mask else None, own, head, lane)
        self.result = AttentionResult(own, self.operands, head, count, sinks, parts, result)

    def _rows(self, tiles: Sequence[int]) -> list[LaneRow]:
        """The lane's row of each of these tiles.

        Computed anew wherever they are needed: there are no registers to carry them, nor what
        follows from them, such as the address of a query.
        """
        lane = short(self.operands.lane.row + unknown_zero())
        return [self.wave.row(lane, tile, self.shape.group) for tile in tiles]

    def build(self) -> None:
        """The whole body."""
        tiles = range(self.tiles)
        found = self._all_keys(tiles, careful=False)
        carried = [value for sums in found for value in sums.all]

        def again() -> list[ir.Value]:
            each = [self._all_keys([tile], careful=True)[0] for tile in tiles]
            return [value for sums in each for value in sums.all]

        carried = choose(self._any_not_finite(found), again, carried)
        rows = self._rows(tiles)
        for row, sums in zip(rows, Sums.each(carried, len(rows)), strict=True):
            with when(below(row.number, self.wave.rows)):
                self.result.write(row, sums)

    def _all_keys(self, tiles: Sequence[int], *, careful: bool) -> list[Sums]:
        """Sums of these tiles of rows after all keys; one tile if `careful`."""
        own, operands, count = self.wave, self.operands, len(tiles)
        queries = []
        if careful:
            # Nothing that follows from the lane waits in registers until then.
            operands = replace(operands, lane=lane_of(self.shape.instruction, unknown_zero()))
        else:
            queries = [self._query(tile, row) for tile, row in enumerate(self._rows(tiles))]
        # Keys of the next block are on their way while those of this one are used.
        ahead = self.shape.ahead and not careful
        last = (own.behind + -1) // BLOCK_KEYS * BLOCK_KEYS

        def page(key: ir.Value) -> ir.Value:
            return operands.keys.page(arith.minui(key, last))

        pages = [page(own.start), page(own.start + BLOCK_KEYS)]
        every = range(self.shape.chunks)
        loaded = operands.load_keys(pages[0], own.start, every) if ahead else []
        slots = self.shape.slots
        zeros = [zero(self.shape.sums)] * slots
        none = [value for _ in tiles for value in Sums.none(zeros).all]
        begun = [value for _ in tiles for value in Sums.none([]).all]
        size = len(begun)
        pieces = piece_of(own.start), piece_of(own.behind + (PIECE_KEYS - 1))
        for tile in range(count):
            self.kept.write(zeros, tile * slots)
        with loop(*pieces, constant(1, i32()), [*begun, *pages, *loaded]) as (piece, before, whole):
            first = piece * PIECE_KEYS
            start = arith.maxui(first, own.start)
            behind = arith.minui(first + PIECE_KEYS, own.behind)
            given = [*none, *before[size:]]
            with loop(start, behind, constant(BLOCK_KEYS, i32()), given) as (at, carried, op):
                current, following, *keys = carried[len(none) :]
                values = []
                for step in range(self.shape.steps if ahead else 0):
                    values += operands.load_values(current, at, step)
                after = page(at + 2 * BLOCK_KEYS)
                if ahead:
                    coming = arith.minui(at + BLOCK_KEYS, last)
                    loaded = operands.load_keys(following, coming, every)
                block = _Block(at, current, keys, values)
                sums = Sums.each(carried[: len(none)], count)
                if careful:
                    memory = operands.keys.block(block.page, block.start)
                    (row,) = self._rows(tiles)
                    scores = scores_of_any(operands, row, memory, self._product)
                else:
                    scores = self._scores(block, queries)
                sums = self._block(block, tiles, scores, sums, operands, careful)
                scf.YieldOp([*(v for each in sums for v in each.all), following, after, *loaded])
            news = Sums.each(list(op.results)[: len(none)], count)
            carried = []
            olds = Sums.each(before[:size], count)
            for tile, (old, new) in enumerate(zip(olds, news, strict=True)):
                old = replace(old, values=self.kept.read(tile * slots, slots))
                new = replace(new, total=self._over_row(new.total, arith.addf))
                added = old.plus(new, careful=careful)
                self.kept.write(added.values, tile * slots)
                carried += [added.maximum, added.total]
            scf.YieldOp([*carried, *list(op.results)[len(none) :]])
        found = Sums.each(list(whole.results)[:size], count)
        return [
            replace(sums, values=self.kept.read(tile * slots, slots))
            for tile, sums in enumerate(found)
        ]

    def _block(
        self,
        block: _Block,
        tiles: Sequence[int],
        scores: list[ir.Value],
        before: Sequence[Sums],
        operands: WaveOperands,
        careful: bool,
    ) -> list[Sums]:
        """Sums of a piece after one more block; totals are those of each lane."""
        if self.shape.cap is not None:
            scores = capped(scores, self.shape.scale, self.shape.cap)
        scores = self.masks.applied(lambda: self._rows(tiles), scores, block.start)
        found = []
        for tile, sums in enumerate(before):
            own, unit = scores[2 * tile : 2 * tile + 2], self.shape.unit
            found.append(online_softmax(own, sums.maximum, sums.total, unit, self._over_row))
        mixed = [
            [scaled(old, after.factor, careful=careful) for old in sums.values]
            for sums, after in zip(before, found, strict=True)
        ]
        weights = []
        for after in found:
            parts = operands.weights(operands.bf16_of(after.weights, finite=True))
            weights.append(list(zip(*(self._cut(each) for each in parts), strict=True)))
        for step in range(self.shape.steps):
            size = len(block.values) // self.shape.steps
            values = list(block.values[step * size : (step + 1) * size])
            if not values:
                # No registers for what comes later.
                no_reordering()
                values = operands.load_values(block.page, block.start, step)
            rows = operands.values_of(values)
            values = [finite_only(row) if careful else row for row in rows]
            slots = [operands.parts(slot) for slot in operands.transposed(values)]
            for own, totals in zip(weights, mixed, strict=True):
                for at, slot in enumerate(slots):
                    totals[at] = self._summed(slot, own[step], totals[at])
        if careful:
            memory = operands.values.block(block.page, block.start)
            mixed = [
                with_the_others(operands, memory, after.weights, totals)
                for after, totals in zip(found, mixed, strict=True)
            ]
        return [
            Sums(after.maximum, after.total, totals)
            for after, totals in zip(found, mixed, strict=True)
        ]

    def _scores(self, block: _Block, queries: Sequence[Query]) -> list[ir.Value]:
        """Scores of the rows of each query, a vector of each tile of keys."""
        operands, shape, tiles = self.operands, self.shape, BLOCK_KEYS // TILE
        found = [zero(shape.sums)] * (tiles * len(queries))
        read = [query.reader() for query in queries]
        groups = [
            range(first, min(first + shape.at_once, shape.chunks))
            for first in range(0, shape.chunks, shape.at_once)
        ]
        keys = block.keys or operands.load_keys(block.page, block.start, groups[0])
        for group, following in zip(groups, [*groups[1:], None], strict=True):
            coming = []
            if following is not None:
                coming = operands.load_keys(block.page, block.start, following)
                no_reordering()
            own = [operands.parts(key) for key in operands.keys_of(keys)]
            for place, chunk in enumerate(group):
                for first, query in zip(range(0, len(found), tiles), read, strict=True):
                    columns = query(chunk)
                    for at in range(tiles):
                        key = own[place * tiles + at]
                        found[first + at] = self._summed(key, columns, found[first + at])
            keys = coming
        return found

    def _product(self, key: ir.Value, query: ir.Value, total: ir.Value) -> ir.Value:
        """One step of `_scores`."""
        return self._summed(self.operands.parts(key), self.operands.bf16_of(query), total)

    def _summed(self, a: Parts, b: Parts, total: ir.Value) -> ir.Value:
        """`total` and all products of the parts of two vectors along K, the least first."""
        instruction = self.shape.instruction
        rows, columns = ([self._cut(each) for each in side] for side in (a, b))
        for at in range(len(rows[0])):
            for one in reversed(rows):
                for other in reversed(columns):
                    total = multiply_floats(instruction, one[at], other[at], total)
        return total

    def _cut(self, values: ir.Value) -> list[ir.Value]:
        """A vector along K as what a lane gives to each of some instructions."""
        return list(parts_of(values, self.shape.instruction.fragment))

    def _over_row(self, value: ir.Value, combine: Combine) -> ir.Value:
        return over_row(value, combine, self.shape.instruction.unit)

    def _any_not_finite(self, tiles: Sequence[Sums]) -> ir.Value:
        """Whether a sum of the wave is infinite or NaN: x - x is zero of all others."""
        added = None
        for sums in tiles:
            for value in (in_all(sums.total, sums.values[0]), *sums.values):
                own = value - value
                added = own if added is None else added + own
        assert added is not None
        whole, *others = elements(added)
        for lane in others:
            whole = whole + lane
        spoiled = arith.cmpf(arith.CmpFPredicate.UNE, whole, number(0.0))
        none = constant(0, i32())
        return unequal(votes(spoiled, self.shape.lanes), none)

    def _query(self, tile: int, row: LaneRow) -> Query:
        parts = self._query_parts(row)
        return QueryParts(list(parts)) if self.staged is None else self.staged.write(tile, parts)

    def _query_parts(self, row: LaneRow) -> Iterator[Parts]:
        """The bf16 of each chunk of a row, one after the other: whether an element is finite takes
        two scalar registers."""
        for each in self.operands.query(row):
            parts = self.operands.bf16_of(pinned([each])[0])
            kind, words = parts[0].type, self.shape.run // 2
            made = pinned([bitcast(part, i32(), words) for part in parts])
            yield [bitcast(part, kind.element_type, 2 * words) for part in made]


@dataclass(frozen=True)
class _Block:
    """The block from key `start` on, in `page`: its keys and values, if they are loaded."""

    start: ir.Value
    page: ir.Value
    keys: Sequence[ir.Value]
    values: Sequence[ir.Value]
