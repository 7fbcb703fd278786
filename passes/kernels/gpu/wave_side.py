"""Interface of a side (operand) of a product: what a lane loads, and what of it is multiplied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from iree.compiler import ir


@dataclass(frozen=True)
class Loaded:
    """Vectors that a lane has loaded of a step.

    `elements`: vectors of elements, by numbers that each kind of side chooses. `scales`: the scales
    of a tile as a list of vectors, by the number of the tile.
    """

    elements: dict[int, ir.Value] = field(default_factory=dict)
    scales: dict[int, list[ir.Value]] = field(default_factory=dict)

    def __or__(self, other: Loaded) -> Loaded:
        """Merge both. Where both have an entry, the one of `other` is taken."""
        return Loaded(self.elements | other.elements, self.scales | other.scales)


class WaveSide(ABC):
    """The rows of an operand for the tiles of one wave.

    `rows`: for each tile, the row that this lane reads. The methods for scales, as they are here,
    are those of a side without scales.
    """

    rows: tuple[ir.Value, ...]

    @abstractmethod
    def load(self, step: ir.Value, k_step: int, *, masked: bool) -> Loaded:
        """Load k-step `k_step` of step `step`.

        `masked`: the step may go past the end of a row; blocks past the end are zero.
        """

    @abstractmethod
    def parts(self, loaded: Loaded, tile: int, k_step: int) -> list[list[ir.Value]]:
        """Return the elements of a tile in a k-step as runs of 8 along K.

        Each run is a list of vectors of floats whose sum is the run.
        """

    def load_late(self, step: ir.Value, *, masked: bool) -> Loaded:
        """Load what is not loaded ahead, at the beginning of the step that needs it."""
        return Loaded()

    def pin_scales(self, loaded: Loaded) -> Loaded:
        """Return `loaded`, with its scales pinned where that is needed.

        Otherwise LLVM uses scales in the iteration that loads them, and waits for their loads.
        """
        return loaded

    def factors_of(self, loaded: Loaded, k_step: int, number: int) -> list[ir.Value | None]:
        """Return the f32 scales that multiply sum `number` of a k-step, for each tile.

        They are f32 [rows that the lane needs], or None if the side has no such scales.
        """
        return [None] * len(self.rows)
