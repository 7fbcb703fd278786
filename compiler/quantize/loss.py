"""What quantizing changed: sums over elements, from which the signal to noise ratio comes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(kw_only=True)
class Loss:
    """Sums of squares of a tensor and of what quantizing it changed.

    `output_signal` and `output_noise` are those of the outputs of the layer on inputs of a text; 0
    where none is known. `how` names what it was quantized to; `saturated` counts elements whose
    scaled value was beyond the largest element.
    """

    how: str = ""
    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0
    output_signal: float = 0.0
    output_noise: float = 0.0
    saturated: int = 0

    def add(self, other: Loss) -> None:
        """Sum up another tensor, or a part of this one."""
        self.how = other.how or self.how
        self.elements += other.elements
        self.signal += other.signal
        self.noise += other.noise
        self.output_signal += other.output_signal
        self.output_noise += other.output_noise
        self.saturated += other.saturated

    @property
    def sqnr(self) -> float | None:
        """Signal to noise in dB, to 0.01; None where there is no signal, or no noise."""
        return _decibels(self.signal, self.noise)

    @property
    def output_sqnr(self) -> float | None:
        """The same of the layer's outputs; None where no inputs are known."""
        return _decibels(self.output_signal, self.output_noise)

    @property
    def saturated_share(self) -> float:
        """Part of the elements that were beyond the largest; 0 of no elements."""
        return self.saturated / self.elements if self.elements else 0.0


def _decibels(signal: float, noise: float) -> float | None:
    return round(10 * math.log10(signal / noise), 2) if signal and noise else None


def sum_of_squares(values: NDArray[Any]) -> float:
    """Sum of squares of any float type, in float64, where no square of a float32 over- or
    underflows.

    In one order: a dot product is summed as the threads of the machine have it.
    """
    wide = values.astype(np.float64).reshape(-1)
    return float(np.square(wide, out=wide).sum())
