"""Addresses of the bytes of an operand's rows: row after row, or in panels of 16 rows.

  row after row            in a panel               a0, a1, ..: 16 bytes each
  r0: a0 a1 a2 ..          a0 b0 c0 .. p0           piece 0 of 16 rows, then
  r1: b0 b1 b2 ..    ->    a1 b1 c1 .. p1           piece 1 of 16 rows, ..
  ..                       ..

Adjacent lanes of a matrix instruction have adjacent rows. If memory has row after row, a load of 16
bytes per lane touches as many cache lines as there are rows. In panels, 16 lanes read 256
consecutive bytes. Weights that are parameters are packed in panels when a model is compiled
(compiler/packing/panels.py).
"""

from __future__ import annotations

from typing import Protocol

from iree.compiler import ir

from mxc.formats.panels import PANEL

#: Name of the layout of parameters in panels, a key of UNITS in compiler/packing/panels.py.
LAYOUT = "panel16x16"
#: Bytes of a row that are contiguous in a panel.
PIECE = 16


class SideMemory(Protocol):
    """An operand in memory: rows of `blocks` blocks.

    `panels`: 0 if rows are stored one after the other. Otherwise rows are in panels, and each row
    in memory is cut along K into `panels` consecutive rows of this operand: 1 if it is not cut,
    more with split K (ring/split.py).
    """

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        ...

    @property
    def panels(self) -> int:
        """How rows are stored; see the class."""
        ...


def padded(rows: int) -> int:
    """Return `rows` rounded up to whole panels."""
    return -(-rows // PANEL) * PANEL


def start_of(side: SideMemory, row: ir.Value, block: ir.Value | int = 0) -> ir.Value:
    """Return the offset in bytes of the first byte of a row, or of block `block` of the row.

    The block is added before the multiplication. With two multiplications LLVM keeps more
    registers, and the product for queries, keys and values spills on gfx1151 (heads of 128,
    K = 8192).
    """
    if not side.panels:
        return (row * side.blocks + block) * side.block_bytes
    whole = row // side.panels if side.panels > 1 else row
    panel = whole // PANEL
    if side.panels > 1:
        panel = panel * side.panels + row % side.panels
    return (panel * side.blocks + block) * (PANEL * side.block_bytes) + whole % PANEL * PIECE


def spread(side: SideMemory) -> int:
    """Return the factor by which distances within a row grow in memory.

    It is for distances that are multiples of 16 bytes.
    """
    return PANEL if side.panels else 1


def along(side: SideMemory, offset: ir.Value) -> ir.Value:
    """Return how many bytes after the start of a row its byte `offset` is in memory.

    `offset` is a multiple of 16.
    """
    return offset * PANEL if side.panels else offset


def within(side: SideMemory, offset: ir.Value) -> ir.Value:
    """Return what `along` returns, for an `offset` that need not be a multiple of 16."""
    if not side.panels:
        return offset
    return offset // PIECE * (PIECE * PANEL) + offset % PIECE
