"""Writes of keys and values to the pages of the KV cache; see dialects/pages.py.

Letters: T rows of this call, V key/value heads, G query heads per key/value head, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iree.compiler import ir

from mxc.dialects import pages
from mxc.dialects.attention import Reach
from mxc.dialects.pages import Pages
from mxc.dialects.rotary_writes import Scales, rotary_write

#: Elements of keys and values in a tile of attention kernels; heads are padded to a multiple.
TILE = 16


@dataclass(frozen=True)
class CacheRow:
    """The cached data of a token in a layer: `entries` tensors [heads, depth]."""

    entries: int
    heads: int
    depth: int

    @staticmethod
    def of_heads(heads: int, depth: int) -> CacheRow:
        """Return the row with a key and a value per head, padded with zeros to whole tiles."""
        return CacheRow(entries=2, heads=heads, depth=-(-depth // TILE) * TILE)


#: The kind of pages of a layer: the reach of its queries, and the cache row.
CacheKind = tuple[Reach, CacheRow]


@dataclass
class Cache:
    """The pages of the layers of one kind. Each layer that writes replaces the pool.

    `slots` i32 [T]: the slot to which each row of the call is written. `first`: number of entries
    of the layers that have written so far. `last`: the entries of the last of these layers, and
    `scales`: their scales f32 [V] or None, as passed to `write`.
    """

    pages: Pages
    slots: ir.Value
    first: int = 0
    last: tuple[int, ...] = ()
    scales: tuple[ir.Value | None, ...] = ()

    def write(
        self, row: CacheRow, parts: list[ir.Value], scales: tuple[ir.Value | None, ...] = ()
    ) -> tuple[int, ...]:
        """Write the parts f32 [T, V, D] of a layer, one per entry; return the entry numbers.

        The parts are rounded to the pool's type or quantized to its format. For fp8 they are first
        divided by `scales`, f32 [V] for each part; None for 1. Afterwards `first` is the first
        entry of the next layer.
        """
        assert len(parts) == row.entries
        entries = tuple(range(self.first, self.first + row.entries))
        pool, format = self.pages.pool, self.pages.format
        written = pages.write(pool, format, self.first, self.slots, parts, scales)
        self.pages = replace(self.pages, pool=written)
        self.first += row.entries
        self.last, self.scales = entries, scales or (None,) * row.entries
        return entries

    def write_rotated(
        self,
        row: CacheRow,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        rotations: tuple[ir.Value, ir.Value],
        distance: int,
        scales: Scales,
    ) -> ir.Value:
        """Write keys f32 [T, V * D], rotated by the rows cos and sin, and values f32 [T, V * D].

        Return queries f32 [T, Q * D] rotated. `distance`: see dialects/rotary_writes.py. `scales`:
        as `write` takes them. The entries of the next layer come after.
        """
        entries = (self.first, self.first + 1)
        to = (self.slots, self.pages.pool, self.first)
        q, pool = rotary_write(
            q, k, v, rotations, *to,
            distance=distance, format=self.pages.format, scales=scales,
        )  # fmt: skip
        self.pages = replace(self.pages, pool=pool)
        self.first += row.entries
        self.last, self.scales = entries, scales
        return q
