"""The scales of nvfp4: one float32 per tensor and one E4M3 per block of 16.

    tensor_scale = amax(tensor) / (448 * 6)
    scale        = E4M3(clamp(amax(block) / 6 / tensor_scale, 2^-6, 448))
    element      = E2M1(value * (1 / tensor_scale / scale));  value = tensor_scale * scale * element

All in float32, in this order; the result equals torchao's `nvfp4_quantize` bit for bit, and
modelopt stores the same numbers. compressed-tensors stores the reciprocal and computes with it:

    global  = 1 / amax(tensor) * (448 * 6)
    scale   = E4M3(clamp(global * (amax(block) / 6), 0, 448)), and 2^-3 where that is 0
    element = E2M1(value / (scale / global));                  value = scale / global * element

Both represent the same values. They differ where a quotient is rounded to the other side of a tie,
and in blocks that are far smaller than the largest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError
from mxc.formats.formats import BlockFormat
from mxc.formats.rounding import Ties, encode

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

#: The smallest tensor scale: below it, 1 / tensor_scale / scale could overflow float32. It is used
#: for tensors whose magnitudes are all below 2^-108, and for zeros.
MIN_TENSOR_SCALE = 2.0**-120

#: The scale that compressed-tensors stores instead of zero: the spacing of E4M3 above 1.
_FOR_ZERO = 2.0**-3


@dataclass(frozen=True)
class TensorScaling:
    """The tensor scale, or with `reciprocal` 1 / tensor scale."""

    number: np.float32
    reciprocal: bool = False

    def block_scales(self, amax: Floats, format: BlockFormat) -> tuple[Bytes, Floats]:
        """The E4M3 bytes of blocks with these `amax`, and the factor of `steps`: 1 / (tensor scale
        * scale), or with `reciprocal` the divisor scale / number."""
        peak = amax / np.float32(format.element.max)
        largest = np.float32(format.scale.max)
        if not self.reciprocal:
            least = np.float32(format.scale.min_normal)
            scales = encode(np.clip(peak / self.number, least, largest), format.scale)
            return scales, np.float32(1) / self.number / format.scale.values[scales]
        wanted = np.minimum(self.number * peak, largest)
        scales = encode(wanted, format.scale)
        scales[scales == 0] = int(np.searchsorted(format.scale.values[:128], _FOR_ZERO))
        return scales, format.scale.values[scales] / self.number

    def steps(self, blocks: Floats, unit: Floats) -> Floats:
        """Values divided by their scales. `unit` is the second result of `block_scales`."""
        return blocks / unit[..., None] if self.reciprocal else blocks * unit[..., None]

    def factors(self, scales: Bytes, format: BlockFormat) -> Floats:
        """The factor from an element to its value, per block: float32 of the shape of `scales`."""
        numbers = format.scale.values.take(scales)
        found: Floats = numbers / self.number if self.reciprocal else self.number * numbers
        return found


def tensor_scale(
    amax: np.float32, format: BlockFormat, *, reciprocal: bool = False
) -> TensorScaling:
    """The scale of a tensor whose largest magnitude is `amax`.

    Raises FormatError where `amax` is NaN or Inf: one tensor scale cannot keep the other values.
    """
    if not np.isfinite(amax):
        raise FormatError(
            f"{format} wants finite values, found a largest magnitude of {amax}; one tensor scale "
            "cannot mark a single block as NaN: use an mx format or remove the value"
        )
    largest = np.float32(format.scale.max * format.element.max)
    if not reciprocal:
        return TensorScaling(max(amax / largest, np.float32(MIN_TENSOR_SCALE)))
    with np.errstate(over="ignore"):
        number = np.float32(1) / max(amax, np.finfo(np.float32).tiny) * largest
    # As compressed-tensors does, also for a tensor of zeros.
    return TensorScaling(number if np.isfinite(number) else np.float32(1), reciprocal=True)


def quantize_blocks(
    blocks: Floats, whole: TensorScaling, format: BlockFormat, ties: Ties = Ties.EVEN
) -> tuple[Bytes, Bytes]:
    """Quantize finite float32 `blocks` to codes uint8 [.., n, 16] and scale bytes uint8 [.., n]."""
    scales, unit = whole.block_scales(np.abs(blocks).max(axis=-1), format)
    return encode(whole.steps(blocks, unit), format.element, ties), scales
