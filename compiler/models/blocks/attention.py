"""What layers keep of each token in pages, and how it is written there; see dialects/pages.py.

Letters: T rows of this call, V key/value heads, G query heads a key/value head, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import zip_longest

from iree.compiler import ir
from iree.compiler.dialects import arith

from mxc.artifact.pages import PAGE_FORMATS
from mxc.dialects.attention import Reach
from mxc.dialects.generic import constant, element_of, generic, loop_index
from mxc.dialects.pages import Pages, fp8_codes, write_blocks, write_rows
from mxc.dialects.quantize import mx_integers
from mxc.dialects.rotary_writes import rotary_write
from mxc.formats.formats import FORMATS
from mxc.formats.recipes import ScaleRecipe

#: Elements of keys and values that kernels of attention take at once.
TILE = 16

#: Recipe of scales of pages in an MX format: nothing saturates with it, as for activations.
RECIPE = ScaleRecipe.RCEIL


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
        format = self.pages.format
        if format is None or not PAGE_FORMATS[format]:
            for entry, part, scale in zip_longest(entries, parts, scales):
                pool = self.pages.pool
                if format is None:
                    rows = _rounded(part, element_of(pool))
                else:
                    rows = fp8_codes(part, scale)
                written = write_rows(pool, entry, self.slots, rows)
                self.pages = replace(self.pages, pool=written)
        else:
            # Together: a dispatch for the elements of all, and one for the scales.
            codes, blocks = mx_integers(_beside(parts), FORMATS[format], RECIPE)
            written = write_blocks(self.pages, self.first, self.slots, codes, blocks)
            self.pages = replace(self.pages, pool=written)
        self.first += row.entries
        self.last, self.scales = entries, scales or (None,) * row.entries
        return entries

    def write_turned(
        self,
        row: CacheRow,
        q: ir.Value,
        k: ir.Value,
        v: ir.Value,
        rotations: tuple[ir.Value, ir.Value],
    ) -> ir.Value:
        """Write keys f32 [T, V * D], turned by the rows cos and sin, and values, to pages of
        floats; queries f32 [T, Q * D] turned. The entries of the next layer come after."""
        entries = (self.first, self.first + 1)
        q, pool = rotary_write(q, k, v, rotations, self.slots, self.pages.pool, self.first)
        self.pages = replace(self.pages, pool=pool)
        self.first += row.entries
        self.last, self.scales = entries, (None,) * row.entries
        return q


def _rounded(rows: ir.Value, kind: ir.Type) -> ir.Value:
    """rows [T, V, D] as `kind`."""
    if element_of(rows) == kind:
        return rows
    return generic([(rows, "m h d")], "m h d", kind, lambda x: arith.truncf(kind, x))


def _beside(parts: list[ir.Value]) -> ir.Value:
    """parts [T, V, D] as one tensor [T, parts, V, D]."""
    loops = "m e h d"

    def chosen(*values: ir.Value) -> ir.Value:
        found = values[0]
        for number, value in enumerate(values[1:], start=1):
            this = constant(number, ir.IndexType.get())
            own = arith.cmpi(arith.CmpIPredicate.eq, loop_index(loops, "e"), this)
            found = arith.select(own, value, found)
        return found

    reads = [(part, "m h d") for part in parts]
    return generic(reads, loops, element_of(parts[0]), chosen, sizes={"e": len(parts)})
