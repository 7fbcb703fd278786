"""The loss of quantization: sums over elements, which give the signal-to-noise ratio."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(kw_only=True)
class Loss:
    """Sums of squares of a tensor and of its quantization errors.

    `output_signal` and `output_noise` are those of the layer's outputs on inputs of a text; 0 if
    there are none. `how` names the format and recipe. `saturated` counts elements whose scaled
    value exceeded the largest element.
    """

    how: str = ""
    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0
    output_signal: float = 0.0
    output_noise: float = 0.0
    saturated: int = 0

    def add(self, other: Loss) -> None:
        """Add the sums of another tensor, or of a part of this one."""
        self.how = other.how or self.how
        self.elements += other.elements
        self.signal += other.signal
        self.noise += other.noise
        self.output_signal += other.output_signal
        self.output_noise += other.output_noise
        self.saturated += other.saturated

    @property
    def sqnr(self) -> float | None:
        """Signal-to-noise ratio in dB, to 0.01; None without signal or noise."""
        return _decibels(self.signal, self.noise)

    @property
    def output_sqnr(self) -> float | None:
        """The same for the layer's outputs; None if no inputs are known."""
        return _decibels(self.output_signal, self.output_noise)

    @property
    def saturated_share(self) -> float:
        """Share of the elements that exceeded the largest element; 0 without elements."""
        return self.saturated / self.elements if self.elements else 0.0


def _decibels(signal: float, noise: float) -> float | None:
    return round(10 * math.log10(signal / noise), 2) if signal and noise else None


def sum_of_squares(values: NDArray[Any]) -> float:
    """Return the sum of squares of any float type, in float64: squares of float32 do not over- or
    underflow.

    The order of the sum is fixed; that of a dot product depends on the number of threads.
    """
    wide = values.astype(np.float64).reshape(-1)
    return float(np.square(wide, out=wide).sum())
