"""Quantize and dequantize in numpy, bit for bit as OCP MX 1.0 says: the reference of all targets.

    scale byte   from the largest magnitude of a block, by a recipe (recipes.py)
    element      value / scale, rounded to nearest, ties to even by default, saturating
                 (rounding.py, section 6.3)
    value        scale * element in float32: exact, subnormals kept. Above float32's range the value
                 is Inf (section 5.1 leaves that open); a NaN scale makes the whole block NaN.

A NaN in a block makes its scale NaN; its element codes then have no meaning and are 0.

nvfp4 has other scales: nvfp4.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mxc.errors import FormatError
from mxc.formats.array_values import ArrayOfValues, Floats
from mxc.formats.formats import E8M0, BlockFormat, block_format
from mxc.formats.nvfp4 import TensorScaling, quantize_blocks, tensor_scale
from mxc.formats.packing import decode_elements, decode_scales, pack_elements
from mxc.formats.pieces import PieceIndices, pieces
from mxc.formats.recipes import ScaleRecipe, scale_bytes, scale_recipe
from mxc.formats.rounding import Ties, encode, round_to_odd, tie_rule

Bytes = npt.NDArray[np.uint8]

#: 1 / scale for every E8M0 byte; 0 for the NaN byte, because it is finite and the codes are
#: cleared.
_RECIPROCAL = np.append(np.ldexp(np.float32(1), np.arange(127, -128, -1)), 0).astype(np.float32)


@dataclass(frozen=True, eq=False)
class Quantized(ArrayOfValues):
    """A quantized tensor of logical `shape`, blocks along `axis` (0 <= axis < len(shape)).

    numpy reads its values (array_values.py). With `axis` moved last, the other axes in order, and k
    elements along it: `elements` uint8 [..., k * bits / 8], packed as packing.py says; `scales`
    uint8 [..., k / block]. `recipe` is None where nothing states it, and for nvfp4, which has no
    E8M0 scale. `tensor_scale` holds a float32 for nvfp4 (value = tensor_scale * scale * element),
    else None.

    Raises FormatError where the parts contradict each other.
    """

    elements: Bytes
    scales: Bytes
    format: BlockFormat
    recipe: ScaleRecipe | None
    axis: int
    shape: tuple[int, ...]
    tensor_scale: float | None = None

    def __post_init__(self) -> None:
        """Check that dtypes and shapes agree."""
        if not 0 <= self.axis < len(self.shape):
            raise FormatError(f"axis {self.axis} is outside of shape {list(self.shape)}")
        lead = self.shape[: self.axis] + self.shape[self.axis + 1 :]
        length = self.shape[self.axis]
        for name, array, last in (
            ("elements", self.elements, self.format.packed_bytes(length)),
            ("scales", self.scales, self.format.blocks(length)),
        ):
            if array.dtype != np.uint8 or array.shape != (*lead, last):
                raise FormatError(
                    f"{name} of {self.format} {list(self.shape)} with blocks along axis "
                    f"{self.axis} must be uint8 {[*lead, last]}, found {array.dtype} "
                    f"{list(array.shape)}; move the block axis last and pack it"
                )
        if (self.tensor_scale is not None) != self.format.tensor_scale:
            wanted = "a" if self.format.tensor_scale else "no"
            raise FormatError(
                f"{self.format} wants {wanted} tensor scale, found {self.tensor_scale}"
            )

    def values(self) -> Floats:
        """The values, as `dequantize`."""
        return dequantize(self)

    def describe(self) -> str:
        """The format and the shape."""
        return f"{self.format} {list(self.shape)}"


def quantize(
    x: npt.ArrayLike,
    format: BlockFormat | str,
    *,
    recipe: ScaleRecipe | str | None = None,
    axis: int = -1,
    ties: Ties | str = Ties.EVEN,
    negative_zero: bool = True,
) -> Quantized:
    """Quantize `x`, float16, bfloat16, float32 or float64 of any shape, in blocks along `axis`.

    `recipe` defaults to FLOOR, the recipe of OCP MX 1.0; nvfp4 takes none. `ties` applies to
    elements; the E4M3 scales of nvfp4 always round to even. Without `negative_zero`, every value
    that rounds to zero has the code 0, as ggml writes it. float64 is rounded once. Memory beyond
    the result: a few MiB.

    Raises FormatError for an unknown format, recipe, ties or dtype, an axis that is not a multiple
    of the block, a float64 beyond float32, and, for nvfp4 alone, NaN or Inf in `x`.
    """
    format = block_format(format)
    chosen, ties = chosen_recipe(format, recipe), tie_rule(ties)
    x = np.asarray(x)
    _require_float(x)
    if not -x.ndim <= axis < x.ndim:
        raise FormatError(f"axis {axis} is outside of shape {list(x.shape)}")
    axis %= x.ndim
    moved = np.moveaxis(x, axis, -1)
    lead, length = moved.shape[:-1], moved.shape[-1]
    elements = np.empty((*lead, format.packed_bytes(length)), np.uint8)
    scales = np.empty((*lead, format.blocks(length)), np.uint8)
    parts = pieces(moved.shape, format)
    whole = tensor_scale(_tensor_amax(moved, parts), format) if format.tensor_scale else None
    for part in parts:
        piece = _float32(moved[part.values])
        blocks = piece.reshape(*piece.shape[:-1], -1, format.block)
        codes, scales[part.scales] = _quantize_blocks(blocks, format, chosen, whole, ties)
        if not negative_zero:
            codes[codes == format.element.sign_bit] = 0
        elements[part.elements] = pack_elements(codes.reshape(piece.shape), format)
    factor = None if whole is None else float(whole.number)
    return Quantized(elements, scales, format, chosen, axis, x.shape, factor)


def dequantize(q: Quantized) -> Floats:
    """The values of `q`: float32, C-contiguous, of shape `q.shape`. NaN scale -> NaN block."""
    out = np.empty(q.shape, np.float32)
    moved = np.moveaxis(out, q.axis, -1)
    for part in pieces(moved.shape, q.format):
        scales = decode_scales(q.scales[part.scales], q.format)
        if q.tensor_scale is not None:
            scales = np.float32(q.tensor_scale) * scales
        elements = decode_elements(q.elements[part.elements], q.format)
        blocks = elements.reshape(*scales.shape, q.format.block)
        # Above float32's range IEEE gives Inf; Inf elements times a scale stay Inf.
        with np.errstate(over="ignore", invalid="ignore"):
            moved[part.values] = (blocks * scales[..., None]).reshape(elements.shape)
    return out


def chosen_recipe(format: BlockFormat, recipe: ScaleRecipe | str | None) -> ScaleRecipe | None:
    """The recipe that `quantize` uses: FLOOR by default, None for nvfp4. Raises FormatError."""
    if format.scale == E8M0:
        return ScaleRecipe.FLOOR if recipe is None else scale_recipe(recipe)
    if recipe is not None:
        raise FormatError(
            f"{format} has {format.scale} scales, which no recipe makes, found recipe "
            f"{str(recipe)!r}; leave the recipe out"
        )
    return None


def _require_float(x: npt.NDArray[np.generic]) -> None:
    if x.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise FormatError(
            f"quantize wants float16, bfloat16, float32 or float64, found {x.dtype}; "
            "convert the tensor first"
        )


def _float32(x: npt.NDArray[np.generic]) -> Floats:
    if x.dtype.name == "float64":
        return round_to_odd(x.astype(np.float64, copy=False))
    # The other three types are subsets of float32.
    return np.ascontiguousarray(x, np.float32)


def _amax(blocks: Floats) -> Floats:
    """Largest magnitude along the last axis; NaN where a value is NaN.

    As integers, magnitudes are ordered like the numbers, with NaN above Inf.
    """
    bits = blocks.view(np.uint32) & np.uint32(0x7FFFFFFF)
    return np.ascontiguousarray(bits.max(axis=-1)).view(np.float32)


def _tensor_amax(moved: npt.NDArray[np.generic], parts: list[PieceIndices]) -> np.float32:
    """Largest magnitude of the whole tensor, NaN if a value is NaN; 0 for an empty tensor."""
    found = [_amax(_float32(moved[part.values]).reshape(1, -1)) for part in parts]
    return np.float32(_amax(np.reshape([*found, np.zeros(1, np.float32)], (1, -1)))[0])


def _quantize_blocks(
    blocks: Floats,
    format: BlockFormat,
    recipe: ScaleRecipe | None,
    whole: TensorScaling | None,
    ties: Ties,
) -> tuple[Bytes, Bytes]:
    """Codes uint8 [.., n, block] and scale bytes uint8 [.., n] of `blocks` float32."""
    if whole is not None:
        return quantize_blocks(blocks, whole, format, ties)
    amax = _amax(blocks)
    if recipe is None:
        raise AssertionError(f"{format} has neither recipe nor tensor scale")
    scales = scale_bytes(amax, format.element, recipe)
    # The reciprocal is a power of two and the product exact, except that a product below 2^-126 may
    # round, which is far below half of the smallest number of any type. `encode` handles Inf and
    # NaN.
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        codes = encode(blocks * _RECIPROCAL[scales][..., None], format.element, ties)
    codes[np.isnan(amax)] = 0
    return codes, scales
