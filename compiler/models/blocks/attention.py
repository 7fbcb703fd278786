"""What layers keep of each token in pages, and how it is written there; see dialects/pages.py.

Letters: T rows of this call, V key/value heads, G query heads a key/value head, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from iree.compiler import ir

from mxc.dialects import pages
from mxc.dialects.attention import Reach
from mxc.dialects.pages import Pages
from mxc.dialects.rotary_writes import Scales, rotary_write

#: Elements of keys and values that kernels of attention take at once.
TILE = 16


@dataclass(frozen=True)
class CacheRow:
    """What a layer keeps of a token: `entries` times [heads, depth]."""

    entries: int
    heads: int
    depth: int

    @staticmethod
    def of_heads(heads: int, depth: int) -> CacheRow:
        """A key and a value a head, of so many elements and zeros up to whole tiles."""
        return CacheRow(entries=2, heads=heads, depth=-(-depth // TILE) * TILE)


#: What layers whose pages are of one kind have in common: what a query sees, and the row.
CacheKind = tuple[Reach, CacheRow]


@dataclass
class Cache:
    """The pages of the layers of one kind: a layer replaces the pool that it has written to.

    `slots` i32 [T]: where each row of the call is written to. `first`: the number of entries that
    the layers before have. `last`: the entries of the last of them; `scales`: f32 [V] of each, or
    None, as `write` takes them.
    """

    pages: Pages
    slots: ir.Value
    first: int = 0
    last: tuple[int, ...] = ()
    scales: tuple[ir.Value | None, ...] = ()

    def write(
        self, row: CacheRow, parts: list[ir.Value], scales: tuple[ir.Value | None, ...] = ()
    ) -> tuple[int, ...]:
        """Write parts f32 [T, V, D], one for each entry of a layer; the entries that they are in.

        They are rounded to the type of the pool, or quantized to its format: in fp8 over `scales`
        f32 [V], one for each part, or over one. The entries of the next layer come after.
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
