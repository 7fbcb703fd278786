"""What is known of the inputs of a linear layer while its weight is quantized."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.quantize.feedback import Feedback

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Inputs:
    """What a text feeds into one linear layer.

    `squares` float32 [K]: the mean of the square of each input. `sample` float32 [n, K]: some of
    the inputs. `feedback`: see feedback.py; None: each weight is rounded by itself.
    """

    squares: Floats
    sample: Floats
    feedback: Feedback | None = None
