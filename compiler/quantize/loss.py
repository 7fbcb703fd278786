"""What quantising changed: sums over elements, from which the signal to noise ratio comes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(kw_only=True)
class Loss:
    """Sums of squares of a tensor and of what quantising it changed.

    `how` names what it was quantised to; `saturated` counts elements whose scaled value was beyond
    the largest element.
    """

    how: str = ""
    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0
    saturated: int = 0

    def add(self, other: Loss) -> None:
        """Sum up another tensor, or a part of this one."""
        self.how = other.how or self.how
        self.elements += other.elements
        self.signal += other.signal
        self.noise += other.noise
        self.saturated += other.saturated

    @property
    def sqnr(self) -> float | None:
        """Signal to noise in dB, to 0.01; None where there is no signal, or no noise."""
        if not self.signal or not self.noise:
            return None
        return round(10 * math.log10(self.signal / self.noise), 2)

    @property
    def saturated_share(self) -> float:
        """Part of the elements that were beyond the largest; 0 of no elements."""
        return self.saturated / self.elements if self.elements else 0.0


def sum_of_squares(values: NDArray[Any]) -> float:
    """Of any float type, in float64, where no square of a float32 over- or underflows.

    In one order: a dot product is summed as the threads of the machine have it.
    """
    wide = values.astype(np.float64).reshape(-1)
    return float(np.square(wide, out=wide).sum())
