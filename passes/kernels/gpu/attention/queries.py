"""The bf16 parts of a tile of queries: in registers, or in LDS if there are too few of those."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from iree.compiler import ir
from iree.compiler.dialects import vector

from mxc.dialects.amdgpu import no_reordering, shared
from mxc.passes.kernels.gpu.attention.operands import Parts
from mxc.passes.kernels.gpu.attention.shape import TILE, GpuAttention
from mxc.passes.kernels.gpu.fragments import FRAGMENT
from mxc.passes.kernels.gpu.lanes import Lane, unknown_zero
from mxc.passes.kernels.vectors import concat, index, of, part_of

#: Returns the parts of a chunk along D, given by its number.
Reader = Callable[[int], Parts]


class Query(Protocol):
    """A tile of queries."""

    def reader(self) -> Reader:
        """Return a reader for one block of keys, at the insertion point."""


@dataclass(frozen=True)
class QueryParts:
    """`parts` of each chunk along D, in registers."""

    parts: Sequence[Parts]

    def reader(self) -> Reader:
        """Return a reader that emits nothing: the parts are in registers."""
        return lambda chunk: self.parts[chunk]


@dataclass(frozen=True)
class StagedQueries:
    """Queries in LDS. `memory`: bf16 [tiles, chunks * parts * loads, lanes, FRAGMENT].

    `loads`: loads of FRAGMENT elements for a run. `parts`: bf16 parts of a query. `place`: index of
    this lane among the lanes. A lane reads what it wrote itself, or, where lanes of all groups hold
    the same elements, what a lane with the same row and place wrote.
    """

    memory: ir.Value
    place: ir.Value
    loads: int
    parts: int

    @staticmethod
    def of(shape: GpuAttention, lane: Lane, tiles: int) -> StagedQueries:
        """Allocate LDS for `tiles` tiles."""
        loads, groups, parts = shape.run // FRAGMENT, shape.instruction.groups, shape.parts_of_f32
        size = [tiles, shape.chunks * parts * loads, TILE * groups, FRAGMENT]
        place = lane.block * TILE + lane.row
        return StagedQueries(shared(size, ir.BF16Type.get()), place, loads, parts)

    def write(self, tile: int, query: Iterable[Parts]) -> Query:
        """Store a tile, one chunk along D after the other."""
        places = count()
        for parts in query:
            for each in parts:
                for load in range(self.loads):
                    own = part_of(each, load * FRAGMENT, FRAGMENT)
                    at = [index(tile), index(next(places)), self.place, index(0)]
                    vector.store(own, self.memory, at)
            no_reordering()
        return _Staged(self, tile)


@dataclass(frozen=True)
class _Staged:
    queries: StagedQueries
    tile: int

    def reader(self) -> Reader:
        """Return a reader that loads from LDS where a chunk is used.

        `unknown_zero` in the index keeps LLVM from loading before the loop over keys.
        """
        own = self.queries
        tile, kind = unknown_zero() + self.tile, of(ir.BF16Type.get(), FRAGMENT)

        def part(number: int) -> ir.Value:
            numbers = range(number * own.loads, (number + 1) * own.loads)
            places = [[tile, index(n), own.place, index(0)] for n in numbers]
            return concat([vector.load(kind, own.memory, at) for at in places])

        return lambda chunk: [part(chunk * own.parts + n) for n in range(own.parts)]
