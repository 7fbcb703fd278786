"""Where the bytes of a row lie in memory: one after the other, or in panels of 16 rows.

  rows of a side           in a panel               of 16 bytes each
  r0: a0 a1 a2 ..          a0 b0 c0 .. p0           piece 0 of 16 rows, then
  r1: b0 b1 b2 ..    ->    a1 b1 c1 .. p1           piece 1 of 16 rows, ..
  ..                       ..

Adjacent lanes of a matrix instruction have adjacent rows. Where rows follow each other, a load of
16 bytes a lane reads from as many lines as there are rows; in panels 16 lanes read 256 bytes that
lie together. Weights that are parameters are packed so when a model is compiled
(compiler/packing/panels.py).
"""

from __future__ import annotations

from typing import Protocol

from iree.compiler import ir

from mxc.formats.panels import PANEL

#: The layout of a parameter in panels, a name in compiler/packing/panels.py.
LAYOUT = "panel16x16"
#: Bytes of a row that lie together.
PIECE = 16


class SideMemory(Protocol):
    """A side in memory: rows of `blocks` blocks.

    `panels`: 0 where rows follow each other; else they are in panels, and so many rows of the side
    are one row in memory, of which each has a part of K.
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
        """As above."""
        ...


def padded(rows: int) -> int:
    """Rows of whole panels."""
    return -(-rows // PANEL) * PANEL


def start_of(side: SideMemory, row: ir.Value, block: ir.Value | int = 0) -> ir.Value:
    """The first byte of a row, or of a block of it.

    The block is added before the multiplication: LLVM keeps more registers for two products, and
    queries, keys and values of heads of 128 at K = 8192 spill on gfx1151.
    """
    if not side.panels:
        return (row * side.blocks + block) * side.block_bytes
    whole = row // side.panels if side.panels > 1 else row
    panel = whole // PANEL
    if side.panels > 1:
        panel = panel * side.panels + row % side.panels
    return (panel * side.blocks + block) * (PANEL * side.block_bytes) + whole % PANEL * PIECE


def spread(side: SideMemory) -> int:
    """How far apart in memory bytes of a row are that are 16 apart, by 16."""
    return PANEL if side.panels else 1


def along(side: SideMemory, offset: ir.Value) -> ir.Value:
    """How far from the start of a row its byte `offset` is, a multiple of 16."""
    return offset * PANEL if side.panels else offset


def within(side: SideMemory, offset: ir.Value) -> ir.Value:
    """The same of any byte."""
    if not side.panels:
        return offset
    return offset // PIECE * (PIECE * PANEL) + offset % PIECE
