"""One side of a product, of whatever kind: what a lane loads, and what of it is multiplied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from iree.compiler import ir


@dataclass(frozen=True)
class Loaded:
    """What was loaded of a step: elements, by places of the side's own; of tiles, their scales
    in parts."""

    elements: dict[int, ir.Value] = field(default_factory=dict)
    scales: dict[int, list[ir.Value]] = field(default_factory=dict)

    def __or__(self, other: Loaded) -> Loaded:
        """Both; of what both have, the other's."""
        return Loaded(self.elements | other.elements, self.scales | other.scales)


class WaveSide(ABC):
    """Rows of an operand, for the tiles of one wave: `rows` has the row of each tile that this lane
    has. What is said here of scales is of a side that has none."""

    rows: tuple[ir.Value, ...]

    @abstractmethod
    def load(self, step: ir.Value, k_step: int, *, masked: bool) -> Loaded:
        """A k-step of a step. `masked`: blocks that a row does not have are zero."""

    @abstractmethod
    def parts(self, loaded: Loaded, tile: int, k_step: int) -> list[list[ir.Value]]:
        """The runs of 8 along K of a tile in a k-step; of each the floats that add up to it."""

    def load_late(self, step: ir.Value, *, masked: bool) -> Loaded:
        """What of a step is loaded when it begins."""
        return Loaded()

    def pin_scales(self, loaded: Loaded) -> Loaded:
        """The same, with the scales that LLVM must not use where they are loaded pinned."""
        return loaded

    def factors_of(self, loaded: Loaded, k_step: int, number: int) -> list[ir.Value | None]:
        """The f32 scales that multiply sum `number` of a k-step, of each tile: f32 [rows that the
        lane needs]; None where there are none."""
        return [None] * len(self.rows)
