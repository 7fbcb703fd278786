"""Choose tiles and workgroups of a kernel, by its sizes and the instruction set.

A tile R x C is R rows by C registers of columns. Percentages are of the peak of the dot product on
one core. Weights are decoded by each tile or, where marked "shared", once for all tiles, to memory.
Measured on Zen 5, with mxfp4 and 120 rows of 2880 and 4096:

    pairs     8 x 2: 86 to 95 %    6 x 2: 84 to 88 %    12 x 1: 77 %
    quads     6 x 2: 81 %          8 x 2: 68 %
    floats    6 x 2: 88 %          8 x 2: 76 %

Taller tiles decode less, but what decides is that sums, totals and decoded weights stay in
registers. 8-bit elements take many operations to decode to floats: 69 %, shared 87 % (pairs, 128
rows). For mxfp4, memory costs as much as sharing saves: 95 %, shared 88 %.
Measured with AVX2 (16 registers of 8 lanes) and 120 rows of 2880:

    floats    mxfp4 6 x 2: 85 %, 4 x 2: 81 %, shared 92 %; dense 6 x 2: 97 %
              mxfp6, 12 rows: 55 %, shared 71 %
    quads     AVX-VNNI 5 x 2: 79 %, 6 x 2: 67 %; mxfp6: 38 %, shared 73 %

Sums have to be in registers; totals may wait in memory. Where the dot product of quads is three
instructions (AVX2 alone), sums and activations spill too, except in shared tiles of 6 x 1. Compared
with 5 x 2, mxfp6 takes 0.90 of the time (with AVX-VNNI the same), and 6 % instead of 27 % of the
instructions are moves. mxfp4, nvfp4 and int4 take 0.87 to 0.96 of the time of unshared tiles of 5 x
2 (30 and 120 rows of 2880, and sorted rows), with 6 to 8 % instead of 14 to 27 % moves.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from mxc.formats.panels import PANEL
from mxc.kernels.decode import BF16, F32
from mxc.kernels.language import Chains, Element
from mxc.kernels.layout import Kind
from mxc.kernels.vectors import VectorPlan
from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.isa import Isa
from mxc.passes.kernels.cpu.rows import GroupedRows
from mxc.passes.kernels.cpu.weights import RegisterWeights
from mxc.passes.kernels.sources import BLOCK

#: Types of activations, by the kind of product.
OPERANDS: dict[Kind, Element] = {
    "floats": F32,
    "pairs": BF16,
    "quads": Element("i8", 8, np.int8),
}

#: Rows of a tile: number of registers of the instruction set -> kind of product -> rows.
_ROWS: dict[int, dict[Kind, int]] = {
    32: {"pairs": 8, "quads": 6, "floats": 6},
    16: {"quads": 5, "floats": 6},
    12: {"floats": 4},
}
#: Registers of columns of a tile.
_COLUMNS = 2
#: Rows of a tile that is one register of columns wide, by the number of halves of a gate: for quads
#: that are decoded once for all tiles, with 16 registers.
_ROWS_OF_ONE_COLUMN = {1: 6, 2: 2}
#: Rows of a tile where K is a single block and there are 16 registers: without a loop along K, LLVM
#: hoists more loads than there are registers.
_ROWS_OF_ONE_BLOCK = 4

#: Most bits of a code; wider elements are floats, which need no decoding.
_CODE_BITS = 8

#: Prefetch distance of weights, in elements along K.
_PREFETCH = 1024

#: Panels of a workgroup with many rows, and with one row, for which long contiguous reads matter.
_PANELS = 4
_PANELS_OF_ONE_ROW = 8
#: Bytes of prepared activations that stay in the cache of a core while the loop goes over columns.
_ACTIVATION_BYTES = 512 << 10


#: Rows of the smallest tiles; if the usual tiles have no more than these, the smallest have one.
_LOWEST = 2
#: Least height of tiles whose half has more than one row, so that tiles of one row follow too.
_HALVED = 4

#: Limits where weights are decoded to memory: elements along K at once, bytes of decoded weights,
#: and bytes of waiting sums. With the scales, they fit into the 32 KiB of stack that IREE allows a
#: kernel.
_STAGED, _STAGED_BYTES, _WAITING_BYTES = 224, 14 << 10, 16 << 10

#: Registers that do not hold sums, but weights, an activation and a table.
_OTHERS = 6

#: Most plans of a product, and the numbers of rows that their tiles may have.
MOST = 8
_HEIGHTS = range(1, 13)
#: Estimated instructions that decode a register of weights: usually, and where decoding is costly.
_DECODE = (1.5, 6)


@dataclass(frozen=True)
class _Tile:
    """A tile of `rows` rows by `columns` registers of columns of the result. `panels`: panels of a
    workgroup. `staged`: whether weights are decoded to memory, once for all tiles."""

    rows: int
    columns: int
    panels: int
    staged: bool


@dataclass(frozen=True)
class Cuts:
    """The schedules of a product. `depth`: elements along K. `columns`: columns of the result.
    `halves`: 2 for a gate. `quantized`: whether the result is only used as MX blocks; the plans
    that do not decode weights to memory then store it as blocks."""

    isa: Isa
    weights: RegisterWeights
    prepared: Prepared
    rows: GroupedRows
    depth: int
    columns: int
    halves: int
    quantized: bool

    @property
    def plans(self) -> list[VectorPlan]:
        """The plan of the tables above, then others: other widths of workgroups, then other tiles
        by estimated instructions, and last the smallest tiles, which have the least code. At most
        `MOST` in all. All of them add in the same order."""
        usual = self._usual
        lowest = _LOWEST if usual.rows > _LOWEST else 1
        smallest = replace(usual, rows=lowest, columns=1)
        found = [self._plan(each) for each in (usual, *self._others(usual), smallest)]
        alike = [each for each in found if self._order(each) == self._order(found[0])]
        first, *others = {str(each): each for each in alike}.values()
        last = [each for each in others if each == alike[-1]]
        return [first, *(each for each in others if each not in last)][: MOST - 1] + last

    @property
    def _known(self) -> int | None:
        """The number of rows, if it is known and all rows have the same weights; else None."""
        rows = self.rows.rows
        return rows if isinstance(rows, int) and not self.rows.sorted else None

    @property
    def _usual(self) -> _Tile:
        """The tile of the tables above."""
        isa, weights, rows = self.isa, self.weights, self._known
        kind, bits = weights.kind, weights.elements.bits
        height, columns, panels = _ROWS[isa.registers][kind], _COLUMNS, _PANELS
        staged = not weights.packed or (bits <= _CODE_BITS and isa.costly(bits, kind))
        if staged and kind == "quads" and isa.registers == 16:
            height, columns = _ROWS_OF_ONE_COLUMN[self.halves], 1
        elif isa.registers == 16 and self.depth == weights.elements.block:
            height = min(height, _ROWS_OF_ONE_BLOCK)
        if rows is not None:
            staged = staged and rows > height
            height = _even(rows, height)
            if rows == 1:
                columns, panels = self._columns_of_one_row, _PANELS_OF_ONE_ROW
        return _Tile(height, max(1, columns // self.halves), panels, staged)

    @property
    def _columns_of_one_row(self) -> int:
        """Registers of columns of a tile of one row. One register gives one stream of weights per
        core, with prefetches of the next panel. Narrow registers take two, so that each cache line
        is read about once."""
        return 1 if self.isa.lanes == PANEL else _COLUMNS

    def _others(self, usual: _Tile) -> list[_Tile]:
        """Other tiles: the usual tile with workgroups of other widths, then tiles of other sizes
        whose sums fit in registers."""
        stretches = [replace(usual, panels=usual.panels * by // 2) for by in (1, 4)]
        rows, codes = self._known, self.weights.elements.bits <= _CODE_BITS
        tiles = []
        for height, columns in product(_HEIGHTS, range(1, _COLUMNS + 1)):
            wide = columns * self.halves
            if (height + 1) * wide >= self.isa.registers:
                continue
            several = rows is None or rows > height
            for staged in (False, True) if self.weights.packed else (several,):
                if not staged or (several and codes):
                    even = height if rows is None else _even(rows, height)
                    tiles.append(_Tile(even, columns, usual.panels, staged))
        return stretches + sorted(dict.fromkeys(tiles), key=self._instructions)

    def _instructions(self, tile: _Tile) -> float:
        """Estimated instructions per product of two registers: the product itself, and its share of
        decoding and of loads."""
        bits, kind = self.weights.elements.bits, self.weights.kind
        decode = _DECODE[bits <= _CODE_BITS and self.isa.costly(bits, kind)]
        own = 1 if tile.staged else decode
        return 1 + own / tile.rows + 1 / (tile.columns * self.halves)

    def _order(self, plan: VectorPlan) -> Hashable:
        """A key that is equal for plans that add floats in the same order; None if the order is the
        same for all: for integers, or with one chain. It has, for each row, the number of chains in
        the last columns and in the others. Where totals are in chains, it also has the elements
        along K after which the chains are added up."""
        rows = self._known
        if plan.kind == "quads" or rows is None:
            return None
        wide = plan.columns // plan.lanes
        last = -(-self.columns // PANEL) * PANEL // plan.lanes % wide or wide
        heights = [plan.rows] * (rows - rows % plan.rows) + [rows % plan.rows] * (rows % plan.rows)
        chains = tuple(
            tuple(plan.chains.of(height * each * self.halves) for each in (wide, last))
            for height in heights
        )
        scaled = self.prepared.scaled or (self.weights.scaled and not plan.rounded)
        chained = any(count > 1 for each in chains for count in each)
        return chains, plan.staged if chained and not scaled else 0

    def _plan(self, tile: _Tile) -> VectorPlan:
        """The plan with a tile."""
        isa, weights, height = self.isa, self.weights, tile.rows
        lanes, block, columns = isa.lanes, weights.elements.block, tile.columns
        into = _operands(weights, isa)
        chunk = _STAGED_BYTES // (columns * self.halves * lanes * into.bits // 8)
        chunk = min(_STAGED, chunk) // block * block if tile.staged else 0
        prepared_bytes = self.depth // self.prepared.block * self.prepared.dwords * 4
        most = max(height, _ACTIVATION_BYTES // prepared_bytes)
        if tile.staged:
            most = min(most, _WAITING_BYTES // (columns * self.halves * lanes * 4))
        most = max(height, most // height * height)
        if self._known is not None:
            # Workgroups have about equal numbers of rows.
            parts = -(-self._known // most)
            most = -(-self._known // (parts * height)) * height
        blocks = self.quantized and not tile.staged
        together = BLOCK // lanes if blocks else 1
        width = max(1, PANEL // lanes * tile.panels // self.halves)
        plan = VectorPlan(
            weights.kind,
            lanes,
            rows=height,
            rests=_rests(height, self._known),
            columns=columns * lanes,
            weights=into,
            chains=Chains(self._chains, isa.registers - _OTHERS),
            rows_a_workgroup=None if self.rows.sorted and not tile.staged else most,
            columns_a_workgroup=-(-width // together) * together * lanes,
            ahead=_PREFETCH // block * block if weights.packed else 0,
            staged=chunk,
            rounded=bool(weights.rounded),
            blocks=blocks,
            packed=weights.packed,
        )
        if self._known is not None:
            return plan
        narrow = max(1, self._columns_of_one_row // self.halves) * lanes
        return replace(plan, alone=replace(plan, rows=1, rests=(), columns=narrow, staged=0))

    @property
    def _chains(self) -> int:
        """Number of independent accumulators that hide the latency of a multiply-add where tiles
        are low.

        If rows are sorted or their number is dynamic, the height of a row's tile depends on other
        rows, but the order of its sums must not. So there is one chain, as in tiles of full height.
        """
        return 1 if self._known is None else self.isa.chains(self.weights.kind)


def _even(rows: int, height: int) -> int:
    """The height of tiles if `rows` rows are divided into tiles of about equal height, at most
    `height`."""
    return -(-rows // -(-rows // height))


def _operands(weights: RegisterWeights, isa: Isa) -> Element:
    """The type that codes are decoded to."""
    into = OPERANDS[weights.kind]
    excess = weights.elements.offset(isa) if weights.kind == "quads" else 0
    if excess:
        return Element("u8", 8, np.uint8, excess=excess)
    if weights.rounded:
        narrow = {"f16": Element("f16", 16, np.float16), "bf16": BF16}[weights.rounded]
        # Rounded elements that are multiplied as f32 have the width of f32.
        return replace(narrow, bits=into.bits)
    return into


def _rests(height: int, rows: int | None) -> tuple[int, ...]:
    """Rows of the tiles after those of full height: the remainder, or, if the number of rows is
    unknown, half of the height and one. The rows of a tile past the last row repeat the last row,
    which is stored again with the same value."""
    if rows is not None:
        return (rows % height,) if rows % height else ()
    if height == 1:
        return ()
    half = height // 2
    return (half,) if height < _HALVED else (half, 1)
