"""Tiles and workgroups of a kernel, by its sizes and the instruction set.

Measured on Zen 5 with 120 rows of 2880 and 4096 (share of the peak of the dot product, one core,
mxfp4): pairs in tiles of 8 x 2 registers 86 to 95 %, 6 x 2 84 to 88 %, 12 x 1 77 %; quads 6 x 2
81 %, 8 x 2 68 %; floats 6 x 2 88 %, 8 x 2 76 %. Taller tiles decode less; what decides is that
sums, totals and decoded weights stay in registers. Elements of 8 bits take many operations to
decode to floats: 69 % where each tile does, 87 % where it is done once for all (pairs, 128 rows);
for mxfp4 the way through memory costs as much as it saves (95 and 88 %).

With AVX2's 16 registers of 8 lanes (120 rows of 2880): mxfp4 as floats in tiles of 6 x 2 that
decode for themselves 85 %, 4 x 2 81 %, decoded once for all 92 % (of 12 rows, mxfp6: 55 and 71 %);
dense 6 x 2 97 %; quads with AVX-VNNI 5 x 2 79 %, 6 x 2 67 %; mxfp6 as quads 38 and 73 %. Sums have
to be in registers; totals may wait in memory. Where a quad's dot product is three instructions
(AVX2 alone), so that sums go to the stack too: mxfp6, which is decoded once for all, takes in tiles
of 6 x 1 0.90 of the time of 5 x 2 (with AVX-VNNI the same), of the instructions 6 % and not 27 %
moves; mxfp4 and int4, which tiles decode for themselves, take 1.3 and 1.6 times as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.isa import Isa, Kind
from mxc.passes.kernels.cpu.weights import PANEL, Weights
from mxc.passes.kernels.extents import Size

#: Registers -> kind -> rows of a tile.
_ROWS: dict[int, dict[Kind, int]] = {
    32: {"pairs": 8, "quads": 6, "floats": 6},
    16: {"quads": 5, "floats": 6},
    12: {"floats": 4},
}
_COLUMNS = 2
#: Rows of a tile of one register of columns: of quads that are decoded once for all, where there
#: are 16 registers.
_ROWS_OF_ONE_COLUMN = 6

#: Codes are of so many bits at most; more are floats, which need no decoding.
_CODE_BITS = 8

#: Elements along K that weights are asked for ahead of their use.
_PREFETCH = 1024

#: Panels of a workgroup, with many rows and with one, where a long stretch of memory counts.
_PANELS = 4
_PANELS_OF_ONE_ROW = 8
#: Bytes of prepared activations that stay in the cache of a core while columns go by.
_ACTIVATION_BYTES = 512 << 10


#: Tiles of fewer rows have no half that is more than one.
_HALVED = 4

#: Elements along K that are decoded at once where they are decoded to memory: 14 KiB, of pairs.
#: With their scales they fit, as floats too, into the 32 KiB that IREE gives a kernel.
_STAGED = 224


@dataclass(frozen=True)
class Tile:
    """Rows and registers of columns that are computed at once; blocks that weights are asked for
    ahead; the registers of columns that a workgroup has; blocks of weights that are decoded to
    memory at once, for all tiles of rows (0: each tile decodes for itself)."""

    rows: int
    columns: int
    prefetch: int
    columns_a_workgroup: int
    staged_blocks: int = 0

    def rests(self, rows: Size, *, sorted: bool) -> tuple[int, ...]:
        """Rows of the tiles behind those of whole height: what is left, or, where that is not
        known, half of the height, and, but for sorted rows, one. What these have too many repeat
        the last row: they are stored twice, and equal."""
        if isinstance(rows, int) and not sorted:
            return (rows % self.rows,) if rows % self.rows else ()
        half = self.rows // 2
        return (half,) if sorted or self.rows < _HALVED else (half, 1)


def tile(isa: Isa, weights: Weights, rows: Size, *, sorted: bool) -> Tile:
    """The tile for so many rows a group; `sorted`: a number that is known when it runs, as is one
    that comes with the call."""
    kind, block = weights.kind, weights.elements.block
    prefetch = _PREFETCH // block if weights.packed else 0
    panels = PANEL // isa.lanes * _PANELS
    if rows == 1 and not sorted:
        # One stream of weights a core: what is asked for ahead is the panel that comes next.
        # Two narrow registers of columns, so that each cache line is read about once.
        columns = 1 if isa.lanes == PANEL else _COLUMNS
        return Tile(1, columns, prefetch, PANEL // isa.lanes * _PANELS_OF_ONE_ROW)
    height = _ROWS[isa.registers][kind]
    bits = weights.elements.bits
    costly = not weights.packed or (bits <= _CODE_BITS and isa.costly(bits, kind))
    staged, columns = costly, _COLUMNS
    if costly and kind == "quads" and isa.registers == 16:
        height, columns = _ROWS_OF_ONE_COLUMN, 1
    if isinstance(rows, int) and not sorted:
        staged = costly and rows > height
        height = -(-rows // -(-rows // height))
    return Tile(height, columns, prefetch, panels, _STAGED // block if staged else 0)


def rows_a_workgroup(prepared: Prepared, rows: Size, blocks: int, height: int) -> int:
    """Whole tiles whose activations stay in the cache, of about equal number in all workgroups
    where the number of rows is known."""
    row_bytes = blocks * prepared.dwords * 4
    most = max(height, _ACTIVATION_BYTES // row_bytes // height * height)
    if not isinstance(rows, int):
        return most
    parts = -(-rows // most)
    return -(-rows // (parts * height)) * height
