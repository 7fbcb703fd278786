"""Stage a piece of keys and values for tiles, once for all rows of a workgroup."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from iree.compiler import ir
from iree.compiler.dialects import arith, memref, scf, vector

from mxc.kernels.amx import TILE
from mxc.kernels.decode import STEP
from mxc.passes.kernels.attention.memory import KeyPlace, place_of
from mxc.passes.kernels.attention.rows import shuffle, transpose
from mxc.passes.kernels.attention.tiled_memory import KeyPiece, TiledBuffers, bf16
from mxc.passes.kernels.attention.tiled_shape import TiledAttention
from mxc.passes.kernels.vectors import (
    bitcast,
    concat,
    either,
    i1,
    i16,
    i32,
    index,
    load,
    loop,
    splat,
    when,
)

#: The exponent bits of a bf16: all are set in an infinity or a NaN.
INFINITE = 0x7F80


@dataclass(frozen=True)
class TiledStaging:
    """Copies the keys and values of a `piece` to the scratch of the workgroup, and prefetches those
    of the next piece. `every`: whether the workgroup has all heads. `last`: the last key that a row
    of the workgroup attends to; no later keys are prefetched."""

    shape: TiledAttention
    memory: TiledBuffers
    piece: KeyPiece
    every: ir.Value
    last: ir.Value

    def stage_keys(self) -> None:
        """Store the keys to `staged`: a row has the same pair of elements of 16 keys."""
        piece = self.piece
        with loop(piece.begin, piece.behind, index(TILE)) as (column, _, _):
            place, number, every = piece.sixteen(column)
            prefetch = self._next(column)

            def stage(number: Callable[[int], ir.Value]) -> list[ir.Value]:
                self._stage_keys(place, number, column, prefetch)
                return []

            either(every, [], lambda: stage(index), lambda: stage(number))

    def _stage_keys(
        self,
        place: KeyPlace,
        number: Callable[[int], ir.Value],
        column: ir.Value,
        prefetch: Callable[[ir.Value, int], None],
    ) -> None:
        """Stage the 16 keys from `column` on. `number`, `place`: see `KeyPiece.sixteen`."""
        shape, memory = self.shape, self.memory
        numbers = [number(key) for key in range(TILE)]
        for step in range(shape.steps):
            at = index(step * STEP)
            rows = [self.row(place, memory.keys, number, at, shape.depth) for number in numbers]
            pairs = [bitcast(row, i32(), TILE) for row in rows]
            prefetch(memory.keys, step * STEP)
            for pair, keys in enumerate(transpose(pairs)):
                vector.store(
                    keys, memory.staged, [column // TILE, index(step), index(pair), index(0)]
                )

    def stage_values(self) -> ir.Value:
        """Store the values to `mixed`, with zero for elements that are infinite or NaN. Returns
        whether there are any.

        A row has 16 elements of two keys, alternately. Of each 32 elements, one tile has 0-3, 8-11,
        16-19 and 24-27, the next tile the others.
        """
        piece = self.piece
        none = splat(0, i16(), STEP)
        with loop(piece.begin, piece.behind, index(TILE), [none]) as (column, (largest,), op):
            place, number, every = piece.sixteen(column)
            prefetch = self._next(column)

            def stage(number: Callable[[int], ir.Value]) -> list[ir.Value]:
                return [self._stage_values(place, number, column, largest, prefetch)]

            kinds = [none.type]
            scf.YieldOp(either(every, kinds, lambda: stage(index), lambda: stage(number)))
        infinite = arith.cmpi(arith.CmpIPredicate.uge, op.results[0], splat(INFINITE, i16(), STEP))
        poisoned = vector.ReductionOp(i1(), vector.CombiningKind.OR, infinite).result
        with when(poisoned):
            self._clean()
        return poisoned

    def _stage_values(
        self,
        place: KeyPlace,
        number: Callable[[int], ir.Value],
        column: ir.Value,
        largest: ir.Value,
        prefetch: Callable[[ir.Value, int], None],
    ) -> ir.Value:
        """Stage the values of 16 keys. Returns the largest magnitudes so far, as bits i16 [32]."""
        shape, memory = self.shape, self.memory
        numbers = [number(key) for key in range(TILE)]
        first = column % STEP // 2
        for step in range(shape.mixed_steps):
            at = index(step * STEP)
            prefetch(memory.values, step * STEP)
            for pair in range(TILE // 2):
                both = [
                    self.row(place, memory.values, each, at, shape.mixed)
                    for each in numbers[2 * pair : 2 * pair + 2]
                ]
                for row in both:
                    largest = arith.maxui(largest, bitcast(row, i16(), STEP) & 0x7FFF)
                for half in range(2):
                    # vpunpcklwd, vpunpckhwd
                    order = [
                        side + 8 * lane + 4 * half + i
                        for lane in range(4)
                        for i in range(4)
                        for side in (0, STEP)
                    ]
                    here = [column // STEP, index(2 * step + half), first + pair, index(0)]
                    vector.store(shuffle(both[0], both[1], order), memory.mixed, here)
        return largest

    def row(
        self, place: KeyPlace, entry: ir.Value, number: ir.Value, at: ir.Value, depth: int
    ) -> ir.Value:
        """bf16 [32] from element `at` on of a key; zero from element `depth` on."""
        pool, here = self.memory.pool, place.at(entry, number, at)
        first = ir.IntegerAttr(at.owner.attributes["value"]).value
        if first + STEP <= depth:
            return load(pool, here, bf16(), STEP)
        return concat([load(pool, here, bf16(), TILE), splat(0.0, bf16(), TILE)])

    def _next(self, column: ir.Value) -> Callable[[ir.Value, int], None]:
        """Return a function that emits prefetches for the next piece: of 16 rows of an entry, 32
        elements from an element on.

        If the workgroup has one head, the rows are its keys from `column` on. If it has all heads,
        they are 16 rows in the order of memory, so that each head prefetches an equal part of the
        piece. They go to the second-level cache: rows of one head are heads * D apart, and map to
        few sets of the first.
        """
        shape, piece, every = self.shape, self.piece, self.every
        heads, size = index(shape.heads), index(shape.piece_keys)
        number = piece.head * size + column
        position = arith.select(every, number // heads, column) + piece.base + size
        position = arith.minsi(position, self.last // TILE * TILE)
        head = arith.select(every, number % heads, piece.head)
        place = place_of(shape, piece.lists, piece.run, position, head)
        apart = arith.select(every, index(shape.depth), index(shape.heads * shape.depth))

        def prefetch(entry: ir.Value, at: int) -> None:
            for key in range(TILE):
                here = place.at(entry, index(0), apart * key + at)
                memref.PrefetchOp(self.memory.pool, here, False, 2, True)

        return prefetch

    def _clean(self) -> None:
        """Replace elements of `mixed` that are infinite or NaN by zero."""
        mixed, piece = self.memory.mixed, self.piece
        with loop(piece.begin // STEP, piece.behind // STEP, index(1)) as (step, _, _):
            for part in range(2 * self.shape.mixed_steps):
                with loop(index(0), index(TILE), index(1)) as (pair, _, _):
                    here = [step, index(part), pair, index(0)]
                    found = load(mixed, here, bf16(), STEP)
                    kept = arith.select(is_finite(found), found, splat(0.0, bf16(), STEP))
                    vector.store(kept, mixed, here)


def is_finite(values: ir.Value) -> ir.Value:
    """i1 [32]: whether each bf16 is finite."""
    size = bitcast(values, i16(), STEP) & 0x7FFF
    return arith.cmpi(arith.CmpIPredicate.ult, size, splat(INFINITE, i16(), STEP))
