"""Quantizes rows of weights to elements, scales and loss.

bfloat16 to an MX format    blocks.py, in integers
otherwise                   reference.py, for every float type and nvfp4
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mxc.compiler.quantize.blocks import BlockKernel, Bytes, peaks
from mxc.compiler.quantize.feedback import Feedback
from mxc.compiler.quantize.inputs import CalibrationInputs
from mxc.compiler.quantize.loss import Loss, sum_of_squares
from mxc.compiler.quantize.search import SEARCH, best_nvfp4, best_powers
from mxc.errors import CheckpointError
from mxc.formats.formats import BlockFormat
from mxc.formats.nvfp4 import TensorScaling, tensor_scale
from mxc.formats.packing import decode_elements, decode_scales, pack_elements, unpack_elements
from mxc.formats.recipes import ScaleRecipe
from mxc.formats.reference import quantize
from mxc.formats.rounding import Ties, encode

Values = NDArray[np.generic]

#: Number of elements that are processed at once, so that intermediate values stay in the cache.
_PIECE = 1 << 17


@dataclass(frozen=True, kw_only=True)
class RowQuantizer:
    """Quantizes rows [n, K] of bfloat16, float16 or float32 in blocks along K. Threads may share
    it.

    - `negative_zero`: a negative number that rounds to zero keeps its sign.
    - `zero_scale`: E8M0 byte of blocks of zeros.
    - `reciprocal`: the tensor scale of nvfp4 is stored, and computed with, as its reciprocal.
    - `search`: use scales of least error near those of `recipe` (search.py).
    - `remedy`: advice in the error for NaN and Inf.
    """

    format: BlockFormat
    recipe: ScaleRecipe | None
    ties: Ties = Ties.EVEN
    negative_zero: bool = True
    zero_scale: int = 0
    reciprocal: bool = False
    search: bool = False
    remedy: str = "leave this tensor as it is with --exclude"

    def __str__(self) -> str:
        """Return format and recipe as the report prints them."""
        name = SEARCH if self.search else self.recipe
        recipe = "" if name is None else f" with recipe {name}"
        return f"{self.format}{recipe}"

    @cached_property
    def _kernel(self) -> BlockKernel:
        if self.recipe is None:
            raise AssertionError(f"{self.format} has no recipe")
        return BlockKernel(self.format, self.recipe, self.ties, self.negative_zero, self.search)

    def tensor(self, amax: np.float32) -> TensorScaling | None:
        """Return the tensor scale for the largest magnitude `amax`; None for MX formats."""
        if not self.format.tensor_scale:
            return None
        return tensor_scale(amax, self.format, reciprocal=self.reciprocal)

    def run(
        self,
        values: Values,
        place: str,
        *,
        row: int = 0,
        whole: TensorScaling | None = None,
        inputs: CalibrationInputs | None = None,
    ) -> tuple[Bytes, Bytes, Loss]:
        """Quantize rows [n, K] to elements uint8 [n, bytes], scales uint8 [n, K / block], and loss.

        `inputs`: inputs of the layer, with which the search minimizes errors of outputs. `place`
        and the number of the first `row` are for the message of CheckpointError, raised for NaN and
        Inf, which would make their whole block useless.
        """
        rows, depth = values.shape
        elements = np.empty((rows, self.format.packed_bytes(depth)), np.uint8)
        scales = np.empty((rows, self.format.blocks(depth)), np.uint8)
        loss = Loss(how=str(self))
        feedback = None if inputs is None else inputs.feedback
        step = rows if feedback is not None else max(1, _PIECE // max(depth, 1))
        for start in range(0, rows if depth else 0, step):
            part = np.ascontiguousarray(values[start : start + step])
            self.require_finite(part, place, row + start)
            if feedback is not None and inputs is not None:
                found = self._with_feedback(part, whole, inputs, feedback)
            else:
                squares = None if inputs is None else inputs.squares
                found = self._piece(part, whole, squares)
            if self.zero_scale and whole is None:
                self._mark_zeros(*found[:2])
            elements[start : start + step] = found[0].reshape(len(part), -1)
            scales[start : start + step] = found[1].reshape(len(part), -1)
            loss.add(found[2])
            if inputs is not None:
                loss.add(self._outputs(part, *found[:2], whole, inputs.sample))
        return elements, scales, loss

    def largest(self, values: Values, place: str, row: int = 0) -> np.float32:
        """Return the largest magnitude of rows. Raises as `run`."""
        return self.require_finite(values, place, row)

    def require_finite(self, values: Values, place: str, first: int = 0) -> np.float32:
        """Return the largest magnitude. CheckpointError for NaN and Inf, with `place`, row and
        column."""
        unsigned = np.dtype(f"u{values.dtype.itemsize}")
        infinity = np.array(np.inf, values.dtype).view(unsigned)
        # As integers, the magnitudes of Inf and NaN are the largest.
        magnitude = values.view(unsigned) & unsigned.type(np.iinfo(unsigned).max >> 1)
        peak = magnitude.max(initial=0)
        if peak < infinity:
            return np.float32(np.array(peak, unsigned).view(values.dtype))
        wrong = magnitude >= infinity
        row, column = np.argwhere(wrong)[0].tolist()
        raise CheckpointError(
            f"{place}: row {first + row}, column {column} is {values[row, column]}, one of "
            f"{np.count_nonzero(wrong)} numbers here that cannot be quantized; fetch the file "
            f"again, or {self.remedy}"
        )

    def _mark_zeros(self, elements: Bytes, scales: Bytes) -> None:
        least = np.flatnonzero(scales.reshape(-1) == 0)
        if least.size:
            sign = self.format.element.sign_bit
            codes = unpack_elements(elements.reshape(scales.size, -1)[least], self.format)
            zero = ((codes | np.uint8(sign)) == sign).all(axis=1)
            scales.reshape(-1)[least[zero]] = self.zero_scale

    def _piece(
        self, values: Values, whole: TensorScaling | None, squares: NDArray[np.float32] | None
    ) -> tuple[Bytes, Bytes, Loss]:
        blocks = values.reshape(-1, self.format.block)
        if squares is not None:
            squares = squares.reshape(-1, self.format.block)
        if whole is not None:
            return self._two_level(blocks, whole, squares)
        if values.dtype.name == "bfloat16":
            return self._kernel.run(blocks.view(np.uint16), squares)
        wide = blocks.astype(np.float32)
        elements, scales = self._plain(wide, squares)
        return elements, scales, self._loss(wide, elements, decode_scales(scales, self.format))

    def _with_feedback(
        self,
        values: Values,
        whole: TensorScaling | None,
        inputs: CalibrationInputs,
        feedback: Feedback,
    ) -> tuple[Bytes, Bytes, Loss]:
        """Quantize rows [n, K] with scales from the search and error feedback."""
        block = self.format.block
        wide = values.astype(np.float32)
        blocks, squares = wide.reshape(-1, block), inputs.squares.reshape(-1, block)
        if whole is None:
            _, scales = best_powers(blocks, self.format, self.ties, squares)
        else:
            amax = np.abs(blocks).max(axis=1)
            _, scales = best_nvfp4(blocks, amax, whole, self.format, self.ties, squares)
        factors = self._factors(scales, whole)
        units = factors.reshape(len(wide), -1)
        codes = feedback.run(wide, units, self.format.element, self.ties)
        if not self.negative_zero:
            codes[codes == self.format.element.sign_bit] = 0
        elements = pack_elements(codes.reshape(-1, block), self.format)
        return elements, scales, self._loss(blocks, elements, factors[:, None])

    def _factors(self, scales: Bytes, whole: TensorScaling | None) -> NDArray[np.float32]:
        """Return the factors of elements, in the shape of `scales`."""
        if whole is None:
            return decode_scales(scales, self.format)
        return whole.factors(scales, self.format)

    def _outputs(
        self,
        values: Values,
        elements: Bytes,
        scales: Bytes,
        whole: TensorScaling | None,
        sample: NDArray[np.float32],
    ) -> Loss:
        """Return the loss of the outputs on a sample [s, K] of inputs."""
        wide = values.astype(np.float32)
        numbers = decode_elements(elements.reshape(scales.size, -1), self.format)
        numbers = numbers * self._factors(scales.reshape(-1), whole)[:, None]
        error = numbers.reshape(wide.shape) - wide
        return Loss(
            output_signal=sum_of_squares(wide @ sample.T),
            output_noise=sum_of_squares(error @ sample.T),
        )

    def _loss(
        self, wide: NDArray[np.float32], elements: Bytes, factors: NDArray[np.float32]
    ) -> Loss:
        """Return the loss of blocks [n, 32] whose elements are multiplied by `factors` [n, 1]."""
        # A product beyond float32 is Inf, and so is its error.
        with np.errstate(over="ignore"):
            noise = sum_of_squares(decode_elements(elements, self.format) * factors - wide)
            limit = factors * np.float32(self.format.element.max)
        return Loss(
            elements=wide.size,
            signal=sum_of_squares(wide),
            noise=noise,
            saturated=int(np.count_nonzero(np.abs(wide) > limit)),
        )

    def _plain(
        self, wide: NDArray[np.float32], squares: NDArray[np.float32] | None
    ) -> tuple[Bytes, Bytes]:
        """Return elements and scales of float32 blocks [n, 32]."""
        if self.search:
            codes, scales = best_powers(wide, self.format, self.ties, squares)
            if not self.negative_zero:
                codes[codes == self.format.element.sign_bit] = 0
            return pack_elements(codes, self.format), scales[:, None]
        q = quantize(
            wide,
            self.format,
            recipe=self.recipe,
            ties=self.ties,
            negative_zero=self.negative_zero,
        )
        return q.elements, q.scales

    def _two_level(
        self, blocks: Values, whole: TensorScaling, squares: NDArray[np.float32] | None
    ) -> tuple[Bytes, Bytes, Loss]:
        """Quantize blocks [n, 16] with a tensor scale; sums are in units of an element."""
        element = self.format.element
        wide = blocks.astype(np.float32)
        if blocks.dtype.name == "bfloat16":
            bits = peaks(blocks.view(np.uint16))
            amax = bits.view(blocks.dtype).astype(np.float32)
        else:
            amax = np.abs(wide).max(axis=1)
        if self.search:
            codes, scales = best_nvfp4(wide, amax, whole, self.format, self.ties, squares)
            steps = wide / whole.factors(scales, self.format)[:, None]
        else:
            scales, unit = whole.block_scales(amax, self.format)
            steps = whole.steps(wide, unit)
            codes = encode(steps, element, self.ties)
        error = element.values.take(codes)
        error -= steps
        squares = np.square(whole.factors(scales, self.format).astype(np.float64))
        loss = Loss(
            elements=steps.size,
            signal=float((np.einsum("ij,ij->i", steps, steps) * squares).sum()),
            noise=float((np.einsum("ij,ij->i", error, error) * squares).sum()),
            saturated=int(np.count_nonzero(np.abs(steps, out=steps) > np.float32(element.max))),
        )
        return pack_elements(codes, self.format), scales, loss
