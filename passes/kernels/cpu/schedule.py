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
(AVX2 alone), sums and activations go to the stack too, unless weights are decoded once for all, in
tiles of 6 x 1: mxfp6 takes 0.90 of the time of 5 x 2 (with AVX-VNNI the same), of the instructions
6 % and not 27 % moves; mxfp4, nvfp4 and int4 take 0.87 to 0.96 of the time of tiles of 5 x 2 that
decode for themselves (30 and 120 rows of 2880, and sorted ones), with 6 to 8 % and not 14 to 27 %.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from mxc.kernels.decode import BF16, F32
from mxc.kernels.language import Chains, Element
from mxc.kernels.layout import Kind
from mxc.kernels.vectors import Plan
from mxc.passes.kernels.cpu.activations import Prepared
from mxc.passes.kernels.cpu.isa import Isa
from mxc.passes.kernels.cpu.rows import Rows
from mxc.passes.kernels.cpu.weights import PANEL, Weights
from mxc.passes.kernels.sources import BLOCK

#: What activations are, by the kind of product.
OPERANDS: dict[Kind, Element] = {
    "floats": F32,
    "pairs": BF16,
    "quads": Element("i8", 8, np.int8),
}

#: Registers -> kind -> rows of a tile.
_ROWS: dict[int, dict[Kind, int]] = {
    32: {"pairs": 8, "quads": 6, "floats": 6},
    16: {"quads": 5, "floats": 6},
    12: {"floats": 4},
}
_COLUMNS = 2
#: Rows of a tile of one register of columns, by the halves of a gate: of quads that are decoded
#: once for all, where there are 16 registers.
_ROWS_OF_ONE_COLUMN = {1: 6, 2: 2}
#: Rows of a tile where all of K is one block and there are 16 registers: without a loop along K
#: LLVM loads ahead of what it has registers for.
_ROWS_OF_ONE_BLOCK = 4

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

#: Elements along K that are decoded at once where they are decoded to memory, and bytes of them, at
#: most: with their scales and the sums that wait they fit into the 32 KiB that IREE gives a kernel.
_STAGED, _STAGED_BYTES, _WAITING_BYTES = 224, 14 << 10, 16 << 10

#: Registers that are not for sums: weights, an activation, a table.
_OTHERS = 6

#: Plans of a product, at most, and heights of their tiles.
MOST = 8
_HEIGHTS = range(1, 13)
#: Instructions that decode a register: usually, and where that is costly.
_DECODE = (1.5, 6)


@dataclass(frozen=True)
class _Tile:
    """`rows` by so many registers of `columns` of the result; `panels` of a workgroup; `staged`:
    weights are decoded to memory."""

    rows: int
    columns: int
    panels: int
    staged: bool


@dataclass(frozen=True)
class Cuts:
    """How a product of `depth` may be cut up that has `columns` in its result; `halves`: 2 for a
    gate; `quantized`: its result may be MX blocks, which it is where weights are not decoded to
    memory."""

    isa: Isa
    weights: Weights
    prepared: Prepared
    rows: Rows
    depth: int
    columns: int
    halves: int
    quantized: bool

    @property
    def plans(self) -> list[Plan]:
        """The plan of the tables above, then others, those before that by estimate take fewer
        instructions; `MOST` at most. All of them add up in the same order."""
        usual = self._usual
        found = [self._plan(each) for each in (usual, *self._others(usual))]
        alike = [each for each in found if self._order(each) == self._order(found[0])]
        return list({str(each): each for each in alike}.values())[:MOST]

    @property
    def _known(self) -> int | None:
        """The number of rows, where it is known and all of them have the same weights."""
        rows = self.rows.rows
        return rows if isinstance(rows, int) and not self.rows.sorted else None

    @property
    def _usual(self) -> _Tile:
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
        """One stream of weights a core: what is asked for ahead is the panel that comes next. Two
        narrow registers of columns, so that each cache line is read about once."""
        return 1 if self.isa.lanes == PANEL else _COLUMNS

    def _others(self, usual: _Tile) -> list[_Tile]:
        """Other stretches of memory, then other tiles whose sums are in registers."""
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
        """Those for a product of registers: it, its part of decoding, and of loads."""
        bits, kind = self.weights.elements.bits, self.weights.kind
        decode = _DECODE[bits <= _CODE_BITS and self.isa.costly(bits, kind)]
        own = 1 if tile.staged else decode
        return 1 + own / tile.rows + 1 / (tile.columns * self.halves)

    def _order(self, plan: Plan) -> Hashable:
        """What the order of sums of floats follows from: of each row the chains, in the last
        columns and in others; where totals are made in chains, the elements between two."""
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

    def _plan(self, tile: _Tile) -> Plan:
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
            # Of about equal number in all workgroups.
            parts = -(-self._known // most)
            most = -(-self._known // (parts * height)) * height
        blocks = self.quantized and not tile.staged
        together = BLOCK // lanes if blocks else 1
        width = max(1, PANEL // lanes * tile.panels // self.halves)
        plan = Plan(
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
        """Sums that are added up apart, to hide the latency of a multiply-add, where tiles are low.

        Where rows are sorted or come with the call, the height of a row's tile depends on other
        rows, and no sum may: one chain, as tiles of whole height have.
        """
        return 1 if self._known is None else self.isa.chains(self.weights.kind)


def _even(rows: int, height: int) -> int:
    """The height of tiles of about equal height, at most so high."""
    return -(-rows // -(-rows // height))


def _operands(weights: Weights, isa: Isa) -> Element:
    """What codes become."""
    into = OPERANDS[weights.kind]
    excess = weights.elements.offset(isa) if weights.kind == "quads" else 0
    if excess:
        return Element("u8", 8, np.uint8, excess=excess)
    if weights.rounded:
        narrow = {"f16": Element("f16", 16, np.float16), "bf16": BF16}[weights.rounded]
        # What multiplies floats is rounded, and has their width.
        return replace(narrow, bits=into.bits)
    return into


def _rests(height: int, rows: int | None) -> tuple[int, ...]:
    """Rows of the tiles after those of whole height: what is left, or, where that is not known,
    half of the height, and one. What these have too many repeat the last row: they are stored
    twice, and equal."""
    if rows is not None:
        return (rows % height,) if rows % height else ()
    half = height // 2
    return (half,) if height < _HALVED else (half, 1)
