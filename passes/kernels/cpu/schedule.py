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

from dataclasses import replace

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

#: Elements along K that are decoded at once where they are decoded to memory, and bytes of them, at
#: most: with their scales and the sums that wait they fit into the 32 KiB that IREE gives a kernel.
_STAGED, _STAGED_BYTES, _WAITING_BYTES = 224, 14 << 10, 16 << 10

#: Registers that are not for sums: weights, an activation, a table.
_OTHERS = 6


def plan(
    isa: Isa,
    weights: Weights,
    prepared: Prepared,
    rows: Rows,
    depth: int,
    halves: int,
    *,
    quantised: bool,
) -> Plan:
    """The tiles of a product over `depth`; `halves`: 2 for a gate; `quantised`: its result may be
    MX blocks, which it is where weights are not decoded to memory."""
    kind, lanes, block = weights.kind, isa.lanes, weights.elements.block
    height, columns, panels = _ROWS[isa.registers][kind], _COLUMNS, _PANELS
    bits = weights.elements.bits
    staged = not weights.packed or (bits <= _CODE_BITS and isa.costly(bits, kind))
    if staged and kind == "quads" and isa.registers == 16:
        height, columns = _ROWS_OF_ONE_COLUMN, 1
    if isinstance(rows.rows, int) and not rows.sorted:
        staged = staged and rows.rows > height
        height = -(-rows.rows // -(-rows.rows // height))
        if rows.rows == 1:
            # One stream of weights a core: what is asked for ahead is the panel that comes next.
            # Two narrow registers of columns, so that each cache line is read about once.
            columns, panels = 1 if lanes == PANEL else _COLUMNS, _PANELS_OF_ONE_ROW
    columns = max(1, columns // halves)
    into = _operands(weights, isa)
    chunk = _STAGED_BYTES // (columns * halves * lanes * into.bits // 8)
    chunk = min(_STAGED, chunk) // block * block if staged else 0
    most = max(height, _ACTIVATION_BYTES // (depth // prepared.block * prepared.dwords * 4))
    if staged:
        most = min(most, _WAITING_BYTES // (columns * halves * lanes * 4))
    most = max(height, most // height * height)
    if isinstance(rows.rows, int) and not rows.sorted:
        # Of about equal number in all workgroups.
        parts = -(-rows.rows // most)
        most = -(-rows.rows // (parts * height)) * height
    blocks = quantised and not staged
    together = BLOCK // lanes if blocks else 1
    width = max(1, PANEL // lanes * panels // halves)
    return Plan(
        kind,
        lanes,
        rows=height,
        rests=_rests(height, rows),
        columns=columns * lanes,
        weights=into,
        chains=Chains(_chains(isa, kind, rows), isa.registers - _OTHERS),
        rows_a_workgroup=None if rows.sorted and not staged else most,
        columns_a_workgroup=-(-width // together) * together * lanes,
        ahead=_PREFETCH // block * block if weights.packed else 0,
        staged=chunk,
        rounded=bool(weights.rounded),
        blocks=blocks,
        packed=weights.packed,
    )


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


def _chains(isa: Isa, kind: Kind, rows: Rows) -> int:
    """Sums that are added up apart, to hide the latency of a multiply-add, where tiles are low.

    Where rows are sorted or come with the call, the height of a row's tile depends on other rows,
    and no sum may: one chain, as tiles of whole height have.
    """
    known = isinstance(rows.rows, int) and not rows.sorted
    return isa.chains(kind) if known else 1


def _rests(height: int, rows: Rows) -> tuple[int, ...]:
    """Rows of the tiles after those of whole height: what is left, or, where that is not known,
    half of the height, and one. What these have too many repeat the last row: they are stored
    twice, and equal."""
    if isinstance(rows.rows, int) and not rows.sorted:
        return (rows.rows % height,) if rows.rows % height else ()
    half = height // 2
    return (half,) if height < _HALVED else (half, 1)
