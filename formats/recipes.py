"""Scale recipes: from the largest magnitude of a block to its E8M0 byte.

All four are one integer expression on the bits of the float32 magnitude, and differ in one
constant, the addend:

    byte = clamp(((bits(amax) + addend) >> 23) - emax, 0, 254)

The addition carries into the exponent exactly when the mantissa reaches a threshold, so a recipe is
the choice of that threshold. No float is ever converted to E8M0: that conversion truncates in one
MLIR path and rounds in another.

Edge cases, equal for all recipes unless stated:
    NaN  -> 0xFF (NaN), as torchao and aiter.
    zero -> 0x00 (2^-127), by the same expression; as ggml, torchao and aiter. Quark writes 1.
    scales below 2^-127 -> 0x00, so every subnormal amax but INT8's largest; above 2^127 -> 0xFE.
    Inf  -> 255 - emax by the same expression, as torchao; RCEIL 0xFE, as PTX
            `cvt.rp.satfinite.ue8m0x2.f32`. The elements saturate. OCP MX 1.0 leaves Inf open.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError
from mxc.formats.formats import E8M0, ElementFormat

#: Bits of the mantissa of a float32.
MANTISSA = 23
NAN_BYTE = E8M0.nan_codes[0]
_MAX_BYTE = E8M0.max_code
_INFINITY = 0xFF << MANTISSA


class ScaleRecipe(StrEnum):
    """How the scale X is chosen from amax; max and emax belong to the element type."""

    #: X = 2^(floor(log2 amax) - emax). OCP MX 1.0 section 6.3; microxcaling, ggml, torchao FLOOR.
    #: A magnitude between max * X and 2^(emax + 1) * X saturates.
    FLOOR = "floor"
    #: X = 2^(floor(log2 round(amax)) - emax), where round() rounds to the element's mantissa width,
    #: ties up. Quark `even`, aiter's Triton kernels, torchao EVEN. compressed-tensors agrees for
    #: fp4 but keeps the fp4 threshold 1.75 for 8-bit elements.
    EVEN = "even"
    #: X = 2^ceil(log2(amax / max)): the smallest power of two with which nothing saturates.
    #: cuBLAS "D block quantization", torchao RCEIL, triton_kernels ROUND_UP, modelopt.
    #: They round the quotient to float32 first, which loses the difference for one single amax of
    #: each type but INT8: the float32 after max * 2^-127, where they write 0 and this writes 1.
    RCEIL = "rceil"
    #: X = 2^(ceil(log2 amax) - emax). torchao CEIL, Quark `ceil`. The top of the element's range
    #: stays empty.
    CEIL = "ceil"


def scale_recipe(name: str) -> ScaleRecipe:
    """The recipe called `name`. Raises FormatError, listing the known names."""
    try:
        return ScaleRecipe(name)
    except ValueError as error:
        raise FormatError(
            f"unknown scale recipe {name!r}; mxc knows {', '.join(ScaleRecipe)}"
        ) from error


def addend(element: ElementFormat, recipe: ScaleRecipe) -> int:
    """The constant that `recipe` adds to the float32 bits of amax before the exponent is taken."""
    ones = (1 << MANTISSA) - 1
    if recipe is ScaleRecipe.FLOOR:
        return 0
    if recipe is ScaleRecipe.EVEN:
        # Half of the last mantissa bit that the element keeps.
        return 1 << (MANTISSA - 1 - element.mantissa)
    if recipe is ScaleRecipe.RCEIL:
        # Carries exactly when the mantissa of amax is greater than the mantissa of max.
        return ones - (int(np.float32(element.max).view(np.uint32)) & ones)
    return ones


def scale_bytes(
    amax: npt.NDArray[np.float32], element: ElementFormat, recipe: ScaleRecipe
) -> npt.NDArray[np.uint8]:
    """The E8M0 bytes, uint8, of blocks whose largest magnitudes are `amax`, float32 of any shape.

    The sign of `amax` is ignored. The module docstring lists edge cases. Never raises for a value.
    """
    bits = (np.asarray(amax, np.float32).view(np.uint32) & 0x7FFFFFFF).astype(np.int64)
    # Subnormals, extended to bits as if exponent 0 were an ordinary exponent with a leading one.
    # This matters for INT8 only: with emax > 0 the byte is 0 either way.
    ordered = np.where(bits < 1 << MANTISSA, 2 * bits - (1 << MANTISSA), bits)
    byte = ((ordered + addend(element, recipe)) >> MANTISSA) - element.emax
    byte = np.clip(byte, 0, _MAX_BYTE)
    if recipe is ScaleRecipe.RCEIL:
        byte = np.where(bits == _INFINITY, _MAX_BYTE, byte)
    return np.where(bits > _INFINITY, NAN_BYTE, byte).astype(np.uint8)
