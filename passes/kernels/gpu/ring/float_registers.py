"""What a lane of a float ring holds between stages, and what a wave issues beside products."""

from __future__ import annotations

from dataclasses import dataclass, field

from iree.compiler import ir

from mxc.passes.kernels.gpu.ring.pairs import DecodedTile


@dataclass(frozen=True)
class Rates:
    """How many instructions a wave issues beside products, and when.

    `budget`: instructions that fit while the matrix core computes one product; `load`: instructions
    of a load from memory, with those of its addresses; `pace`: share of a stage in which the loads
    of a later stage are issued; `read`: share of a step by which its LDS reads have been issued.
    """

    budget: int
    load: int
    pace: float
    read: float


@dataclass
class FloatRegisters:
    """What a lane holds between stages. Tiles are numbered: those of lhs, then those of rhs.

    `totals`: sums of the tiles of the result, row by row. By tile: `floats`, the fragments that are
    multiplied next, one, or several bf16 ones that add up to the floats; `raw`, floats that are yet
    to be split; `packed`, packed elements and what of them is decoded; `words`, the scales of a
    packed tile for four stages; `after_next`, floats of the part after the next one, where LDS is
    read two parts ahead. `slot`: i32, the offset in LDS of the stage that is multiplied next.
    """

    totals: list[ir.Value]
    floats: dict[int, list[ir.Value]]
    raw: dict[int, list[ir.Value]]
    packed: dict[int, DecodedTile]
    words: dict[int, list[ir.Value]]
    slot: ir.Value
    after_next: dict[int, list[ir.Value]] = field(default_factory=dict)
