"""Statistics of the inputs of a linear layer, for the quantization of its weight."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.quantize.feedback import Feedback

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class CalibrationInputs:
    """Inputs of one linear layer over a text.

    `squares` float32 [K]: mean square of each input. `sample` float32 [n, K]: some of the inputs.
    `feedback`: see feedback.py; None: each element is rounded independently.
    """

    squares: Floats
    sample: Floats
    feedback: Feedback | None = None
