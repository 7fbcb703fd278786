"""Attention over pages: a wave goes over the keys that its rows see, all in its registers.

    result[t, v, g] = sum over j of p[j] values[j, v]
    p               = softmax over j of scale * queries[t, v, g] . keys[j, v]

A row is one query head of one token. A wave has one or two tiles of 16 rows of a run and of a
key/value head (wave.py). A block is 32 keys, a piece 256:

    for piece of keys:
      for block of the piece:
        scores[key, row]  = keys . queries                 # v_mfma_f32_16x16x32_bf16
        maximum, total    = of what came before in the piece, and of the scores
        weights[key, row] = 2 ** (scores - maximum)
        values[d, row]    = values * 2 ** (old maximum - maximum) + values of the keys . weights
      sums = sums and the piece                            # sums.py
    result = values / total

Products are those of f32: queries and weights are the sums of three bf16 (floats.py), each of which
meets the keys and values. Nothing goes through shared memory. A block of which a row sees nothing
leaves its numbers as they are.

What a row does not see has weight zero, and may be infinite or NaN: zero times it is NaN in a
matrix instruction. So where a result is not finite at the end, the wave begins again with care
(careful.py).

Values of long keys are shared out in slices: each wave computes all scores, and sums one slice.

Where a token is decoded each piece may have a wave of its own; join.py adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, rocdl, scf, vector

from mxc.dialects.amdgpu import bounded, mfma, thread
from mxc.dialects.generic import constant
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.extents import value_of
from mxc.passes.kernels.gpu.attention.careful import (
    finite_only,
    scores_of_any,
    with_the_others,
)
from mxc.passes.kernels.gpu.attention.kept import Kept, beside
from mxc.passes.kernels.gpu.attention.operands import (
    Operands,
    Pages,
    Parts,
    Row,
    extended,
    part,
)
from mxc.passes.kernels.gpu.attention.packed import bytes_of_entries
from mxc.passes.kernels.gpu.attention.shape import (
    BLOCK_KEYS,
    PIECE_KEYS,
    TAIL,
    TILE,
    Attention,
    piece_of,
)
from mxc.passes.kernels.gpu.attention.softmax import (
    capped,
    in_all,
    masked,
    number,
    online_softmax,
    over_row,
    rounded,
    zero,
)
from mxc.passes.kernels.gpu.attention.sums import Sums, scaled
from mxc.passes.kernels.gpu.attention.wave import Wave, wave
from mxc.passes.kernels.gpu.floats import bf16_parts
from mxc.passes.kernels.gpu.lanes import LANES, below, divided, long, plus, rest, short, times
from mxc.passes.kernels.paged_attention import Scalars
from mxc.passes.kernels.runs import first_seen
from mxc.passes.kernels.vectors import f32, i32, index, loop, of

_BF16 = (TILE, TILE, BLOCK_KEYS)
#: The bf16 that add up to an f32.
_F32_PARTS = 3


def attention(shape: Attention, buffers: Sequence[ir.Value], call: Scalars, *, tiles: int) -> None:
    """Build the body at the insertion point, over the memrefs of `buffers_of`, for waves of so many
    tiles of rows."""
    lane = rest(thread(), LANES)
    own = wave(shape, call, buffers[3], tiles, lane)
    branch = scf.IfOp(own.some)
    with ir.InsertionPoint(branch.then_block):
        _Body(shape, buffers, call, own, tiles, lane).build()
        scf.YieldOp([])


class _Body:
    def __init__(
        self,
        shape: Attention,
        buffers: Sequence[ir.Value],
        call: Scalars,
        own: Wave,
        tiles: int,
        lane: ir.Value,
    ) -> None:
        queries, pool, self.sinks, _, lists, self.parts, self.result = buffers
        self.shape, self.wave = shape, own
        slices = shape.slices
        self.head, self.slice = divided(workgroup(0), slices), rest(workgroup(0), slices)
        self.rows = [self._row(short(rest(lane, TILE)), tile) for tile in range(tiles)]
        self.tokens = (tiles * TILE + shape.group - 2) // shape.group + 1
        tokens = part(
            queries,
            [long(own.token), self.head, index(0), index(0)],
            [self.tokens, 1, shape.group, shape.depth],
            kept=(0, 2, 3),
        )
        entries = [value_of(each) for each in (call.keys, call.values)]
        packed = bytes_of_entries(pool) if shape.scaled else None
        keys, values = (
            Pages(pool, lists, long(own.run), each, self.head, shape.pool[1], packed)
            for each in entries
        )
        self.kept = Kept.of(tiles * shape.slots, lane)
        self.operands = Operands(
            shape=shape,
            queries=tokens,
            bounded_queries=bounded(tokens),
            keys=keys,
            values=values,
            first=times(self.slice, shape.mixed // slices),
            lane=lane,
        )

    def _row(self, lane: ir.Value, tile: int) -> Row:
        """The lane's row of a tile; past the last one, the last one."""
        own, group = self.wave, self.shape.group
        number = arith.addi(own.skipped, plus(lane, tile * TILE))
        inside = arith.minui(number, plus(own.rows, -1))
        return Row(number, divided(inside, group), long(rest(inside, group)))

    def build(self) -> None:
        """The whole body."""
        found = self._all_keys(self.rows, careful=False)
        carried = [value for sums in found for value in sums.all]
        branch = scf.IfOp(_any_not_finite(found), [v.type for v in carried], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            again = [self._all_keys([row], careful=True)[0] for row in self.rows]
            scf.YieldOp([value for sums in again for value in sums.all])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(carried)
        for row, sums in zip(
            self.rows, Sums.each(list(branch.results), len(self.rows)), strict=True
        ):
            inside = scf.IfOp(below(row.number, self.wave.rows))
            with ir.InsertionPoint(inside.then_block):
                self._write(row, sums)
                scf.YieldOp([])

    def _all_keys(self, rows: Sequence[Row], *, careful: bool) -> list[Sums]:
        """Sums of tiles of rows after all keys."""
        own, operands, tiles = self.wave, self.operands, len(rows)
        queries = [_Query(row, [] if careful else self._split_query(row)) for row in rows]
        # Keys of the next block are on their way while those of this one are used.
        ahead = not self.shape.long and not careful
        last = times(divided(plus(own.behind, -1), BLOCK_KEYS), BLOCK_KEYS)

        def page(key: ir.Value) -> ir.Value:
            return operands.keys.page(arith.minui(key, last))

        pages = [page(own.start), page(plus(own.start, BLOCK_KEYS))]
        loaded = operands.load_keys(pages[0], own.start) if ahead else []
        slots = self.shape.slots
        none = [value for _ in rows for value in Sums.none(slots).all]
        begun = [value for _ in rows for value in Sums.none(0).all]
        size = len(begun)
        pieces = piece_of(own.start), plus(piece_of(plus(own.behind, -1)), 1)
        for tile in range(tiles):
            self.kept.write([zero(4)] * slots, beside(pieces[0]), tile * slots)
        with loop(*pieces, constant(1, i32()), [*begun, *pages, *loaded]) as (piece, before, whole):
            first = times(piece, PIECE_KEYS)
            start = arith.maxui(first, own.start)
            behind = arith.minui(plus(first, PIECE_KEYS), own.behind)
            given = [*none, *before[size:]]
            with loop(start, behind, constant(BLOCK_KEYS, i32()), given) as (at, carried, op):
                current, following, *keys = carried[len(none) :]
                values = operands.load_values(current, at) if ahead else []
                after = page(plus(at, 2 * BLOCK_KEYS))
                if ahead:
                    loaded = operands.load_keys(following, arith.minui(plus(at, BLOCK_KEYS), last))
                block = _Block(at, current, keys, values)
                sums = Sums.each(carried[: len(none)], tiles)
                sums = self._block(block, queries, sums, careful)
                scf.YieldOp([*(v for each in sums for v in each.all), following, after, *loaded])
            news = Sums.each(list(op.results)[: len(none)], tiles)
            carried = []
            olds = Sums.each(before[:size], tiles)
            for tile, (old, new) in enumerate(zip(olds, news, strict=True)):
                old = replace(old, values=self.kept.read(beside(piece), tile * slots, slots))
                new = replace(new, total=over_row(new.total, arith.addf))
                added = old.plus(new, careful=careful)
                self.kept.write(added.values, piece, tile * slots)
                carried += [added.maximum, added.total]
            scf.YieldOp([*carried, *list(op.results)[len(none) :]])
        found = Sums.each(list(whole.results)[:size], tiles)
        final = plus(pieces[1], -1)
        return [
            replace(sums, values=self.kept.read(final, tile * slots, slots))
            for tile, sums in enumerate(found)
        ]

    def _block(
        self, block: _Block, queries: Sequence[_Query], before: Sequence[Sums], careful: bool
    ) -> list[Sums]:
        """Sums of a piece after one more block; totals are those of each lane."""
        operands = self.operands
        if careful:
            memory = operands.keys.block(block.page, block.start)
            scores = scores_of_any(operands, queries[0].row, memory, self._product)
        else:
            scores = self._scores(block, queries)
        if self.shape.cap is not None:
            scores = capped(scores, self.shape.scale, self.shape.cap)
        scores = self._masked(queries, scores, block.start)
        values = block.values or operands.load_values(block.page, block.start)
        values = operands.values_of(values)
        if careful:
            values = [finite_only(each) for each in values]
        slots = [operands.parts(slot) for slot in operands.transposed(values)]
        found = []
        for tile, sums in enumerate(before):
            after = online_softmax(
                scores[2 * tile : 2 * tile + 2], sums.maximum, sums.total, self.shape.unit
            )
            weights = bf16_parts(after.weights, _F32_PARTS, finite=True)
            mixed = []
            for slot, old in zip(slots, sums.values, strict=True):
                old = scaled(old, after.factor, careful=careful)
                mixed.append(_summed([slot], [weights], old))
            if careful:
                memory = operands.values.block(block.page, block.start)
                mixed = with_the_others(operands, memory, after.weights, mixed)
            found.append(Sums(after.maximum, after.total, mixed))
        return found

    def _scores(self, block: _Block, queries: Sequence[_Query]) -> list[ir.Value]:
        operands, chunks = self.operands, self.operands.chunks
        keys = block.keys or operands.load_keys(block.page, block.start)
        fragments = [operands.parts(key) for key in operands.keys_of(keys)]
        tiles = [fragments[n : n + chunks] for n in range(0, len(fragments), chunks)]
        return [_summed(tile, query.parts, zero(4)) for query in queries for tile in tiles]

    def _product(self, key: ir.Value, query: ir.Value, total: ir.Value) -> ir.Value:
        """One step of `_scores`."""
        return _summed([self.operands.parts(key)], [bf16_parts(query, _F32_PARTS)], total)

    def _split_query(self, row: Row) -> list[Parts]:
        return [bf16_parts(each, _F32_PARTS) for each in self.operands.query(row)]

    def _masked(
        self, queries: Sequence[_Query], scores: list[ir.Value], start: ir.Value
    ) -> list[ir.Value]:
        """Scores of keys that a row does not see are MASKED; most blocks have none of them."""
        own = self.wave
        late = below(own.position, plus(start, BLOCK_KEYS - 1))
        early = below(start, first_seen(self.shape.reach, own.last))
        some = late if self.shape.reach is None else arith.ori(late, early)
        branch = scf.IfOp(some, [score.type for score in scores], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            found = []
            for tile, query in enumerate(queries):
                found += self._mask(query.row, scores[2 * tile : 2 * tile + 2], start)
            scf.YieldOp(found)
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(scores)
        return list(branch.results)

    def _mask(self, row: Row, scores: list[ir.Value], start: ir.Value) -> list[ir.Value]:
        position = arith.addi(self.wave.position, row.token)
        seen = first_seen(self.shape.reach, position), plus(position, 1)
        first = short(times(self.operands.group, 4))
        return masked(scores, first, *(arith.subi(bound, start) for bound in seen))

    def _write(self, row: Row, sums: Sums) -> None:
        """The result of a row; where pieces are computed apart, what this one comes to."""
        shape, own, group = self.shape, self.wave, self.operands.group
        # The slots of a row of the product lie side by side.
        columns = [
            plus(self.operands.first, times(plus(times(group, 4), place), shape.slots))
            for place in range(4)
        ]

        def write(values: Sequence[ir.Value], into: ir.Value, at: list[ir.Value]) -> None:
            for place, column in enumerate(columns):
                lanes = [vector.extract(each, [], [place]) for each in values]
                whole = vector.from_elements(of(f32(), shape.slots), lanes)
                kind = str(ir.MemRefType(into.type).element_type)
                vector.store(rounded(whole, kind), into, [*at, column])

        branch = scf.IfOp(own.apart, has_else=True)
        with ir.InsertionPoint(branch.then_block):
            place = [own.part, self.head, index(0), index(0)]
            numbers = shape.mixed + TAIL
            left = bounded(part(self.parts, place, [1, 1, shape.group, numbers], kept=(2, 3)))
            # One lane of a row, of one of its waves.
            first = arith.cmpi(arith.CmpIPredicate.eq, arith.ori(self.slice, group), index(0))
            last = scf.IfOp(first)
            with ir.InsertionPoint(last.then_block):
                tail = [sums.maximum, sums.total, number(0.0), number(0.0)]
                both = vector.from_elements(of(f32(), TAIL), tail)
                vector.store(both, left, [row.member, index(shape.mixed)])
                scf.YieldOp([])
            write(sums.values, left, [row.member])
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            place = [long(own.token), self.head, index(0), index(0)]
            sizes = [self.tokens, 1, shape.group, shape.mixed]
            result = bounded(part(self.result, place, sizes, kept=(0, 2, 3)))
            sink = extended(memref.LoadOp(self.sinks, [self.head, row.member]).result)
            write(sums.finished(sink), result, [long(row.token), row.member])
            scf.YieldOp([])


@dataclass(frozen=True)
class _Query:
    """A tile of rows, and its bf16 along D; with care they are not held."""

    row: Row
    parts: Sequence[Parts]


@dataclass(frozen=True)
class _Block:
    """The block from key `start` on, in `page`: its keys and values, if they are loaded."""

    start: ir.Value
    page: ir.Value
    keys: Sequence[ir.Value]
    values: Sequence[ir.Value]


def _summed(a: Sequence[Parts], b: Sequence[Parts], total: ir.Value) -> ir.Value:
    """`total` and all products of the parts of fragments along K, the least first."""
    for left, right in zip(a, b, strict=True):
        for one in reversed(left):
            for other in reversed(right):
                total = mfma(_BF16, one, other, total)
    return total


def _any_not_finite(tiles: Sequence[Sums]) -> ir.Value:
    """Whether a sum of the wave is infinite or NaN: x - x is zero of all others."""
    added = None
    for sums in tiles:
        for value in (in_all(sums.total, 4), *sums.values):
            own = arith.subf(value, value)
            added = own if added is None else arith.addf(added, own)
    assert added is not None
    lanes = [vector.extract(added, [], [at]) for at in range(4)]
    whole = lanes[0]
    for lane in lanes[1:]:
        whole = arith.addf(whole, lane)
    spoiled = arith.cmpf(arith.CmpFPredicate.UNE, whole, number(0.0))
    wide = ir.IntegerType.get_signless(64)
    some = rocdl.ballot(wide, spoiled)
    none = arith.ConstantOp(wide, ir.IntegerAttr.get(wide, 0)).result
    return arith.cmpi(arith.CmpIPredicate.ne, some, none)
