"""Attention over a cache: a wave goes over the keys that its rows see, all in its registers.

    result[t, v, g] = sum over s of p[s] values[s, v]
    p               = softmax over s of scale * queries[t, v, g] . keys[s, v]

A row is one query head of one token: r = t * G + g. A wave has one or two tiles of 16 rows of a
key/value head. A block is 32 keys:

    for block of keys:
      scores[key, row]  = keys . queries                 # v_mfma_f32_16x16x32_bf16
      maximum, total    = of what came before and of the scores
      weights[key, row] = 2 ** (scores - maximum)
      result[d, row]    = result * 2 ** (old maximum - maximum) + values . weights
    result /= total

Products are those of f32: queries and weights are the sums of three bf16 (floats.py), each of which
meets the keys and values. Nothing goes through shared memory.

What a row does not see has weight zero, and may be infinite or NaN: zero times it is NaN in a
matrix instruction. So where a result is not finite at the end, the wave begins again with care:
scores by f32 matrix instructions, values by multiply-adds that leave out what has no weight.

Values of long keys are shared out in slices: each wave computes all scores, and sums one slice.

Where rows are few, keys are shared out in pieces (caches.py); join.py puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from iree.compiler import ir
from iree.compiler.dialects import arith, math, memref, rocdl, scf, vector

from mxc.dialects.amdgpu import bounded, mfma, thread
from mxc.passes.kernels.caches import Seen
from mxc.passes.kernels.executables import workgroup
from mxc.passes.kernels.gpu.attention.operands import (
    Operands,
    Parts,
    Row,
    entry,
    extended,
    row_of,
)
from mxc.passes.kernels.gpu.attention.shape import BLOCK_KEYS, FRAGMENT, TILE, Attention
from mxc.passes.kernels.gpu.attention.softmax import (
    FLOOR,
    LOG2_E,
    greatest,
    in_all,
    masked,
    number,
    online_softmax,
    over_row,
    power,
    rounded,
    zero,
)
from mxc.passes.kernels.gpu.floats import bf16_parts
from mxc.passes.kernels.gpu.lanes import LANES, below, divided, plus, rest, times
from mxc.passes.kernels.vectors import f32, i32, index, loop, of

_BF16 = (TILE, TILE, BLOCK_KEYS)
_F32 = (TILE, TILE, 4)
#: The bf16 that add up to an f32.
_F32_PARTS = 3


def attention(shape: Attention, buffers: Sequence[ir.Value], scalars: Sequence[ir.Value]) -> None:
    """Build the body at the insertion point, over the memrefs and scalars that `shape` names."""
    _Body(shape, buffers, scalars).build()


class _Body:
    def __init__(
        self, shape: Attention, buffers: Sequence[ir.Value], scalars: Sequence[ir.Value]
    ) -> None:
        self.shape = shape
        queries, keys, values, self.sinks, result = buffers
        self.result = bounded(result)
        position, begin, size, piece_keys, *places = scalars
        split = len(shape.keys) - 3
        slices = shape.slices
        self.head, self.slice = divided(workgroup(0), slices), rest(workgroup(0), slices)
        self.first = times(self.slice, shape.mixed // shape.slices)
        # The last rows see most keys: begun first, they do not make the others wait.
        block = arith.subi(index(shape.blocks - 1), workgroup(1))
        end = arith.addi(begin, size)
        self.piece = None
        if shape.pieces is not None:
            self.piece = workgroup(2)
            begin = arith.addi(begin, arith.muli(self.piece, piece_keys))
            end = arith.minsi(end, arith.addi(begin, piece_keys))
        self.seen = Seen(position, begin, end, shape.width)
        lane = rest(thread(), 64)
        first = times(block, shape.wave_rows)
        behind = arith.minui(plus(first, shape.wave_rows), index(shape.rows))
        self.first_token = arith.divui(first, index(shape.group))
        self.last_token = arith.divui(arith.subi(behind, index(1)), index(shape.group))
        self.rows = [row_of(shape, first, tile, lane) for tile in range(shape.tiles)]
        self.operands = Operands(
            shape,
            queries,
            bounded(queries),
            entry(keys, places[:split]),
            entry(values, places[split:]),
            self.head,
            self.first,
            lane,
        )

    def build(self) -> None:
        """The whole body."""
        found = self._all_keys()
        spoiled = self._any_not_finite(found)
        branch = scf.IfOp(spoiled, [value.type for value in found], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp([each for row in self.rows for each in self._all_keys_with_care(row)])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(found)
        each = self._each(list(branch.results))
        for row, (maximum, total, *sums) in zip(self.rows, each, strict=True):
            self._finish(row, maximum, over_row(total, arith.addf), sums)

    def _each(self, values: list[ir.Value]) -> list[list[ir.Value]]:
        """What is carried, tile by tile: maximum, total and the sums of each slot."""
        size = 2 + self.shape.slots
        return [values[at : at + size] for at in range(0, len(values), size)]

    def _start(self, row: Row) -> list[ir.Value]:
        """Before the first block: no values yet, and the sink, which has none."""
        maximum = number(FLOOR)
        if self.piece is None:
            maximum = greatest(maximum, self._sink(row))
        return [maximum, number(0.0), *[zero(4)] * self.shape.slots]

    def _sink(self, row: Row) -> ir.Value:
        """The logit of the sink, in powers of two."""
        sink = memref.LoadOp(self.sinks, [self.head, row.member]).result
        return arith.mulf(extended(sink), number(LOG2_E))

    def _all_keys(self) -> list[ir.Value]:
        """Maximum, total and sums of every tile after all keys."""
        operands = self.operands
        start = self.seen.first(self.first_token)
        behind = self.seen.behind(self.last_token)
        queries = [
            [bf16_parts(part, _F32_PARTS) for part in operands.query(row)] for row in self.rows
        ]
        carried = [value for row in self.rows for value in self._start(row)]
        ahead = [] if self.shape.long else operands.load_keys(start)
        with loop(start, behind, index(BLOCK_KEYS), [*carried, *ahead]) as (at, given, op):
            tiles, keys = self._each(given[: len(carried)]), given[len(carried) :]
            keys = keys or operands.load_keys(at)
            values = [] if self.shape.long else operands.load_values(at)
            ahead = [] if self.shape.long else operands.load_keys(plus(at, BLOCK_KEYS))
            scf.YieldOp([*self._block(keys, values, queries, tiles, at), *ahead])
        return list(op.results)[: len(carried)]

    def _all_keys_with_care(self, row: Row) -> list[ir.Value]:
        """The same of one tile."""
        query = self.operands.query(row, apart=True)
        behind = self.seen.behind(self.last_token)
        start = self.seen.first(self.first_token)
        with loop(start, behind, index(BLOCK_KEYS), self._start(row)) as (at, tile, op):
            scf.YieldOp(self._careful_block(row, query, tile, at))
        return list(op.results)

    def _block(
        self,
        keys: list[ir.Value],
        values: list[ir.Value],
        queries: list[list[Parts]],
        tiles: list[list[ir.Value]],
        start: ir.Value,
    ) -> list[ir.Value]:
        """A block of keys: what is carried after it."""
        operands, chunks = self.operands, self.operands.chunks
        fragments = [operands.parts(key) for key in keys]
        scores = []
        for query in queries:
            for tile in range(BLOCK_KEYS // TILE):
                own = fragments[tile * chunks : (tile + 1) * chunks]
                scores.append(_summed(own, query, zero(4)))
        scores = self._masked(scores, start)
        values = values or operands.load_values(start)
        slots = [operands.parts(slot) for slot in operands.transposed(values)]
        found = []
        for tile, (maximum, total, *sums) in enumerate(tiles):
            after = online_softmax(
                scores[2 * tile : 2 * tile + 2], maximum, total, self.shape.scale
            )
            weights = bf16_parts(after.weights, _F32_PARTS, finite=True)
            factor = in_all(after.factor, 4)
            found += [after.maximum, after.total]
            for slot, before in zip(slots, sums, strict=True):
                found.append(_summed([slot], [weights], arith.mulf(before, factor)))
        return found

    def _masked(self, scores: list[ir.Value], start: ir.Value) -> list[ir.Value]:
        """Scores of keys that a row does not see are MASKED; most blocks have none of them."""
        late = _less(self.seen.behind(self.first_token), plus(start, BLOCK_KEYS))
        early = _less(start, self.seen.first(self.last_token))
        branch = scf.IfOp(arith.ori(late, early), [s.type for s in scores], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            found = []
            for tile, row in enumerate(self.rows):
                found += self._mask(row, scores[2 * tile : 2 * tile + 2], start)
            scf.YieldOp(found)
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp(scores)
        return list(branch.results)

    def _mask(self, row: Row, scores: list[ir.Value], start: ir.Value) -> list[ir.Value]:
        low, high = self.seen.first(row.token), self.seen.behind(row.token)
        first = times(self.operands.group, 4)
        relative = [arith.index_cast(i32(), arith.subi(bound, start)) for bound in (low, high)]
        return masked(scores, arith.index_cast(i32(), first), *relative)

    def _careful_block(
        self,
        row: Row,
        query: list[ir.Value],
        tile: list[ir.Value],
        start: ir.Value,
    ) -> list[ir.Value]:
        """The same in f32, leaving out values that have no weight."""
        operands, chunks = self.operands, self.operands.chunks
        keys = operands.load_keys(start)
        scores = []
        for half in range(BLOCK_KEYS // TILE):
            total = zero(4)
            for key, part in zip(keys[half * chunks : (half + 1) * chunks], query, strict=True):
                wide = extended(key)
                for at in range(FRAGMENT):
                    a, b = (vector.extract(each, [], [at]) for each in (wide, part))
                    total = mfma(_F32, a, b, total)
            scores.append(total)
        after = online_softmax(self._mask(row, scores, start), tile[0], tile[1], self.shape.scale)
        factor = in_all(after.factor, 4)
        sums = [arith.mulf(before, factor) for before in tile[2:]]
        weights = [vector.extract(after.weights, [], [at]) for at in range(FRAGMENT)]
        with loop(index(0), index(4), index(1), sums) as (group, given, op):
            sums = list(given)
            owner = plus(times(group, TILE), rest(operands.lane, TILE))
            for at, weight in enumerate(weights):
                half, place = divmod(at, 4)
                key = plus(plus(start, plus(times(group, 4), place)), half * TILE)
                sums = self._mixed(sums, _of_lane(weight, owner), key)
            scf.YieldOp(sums)
        return [after.maximum, after.total, *op.results]

    def _mixed(self, sums: list[ir.Value], weight: ir.Value, key: ir.Value) -> list[ir.Value]:
        """`sums` with the values of one key, unless its weight is zero."""
        operands, slots = self.operands, self.shape.slots
        nothing = arith.cmpf(arith.CmpFPredicate.OEQ, weight, number(0.0))
        columns = []
        for place in range(4):
            at = plus(self.first, times(plus(times(operands.group, 4), place), slots))
            kind = of(self.shape.element_type(), slots)
            values = vector.load(kind, operands.values, [key, self.head, at])
            columns.append(arith.select(nothing, zero(slots), extended(values)))
        found = []
        for slot, before in enumerate(sums):
            own = [vector.extract(column, [], [slot]) for column in columns]
            four = vector.from_elements(of(f32(), 4), own)
            found.append(math.fma(in_all(weight, 4), four, before))
        return found

    def _any_not_finite(self, carried: list[ir.Value]) -> ir.Value:
        """Whether a result of the wave is infinite or NaN: x - x is zero of all others."""
        added = None
        for _, total, *sums in self._each(carried):
            for value in (in_all(total, 4), *sums):
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

    def _finish(self, row: Row, maximum: ir.Value, total: ir.Value, sums: list[ir.Value]) -> None:
        """Divide by the total; a piece writes maximum and total behind its row instead."""
        shape, group = self.shape, self.operands.group
        branch = scf.IfOp(below(row.number, shape.rows))
        with ir.InsertionPoint(branch.then_block):
            if self.piece is None:
                own = arith.subf(self._sink(row), maximum)
                total = in_all(arith.addf(total, power(own)), 4)
                sums = [arith.divf(mixed, total) for mixed in sums]
                before = [row.token, self.head, row.member]
            else:
                before = [self.piece, self.head, row.number]
                tail = [maximum, total, number(0.0), number(0.0)]
                # One lane of a row, of one of its waves.
                place_of = plus(times(self.slice, LANES), group)
                last = scf.IfOp(arith.cmpi(arith.CmpIPredicate.eq, place_of, index(0)))
                with ir.InsertionPoint(last.then_block):
                    both = vector.from_elements(of(f32(), 4), tail)
                    vector.store(both, self.result, [*before, index(shape.mixed)])
                    scf.YieldOp([])
            for place in range(4):
                # The slots of a row of the product lie side by side.
                own = [vector.extract(mixed, [], [place]) for mixed in sums]
                whole = vector.from_elements(of(f32(), shape.slots), own)
                at = plus(self.first, times(plus(times(group, 4), place), shape.slots))
                if self.piece is None:
                    whole = rounded(whole, shape.result)
                vector.store(whole, self.result, [*before, at])
            scf.YieldOp([])


def _summed(a: Sequence[Parts], b: Sequence[Parts], total: ir.Value) -> ir.Value:
    """`total` and all products of the parts of fragments along K, the least first."""
    for left, right in zip(a, b, strict=True):
        for one in reversed(left):
            for other in reversed(right):
                total = mfma(_BF16, one, other, total)
    return total


def _of_lane(value: ir.Value, lane: ir.Value) -> ir.Value:
    """An f32 of another lane."""
    at = arith.index_cast(i32(), times(lane, 4))
    return arith.bitcast(f32(), rocdl.ds_bpermute(i32(), at, arith.bitcast(i32(), value)))


def _less(x: ir.Value, y: ir.Value) -> ir.Value:
    return arith.cmpi(arith.CmpIPredicate.slt, x, y)
