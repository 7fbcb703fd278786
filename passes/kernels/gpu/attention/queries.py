"""The bf16 of a tile of queries: in registers, or in shared memory where those are few."""

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

#: Gives the parts of a chunk along D.
Reader = Callable[[int], Parts]


class Query(Protocol):
    """A tile of queries."""

    def reader(self) -> Reader:
        """For one block of keys, at the insertion point."""


@dataclass(frozen=True)
class QueryParts:
    """`parts` of each chunk along D, in registers."""

    parts: Sequence[Parts]

    def reader(self) -> Reader:
        """They are there."""
        return lambda chunk: self.parts[chunk]


@dataclass(frozen=True)
class StagedQueries:
    """Queries in shared `memory`, bf16 [tiles, chunks * parts * loads, lanes, FRAGMENT]. Each lane
    reads what it wrote, or what the lane with the same row wrote; `place`: it among the lanes."""

    memory: ir.Value
    place: ir.Value
    loads: int
    parts: int

    @staticmethod
    def of(shape: GpuAttention, lane: Lane, tiles: int) -> StagedQueries:
        """Memory for so many tiles."""
        loads, groups, parts = shape.run // FRAGMENT, shape.instruction.groups, shape.parts_of_f32
        size = [tiles, shape.chunks * parts * loads, TILE * groups, FRAGMENT]
        place = lane.block * TILE + lane.row
        return StagedQueries(shared(size, ir.BF16Type.get()), place, loads, parts)

    def write(self, tile: int, query: Iterable[Parts]) -> Query:
        """Keep a tile, a chunk along D after the other."""
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
        """Read where they are needed, not before the loop over keys."""
        own = self.queries
        tile, kind = unknown_zero() + self.tile, of(ir.BF16Type.get(), FRAGMENT)

        def part(number: int) -> ir.Value:
            numbers = range(number * own.loads, (number + 1) * own.loads)
            places = [[tile, index(n), own.place, index(0)] for n in numbers]
            return concat([vector.load(kind, own.memory, at) for at in places])

        return lambda chunk: [part(chunk * own.parts + n) for n in range(own.parts)]
