"""Body of the paged attention kernel: a wave goes over all keys that its rows attend to.

    result[t, v, g] = sum over j of p[j] values[j, v]
    p               = softmax over j of scale * queries[t, v, g] . keys[j, v]

A row is one query head of one token. A wave has one or two tiles of 16 rows, all of one run and one
key/value head (wave.py). A block has 32 keys, a piece 256:

    for piece of keys:
      for block of the piece:
        scores[key, row]  = keys . queries                 # bf16 matrix instructions
        maximum, total    = of the earlier blocks of the piece and of these scores
        weights[key, row] = 2 ** (scores - maximum)
        values[d, row]    = values * 2 ** (old maximum - maximum) + values of the keys . weights
      sums = sums + the piece                              # sums.py; in LDS: kept.py
    result = values of the sums / their total

Products are as precise as in f32: queries and weights are split into three bf16 parts (floats.py),
and each part is multiplied by the keys or values. Where 16 significant bits are enough, there are
two parts, the second of which is rounded. Apart from the sums, only queries may be in LDS
(queries.py). A block without a key that a row attends to leaves the sums of the row unchanged.

Keys that a row does not attend to have weight zero. Their values may be infinite or NaN, and zero
times such a value is NaN in a matrix instruction. So if a sum is not finite at the end, the wave
computes its rows again, by the slower way of careful.py.

Long values are split into slices: each wave computes all scores, and sums one slice of the values.

For a decoded token, each piece may have its own wave. merge.py then adds the pieces up, in the wave
that finishes last or in a second kernel.
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
    add_nonfinite_values,
    finite_only,
    scores_of_any,
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
    """Build the body at the insertion point. `tiles`: tiles of rows of a wave, 1 or 2."""
    lane = lane_of(shape.instruction)
    own = wave(shape, buffers[3], tiles, lane.lane)
    with when(own.some):
        _Body(shape, buffers, own, tiles, lane).build()
        if shape.counts and tiles == 1:
            merge_when_last(shape, buffers, own, lane.lane)


class _Body:
    """Builds the body of a wave that has rows."""

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
        """Return the row that this lane has in each of `tiles`.

        Rows are computed again at each use, which `unknown_zero` ensures: there are no registers to
        keep them, or values that depend on them such as the address of a query.
        """
        lane = short(self.operands.lane.row + unknown_zero())
        return [self.wave.row(lane, tile, self.shape.group) for tile in tiles]

    def build(self) -> None:
        """Go over all keys, a second time if a sum is not finite, and store the rows."""
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
        """Build the loops over pieces and blocks. Returns the sums of `tiles` over all keys.

        `careful`: keys and values may be infinite or NaN. Then `tiles` has a single tile.
        """
        own, operands, count = self.wave, self.operands, len(tiles)
        queries = []
        if careful:
            # A lane number that is computed again: values that depend on it do not stay in
            # registers from the first pass to this one.
            operands = replace(operands, lane=lane_of(self.shape.instruction, unknown_zero()))
        else:
            queries = [self._query(tile, row) for tile, row in enumerate(self._rows(tiles))]
        # Whether keys of the next block are loaded while those of this one are used.
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
        """Return the sums `before` of a piece, one for each of `tiles`, with one more block added.

        `scores`: those of the block, for each tile of rows a vector per tile of keys. Totals are of
        the lane's own keys alone.
        """
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
                # There are no registers to load the values earlier.
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
                add_nonfinite_values(operands, memory, after.weights, totals)
                for after, totals in zip(found, mixed, strict=True)
            ]
        return [
            Sums(after.maximum, after.total, totals)
            for after, totals in zip(found, mixed, strict=True)
        ]

    def _scores(self, block: _Block, queries: Sequence[Query]) -> list[ir.Value]:
        """Return the scores of a block: for each of `queries`, a vector per tile of keys.

        While `at_once` chunks along D are multiplied, the next ones are loaded.
        """
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
        """Return the scores `total` plus the products of a chunk along D of keys and queries.

        `key`: elements of the pool [run]. `query`: f32 [run].
        """
        return self._summed(self.operands.parts(key), self.operands.bf16_of(query), total)

    def _summed(self, a: Parts, b: Parts, total: ir.Value) -> ir.Value:
        """Return `total` plus the products of all parts of `a` with all parts of `b`, along K.

        Products of the least significant parts are added first.
        """
        instruction = self.shape.instruction
        rows, columns = ([self._cut(each) for each in side] for side in (a, b))
        for at in range(len(rows[0])):
            for one in reversed(rows):
                for other in reversed(columns):
                    total = multiply_floats(instruction, one[at], other[at], total)
        return total

    def _cut(self, values: ir.Value) -> list[ir.Value]:
        """Split a vector along K into the operands of consecutive matrix instructions."""
        return list(parts_of(values, self.shape.instruction.fragment))

    def _over_row(self, value: ir.Value, combine: Combine) -> ir.Value:
        return over_row(value, combine, self.shape.instruction.unit)

    def _any_not_finite(self, tiles: Sequence[Sums]) -> ir.Value:
        """Whether a sum of any lane of the wave is infinite or NaN: x - x is zero for others."""
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
        """Yield the bf16 parts of each chunk of a row along D.

        Chunks are split one after the other: the test whether an element is finite takes two scalar
        registers per element.
        """
        for each in self.operands.query(row):
            parts = self.operands.bf16_of(pinned([each])[0])
            kind, words = parts[0].type, self.shape.run // 2
            made = pinned([bitcast(part, i32(), words) for part in parts])
            yield [bitcast(part, kind.element_type, 2 * words) for part in made]


@dataclass(frozen=True)
class _Block:
    """A block of keys from position `start` on, in page number `page`.

    `keys` and `values`: what has been loaded of it (`load_keys`, `load_values`); else empty.
    """

    start: ir.Value
    page: ir.Value
    keys: Sequence[ir.Value]
    values: Sequence[ir.Value]
