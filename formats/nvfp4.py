"""The scales of nvfp4: one float32 a tensor and one E4M3 a block of 16.

    tensor_scale = amax(tensor) / (448 * 6)
    scale        = E4M3(clamp(amax(block) / 6 / tensor_scale, 2^-6, 448))
    element      = E2M1(value * (1 / tensor_scale / scale));  value = tensor_scale * scale * element

All in float32, in this order; that is torchao's `nvfp4_quantize` bit for bit, and modelopt names
the same numbers. compressed-tensors keeps the reciprocal and computes with it:

    global  = 1 / amax(tensor) * (448 * 6)
    scale   = E4M3(clamp(global * (amax(block) / 6), 0, 448)), and 2^-3 where that is 0
    element = E2M1(value / (scale / global));                  value = scale / global * element

Both mean the same; they differ where a quotient is rounded to another side of a tie, and in blocks
that are far smaller than the largest.
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

#: The least tensor scale: below it 1 / tensor_scale / scale could leave float32. A tensor whose
#: magnitudes are all below 2^-108, zeros too, is quantized with this one.
MIN_TENSOR_SCALE = 2.0**-120

#: What compressed-tensors puts for a scale of zero: the distance of 1 to the next E4M3.
_FOR_ZERO = 2.0**-3


@dataclass(frozen=True)
class Tensor:
    """What a tensor contributes to its blocks: the tensor scale, or with `reciprocal` 1 over it."""

    number: np.float32
    reciprocal: bool = False

    def block_scales(self, amax: Floats, format: BlockFormat) -> tuple[Bytes, Floats]:
        """E4M3 bytes of blocks by their `amax`, and what 1 is in units of an element."""
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
        """Values in units of an element, by the second result of `block_scales`."""
        return blocks / unit[..., None] if self.reciprocal else blocks * unit[..., None]

    def factors(self, scales: Bytes, format: BlockFormat) -> Floats:
        """What an element of a block is multiplied with, float32 of the shape of `scales`."""
        numbers = format.scale.values.take(scales)
        found: Floats = numbers / self.number if self.reciprocal else self.number * numbers
        return found


def tensor_scale(amax: np.float32, format: BlockFormat, *, reciprocal: bool = False) -> Tensor:
    """The scale of a tensor whose largest magnitude is `amax`.

    Raises FormatError where `amax` is NaN or Inf: no other value would keep its meaning.
    """
    if not np.isfinite(amax):
        raise FormatError(
            f"{format} wants finite values, found a largest magnitude of {amax}; one tensor scale "
            "cannot mark a single block as NaN: use an mx format or remove the value"
        )
    largest = np.float32(format.scale.max * format.element.max)
    if not reciprocal:
        return Tensor(max(amax / largest, np.float32(MIN_TENSOR_SCALE)))
    with np.errstate(over="ignore"):
        number = np.float32(1) / max(amax, np.finfo(np.float32).tiny) * largest
    # As compressed-tensors has it, for a tensor of zeros too.
    return Tensor(number if np.isfinite(number) else np.float32(1), reciprocal=True)


def quantize_blocks(
    blocks: Floats, whole: Tensor, format: BlockFormat, ties: Ties = Ties.EVEN
) -> tuple[Bytes, Bytes]:
    """Codes uint8 [.., n, 16] and scale bytes uint8 [.., n] of finite `blocks` float32."""
    scales, unit = whole.block_scales(np.abs(blocks).max(axis=-1), format)
    return encode(whole.steps(blocks, unit), format.element, ties), scales
