"""Numbers of ONNX that are quantized to: their data types, limits and codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mxc.formats import formats

#: Data types of ONNX.
UINT8, INT8, INT32, HALF, BFLOAT16 = 2, 3, 6, 10, 16
E4M3, E4M3_FNUZ, E5M2, E5M2_FNUZ, FLOAT4, E8M0 = 17, 18, 19, 20, 23, 24
#: Those that are floats of 8 and 4 bits, and their largest numbers.
FLOATS = {
    E4M3: float(formats.E4M3.max),
    E4M3_FNUZ: float(formats.E4M3FNUZ.max),
    E5M2: float(formats.E5M2.max),
    E5M2_FNUZ: float(formats.E5M2FNUZ.max),
    FLOAT4: float(formats.E2M1.max),
}
#: Data types of ONNX that are quantized to: the least and the largest number.
LIMITS: dict[int, tuple[float, float]] = {
    2: (0, 255), 3: (-128, 127), 4: (0, 65535), 5: (-32768, 32767), 21: (0, 15), 22: (-8, 7),
} | {kind: (-largest, largest) for kind, largest in FLOATS.items()}  # fmt: skip


def quantized(
    x: NDArray[Any],
    scale: NDArray[Any],
    zero: NDArray[Any] | None = None,
    *,
    axis: int,
    block: int,
    to: int,
    dtype: Any,
) -> NDArray[Any]:
    """Codes of floats, as QuantizeLinear defines them: to nearest, ties to even, saturated."""
    scales = [np.asarray(each, np.float32) for each in (scale, *([] if zero is None else [zero]))]
    for i, each in enumerate(scales):
        if each.ndim == 1 and each.size > 1:
            scales[i] = each.reshape([-1 if n == axis % x.ndim else 1 for n in range(x.ndim)])
        elif each.ndim == x.ndim and block:
            scales[i] = np.repeat(each, block, axis=axis)
    value = x.astype(np.float32) / scales[0]
    least, most = LIMITS[to]
    if to not in FLOATS:
        value = np.rint(value) + (scales[1] if len(scales) > 1 else 0)
    return np.asarray(np.clip(value, least, most).astype(dtype))
