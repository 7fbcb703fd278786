"""What a lane of a ring of floats holds between stages, and what a wave issues beside products."""

from __future__ import annotations

from dataclasses import dataclass, field

from iree.compiler import ir

from mxc.passes.kernels.gpu.ring.pairs import DecodedTile


@dataclass(frozen=True)
class Rates:
    """What a wave issues beside products: `budget` instructions while its matrix core computes one.

    `load`: instructions of a direct load, with those of its addresses; `pace`: share of a stage in
    which the loads of another are issued; `read`: share of a step before which reads are issued.
    """

    budget: int
    load: int
    pace: float
    read: float


@dataclass
class FloatRegisters:
    """What a lane holds between stages. Tiles are numbered: those of lhs, then those of rhs.

    `floats`: by tile, fragments that add up to what it multiplies next; `raw`: floats that are yet
    to be split; `packed`: tiles that are decoded; `words`: their scales of four stages; `slot`:
    i32, the offset of the stage; `after_next`: floats of the part after the next one, where they
    are read so early.
    """

    totals: list[ir.Value]
    floats: dict[int, list[ir.Value]]
    raw: dict[int, list[ir.Value]]
    packed: dict[int, DecodedTile]
    words: dict[int, list[ir.Value]]
    slot: ir.Value
    after_next: dict[int, list[ir.Value]] = field(default_factory=dict)
