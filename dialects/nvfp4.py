"""The scales of nvfp4: one float32 a tensor and one E4M3 a block of 16.

    tensor_scale = amax(tensor) / (448 * 6)
    scale        = E4M3(clamp(amax(block) / 6 / tensor_scale, 2^-6, 448))
    element      = E2M1(value * (1 / tensor_scale / scale));  value = tensor_scale * scale * element

All in float32, in this order; that is torchao's `nvfp4_quantize` bit for bit. compressed-tensors
and modelopt name the same numbers; the former stores 1 / tensor_scale.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mxc.dialects.errors import FormatError
from mxc.dialects.formats import BlockFormat
from mxc.dialects.rounding import encode

#: The least tensor scale: below it 1 / tensor_scale / scale could leave float32. A tensor whose
#: magnitudes are all below 2^-108, zeros too, is quantised with this one.
MIN_TENSOR_SCALE = 2.0**-120


def tensor_scale(amax: np.float32, format: BlockFormat) -> np.float32:
    """Tensor scale of a tensor whose largest magnitude is `amax`.

    Raises FormatError where `amax` is NaN or Inf: no other value would keep its meaning.
    """
    if not np.isfinite(amax):
        raise FormatError(
            f"{format} wants finite values, found a largest magnitude of {amax}; one tensor scale "
            "cannot mark a single block as NaN: use an mx format or remove the value"
        )
    largest = np.float32(format.scale.max * format.element.max)
    return max(amax / largest, np.float32(MIN_TENSOR_SCALE))


def block_scales(
    amax: npt.NDArray[np.float32], scale_of_tensor: np.float32, format: BlockFormat
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """E4M3 bytes, uint8, and multipliers of the values, float32, of blocks by their `amax`."""
    wanted = amax / np.float32(format.element.max) / scale_of_tensor
    limits = np.float32(format.scale.min_normal), np.float32(format.scale.max)
    scales = encode(np.clip(wanted, *limits), format.scale)
    return scales, np.float32(1) / scale_of_tensor / format.scale.values[scales]
